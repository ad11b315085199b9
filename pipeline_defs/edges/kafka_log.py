"""The log itself: record batches over an interval of offsets, told apart without decoding a record.

kafka-python's admin client has no public fetch; the two functions that use its connection manager stand here
(docs/design/0003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NoError, OffsetOutOfRangeError, for_code
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

from ..core.holes import SpanKind

FETCH_BYTES = 1024 * 1024
_BY_NAME = 12  # the newest Fetch version that names topics; later ones take topic ids

Fetched = Any  # one partition's part of kafka-python's FetchResponse: `records`, `aborted_transactions`


@dataclass(frozen=True, slots=True)
class Batch:
    """Is one record batch of the log: offsets `[start, end)`, what it is to a reader, its first timestamp."""

    start: int
    end: int
    kind: SpanKind
    first_timestamp_ms: int


def read_batches(fetch: Callable[[int], Fetched], start: int, end: int) -> Iterator[Batch]:
    """Yields the batches that the log holds from `start` on, until `end` is reached or nothing is left.

    Those that were fetched although they lie behind `end` are yielded too: they may serve the next hole.
    """
    at = start
    while at < end:
        data = fetch(at)
        records = MemoryRecords(bytes(data.records or b""))
        aborted = sorted((txn.first_offset, txn.producer_id) for txn in data.aborted_transactions or ())
        aborting: set[int] = set()
        reached = at
        while (batch := records.next_batch()) is not None:
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
                yield Batch(batch.base_offset, batch.next_offset, kind, batch.first_timestamp)
        if reached <= at:
            return
        at = reached


def fetch_request(topic: str, partition: int, offset: int, isolation_level: int, max_bytes: int) -> FetchRequest:
    """Is the request for the log of one Kafka partition from an offset on, `max_bytes` of it and at least one batch."""
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


def send_fetch(admin: KafkaAdminClient, partition: TopicPartition, request: FetchRequest) -> Fetched:
    """Sends a fetch to the partition's leader; offsets that the log does not hold are answered with no records."""

    async def send() -> Any:
        leader = next(iter(await admin._async_get_leader_for_partitions({partition})))
        return await admin._manager.send(request, node_id=leader)

    data = admin._manager.run(send).responses[0].partitions[0]
    error = for_code(data.error_code)
    if error not in {NoError, OffsetOutOfRangeError}:
        raise error(f"fetch of {partition.topic}/{partition.partition}")
    return data
