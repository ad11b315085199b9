"""Scans: how many ranges are read by few Spark jobs, with every boundary exact.

Spark cuts a Kafka partition evenly into `ceil(size / maxRecordsPerPartition)` tasks, so exactly at our boundaries
when the size is a multiple; what has other bounds is a read of its own, and a job is the union of such reads.
Invariant: every range is in exactly one read of one scan, as one task of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .offsets import OffsetRange

# each task of a union carries all of its reads, so its cost grows with their product: one union of 200 single reads took
# 32-39 CPU seconds, where one read of 200 equal ranges took 9; what each size took is in docs/design/0001
READS_AT_ONCE = 20
TASKS_AT_ONCE = 400


@dataclass(frozen=True, slots=True)
class Read:
    """One read of the Kafka source: contiguous offsets per Kafka partition, cut at `records_per_task`."""

    ranges: tuple[OffsetRange, ...]
    records_per_task: int

    @property
    def bounds(self) -> Mapping[int, tuple[int, int]]:
        """Half-open interval to read of each Kafka partition."""
        bounds: dict[int, tuple[int, int]] = {}
        for offsets in self.ranges:
            start, end = bounds.get(offsets.partition, (offsets.start, offsets.end))
            bounds[offsets.partition] = (min(start, offsets.start), max(end, offsets.end))
        return bounds


@dataclass(frozen=True, slots=True)
class Scan:
    """One Spark job: the union of reads of one generation."""

    reads: tuple[Read, ...]

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """All ranges of the scan, one task each."""
        return tuple(offsets for read in self.reads for offsets in read.ranges)

    @property
    def generation(self) -> int:
        """Generation that all of its ranges are of."""
        return self.reads[0].ranges[0].generation


def group_scans(ranges: Iterable[OffsetRange], *, reads_at_once: int = READS_AT_ONCE) -> list[Scan]:
    """Group ranges into few scans: small reads together, a long stretch of equal ranges alone.

    A scan takes at most `reads_at_once` reads, and at most `TASKS_AT_ONCE` ranges unless one read has more.
    """
    scans: list[list[Read]] = []
    tasks = 0
    for read in sorted(_reads(ranges), key=lambda each: (each.ranges[0].generation, len(each.ranges))):
        tasks += len(read.ranges)
        if (
            not scans
            or len(scans[-1]) >= reads_at_once
            or tasks > TASKS_AT_ONCE
            or scans[-1][0].ranges[0].generation != read.ranges[0].generation
        ):
            scans.append([])
            tasks = len(read.ranges)
        scans[-1].append(read)
    return [Scan(tuple(reads)) for reads in scans]


def _reads(ranges: Iterable[OffsetRange]) -> Iterator[Read]:
    """Divide ranges into reads.

    The largest size leads: of each Kafka partition a read takes a contiguous run of that size, or, where there is
    none, one range, which is no larger and which Spark then leaves whole. So a backlog takes one read, and its tails
    of other sizes one more.
    """
    left: dict[tuple[int, int], list[OffsetRange]] = defaultdict(list)
    for offsets in sorted(set(ranges)):
        left[offsets.generation, offsets.partition].append(offsets)
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
        yield Read(tuple(taken), size)


def _first_run(waiting: list[OffsetRange], size: int) -> list[OffsetRange]:
    run: list[OffsetRange] = []
    for offsets in waiting:
        if len(offsets) != size or (run and offsets.start != run[-1].end):
            if run:
                break
            continue
        run.append(offsets)
    return run
