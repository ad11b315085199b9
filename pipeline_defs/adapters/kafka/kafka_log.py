"""The log itself: record batches over an interval of offsets, told apart without decoding a record.

kafka-python's admin client has no public fetch, so its connection manager is used here (docs/design/0003).
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, NoError, OffsetOutOfRangeError, UnsupportedCodecError, for_code
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint

from ...core.errors import BrokerUnavailable, Unavailable
from ...core.log.holes import BatchSpan, SpanKind
from ...core.raw_columns import TIMES_TO_MS

FETCH_BYTES = 1024 * 1024
SHORTEST_WAIT = 0.1  # seconds, while a quota is used up
LOOKS = (1, 1, 4 * 1024, 64 * 1024, FETCH_BYTES)  # bytes of each fetch, at least a batch, that looks for a first record
_DELETE_HORIZON = 0x40  # attribute of a batch with a tombstone or marker that the cleaner has seen (KIP-534)
_BY_NAME = 12  # the newest Fetch version that names topics; later ones take topic ids

Fetched = Any  # one partition's part of kafka-python's FetchResponse: `records`, `aborted_transactions`, how far a reader sees
Headers = Sequence[tuple[str, bytes | None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as the log has it; `timestamp_type` is as Kafka numbers it, 1 if the broker has set the time."""

    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One record batch of the log, with the span that evidence needs.

    `is_whole` says that it is of today's format and its checksum is right: kafka-python tells only before a record is read.
    """

    span: BatchSpan
    raw: Any
    is_whole: bool = False

    def look_into(self) -> BatchSpan:
        """Return the span with the offsets of its records; without them if the batch cannot be decompressed here.

        Raises `Unavailable` if the batch is damaged.
        """
        if self.span.offsets is not None:
            return self.span
        try:
            return replace(self.span, offsets=tuple(offset for offset, _, _ in _find_records(self.raw)))
        except UnsupportedCodecError:
            return self.span

    def first_time(self, offset: int) -> int | None:
        """Return the timestamp (ms since 1970) of its first record from an offset on, none if no record is there.

        A record without one has Kafka's -1. If the header is enough, as for any batch that no cleaner has seen, it is that of
        the batch's first record; if the records cannot be read here, it is what the header has.
        """
        batch, span = self.raw, self.span
        if span.offsets is not None:
            return next((-1 if each.timestamp is None else each.timestamp for each in batch if each.offset >= offset), None)
        if not span.records:
            return None
        is_dense = offset <= span.start or span.records == span.end - span.start
        if self.is_whole and (not is_dense or batch.attributes & _DELETE_HORIZON):
            with suppress(UnsupportedCodecError, Unavailable):
                return next((time for at, time, _ in _find_records(batch) if at >= offset), None)
        return batch.max_timestamp if batch.attributes & _DELETE_HORIZON else _time_of(batch, 0)


def read_batches(fetch: Callable[[int], Fetched], start: int, end: int) -> Iterator[RecordBatch]:
    """Yield the batches that the log holds from `start` on, until `end` is reached or nothing is left.

    Batches behind `end` that were fetched along are yielded too: they may explain the next hole.
    """
    at = start
    while at < end:
        data = fetch(at)
        records = MemoryRecords(bytes(data.records or b""))
        aborted = sorted((txn.first_offset, txn.producer_id) for txn in data.aborted_transactions or ())
        aborting: set[int] = set()
        reached = at
        while (batch := _next_batch(records, at)) is not None:
            if not isinstance(batch, DefaultRecordBatch):
                found = _legacy(batch)
                reached = max(reached, found.span.end)
                if found.span.end > start:
                    yield found
                continue
            reached = max(reached, batch.next_offset)
            while aborted and aborted[0][0] <= batch.last_offset:
                aborting.add(aborted.pop(0)[1])
            if batch.is_control_batch:
                aborting.discard(batch.producer_id)
                kind = SpanKind.CONTROL
            else:
                is_aborted = batch.is_transactional and batch.producer_id in aborting
                kind = SpanKind.ABORTED if is_aborted else SpanKind.DATA
            if batch.next_offset > start:
                span = BatchSpan(batch.base_offset, batch.next_offset, kind, batch.records_count)
                yield RecordBatch(span, batch, batch.validate_crc())
        if reached <= at:
            return
        at = reached


def _next_batch(records: MemoryRecords, offset: int) -> Any:
    try:
        return records.next_batch()
    except (KafkaError, struct.error) as error:
        raise Unavailable(
            f"what the broker sends of the log from offset {offset} on is no record batch: {type(error).__name__}; nothing of "
            "its range was written; have its replica restored from another broker"
        ) from error


def find_first_time(fetched: Fetched, offset: int) -> tuple[int | None, int | None]:
    """Return the timestamp (ms since 1970) of the first record that a reader sees in a fetch from an offset on, and an offset.

    The timestamp is none if there is no record or it has none. The offset is where to look next, none if a record was
    found or the reader sees no more.
    """
    reached = offset
    for batch in read_batches(lambda _: fetched, offset, offset + 1):
        if batch.span.kind is SpanKind.DATA and (time := batch.first_time(offset)) is not None:
            return (time if time >= 0 else None), None
        reached = batch.span.end
    end = fetched.last_stable_offset if fetched.last_stable_offset >= 0 else fetched.high_watermark
    return None, (reached if offset < reached < end else None)


def _time_of(batch: DefaultRecordBatch, delta: int) -> int:
    """Return a record's time as Kafka's own reader does: its delta to the header's first time, whatever that stands for.

    If the broker sets the time, it is the header's greatest: the first is still the producer's. In a batch with a delete
    horizon the first time is that horizon.
    """
    return int(batch.max_timestamp if batch.timestamp_type == batch.LOG_APPEND_TIME else batch.first_timestamp + delta)


def _find_records(batch: DefaultRecordBatch) -> Iterator[tuple[int, int, int]]:
    """Yield offset and timestamp (ms since 1970) of each record of a batch, and where in its buffer the rest of it begins.

    Records are not left to kafka-python, which takes header keys for UTF-8: Kafka takes any bytes. Raises
    `UnsupportedCodecError`, and `Unavailable` if the batch is not as its header says.
    """
    try:
        iter(batch)  # decompresses
        data, at = batch._buffer, batch._pos
        for _ in range(batch.records_count):
            length, begin = decode_varint(data, at)
            if not 0 < length <= len(data) - begin:
                raise ValueError(f"a record of {length} bytes at byte {begin} of {len(data)}")
            time_delta, pos = decode_varint(data, begin + 1)  # behind a byte of attributes
            offset_delta, pos = decode_varint(data, pos)
            yield batch.base_offset + offset_delta, _time_of(batch, time_delta), pos
            at = begin + length
        if at != len(data):
            raise ValueError(f"its records end at byte {at} of {len(data)}")
    except UnsupportedCodecError:
        raise
    except Exception as error:  # each codec has errors of its own
        raise _damaged(batch, type(error).__name__) from error


def _legacy(batch: Any) -> RecordBatch:
    """Read a message set from before Kafka 0.11, whose header has neither its first offset nor a count.

    Brokers from 4.0 on accept no such message, but still send what lies on their disks (KIP-724).
    """
    try:
        if not batch.validate_crc():
            raise CorruptRecordError("its checksum is another one")
        offsets = tuple(record.offset for record in batch)
        span = BatchSpan(offsets[0], offsets[-1] + 1, SpanKind.DATA, len(offsets), offsets)
    except Exception as error:  # each codec has errors of its own, which may quote the data
        what = str(error) if isinstance(error, KafkaError) else type(error).__name__
        raise Unavailable(
            f"records of Kafka's message format {batch.magic} behind offset {batch.base_offset} cannot be read: {what}; what "
            "they hold is not known, so nothing of their range was written; have them copied to a topic of today's format "
            "(MirrorMaker, or a consumer that produces them again)"
        ) from error
    return RecordBatch(span, batch)


def has_untellable(batches: Iterable[RecordBatch]) -> bool:
    """Return whether some record has a time that no column can hold, which Spark cannot read.

    If a batch cannot be decompressed here, only its header is asked; damaged batches and those of an old format are not.
    """
    return any(abs(time) > TIMES_TO_MS for batch in batches if batch.is_whole for time in _times_of(batch.raw))


def _times_of(batch: DefaultRecordBatch) -> Sequence[int]:
    try:
        return [time for _, time, _ in _find_records(batch)]
    except UnsupportedCodecError:
        return _time_of(batch, 0), batch.max_timestamp


def read_records(batches: Iterable[RecordBatch], start: int, end: int) -> Iterator[LogRecord]:
    """Yield the records in `[start, end)`, without those of aborted transactions.

    Raises `Unavailable` if a batch is damaged, of an old format, or compressed by a codec that is missing here.
    """
    for batch in batches:
        if batch.span.kind is SpanKind.DATA and batch.span.start < end:
            yield from (record for record in _read_batch(batch) if start <= record.offset < end)


def _read_batch(found: RecordBatch) -> list[LogRecord]:
    batch = found.raw
    if not isinstance(batch, DefaultRecordBatch):
        raise Unavailable("records of before Kafka 0.11 are not read from the log; nothing of their range was written")
    if not found.is_whole:
        raise _damaged(batch, "its checksum is another one")
    try:
        places = list(_find_records(batch))
        kind, data = batch.timestamp_type, batch._buffer
        return [LogRecord(offset, time, kind, *_read_body(data, at)) for offset, time, at in places]
    except (IndexError, ValueError) as error:
        raise _damaged(batch, type(error).__name__) from error
    except UnsupportedCodecError as error:
        raise Unavailable(
            f"the record batch at offset {batch.base_offset} cannot be decompressed here: {error}; nothing of its range was "
            "written; install that library (`python-snappy` for snappy), and the next run lands the range"
        ) from error


def _damaged(batch: DefaultRecordBatch, why: str) -> Unavailable:
    return Unavailable(
        f"the record batch at offset {batch.base_offset} is damaged on the broker: {why}; what it holds is not known, so "
        "nothing of its range was written; `kafka-dump-log.sh --deep-iteration` shows it; have its replica restored from "
        "another broker"
    )


def _read_body(data: Any, at: int) -> tuple[bytes | None, bytes | None, Headers]:
    """Return key, value and headers of a record; `at` is where its key's length begins."""

    def read_bytes(at: int) -> tuple[bytes | None, int]:
        length, at = decode_varint(data, at)
        return (None, at) if length < 0 else (bytes(data[at : at + length]), at + length)

    key, at = read_bytes(at)
    value, at = read_bytes(at)
    count, at = decode_varint(data, at)
    headers = []
    for _ in range(count):
        name, at = read_bytes(at)
        content, at = read_bytes(at)
        headers.append(((name or b"").decode(errors="replace"), content))
    return key, value, headers


