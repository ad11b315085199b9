"""Scans: how many ranges are read by few Spark jobs, with every boundary exact.

Spark cuts a Kafka partition evenly into `ceil(size / maxRecordsPerPartition)` tasks, so exactly at our boundaries
when the size is a multiple. Invariant: every range is in exactly one scan, as one task of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Scan:
    """Is one Spark read: contiguous offsets per Kafka partition, cut at `records_per_task`."""

    ranges: tuple[OffsetRange, ...]
    records_per_task: int

    @property
    def bounds(self) -> Mapping[int, tuple[int, int]]:
        """Is the half-open interval to read of each Kafka partition."""
        bounds: dict[int, tuple[int, int]] = {}
        for offsets in self.ranges:
            start, end = bounds.get(offsets.partition, (offsets.start, offsets.end))
            bounds[offsets.partition] = (min(start, offsets.start), max(end, offsets.end))
        return bounds


def group_scans(ranges: Iterable[OffsetRange]) -> list[Scan]:
    """Groups ranges into few scans.

    The largest size leads: of each Kafka partition the scan takes a contiguous run of that size, or, where there is
    none, one range, which is no larger and which Spark then leaves whole. So a backlog takes one scan, and its tails
    of other sizes one more.
    """
    left: dict[tuple[int, int], list[OffsetRange]] = defaultdict(list)
    for offsets in sorted(set(ranges)):
        left[offsets.generation, offsets.partition].append(offsets)
    scans = []
    while any(left.values()):
        generation = min(place[0] for place, waiting in left.items() if waiting)
        waiting_here = [waiting for place, waiting in left.items() if place[0] == generation]
        size = max(len(offsets) for waiting in waiting_here for offsets in waiting)
        taken: list[OffsetRange] = []
        for waiting in waiting_here:
            run = _first_run(waiting, size) or waiting[:1]
            in_run = set(run)
            waiting[:] = [offsets for offsets in waiting if offsets not in in_run]
            taken += run
        scans.append(Scan(tuple(taken), size))
    return scans


def _first_run(waiting: list[OffsetRange], size: int) -> list[OffsetRange]:
    run: list[OffsetRange] = []
    for offsets in waiting:
        if len(offsets) != size or (run and offsets.start != run[-1].end):
            if run:
                break
            continue
        run.append(offsets)
    return run
