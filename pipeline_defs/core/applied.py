"""What a derived file holds: which ranges went into it, each at which revision, as maximal contiguous stretches.

The file carries it with its rows, so both change in one step. Invariant: stretches are sorted, disjoint, and no two that
touch have the same revision; a million ranges of one revision in one Kafka partition are one stretch.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .offsets import OffsetRange, subtract_intervals

Lane = tuple[int, int]
"""Generation and Kafka partition: offsets are comparable within one lane only."""


@dataclass(frozen=True, slots=True, order=True)
class Stretch:
    """Is the half-open run of offsets `[start, end)` of one lane, all of whose ranges went in at one revision."""

    generation: int
    partition: int
    start: int
    end: int
    revision: int

    def __post_init__(self) -> None:
        OffsetRange(self.generation, self.partition, self.start, self.end)  # refuses what no range can be
        if self.revision < 0:
            raise ValueError(f"no such revision: {self.revision}")


@dataclass(frozen=True, slots=True)
class Difference:
    """Is how the ranges there are now differ from what went in.

    | | went in | is there now |
    |---|---|---|
    | `new` | nothing of it | yes |
    | `redone` | at another revision, or not as this range | yes |
    | `gone` | yes | no |
    """

    new: tuple[OffsetRange, ...] = ()
    redone: tuple[OffsetRange, ...] = ()
    gone: tuple[OffsetRange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.redone or self.gone)

    @property
    def only_adds(self) -> bool:
        """Says whether nothing that went in has changed: the new ranges alone make the difference."""
        return not (self.redone or self.gone)


@dataclass(frozen=True, slots=True)
class Applied:
    """Is the set of ranges that went into a derived file, each at its revision."""

    stretches: tuple[Stretch, ...] = ()

    def __post_init__(self) -> None:
        if list(self.stretches) != _merge(self.stretches):
            raise ValueError("stretches are not sorted, disjoint and maximal")

    @classmethod
    def of(cls, revisions: Mapping[OffsetRange, int]) -> Applied:
        """Is the set of these ranges; raises `ValueError` where two of them overlap."""
        each = sorted(
            Stretch(offsets.generation, offsets.partition, offsets.start, offsets.end, revision)
            for offsets, revision in revisions.items()
        )
        return cls(tuple(_merge(each)))

    def compare(self, current: Mapping[OffsetRange, int]) -> Difference:
        """Says how the ranges there are now, each at its revision, differ from what went in; sorted."""
        lanes = _lanes(self.stretches)
        starts = {lane: [each.start for each in stretches] for lane, stretches in lanes.items()}
        new: list[OffsetRange] = []
        redone: list[OffsetRange] = []
        for offsets, revision in sorted(current.items()):
            lane = (offsets.generation, offsets.partition)
            at = bisect_right(starts.get(lane, []), offsets.start) - 1
            around = lanes.get(lane, [])[max(at, 0) : at + 2]  # who begins at or before it, and the next one
            if not any(each.start < offsets.end and offsets.start < each.end for each in around):
                new.append(offsets)
            elif not any(
                each.start <= offsets.start and offsets.end <= each.end and each.revision == revision for each in around
            ):
                redone.append(offsets)
        return Difference(tuple(new), tuple(redone), tuple(_gone(lanes, current)))

    def revision_of(self, offsets: OffsetRange) -> int | None:
        """Is the revision at which the whole of a range went in; none where it did not."""
        place = (offsets.generation, offsets.partition, offsets.start)
        at = bisect_right(self.stretches, place, key=lambda each: (each.generation, each.partition, each.start)) - 1
        found = self.stretches[at] if at >= 0 else None
        is_in = (
            found is not None
            and (found.generation, found.partition) == (offsets.generation, offsets.partition)
            and found.start <= offsets.start
            and offsets.end <= found.end
        )
        return found.revision if found is not None and is_in else None

    def to_json(self) -> str:
        """Encodes the set; equal sets give equal text."""
        rows = [[each.generation, each.partition, each.start, each.end, each.revision] for each in self.stretches]
        return json.dumps(rows, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Applied:
        """Decodes a set; raises `ValueError` for what is none."""
        try:
            rows = json.loads(text)
            if not all(type(number) is int for row in rows for number in row):
                raise ValueError("expected whole numbers")
            return cls(tuple(Stretch(*row) for row in rows))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"no set of applied ranges: {error}") from error


def _merge(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Joins what touches and has one revision; raises `ValueError` where stretches overlap."""
    merged: list[Stretch] = []
    for each in stretches:
        last = merged[-1] if merged else None
        if last is None or (last.generation, last.partition) != (each.generation, each.partition):
            merged.append(each)
        elif each.start < last.end:
            raise ValueError(f"{each} and {last} overlap or are not sorted")
        elif each.start == last.end and each.revision == last.revision:
            merged[-1] = Stretch(last.generation, last.partition, last.start, each.end, last.revision)
        else:
            merged.append(each)
    return merged


def _lanes(stretches: Iterable[Stretch]) -> dict[Lane, list[Stretch]]:
    lanes: dict[Lane, list[Stretch]] = {}
    for each in stretches:
        lanes.setdefault((each.generation, each.partition), []).append(each)
    return lanes


def _gone(lanes: Mapping[Lane, list[Stretch]], current: Collection[OffsetRange]) -> list[OffsetRange]:
    """Returns the offsets that went in and that no range covers now."""
    covered: dict[Lane, list[tuple[int, int]]] = {}
    for offsets in current:
        covered.setdefault((offsets.generation, offsets.partition), []).append((offsets.start, offsets.end))
    gone: list[OffsetRange] = []
    for lane, stretches in sorted(lanes.items()):
        whole = [(each.start, each.end) for each in stretches]
        gone += [OffsetRange(*lane, *left) for left in subtract_intervals(whole, covered.get(lane, []))]
    return gone
