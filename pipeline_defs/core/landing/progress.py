"""Progress: how far landing is behind a topic, and what is stalled.

Repeated failures of a range are `dispatch.Tried`'s. Invariants: a topic with nothing waiting is never stalled, for however
long; a landing counts from when it began to read, so a pipeline that has just started is not called slow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..log.coverage import Coverage
from ..log.manifest import Manifest
from ..log.plan_step import Watermarks
from ..offsets import OffsetRange

TOLD_EVERY_MS = 60_000
TOLD_WAITING_EVERY_MS = 600_000
PACE_WINDOW_MS = 600_000
PATIENCE_SECONDS = 900.0  # that a planned range, which has nothing to wait for, may wait
PATIENCE_AGES = 10.0  # times `max_age` that records in no range yet may wait, where that is longer


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of one Kafka partition: `[landed, end)` begins at the first offset still to be landed."""

    partition: int
    landed: int
    end: int

    @property
    def offsets(self) -> int:
        """The lag in offsets."""
        return max(0, self.end - self.landed)


@dataclass(frozen=True, slots=True)
class Told:
    """What was last noted of a topic: its lag in offsets, the sum of its end offsets, and when (ms since 1970)."""

    lag: int
    end_offset: int
    at_ms: int


def find_lag(coverage: Coverage, marks: Mapping[int, Watermarks]) -> list[PartitionLag]:
    """Find the lag of each Kafka partition that the broker has now, in the open generation, sorted."""
    frontier, heads = coverage.frontier(coverage.log.generation), coverage.log.state.heads
    found = []
    for partition, mark in sorted(marks.items()):
        first = heads[partition].offset if partition in heads else mark.earliest
        found.append(PartitionLag(partition, frontier.get(partition, first), mark.end))
    return found


def is_lag_news(told: Told | None, lag: int, end_offset: int, now_ms: int) -> bool:
    """Return whether lag is news: once a minute at most where it has changed, every ten minutes while something waits.

    So the last note is at most a minute out of date, and an idle topic is noted once and never again.
    """
    if told is None:
        return True
    has_changed = (told.lag, told.end_offset) != (lag, end_offset)
    return abs(now_ms - told.at_ms) >= (TOLD_EVERY_MS if has_changed else TOLD_WAITING_EVERY_MS) and (has_changed or lag > 0)


def landed_per_second(manifests: Iterable[Manifest], now_ms: int) -> float:
    """Return the rows landed within the window, divided by the time since their first read began; 0 for none.

    Ranges landed at a time still in the future are of another clock and do not count.
    """
    lately = [each for each in manifests if now_ms - PACE_WINDOW_MS < each.provenance.landed_at_ms <= now_ms]
    if not lately:
        return 0.0
    began_ms = min(each.provenance.landed_at_ms - 1000 * each.provenance.seconds for each in lately)
    return sum(each.rows for each in lately) * 1000 / max(1000.0, now_ms - max(began_ms, now_ms - PACE_WINDOW_MS))


@dataclass(frozen=True, slots=True)
class Unplanned:
    """The first record of a Kafka partition that is in no range yet; its timestamp is none where nothing tells it."""

    offset: int
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Silence:
    """A Kafka partition with something to land, of which nothing has landed since `since_ms`.

    `planned` is the range that has waited longest; none where only records in no range wait.
    """

    partition: int
    offset: int
    planned: OffsetRange | None
    since_ms: int


def find_silences(coverage: Coverage, unplanned: Mapping[int, Unplanned], max_age_seconds: float, now_ms: int) -> list[Silence]:
    """Find the Kafka partitions of which nothing has landed for too long, sorted; `unplanned` is by Kafka partition.

    | what waits longest | since | too long |
    |---|---|---|
    | a planned range | it was planned | 15 minutes |
    | a record in no range | its timestamp, but at the earliest the newest plan step | 10 x max_age, at least 15 minutes |

    Each landing in the partition restarts the wait: a backlog that is being worked off is no silence. Times in the future are
    ignored.
    """
    planned: dict[int, OffsetRange] = {}
    for offsets in coverage.pending():
        planned.setdefault(offsets.partition, offsets)
    landed = {p: at_ms for (generation, p), at_ms in coverage.last_landed().items() if generation == coverage.log.generation}
    found = []
    for partition in sorted({*planned, *unplanned}):
        first = planned.get(partition)
        if first is not None:
            offset, patience = first.start, PATIENCE_SECONDS
            times = [coverage.log.ranges[first].planned_at_ms]
        else:
            offset, patience = unplanned[partition].offset, patience_seconds(max_age_seconds)
            times = [unplanned[partition].timestamp_ms or 0, *(step.planned_at_ms for step in coverage.log.steps[-1:])]
        times.append(landed.get(partition, 0))
        since_ms = max((time for time in times if time <= now_ms), default=0)
        if since_ms and now_ms - since_ms > patience * 1000:
            found.append(Silence(partition, offset, first, since_ms))
    return found


def patience_seconds(max_age_seconds: float) -> float:
    """Return how long records that are in no range yet may wait, also behind an open transaction."""
    return max(PATIENCE_SECONDS, PATIENCE_AGES * max_age_seconds)


@dataclass(frozen=True, slots=True)
class Seen:
    """A version, and since when it stands, or a count, and when it last grew."""

    number: int
    since_ms: int

    def is_old(self, now_ms: int) -> bool:
        """Return whether that is longer than a table with something to do may go without a change."""
        return now_ms - self.since_ms > PATIENCE_SECONDS * 1000


def see_version(before: Seen | None, version: int, now_ms: int) -> Seen:
    """Return a table's version, and since when it has been that one: each new version restarts the wait."""
    return before if before is not None and before.number == version else Seen(version, now_ms)


def see_count(before: Seen | None, count: int, now_ms: int) -> Seen:
    """Return a count, and when it was last seen to grow."""
    known = before or Seen(0, 0)
    return Seen(count, now_ms if count > known.number else known.since_ms)
