"""Scans: Spark's own division of each scan gives exactly the ranges, in few scans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.landing.scans import READS_AT_ONCE, TASKS_AT_ONCE, Read, group_scans
from pipeline_defs.core.offsets import OffsetRange, TopicRange

TOPICS = ("a", "b", "c")


def spark_tasks(read: Read) -> list[tuple[str, int, int, int]]:
    """Divides as Spark's KafkaOffsetRangeCalculator does with `maxRecordsPerPartition` and no `minPartitions`.

    Each Kafka partition into `ceil(size / maxRecords)` parts, each part `remaining / (parts - part)` offsets long.
    """
    tasks = []
    places = ((topic, partition, bounds) for topic, of in read.bounds.items() for partition, bounds in of.items())
    for topic, partition, (at, end) in places:
        remaining = end - at
        parts = ceil(remaining / read.records_per_task)
        for part in range(parts):
            size = remaining // (parts - part)
            remaining -= size
            tasks.append((topic, partition, end - remaining - size, end - remaining))
    return tasks


@st.composite
def any_ranges(draw: st.DrawFn) -> list[TopicRange]:
    """Draws disjoint ranges of few sizes, with gaps where others are landed, over topics, partitions and generations."""
    ranges = []
    for topic in TOPICS[: draw(st.integers(1, 3))]:
        for generation in range(draw(st.integers(1, 2))):
            for partition in range(draw(st.integers(1, 3))):
                at = draw(st.integers(0, 20))
                for size in draw(st.lists(st.sampled_from([1, 3, 7, 10, 10, 10, 20]), max_size=6)):
                    if draw(st.integers(0, 4)):
                        ranges.append(TopicRange(topic, OffsetRange(generation, partition, at, at + size)))
                    at += size
    return draw(st.permutations(ranges))


def of_a(ranges: Iterable[OffsetRange]) -> list[TopicRange]:
    return [TopicRange("a", offsets) for offsets in ranges]


@given(any_ranges())
def test_sparks_tasks_are_exactly_the_ranges(ranges: list[TopicRange]) -> None:
    """[R-12] One range, one task, one file: not an offset more or less; none is read twice, none is left out."""
    scans = group_scans(ranges)
    assert Counter(each for scan in scans for each in scan.ranges) == Counter(ranges)
    for scan in scans:
        for read in scan.reads:
            expected = [(e.topic, e.offsets.partition, e.offsets.start, e.offsets.end) for e in read.ranges]
            assert expected and sorted(spark_tasks(read)) == sorted(expected)
        assert {each.offsets.generation for each in scan.ranges} == {scan.generation}


@given(any_ranges(), st.integers(1, 5))
def test_a_scan_takes_a_bounded_number_of_reads(ranges: list[TopicRange], at_once: int) -> None:
    """[R-12] A union's cost grows with the product of its reads and tasks; one read at a time is one job each."""
    scans = group_scans(ranges, reads_at_once=at_once)
    reads = [len(scan.reads) for scan in scans]
    assert all(1 <= count <= at_once for count in reads)
    per_generation = Counter(scan.generation for scan in scans for _ in scan.reads)
    assert len(scans) == sum(ceil(count / at_once) for count in per_generation.values())


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 2000))
def test_a_long_stretch_is_read_whole_and_shares_its_job_with_few(gaps: list[int], stretch: int) -> None:
    """[R-12] Equal ranges in a row are one read, however many; tasks in one job are bounded but for that."""
    ranges = [OffsetRange(0, 0, at * 10, at * 10 + 10) for at in range(stretch)]
    at = stretch * 10
    for gap in gaps:
        at += gap
        ranges.append(OffsetRange(0, 0, at, at + gap % 7 + 1))
        at = ranges[-1].end
    scans = group_scans(of_a(ranges))
    (whole,) = [
        read for scan in scans for read in scan.reads if len(read.ranges) >= stretch and not read.ranges[0].offsets.start
    ]
    assert set(of_a(ranges[:stretch])) <= set(whole.ranges)
    assert all(len(scan.ranges) <= TASKS_AT_ONCE or len(scan.reads) == 1 for scan in scans)


def irregular(count: int, partitions: int) -> Iterator[OffsetRange]:
    """Yield ranges one behind the other, of which no two neighbours are equally long, over some Kafka partitions."""
    at = [0] * partitions
    for number in range(count):
        partition, length = number % partitions, 40 + number // partitions * 7 % 61
        yield OffsetRange(0, partition, at[partition], at[partition] + length)
        at[partition] += length


def test_a_backlog_of_irregular_ranges_is_few_jobs() -> None:
    """[R-12] L5: as many reads as a Kafka partition has ranges, in unions; it was a job for each."""
    assert [len(scan.reads) for scan in group_scans(of_a(irregular(108, 3)))] == [READS_AT_ONCE, 36 - READS_AT_ONCE]
    assert [len(scan.reads) for scan in group_scans(of_a(irregular(300, 1)))] == [READS_AT_ONCE] * (300 // READS_AT_ONCE)


def test_the_division_of_a_bad_scan_is_not_the_ranges() -> None:
    """Control: the reference would show it if a scan mixed sizes."""
    bad = Read(tuple(of_a([OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 15)])), 10)
    assert spark_tasks(bad) == [("a", 0, 0, 7), ("a", 0, 7, 15)]


@given(any_ranges())
def test_the_order_and_repetition_of_the_ranges_do_not_matter(ranges: list[TopicRange]) -> None:
    assert group_scans([*ranges, *ranges]) == group_scans(sorted(ranges))


def test_tails_of_all_sizes_of_a_thousand_partitions_or_topics_are_one_read() -> None:
    """[R-12] What is pending of many that are low in volume is one Spark job, not one each: one `assign` names all of them."""
    for tails in (
        of_a(OffsetRange(0, p, 0, 1 + p) for p in range(1000)),
        [TopicRange(f"t{n}", OffsetRange(0, 0, 0, 1 + n)) for n in range(1000)],
    ):
        ((read,),) = (scan.reads for scan in group_scans(tails))
        assert sum(map(len, read.bounds.values())) == len(read.ranges) == 1000
