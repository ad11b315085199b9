"""Open transactions of a Kafka topic: who holds back what, and whether anybody can still end them.

kafka-python's `find_hanging_transactions` looks only among those that a coordinator knows, so it misses those that their
coordinator has lost, which hang for ever. Invariant: a transaction that has ended meanwhile is never named.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import TransactionDescription, TransactionListing, TransactionState
from kafka.errors import TransactionalIdNotFoundError

from .kafka_connection import NO_ANSWER, SilentBrokers

OVERDUE_SECONDS = 300  # past the transaction's time-out, as in Kafka's own tool
UNTOLD = "if this login may Describe its transactional id"
_RUNNING = {
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
}


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that holds back the last stable offset of a Kafka partition, by `held_offsets` offsets.

    `hanging` says why nobody will end it; none if its producer or its coordinator still can.
    """

    partition: int
    first_offset: int
    held_offsets: int
    producer_id: int
    transactional_id: str | None
    started_at_ms: int | None
    hanging: str | None


def find_open(
    admin: KafkaAdminClient, topic: str, high_watermarks: Mapping[int, int], now_ms: int, silent: SilentBrokers, until: float
) -> list[OpenTransaction]:
    """Find the open transactions of some Kafka partitions, given with their high watermarks.

    The log is asked before and after the coordinators: what both its answers have is open, and hangs if no coordinator has it;
    while brokers are `silent`, nobody knows that. `until` is that of `SilentBrokers.give_up`.
    """
    partitions = [TopicPartition(topic, p) for p in sorted(high_watermarks)]
    before = _read_open(admin, partitions)
    if not before:
        return []
    were_silent = silent.now
    known = _describe(admin, {producer_id for _, _, producer_id in before}, silent, until)
    is_certain, found = not were_silent | silent.now, []
    for place in sorted(before & _read_open(admin, partitions)):
        partition, first_offset, producer_id = place
        name, detail = known.get(producer_id, (None, None))
        started = detail.transaction_start_time_ms if detail is not None else -1
        found.append(
            OpenTransaction(
                partition,
                first_offset,
                max(0, high_watermarks[partition] - first_offset),
                producer_id,
                name,
                started if started >= 0 else None,
                _why_hanging(detail, TopicPartition(topic, partition), now_ms) if detail is not None or is_certain else None,
            )
        )
    return found


def _read_open(admin: KafkaAdminClient, partitions: Sequence[TopicPartition]) -> set[tuple[int, int, int]]:
    """Read partition, first offset and producer id of each transaction that the log has open."""
    return {
        (tp.partition, producer.current_transaction_start_offset, producer.producer_id)
        for tp, state in admin.describe_producers(partitions).items()
        for producer in state.active_producers
        if producer.current_transaction_start_offset >= 0
    }


def _describe(
    admin: KafkaAdminClient, producer_ids: set[int], silent: SilentBrokers, until: float
) -> dict[int, tuple[str | None, TransactionDescription | None]]:
    """Read the transactional id of each producer, and what its coordinator says of it; none if it has forgotten."""
    found: dict[int, tuple[str | None, TransactionDescription | None]] = {}
    for listing in _list(admin, producer_ids, silent, until):
        try:
            (detail,) = admin.describe_transactions([listing.transactional_id]).values()
        except TransactionalIdNotFoundError:  # expired since it was listed
            detail = None
        found[listing.producer_id] = (listing.transactional_id, detail)
    return found


def _list(admin: KafkaAdminClient, producer_ids: set[int], silent: SilentBrokers, until: float) -> Iterator[TransactionListing]:
    """List the producers' transactions at each broker that answers."""
    for broker in sorted({each.node_id for each in admin._manager.cluster.brokers()} - silent.now):
        try:
            listed = admin.list_transactions([broker], producer_id_filters=sorted(producer_ids))
        except NO_ANSWER as error:
            silent.give_up({broker: error}, admin, until)
        else:
            yield from listed[broker]


def _why_hanging(detail: TransactionDescription | None, partition: TopicPartition, now_ms: int) -> str | None:
    if detail is None:
        return f"no coordinator tells of its producer, {UNTOLD}"
    if detail.state not in _RUNNING or partition not in detail.topic_partitions:
        return f"its coordinator has it as {detail.state.value} without this Kafka partition"
    overdue = (now_ms - detail.transaction_start_time_ms - detail.transaction_timeout_ms) / 1000
    if detail.transaction_start_time_ms >= 0 and overdue > OVERDUE_SECONDS:
        return f"its coordinator should have ended it {overdue:.0f} s ago"
    return None
