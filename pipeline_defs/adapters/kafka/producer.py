"""Producing records to Kafka, for demos, tests and drills; not a part of landing.

Invariant: a record counts as acknowledged only where the broker has said so, and in a transaction once it is committed.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kafka import KafkaProducer
from kafka.errors import KafkaError, MessageSizeTooLargeError

from ...core.advice import counted
from ...core.errors import BadSetting, BrokerUnavailable, Refused, cause_of
from ..system.outage import ask_within
from .access import OPEN, Access
from .kafka_knock import knock

PROGRESS_EVERY = 5_000
RECORDS_PER_TRANSACTION = 1_000
BOOTSTRAP_SECONDS = 20.0
ABORT_SECONDS = 30.0  # for a broker that does not answer; it then aborts by itself, after the transaction's time-out
Acks = Literal["0", "1", "all"]


@dataclass(frozen=True, slots=True)
class Record:
    """One record to produce; where no partition is named, Kafka chooses it by the key's hash."""

    key: bytes | None
    value: bytes
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What a producer asks of the broker, in kafka-python's words; raises `BadSetting` for settings that contradict each other.

    | acks | acknowledged means |
    |---|---|
    | `0` | sent: nobody has said anything |
    | `1` | the leader has it; lost with the leader, where no follower has fetched it yet |
    | `all` | every replica in sync has it, at least `min.insync.replicas` of them |

    Idempotence is the default with `acks=all`: a record that is sent again is stored once.
    """

    acks: Acks = "all"
    enable_idempotence: bool | None = None
    transactional_id: str | None = None
    records_per_transaction: int | None = None

    def __post_init__(self) -> None:
        wrong = []
        if self.enable_idempotence and self.acks != "all":
            wrong.append(f"idempotence needs acks=all, found acks={self.acks}")
        if self.transactional_id is not None:
            if self.acks != "all":
                wrong.append(f"a transactional id needs acks=all, found acks={self.acks}")
            if self.enable_idempotence is False:
                wrong.append("a transactional id needs idempotence, which is switched off")
        elif self.records_per_transaction is not None:
            wrong.append("records per transaction need a transactional id, and none is given")
        if wrong:
            raise BadSetting(f"these producer options contradict each other: {'; '.join(wrong)}; nothing was produced")

    def config(self) -> dict[str, Any]:
        """Derive kafka-python's configuration."""
        return {
            "acks": "all" if self.acks == "all" else int(self.acks),
            "enable_idempotence": self.acks == "all" if self.enable_idempotence is None else self.enable_idempotence,
            "transactional_id": self.transactional_id,
        }


def read_jsonl(path: Path, key_field: str | None, timestamp_field: str | None = None) -> Iterator[Record]:
    """Read records from JSON lines, gzipped or not: each line is a value, one of its fields the key.

    Raises `Refused` with the number of a line that is not one JSON object, or lacks a field; its contents are not shown.
    """
    fields = "".join(f" with a field {field}" for field in (key_field, timestamp_field) if field)
    for number, line in _read_lines(path):
        value = line.rstrip(b"\r")
        if not value:
            continue
        try:
            document = json.loads(value.decode(), parse_constant=_refuse_constant)
            if not isinstance(document, dict):
                raise ValueError("not a JSON object")
            key = document[key_field] if key_field else None
            timestamp_ms = _timestamp(document[timestamp_field]) if timestamp_field else None
        except (ValueError, KeyError, RecursionError) as error:
            raise Refused(
                f"{path}:{number} is not a record to produce: {cause_of(error)}; expected one JSON object per line{fields}"
            ) from error
        text = key if isinstance(key, str) else json.dumps(key)
        yield Record(None if key is None else text.encode(errors="surrogatepass"), value, timestamp_ms)


