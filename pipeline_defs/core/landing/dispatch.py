"""Dispatch: which ranges come next, in which runs, and when a failed one is tried again.

Invariant: a range that is not landed is tried again, after longer and longer waits, and never given up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import inf
from typing import TypeVar
from zlib import crc32

from ..offsets import OffsetRange

Range = TypeVar("Range", bound=Hashable)

BACKOFF_FIRST_SECONDS = 10
BACKOFF_LAST_SECONDS = 600
STALLED_AFTER_ATTEMPTS = 3


APART = "apart"  # the lane of topics that fail or are slow, where there are several lanes


def lane_of(topic: str, lanes: int, failures: int, *, is_slow: bool = False) -> str:
    """Return the lane of a topic: fixed by its name, except while it is slow or all of it has failed twice in a row."""
    return APART if lanes > 1 and (failures > 1 or is_slow) else str(crc32(topic.encode()) % lanes)


@dataclass(frozen=True, slots=True)
class Tried:
    """How often in a row runs that covered a range have failed, and when the last one ended, failed or not.

    Times are ms since 1970; the run is the last one that failed. `cut_off` counts the attempts that ended with all of
    Dagster; `fatal` those that ended their run, silently or by an uncaught error.
    """

    attempts: int
    last_ended_ms: int
    first_failed_ms: int = 0
    failed_run: str = ""
    cut_off: int = 0
    fatal: int = 0

    def then_failed(self, run_id: str, ended_ms: int, *, is_cut_off: bool = False, is_fatal: bool = False) -> Tried:
        """Return this with one more failure."""
        first_ms, cut_off, fatal = self.first_failed_ms or ended_ms, self.cut_off + is_cut_off, self.fatal + is_fatal
        return Tried(self.attempts + 1, ended_ms, first_ms, run_id, cut_off, fatal)

    @property
    def is_stalled(self) -> bool:
        """Whether a person should look; it is still tried again."""
        return self.attempts >= STALLED_AFTER_ATTEMPTS

    def is_due(self, now_ms: int) -> bool:
        """Return whether the back-off is over: 10 s, doubled after each failure, at most 10 minutes.

        An attempt that a power cut ended does not double it. An end in the future is of another clock: it prolongs the wait by
        what it is ahead; one further ahead than a back-off is ignored.
        """
        return self.due_in_seconds(now_ms) <= 0

    def due_in_seconds(self, now_ms: int) -> float:
        """Return how long the back-off still lasts; 0 where it is over."""
        if self.attempts == 0:
            return 0.0
        doublings = max(self.attempts - self.cut_off, 1) - 1
        wait: int = min(BACKOFF_FIRST_SECONDS * 2**doublings, BACKOFF_LAST_SECONDS)
        since = (now_ms - self.last_ended_ms) / 1000
        return max(0.0, wait - since) if since > -wait else 0.0


NEVER_TRIED = Tried(0, 0)


def choose_due(
    waiting: Iterable[OffsetRange], in_progress: Container[OffsetRange], tried: Mapping[OffsetRange, Tried], now_ms: int
) -> list[OffsetRange]:
    """Choose the waiting ranges that no run has and whose back-off is over; their order stays."""
    return [each for each in waiting if each not in in_progress and tried.get(each, NEVER_TRIED).is_due(now_ms)]


def alternate(due: Sequence[OffsetRange], tried: Mapping[OffsetRange, Tried]) -> list[OffsetRange]:
    """Interleave failed ranges with the others, whose order stays, so that neither keeps the other waiting.

    Of failed ranges the one whose last try is longest ago comes first: each has its turn, however small a batch is.
    """
    others = [each for each in due if each not in tried]
    failed = sorted((each for each in due if each in tried), key=lambda each: tried[each].last_ended_ms)
    return [*filter(None, chain.from_iterable(zip_longest(others, failed)))]


def choose_alike(
    due: Sequence[Range], since_ms: Mapping[Range, int], tried: Mapping[Range, Tried], most: int, retries: int
) -> list[Range]:
    """Choose the ranges of one job: those like the longest waiting one, that is, all new or all failed before.

    For decoding, and for ranges that ended a run: one of these may hold up its whole job, so no new one shares it. `since_ms`
    says since when each waits; a failed one waits since its last failure. A job has at most `most` new ranges or `retries`
    failed ones; a range that has ended its run twice has a job to itself.
    """
    waiting = sorted(due, key=lambda each: tried[each].last_ended_ms if each in tried else since_ms[each])
    if not waiting or waiting[0] not in tried:
        return [each for each in due if each not in tried][:most]
    if tried[waiting[0]].fatal > 1:
        return waiting[:1]
    return [each for each in waiting if each in tried and tried[each].fatal <= 1][: min(retries, most)]


def take_turns(
    waiting: Mapping[str, Sequence[OffsetRange]], most: int, most_offsets: float = inf, tasks_at_once: int = 1
) -> dict[str, list[OffsetRange]]:
    """Choose at most `most` ranges, one of each topic in turn: a backlog keeps no other topic waiting.

    `waiting` has the ranges of each topic in landing order. Together the chosen ones have at most `most_offsets`, or, if more,
    the offsets of the first one times `tasks_at_once`: as much as all tasks read in its time. A topic whose next range does
    not fit waits, with all that come after it.
    """
    turns = zip_longest(*([(topic, offsets) for offsets in ranges] for topic, ranges in waiting.items()))
    chosen: dict[str, list[OffsetRange]] = defaultdict(list)
    count, total, full = 0, 0, set[str]()
    for topic, offsets in filter(None, chain.from_iterable(turns)):
        if count == most:
            break
        if not count:
            most_offsets = max(most_offsets, len(offsets) * tasks_at_once)
        if topic in full or total + len(offsets) > most_offsets:
            full.add(topic)
            continue
        chosen[topic].append(offsets)
        count, total = count + 1, total + len(offsets)
    return dict(chosen)


def next_most(done: int, seconds: float, wanted_seconds: float, before: float) -> float:
    """Return how much the next job may do, in offsets or ranges, to take `wanted_seconds` at the pace of the last one.

    It is at most doubled or halved at a time: a small job's time says little of a large one's.
    """
    if seconds <= 0:
        return before * 2
    return min(before * 2, max(before / 2, done * wanted_seconds / seconds))


def split_stretches(
    order: Sequence[OffsetRange | None], wanted: AbstractSet[OffsetRange], most: int
) -> list[list[OffsetRange]]:
    """Split ranges into runs of at most `most` ranges; `order` is every key in Dagster's insertion order.

    None stands for a key that is no range, since people can type any text. Dagster's range runs cover everything between two
    keys, so a run never spans a key that is not its own.
    """
    stretches: list[list[OffsetRange]] = [[]]
    for offsets in order:
        if offsets is None or offsets not in wanted:
            stretches.append([])
            continue
        if len(stretches[-1]) == most:
            stretches.append([])
        stretches[-1].append(offsets)
    return [stretch for stretch in stretches if stretch]
