"""Producing records to Kafka, for demos, tests and drills; not a part of landing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaProducer
from kafka.errors import KafkaError

from ..core.errors import BrokerUnavailable, Refused

PROGRESS_EVERY = 5_000


@dataclass(frozen=True, slots=True)
class Record:
    """Is one record to produce; where no partition is named, Kafka chooses it by the key's hash."""

    key: bytes | None
    value: bytes
    timestamp_ms: int | None = None
    partition: int | None = None


def read_jsonl(path: Path, key_field: str | None, timestamp_field: str | None = None) -> Iterator[Record]:
    """Reads records from JSON lines, gzipped or not: each line is a value, one of its fields the key."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            value = line.rstrip(b"\r\n")
            if not value:
                continue
            try:
                document = json.loads(value)
                if not isinstance(document, dict):
                    raise ValueError("not a JSON object")
                key = document[key_field] if key_field else None
                timestamp = int(document[timestamp_field]) if timestamp_field else None
            except (ValueError, TypeError, KeyError) as error:
                reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
                raise Refused(
                    f"{path}:{number} is not a record to produce: {reason}; the lines before it were produced; expected "
                    f"one JSON object per line{f' with a field {key_field}' if key_field else ''}"
                ) from error
            yield Record(None if key is None else str(key).encode(), value, timestamp)


def produce(
    bootstrap_servers: str, topic: str, records: Iterable[Record], progress: Callable[[int], None] = lambda count: None
) -> int:
    """Produces records with acks=all and idempotence; returns how many the broker has acknowledged."""
    count = 0
    try:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=50,
            batch_size=256 * 1024,
            compression_type="lz4",
            bootstrap_timeout_ms=20_000,
        )
        failures: list[BaseException] = []
        try:
            for record in records:
                future = producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                future.add_errback(failures.append)
                count += 1
                if count % PROGRESS_EVERY == 0:
                    progress(count)
            producer.flush()
        finally:
            producer.close()
        if failures:
            raise failures[0]
    except KafkaError as error:
        raise BrokerUnavailable(
            f"producing to {topic} at {bootstrap_servers} failed after {count} records: {type(error).__name__}: {error}; "
            "what was acknowledged is on the broker"
        ) from error
    progress(count)
    return count
