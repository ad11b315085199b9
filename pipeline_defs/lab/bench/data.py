"""The load: records that look like real ones, produced to a topic of their own.

A value is JSON text: names that repeat, words, and random hex; zstd halves it. Invariant: the same load is the same
bytes each time, and no two values are equal, so that no dictionary helps anyone.
"""

import random
from collections.abc import Iterable, Iterator

from ...adapters.kafka.producer import Record
from ..producing import produce_all
from .rounds import Load

SEED = 11
POOL_BYTES = 8 * 1024 * 1024  # more than a Parquet page or a Kafka batch, so that repeats are out of reach
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
    """Produce the load, or other values, in turn to each Kafka partition; the keys are customers."""
    keyed = (
        Record(b"customer-%07d" % (number * 7919 % 1_000_003), value, partition=number % load.kafka_partitions)
        for number, value in enumerate(values(load) if records is None else records)
    )
    produce_all(bootstrap_servers, topic, keyed, "nothing was measured")


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
