"""The load: records that look like real ones, produced to a topic of their own with confluent-kafka.

A value is JSON text: names that repeat, words, and random hex; zstd halves it. Invariant: the same load is the same
bytes each time, and no two values are equal, so that no dictionary helps anyone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from .rounds import Load

SEED = 11
POOL_BYTES = 8 * 1024 * 1024  # more than a Parquet page or a Kafka batch, so that repeats are out of reach
POLL_EVERY = 10_000
_SYLLABLES = "ba co di fe gu ha jo ki la me no pu qua re si to ul ve wi xe ya zo tra ble ing er"
_STATES = ("created", "paid", "packed", "shipped", "delivered", "returned")


def values(load: Load) -> Iterator[bytes]:
    """Yield the values of a load, each of exactly its size and each another."""
    chance = random.Random(SEED + load.value_bytes)  # noqa: S311 (no secret)
    syllables = _SYLLABLES.split()
    vocabulary = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(4000)]
    pool = [_body(load.value_bytes, chance, vocabulary) for _ in range(max(64, POOL_BYTES // load.value_bytes))]
    for number in range(load.records):
        head = b'{"order_id":%09d,' % number
        yield head + pool[number % len(pool)][: load.value_bytes - len(head)]


def produce(bootstrap_servers: str, topic: str, load: Load, records: Iterable[bytes] | None = None) -> None:
    """Produce the load, or other values, in turn to each Kafka partition, and return when all is acknowledged by all.

    The keys are customers.
    """
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 50,
            "compression.type": "lz4",
            "log_level": 3,  # the broker is young: librdkafka would say so
            "queue.buffering.max.messages": 200_000,
        }
    )
    failures: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    for number, value in enumerate(values(load) if records is None else records):
        key = b"customer-%07d" % (number * 7919 % 1_000_003)
        while True:
            try:
                producer.produce(topic, value, key, partition=number % load.kafka_partitions, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    producer.flush()
    if failures:
        raise KafkaException(failures[0])


def _body(size: int, chance: random.Random, vocabulary: list[str]) -> bytes:
    parts: list[str] = []
    length = 0
    while length < size:
        part = (
            f'"state":"{chance.choice(_STATES)}","sum":{chance.randint(1, 99999)},'
            f'"trace":"{chance.randbytes(16).hex()}","note":"{" ".join(chance.choices(vocabulary, k=6))}",'
        )
        parts.append(part)
        length += len(part)
    return "".join(parts)[:size].encode()
