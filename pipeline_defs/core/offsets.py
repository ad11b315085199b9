"""Offset ranges and their text forms: partition key, file stem, message text.

Invariant: a range that exists is valid, half-open and never empty; a key that parses formats back to the
same text. Nothing here knows whether a range was planned or landed.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from .errors import BadKey

OFFSET_DIGITS = 20
MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1

_KEY = re.compile(r"(0|[1-9]\d*)-(0|[1-9]\d*)-([1-9]\d*)(?:-g([1-9]\d*))?", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)

Place = tuple[int, int]
"""A generation and a Kafka partition."""

Stretches = Sequence[tuple[int, int]]
"""Half-open intervals of contiguous offsets; those of rows are in the order of their file."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The half-open range `[start, end)` of one Kafka partition of one topic generation.

    `len()` counts offsets: an upper bound of rows, never their number.
    """

    generation: int
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        is_place = self.generation >= 0 and 0 <= self.partition <= MAX_PARTITION
        if not (is_place and 0 <= self.start < self.end <= MAX_OFFSET):
            found = f"g{self.generation} p{self.partition} [{self.start}, {self.end})"
            raise ValueError(
                f"no such range: {found}, expected partitions up to {MAX_PARTITION}, a first offset below the end, and an end "
                f"of at most {MAX_OFFSET}"
            )

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end

    @property
    def place(self) -> Place:
        """Generation and Kafka partition."""
        return self.generation, self.partition

    @property
    def key(self) -> str:
        """The Dagster partition key, e.g. `3-300000-400000` or `3-0-1000-g1`."""
        suffix = f"-g{self.generation}" if self.generation else ""
        return f"{self.partition}-{self.start}-{self.end}{suffix}"

    @property
    def folder(self) -> str:
        """The folder of the range below `<tree>/<topic>/`, e.g. `g0/p0003`."""
        return f"g{self.generation}/p{self.partition:04d}"

    @property
    def stem(self) -> str:
        """The file name without its ending; sorts as text in offset order."""
        return f"{self.start:0{OFFSET_DIGITS}d}-{self.end:0{OFFSET_DIGITS}d}"

    def overlaps(self, other: Self) -> bool:
        """Return whether two ranges have some of the same offsets."""
        return self.place == other.place and self.start < other.end and other.start < self.end

    def text(self, topic: str) -> str:
        """Return the form for messages, e.g. `orders/3 [1000, 2000)`."""
        generation = f" g{self.generation}" if self.generation else ""
        return f"{topic}/{self.partition}{generation} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True, order=True)
class TopicRange:
    """A range with its topic, for jobs that read several topics."""

    topic: str
    offsets: OffsetRange


def parse_key(key: str) -> OffsetRange:
    """Read a partition key; refuse what is not canonical, since Dagster lets people type any text as a key."""
    match = _KEY.fullmatch(key)
    if match:
        partition, start, end, generation = match.groups()
        try:
            return OffsetRange(int(generation or 0), int(partition), int(start), int(end))
        except ValueError:
            pass
    raise BadKey(
        f"partition key {key!r} is not a range: expected <kafka partition>-<start>-<end>[-g<generation>] with start "
        "before end and no padding, e.g. 3-300000-400000; nothing was read or written; "
        "`offsetlake backfill TOPIC --all` lists those there are",
        key=key,
    )


def is_topic(text: str) -> bool:
    """Return whether Kafka allows a name and it can name a folder."""
    return bool(_TOPIC.fullmatch(text)) and text not in {".", ".."}


def is_internal(topic: str) -> bool:
    """Return whether a topic is Kafka's own, as `__consumer_offsets` is."""
    return topic.startswith("__")


def check_topic(topic: str) -> str:
    """Return the topic if Kafka allows the name; a name is a folder of the lake too, so `..` is refused."""
    if not isinstance(topic, str):
        raise TypeError(f"it is of type {type(topic).__name__}, expected the topic's name as a text")
    if not is_topic(topic):
        raise ValueError(f"topic name {topic!r} is not one Kafka allows: 1 to 249 of letters, digits, '.', '_', '-'")
    return topic


def find_clash(offsets: OffsetRange, others: Sequence[OffsetRange]) -> OffsetRange | None:
    """Return another range that overlaps this one; `others` are sorted and do not overlap each other."""
    at = bisect_left(others, offsets)
    near = others[max(0, at - 1) : at + 1]
    return next((other for other in near if other != offsets and other.overlaps(offsets)), None)


def merge_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the same offsets in as few ranges as possible, sorted."""
    places: dict[Place, list[tuple[int, int]]] = {}
    for offsets in ranges:
        places.setdefault(offsets.place, []).append((offsets.start, offsets.end))
    return [OffsetRange(*place, *each) for place, found in sorted(places.items()) for each in merge_intervals(found)]


def merge_intervals(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge half-open intervals that touch or overlap; the result is sorted and disjoint."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif start < end:
            merged.append((start, end))
    return merged


def find_backward(stretches: Stretches) -> list[tuple[int, int]]:
    """Return each place where an interval begins before its predecessor ends, as (that end, the beginning)."""
    return [(end, start) for (_, end), (start, _) in pairwise(stretches) if start < end]


def find_misplaced(where: str, offsets: OffsetRange, stretches: Stretches) -> list[str]:
    """Return as messages which rows of a file go backward, or lie outside its range; `where` names the file."""
    backward = find_backward(stretches)
    found = [f"{where}: offset {start} follows {end - 1}: offsets are not strictly increasing" for end, start in backward]
    if stretches and not (offsets.start <= stretches[0][0] and stretches[-1][1] <= offsets.end):
        found.append(f"{where}: found offsets {stretches[0][0]} to {stretches[-1][1] - 1}, outside of it")
    return found


def subtract_intervals(whole: Sequence[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of the disjoint sorted intervals `whole` that are in none of `taken`.

    One pass over both: a range of a compacted topic has tens of thousands of holes.
    """
    left: list[tuple[int, int]] = []
    gone = merge_intervals(taken)
    first = 0  # everything before it ends before all intervals still to come
    for start, end in whole:
        at = start
        while first < len(gone) and gone[first][1] <= start:
            first += 1
        for number in range(first, len(gone)):
            gone_start, gone_end = gone[number]
            if gone_start >= end:
                break
            if gone_start > at:
                left.append((at, gone_start))
            at = gone_end
        if at < end:
            left.append((at, end))
    return left