def fetch_request(topic: str, partition: int, offset: int, isolation_level: int, max_bytes: int) -> FetchRequest:
    """Return the request for the log of one Kafka partition from an offset on, `max_bytes` of it and at least one batch."""
    part = FetchRequest.FetchTopic.FetchPartition(
        partition=partition,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[part])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=4,
        max_version=_BY_NAME,
    )


def send_fetches(
    admin: KafkaAdminClient, requests: Mapping[TopicPartition, FetchRequest], take: Callable[[TopicPartition, Fetched], T]
) -> dict[int, T]:
    """Send fetches of one topic to the leaders of its Kafka partitions; return what `take` makes of each answer.

    Answers themselves are not kept. Offsets that the log does not hold are answered with no records. Leaders are asked for
    once; then fetches go one after another, as kafka-python refuses a sixth while five are in flight. A used-up quota is
    waited for, within one request's time-out for all of them.
    """
    deadline = monotonic() + admin.config["request_timeout_ms"] / 1000

    async def send() -> dict[int, T]:
        found = {}
        for node, own in (await admin._async_get_leader_for_partitions({*requests})).items():
            for each in own:
                while not (told := await admin._manager.send(requests[each], node_id=node)).responses:
                    seconds = max(told.throttle_time_ms / 1000, SHORTEST_WAIT)
                    if monotonic() + seconds > deadline:
                        admin._manager.close(node)  # else it takes no request for so long, and all share it
                        raise _throttled(admin, node, each, seconds)
                    await admin._net.sleep(seconds)
                answer = told.responses[0].partitions[0]
                error = for_code(answer.error_code)
                if error not in {NoError, OffsetOutOfRangeError}:
                    raise error(f"fetch of {each.topic}/{each.partition}")
                found[each.partition] = take(each, answer)
        return found

    sent: dict[int, T] = admin._manager.run(send)
    return sent


def _throttled(admin: KafkaAdminClient, node: int, place: TopicPartition, seconds: float) -> BrokerUnavailable:
    name, most = admin.config["client_id"], admin.config["request_timeout_ms"] / 1000
    return BrokerUnavailable(
        f"Kafka broker {node} sends nothing of the log of {place.topic}/{place.partition}: a quota of our user or client id "
        f"{name} is used up, it makes us wait {seconds:.1f} s more, expected an answer within {most:g} s in all; nothing was "
        "written and nothing is lost; it is asked again later, and where it stays so, raise that quota's consumer_byte_rate or "
        "request_percentage: `kafka-configs.sh --describe --entity-type users --entity-type clients` shows it",
        broker=node,
    )
