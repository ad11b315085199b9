"""Lag: how far landing is behind a topic, and when that is news; and pace, records landed a second, by the manifests alone.

Invariant: a landing counts from when it began to read, so a pipeline that has just started is not called slow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..log.coverage import Coverage
from ..log.manifest import Manifest
from ..log.plan_step import Watermarks

TOLD_EVERY_MS = 60_000
TOLD_WAITING_EVERY_MS = 600_000
PACE_WINDOW_MS = 600_000


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One Kafka partition: `[landed, end)` is what no landed range covers from its first gap on."""

    partition: int
    landed: int
    end: int

    @property
    def offsets(self) -> int:
        """How many offsets that are."""
        return max(0, self.end - self.landed)


@dataclass(frozen=True, slots=True)
class Told:
    """What was last said of a topic: its lag in offsets, the sum of its end offsets, and when (ms since 1970)."""

    lag: int
    end_offset: int
    at_ms: int


def find_lag(coverage: Coverage, marks: Mapping[int, Watermarks]) -> list[PartitionLag]:
    """Find the lag of each Kafka partition the broker has now, in the open generation, sorted."""
    frontier, heads = coverage.frontier(coverage.log.generation), coverage.log.state.heads
    found = []
    for partition, mark in sorted(marks.items()):
        first = heads[partition].offset if partition in heads else mark.earliest
        found.append(PartitionLag(partition, frontier.get(partition, first), mark.end))
    return found


def is_lag_news(told: Told | None, lag: int, end_offset: int, now_ms: int) -> bool:
    """Return whether to tell it: where it has changed, once a minute at most; while something waits, each ten minutes.

    So what was told last is true within a minute, and a topic on which nothing happens is told once and never again.
    """
    if told is None:
        return True
    has_changed = (told.lag, told.end_offset) != (lag, end_offset)
    return abs(now_ms - told.at_ms) >= (TOLD_EVERY_MS if has_changed else TOLD_WAITING_EVERY_MS) and (has_changed or lag > 0)


def landed_per_second(manifests: Iterable[Manifest], now_ms: int) -> float:
    """Return the rows landed within the window, divided by the time since the first of them began to be read; 0 for none.

    What was landed at a time that is still to come is of another clock and is left out.
    """
    lately = [each for each in manifests if now_ms - PACE_WINDOW_MS < each.provenance.landed_at_ms <= now_ms]
    if not lately:
        return 0.0
    began_ms = min(each.provenance.landed_at_ms - 1000 * each.provenance.seconds for each in lately)
    return sum(each.rows for each in lately) * 1000 / max(1000.0, now_ms - max(began_ms, now_ms - PACE_WINDOW_MS))