def read_raw(path: Path, separator: bytes = b"\t") -> Iterator[Record]:
    """Read each line's bytes as they are, as a record: key, separator, value; a line without separator is a value."""
    for _, line in _read_lines(path):
        key, found, value = line.partition(separator) if separator else (b"", b"", line)
        yield Record(key, value) if found else Record(None, line)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, gzipped or not, each with its number; raises `Refused` if the file ends too early."""
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                yield number, line.removesuffix(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(
            f"{path} cannot be read behind line {number}: {error}; expected text, or text as gzip packs it"
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _timestamp(found: object) -> int:
    """Return a timestamp in ms since 1970; refuse what no Kafka record can have."""
    if isinstance(found, int | str) and not isinstance(found, bool):
        with suppress(ValueError):
            moment = int(found)
            if 0 <= moment < 2**63:
                return moment
    raise ValueError("the timestamp is not a whole number of ms since 1970")


class _Tally:
    """Counts of the records sent and acknowledged; acknowledgements come on the producer's own thread."""

    def __init__(self, topic: str, progress: Callable[[int], None]) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._topic = topic
        self._progress = progress

    def send(self, producer: KafkaProducer, record: Record) -> None:
        """Hand one record to the producer; raise `Refused` if it is larger than a request may be."""
        try:
            future = producer.send(
                self._topic, key=record.key, value=record.value, partition=record.partition, timestamp_ms=record.timestamp_ms
            )
        except MessageSizeTooLargeError as error:
            size = len(record.key or b"") + len(record.value or b"")
            raise Refused(
                f"record {self.sent + 1:,} has {size:,} bytes, expected at most {producer.config['max_request_size']:,} with "
                "what Kafka puts around it"
            ) from error
        self.sent += 1
        future.add_callback(self._acknowledge)
        future.add_errback(self._fail)
        if self.sent % PROGRESS_EVERY == 0:
            self._progress(self.sent)

    def told(self, guarantees: Guarantees) -> str:
        """Return in words what became of the records sent so far."""
        if guarantees.transactional_id is not None:
            lost = self.sent - self.acknowledged
            return f"{counted(self.acknowledged, 'record')} before it committed, {lost} of its transaction aborted"
        sent = f"{counted(self.sent, 'record')} before it sent"
        return sent if guarantees.acks == "0" else f"{sent}, {self.acknowledged:,} of them acknowledged"

    def _acknowledge(self, _: object) -> None:
        self.acknowledged += 1

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error


def produce(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[Record],
    progress: Callable[[int], None] = lambda count: None,
    guarantees: Guarantees = Guarantees(),
    access: Access = OPEN,
) -> int:
    """Produce records and return how many were acknowledged: all, else it raises with that and how many it sent.

    With a transactional id it returns how many are committed, and a failure aborts the open transaction; with `acks=0`
    how many were sent. Raises `BrokerUnavailable`, and `Refused` if reading the records does, with what was sent before.
    """
    tally = _Tally(topic, progress)
    if access.path is not None:  # a refused login is reported at once
        knock(bootstrap_servers, access, BOOTSTRAP_SECONDS)
    try:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            linger_ms=50,
            batch_size=256 * 1024,
            compression_type="lz4",
            bootstrap_timeout_ms=int(BOOTSTRAP_SECONDS * 1000),
            **access.kafka_python(),
            **guarantees.config(),
        )
        _send_all(producer, records, tally, guarantees)
        if tally.failure is not None:
            raise tally.failure
    except Refused as error:
        raise Refused(f"{error.message}; {tally.told(guarantees)}; nothing behind it was sent") from error
    except KafkaError as error:
        done = "committed" if guarantees.transactional_id else "acknowledged"
        raise BrokerUnavailable(
            f"producing to {topic} at {bootstrap_servers} failed: {type(error).__name__}: {error}; of {tally.sent} records "
            f"{tally.acknowledged} are {done} and {tally.sent - tally.acknowledged} are not"
            + (": no reader of committed records sees these" if guarantees.transactional_id else ", on the broker or not"),
            sent=tally.sent,
            acknowledged=tally.acknowledged,
        ) from error
    progress(tally.sent)
    return tally.acknowledged


def _send_all(producer: KafkaProducer, records: Iterable[Record], tally: _Tally, guarantees: Guarantees) -> None:
    """Send records; a failure aborts the open transaction and leaves the committed ones."""
    is_transactional, each = guarantees.transactional_id is not None, guarantees.records_per_transaction
    committed, is_open, is_answering = 0, False, True
    try:
        if is_transactional:
            producer.init_transactions()
        for record in records:
            if tally.failure is not None and not getattr(tally.failure, "retriable", False):  # send nothing more
                raise tally.failure
            if is_transactional and not is_open:
                producer.begin_transaction()
                is_open = True
            tally.send(producer, record)
            if is_open and tally.sent - committed == (each or RECORDS_PER_TRANSACTION):
                producer.commit_transaction()
                committed, is_open = tally.sent, False
        if is_open:
            producer.commit_transaction()
            committed, is_open = tally.sent, False
        producer.flush()
    finally:
        if is_transactional:
            tally.acknowledged = committed
        if is_open:
            is_answering = _abort(producer)
        producer.close(timeout=None if is_answering else 0)


def _abort(producer: KafkaProducer) -> bool:
    """Abort the open transaction and return whether the broker answered: kafka-python alone would wait for ever."""
    try:
        with suppress(KafkaError):  # a fenced producer has nothing to abort
            ask_within(ABORT_SECONDS, producer.abort_transaction)
    except OSError:  # a time-out is one
        return False
    return True
