"""Scans: how few Spark jobs read many ranges, with every boundary exact.

Spark cuts a Kafka partition evenly into `ceil(size / maxRecordsPerPartition)` tasks, so exactly at our boundaries
where the size is a multiple; ranges of other sizes are a read of their own, and a job is the union of such reads.
Invariant: every range is in exactly one read of one scan, as one task of it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..offsets import OffsetRange, TopicRange

# each task of a union carries all of its reads, so the cost grows with tasks times reads: one union of 200 single reads took
# 32-39 CPU seconds, where one read of 200 equal ranges took 9; docs/design/0001 has the times of each size
READS_AT_ONCE = 20
TASKS_AT_ONCE = 400


@dataclass(frozen=True, slots=True)
class Read:
    """One read of the Kafka source: contiguous offsets per topic and Kafka partition, cut at `records_per_task`."""

    ranges: tuple[TopicRange, ...]
    records_per_task: int

    @property
    def bounds(self) -> Mapping[str, Mapping[int, tuple[int, int]]]:
        """The half-open interval to read, by topic and Kafka partition."""
        bounds: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        for each in self.ranges:
            offsets, of_topic = each.offsets, bounds[each.topic]
            start, end = of_topic.get(offsets.partition, (offsets.start, offsets.end))
            of_topic[offsets.partition] = (min(start, offsets.start), max(end, offsets.end))
        return bounds


@dataclass(frozen=True, slots=True)
class Scan:
    """One Spark job: the union of reads of one generation."""

    reads: tuple[Read, ...]

    @property
    def ranges(self) -> tuple[TopicRange, ...]:
        """The ranges of the scan, one task each."""
        return tuple(each for read in self.reads for each in read.ranges)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads, sorted."""
        return tuple(sorted({each.topic for each in self.ranges}))

    @property
    def text(self) -> str:
        """The form for messages, e.g. `3 ranges of orders`, `70 ranges of 12 topics`."""
        of = self.topics[0] if len(self.topics) == 1 else f"{len(self.topics)} topics"
        return f"{len(self.ranges)} ranges of {of}"

    @property
    def generation(self) -> int:
        """The generation of all of its ranges."""
        return _generation(self.reads[0])


def group_scans(ranges: Iterable[TopicRange], *, reads_at_once: int = READS_AT_ONCE) -> list[Scan]:
    """Group ranges, of any topics of one Kafka cluster, into few scans: small reads together, a long stretch alone.

    A scan takes at most `reads_at_once` reads, and at most `TASKS_AT_ONCE` ranges unless one read has more.
    """
    scans: list[list[Read]] = []
    tasks = 0
    for read in sorted(_reads(ranges), key=lambda each: (_generation(each), len(each.ranges))):
        tasks += len(read.ranges)
        if (
            not scans
            or len(scans[-1]) >= reads_at_once
            or tasks > TASKS_AT_ONCE
            or _generation(scans[-1][0]) != _generation(read)
        ):
            scans.append([])
            tasks = len(read.ranges)
        scans[-1].append(read)
    return [Scan(tuple(reads)) for reads in scans]


def _generation(read: Read) -> int:
    return read.ranges[0].offsets.generation


def _reads(ranges: Iterable[TopicRange]) -> Iterator[Read]:
    """Divide ranges into reads.

    A read is cut at the largest size that is left: of each Kafka partition it takes the first contiguous stretch of ranges of
    that size, or, where there is none, one smaller range, which Spark leaves whole. So a backlog takes one read, and its tails
    of other sizes one more.
    """
    left: dict[tuple[int, str, int], list[OffsetRange]] = defaultdict(list)
    for each in sorted(set(ranges)):
        left[each.offsets.generation, each.topic, each.offsets.partition].append(each.offsets)
    while any(left.values()):
        generation = min(place[0] for place, waiting in left.items() if waiting)
        here = [(topic, waiting) for (of, topic, _), waiting in left.items() if of == generation]
        size = max(len(offsets) for _, waiting in here for offsets in waiting)
        taken: list[TopicRange] = []
        for topic, waiting in here:
            stretch = _first_stretch(waiting, size) or waiting[:1]
            in_stretch = set(stretch)
            waiting[:] = [offsets for offsets in waiting if offsets not in in_stretch]
            taken += (TopicRange(topic, offsets) for offsets in stretch)
        yield Read(tuple(taken), size)


def _first_stretch(waiting: list[OffsetRange], size: int) -> list[OffsetRange]:
    stretch: list[OffsetRange] = []
    for offsets in waiting:
        if len(offsets) == size and (not stretch or offsets.start == stretch[-1].end):
            stretch.append(offsets)
        elif stretch:
            break
    return stretch
