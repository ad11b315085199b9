"""Where ranges end: what a topic's policy says of it, the grid, when a tail is cut, and the cuts themselves.

`planning.py` asks for them with the offset up to which a Kafka partition is cut: the end offset of a reader at the topic's
isolation level, or the one that a person skips to. Invariant: the ranges tile from the head on, and none crosses the offset
where Kafka's log ended when partitions were added to the topic, a growth. A range may end inside a committed transaction,
which the planner cannot see.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..offsets import OffsetRange
from .plan_step import Head, LogState
from .topic_state import PartitionState

AUTO_RECORDS_DEFAULT = 1 << 17  # while the record size is unknown
AUTO_RECORDS_MAX = 1 << 24
CLOCKS_APART_MS = 300_000  # tolerated between the clocks of two hosts that plan or run daemons


@dataclass(frozen=True, slots=True)
class Policy:
    """How a topic is cut into ranges; validated by the component that reads it from defs.yaml."""

    records_per_range: int | Literal["auto"] = "auto"
    target_file_bytes: int = 128 * 1024 * 1024
    max_age_seconds: float = 60.0
    start: str | int = "earliest"  # earliest | latest | none | ms since 1970
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    budget: int = 200
    order: Literal["oldest_first", "newest_first"] = "oldest_first"  # in which ranges are landed
    cluster_id: str | None = None  # of the Kafka cluster that the topic is read from; none: the one in the plan log

    @property
    def is_newest_first(self) -> bool:
        """Whether the newest ranges are landed first, so earlier ones wait longer."""
        return self.order == "newest_first"


def grid_of(policy: Policy, bytes_per_record: float | None) -> int:
    """Return the grid in offsets: as configured, or sized toward `target_file_bytes` in powers of two.

    Powers of two nest, so a grid that changes with the record size keeps most old boundaries.
    """
    if policy.records_per_range != "auto":
        return policy.records_per_range
    if not bytes_per_record or bytes_per_record <= 0:
        return AUTO_RECORDS_DEFAULT
    wanted = max(1, min(AUTO_RECORDS_MAX, int(policy.target_file_bytes / bytes_per_record)))
    return 1 << (wanted.bit_length() - 1)


def waiting_since(head: Head, seen: PartitionState, now_ms: int) -> int:
    """Return since when (ms since 1970) the first record after the head has waited, 0 where nothing tells.

    The wait begins no earlier than when the partition was last planned to its end: without that bound, a topic with old
    event times as timestamps would be cut at every tick, and go before all others. A time in the future, of a record or of
    a planner whose clock was wrong, is ignored; that of a planner a little ahead counts as now.
    """
    is_together = now_ms < head.moved_at_ms <= now_ms + CLOCKS_APART_MS
    times = (seen.oldest_ms, now_ms if is_together else head.moved_at_ms)
    return max((time for time in times if time is not None and time <= now_ms), default=0)


def cut_ranges(log_state: LogState, partition: int, end: int, grid: int, *, cut_tail: bool) -> Iterator[OffsetRange]:
    """Yield the ranges of a Kafka partition from its head up to an end.

    | a range ends at | |
    |---|---|
    | the next multiple of `grid` | unless one of these comes first |
    | where the partition's log ended at a growth | |
    | `end` | with `cut_tail`; without it the tail waits until a range reaches the grid |
    """
    head = log_state.heads[partition].offset
    log_ends = [growth[partition] for growth in log_state.growths if partition in growth]
    while head < end:
        cut = min([(head // grid + 1) * grid, *(each for each in log_ends if each > head)])
        if cut > end and not cut_tail:
            return
        cut = min(cut, end)
        yield OffsetRange(log_state.generation, partition, head, cut)
        head = cut
