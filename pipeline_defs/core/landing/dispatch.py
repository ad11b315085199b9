"""Dispatch: which ranges come next, and in which runs; when one that has failed is tried again.

Invariant: a range that is not landed is tried again, later each time, and never skipped.
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


APART = "apart"  # the lane of topics that fail or are slow, where there is more than one


def lane_of(topic: str, lanes: int, failures: int, *, is_slow: bool = False) -> str:
    """Return the lane of a topic: always the same of so many, but while it is slow, or all of it has failed twice in a row."""
    return APART if lanes > 1 and (failures > 1 or is_slow) else str(crc32(topic.encode()) % lanes)


@dataclass(frozen=True, slots=True)
class Tried:
    """How often in a row runs that covered a range have failed, and when the last one ended, well or not.

    Times are ms since 1970; the run is the last one that failed. `cut_off` are the attempts that ended with all of Dagster;
    `fatal` are those that ended their run, without a word or by an error that nobody caught.
    """

    attempts: int
    last_ended_ms: int
    first_failed_ms: int = 0
    failed_run: str = ""
    cut_off: int = 0
    fatal: int = 0

    def then_failed(self, run_id: str, ended_ms: int, *, is_cut_off: bool = False, is_fatal: bool = False) -> Tried:
        """Return this and one more failure after it."""
        first_ms, cut_off, fatal = self.first_failed_ms or ended_ms, self.cut_off + is_cut_off, self.fatal + is_fatal
        return Tried(self.attempts + 1, ended_ms, first_ms, run_id, cut_off, fatal)

    @property
    def is_stalled(self) -> bool:
        """Whether a person should look: it is still tried again."""
        return self.attempts >= STALLED_AFTER_ATTEMPTS

    def is_due(self, now_ms: int) -> bool:
        """Return whether the back-off is over: 10 s, doubled after each failure, at most 10 minutes.

        A power cut doubles nothing: afterwards all goes on.
        An end in the future is of another clock: what it is ahead is waited for too, but never more than a back-off.
        """
        return self.due_in_seconds(now_ms) <= 0

    def due_in_seconds(self, now_ms: int) -> float:
        """Return for how long the back-off still lasts; 0 where it is over."""
        if self.attempts == 0:
            return 0.0
        doublings = max(self.attempts - self.cut_off, 1) - 1
        wait: int = min(BACKOFF_FIRST_SECONDS * 2**doublings, BACKOFF_LAST_SECONDS)
        since = (now_ms - self.last_ended_ms) / 1000
        return max(0.0, wait - since) if since > -wait else 0.0


NEVER_TRIED = Tried(0, 0)


def choose_due(
    waiting: Iterable[OffsetRange], held: Container[OffsetRange], tried: Mapping[OffsetRange, Tried], now_ms: int
) -> list[OffsetRange]:
    """Choose, of ranges that wait, those that no run is at and whose back-off is over; their order stays."""
    return [each for each in waiting if each not in held and tried.get(each, NEVER_TRIED).is_due(now_ms)]


def alternate(due: Sequence[OffsetRange], tried: Mapping[OffsetRange, Tried]) -> list[OffsetRange]:
    """Return ranges with those that have failed between the others, whose order stays: neither keep the others waiting.

    Of those that have failed the one comes first whose last try is longest ago: each has its turn, however few a batch has.
    """
    others = [each for each in due if each not in tried]
    failed = sorted((each for each in due if each in tried), key=lambda each: tried[each].last_ended_ms)
    return [*filter(None, chain.from_iterable(zip_longest(others, failed)))]


def choose_alike(
    due: Sequence[Range], since_ms: Mapping[Range, int], tried: Mapping[Range, Tried], most: int, retries: int
) -> list[Range]:
    """Choose the ranges of one job: with the one that waits for longest, others that were never tried, as it, or have failed.

    What fails may hold up all of its job, so nothing that is new shares one with it. `since_ms` says since when each waits;
    what has failed waits since it did. A job has at most `most` new ones, or as many that have failed as `retries` says; what
    has ended its run twice shares it with none.
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
    """Choose at most so many ranges, of each topic in turn its next one: a backlog keeps no other topic waiting.

    `waiting` has the ranges of each topic in the order in which they are to be landed. Together they have no more than
    `most_offsets`, or than is read meanwhile where the first one is larger: as much as it by each of `tasks_at_once`. A topic
    of which the next one does not fit waits with all that come after it.
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
    """Return how much a job may do next, offsets or ranges, so that it takes as long as is wanted, at the pace of the last one.

    It is at most doubled or halved at a time: a small job's time says little of a large one's.
    """
    if seconds <= 0:
        return before * 2
    return min(before * 2, max(before / 2, done * wanted_seconds / seconds))


def split_stretches(
    order: Sequence[OffsetRange | None], wanted: AbstractSet[OffsetRange], most: int
) -> list[list[OffsetRange]]:
    """Split ranges into runs of at most so many; `order` is every key in Dagster's insertion order.

    None stands for a key that is no range: people can type any text. Dagster's range runs cover everything between two
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
