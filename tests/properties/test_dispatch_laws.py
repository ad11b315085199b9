"""Dispatch: what is due is landed, topics in turn, later after each failure; Spark divides each scan into its ranges."""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.landing import dispatch
from pipeline_defs.core.landing.dispatch import BACKOFF_LAST_SECONDS, NEVER_TRIED, Tried, alternate, choose_alike, choose_due
from pipeline_defs.core.landing.scans import READS_AT_ONCE, TASKS_AT_ONCE, Read, group_scans
from pipeline_defs.core.offsets import OffsetRange, TopicRange
from tests.support.strategies import EPOCH_MS

ORDER = [OffsetRange(0, number % 3, 10 * number, 10 * number + 10) for number in range(40)]
Order = list[OffsetRange | None]


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, set[OffsetRange], int]:
    """Draw Dagster's keys with some that are no ranges, what is wanted of them, and a run's size."""
    order: Order = list(ORDER[: draw(st.integers(0, len(ORDER)))])
    known = [offsets for offsets in order if offsets is not None]
    for at in draw(st.lists(st.integers(0, len(order)), max_size=3)):
        order.insert(at, None)
    return order, draw(st.sets(st.sampled_from(known)) if known else st.just(set[OffsetRange]())), draw(st.integers(1, 10))


@given(orders())
def test_each_wanted_range_is_in_just_one_run_which_spans_no_key_of_others(drawn: tuple[Order, set[OffsetRange], int]) -> None:
    """[R-31] Dagster's range run covers all keys between the first and the last, those typed by people included."""
    order, wanted, most = drawn
    stretches = dispatch.split_stretches(order, wanted, most)
    assert Counter(offsets for stretch in stretches for offsets in stretch) == Counter(wanted)
    for stretch in stretches:
        first, last = order.index(stretch[0]), order.index(stretch[-1])
        assert order[first : last + 1] == stretch
        assert 1 <= len(stretch) <= most


@given(st.dictionaries(st.sampled_from("abcde"), st.lists(st.sampled_from(ORDER), unique=True)), st.integers(0, 60))
def test_topics_take_turns_and_no_backlog_keeps_another_waiting(waiting: dict[str, list[OffsetRange]], most: int) -> None:
    """[R-32] As many as may be, of each topic its first ones, and none has two more than another that still waits."""
    chosen = dispatch.take_turns(waiting, most)
    assert sum(map(len, chosen.values())) == min(most, sum(map(len, waiting.values())))
    taken = {topic: chosen.get(topic, []) for topic in waiting}
    assert all(ranges[: len(taken[topic])] == taken[topic] for topic, ranges in waiting.items())
    short = [len(taken[topic]) for topic, ranges in waiting.items() if len(taken[topic]) < len(ranges)]
    assert not short or max(map(len, taken.values())) <= min(short) + 1


@given(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.lists(st.integers(1, 100).map(lambda length: OffsetRange(0, 0, 0, length)), min_size=1),
        min_size=1,
    ),
    st.integers(1, 20),
    st.integers(1, 300),
    st.integers(1, 4),
)
def test_a_job_is_no_longer_than_is_wanted_but_for_a_range_that_is(
    waiting: dict[str, list[OffsetRange]], most: int, most_offsets: int, tasks_at_once: int
) -> None:
    """[R-95] Whoever is first is in it, however large, and what is read meanwhile; of each topic the first ones that fit."""
    chosen = dispatch.take_turns(waiting, most, most_offsets, tasks_at_once)
    taken = [offsets for ranges in chosen.values() for offsets in ranges]
    total = sum(map(len, taken))
    first = next(iter(waiting.values()))[0]
    assert first in taken
    most_offsets = max(most_offsets, len(first) * tasks_at_once)
    assert total <= most_offsets
    for topic, ranges in waiting.items():
        count = len(chosen.get(topic, []))
        assert chosen.get(topic, []) == ranges[:count], "in the order of its policy"
        assert count == len(ranges) or len(taken) == most or total + len(ranges[count]) > most_offsets


@given(st.integers(1, 10**7), st.floats(0.01, 600), st.floats(1e3, 1e8))
def test_the_next_job_is_sized_by_the_pace_of_the_last_one(offsets: int, seconds: float, before: float) -> None:
    """[R-95] So that it takes as long as is wanted, at most doubled or halved at a time."""
    after = dispatch.next_most(offsets, seconds, 10.0, before)
    assert before / 2 <= after <= before * 2
    assert after in (before / 2, before * 2) or after * seconds / offsets == pytest.approx(10.0)


@given(
    st.lists(st.sampled_from(ORDER), unique=True),
    st.sets(st.sampled_from(ORDER)),
    st.dictionaries(st.sampled_from(ORDER), st.builds(Tried, st.integers(0, 12), st.integers(-(10**6), 0))),
)
def test_what_waits_is_due_unless_a_run_is_at_it_or_it_backs_off(
    waiting: list[OffsetRange], held: set[OffsetRange], tried: dict[OffsetRange, Tried]
) -> None:
    """[R-33] In its order, and however often it has failed, never skipped for good."""
    due = choose_due(waiting, held, tried, 0)
    assert due == [o for o in waiting if o not in held and (o not in tried or tried[o].is_due(0))]
    assert choose_due(waiting, (), tried, 10**9) == waiting


def test_the_back_off_doubles_and_is_bounded() -> None:
    """[R-33] 10 seconds at first, never more than 10 minutes; a power cut doubles nothing."""

    def wait_of(failures: int, cut_off: int = 0) -> int:
        tried = Tried(failures + cut_off, EPOCH_MS, cut_off=cut_off)
        return next(seconds for seconds in range(10**5) if tried.is_due(EPOCH_MS + seconds * 1000))

    waits = [wait_of(failures) for failures in range(12)]
    assert waits == [0, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 600]
    assert [wait_of(failures, 7) for failures in range(12)] == [10, *waits[1:]]
    assert (waits[1], waits[-1]) == (dispatch.BACKOFF_FIRST_SECONDS, BACKOFF_LAST_SECONDS)


@given(st.integers(0, 10**4), st.integers(-(10**9), 10**9))
@example(1, 10**9)
def test_no_range_waits_longer_than_two_back_offs_whatever_the_clocks_say(attempts: int, ahead_ms: int) -> None:
    """A run that ended in the future, by another machine's clock, does not bar its ranges for ever."""
    tried = Tried(attempts, EPOCH_MS + ahead_ms)
    half = BACKOFF_LAST_SECONDS * 500
    assert any(tried.is_due(EPOCH_MS + k * half) for k in range(5))


@given(st.sets(st.integers(0, 39)), st.integers(1, 4))
def test_whatever_fails_the_others_are_landed(bad: set[int], most: int) -> None:
    """[R-32] However many fail, and however few a batch has; and each that fails is tried again and again."""
    left, tried, now_ms = [*ORDER], dict[OffsetRange, Tried](), EPOCH_MS
    while {*left} - {ORDER[number] for number in bad}:
        now_ms += 1_000 * (BACKOFF_LAST_SECONDS + 1)  # as where a batch that wholly fails has all of its topic wait
        batch = alternate(left, tried)[:most]
        assert batch and now_ms < EPOCH_MS + 1_000 * (BACKOFF_LAST_SECONDS + 1) * 3 * len(ORDER)
        for each in batch:
            if ORDER.index(each) in bad:
                tried[each] = tried.get(each, NEVER_TRIED).then_failed("run", now_ms)
            else:
                left.remove(each)
    for _ in range(len(left)):
        now_ms += 1
        tried |= {each: tried.get(each, NEVER_TRIED).then_failed("run", now_ms) for each in alternate(left, tried)[:most]}
    assert all(now_ms - each.last_ended_ms <= len(left) for each in tried.values()) and len(tried) == len(left)


@given(st.sets(st.integers(0, 39)), st.integers(1, 4), st.lists(st.integers(0, 39), max_size=8))
def test_whatever_is_stuck_the_others_are_decoded(stuck: set[int], cores: int, later: list[int]) -> None:
    """[R-67] In jobs of which each stuck range holds a core until they are stopped; some ranges are landed later.

    What was never tried shares no job with what has failed, nobody waits for all that is before it, and what has failed is
    tried again.
    """
    left = {offsets: EPOCH_MS + (number if number in later else 0) for number, offsets in enumerate(ORDER)}
    bad = {ORDER[number] for number in stuck}
    tried, retries, now_ms, rounds = dict[OffsetRange, Tried](), 1, EPOCH_MS, 0
    while left.keys() - bad:
        rounds += 1
        now_ms += 1_000
        due = [each for each in left if left[each] <= now_ms and tried.get(each, NEVER_TRIED).is_due(now_ms)]
        batch = choose_alike(due, left, tried, 20, retries)
        assert len({each in tried for each in batch}) <= 1
        held, done = 0, set[OffsetRange]()
        for each in batch:
            held += each in bad
            if held == cores:
                break
            done |= {each} - bad
        for each in batch:
            if each in done:
                del left[each]
                tried.pop(each, None)
            else:
                tried[each] = tried.get(each, NEVER_TRIED).then_failed("run", now_ms)
        retries = 2 * len(batch) if done and done == {*batch} else 1
        assert rounds < 40 * BACKOFF_LAST_SECONDS
    for _ in range(2 * BACKOFF_LAST_SECONDS):
        now_ms += 1_000
        due = [each for each in left if tried.get(each, NEVER_TRIED).is_due(now_ms)]
        for each in choose_alike(due, left, tried, 20, 1):
            tried[each] = tried.get(each, NEVER_TRIED).then_failed("run", now_ms)
    assert all(now_ms - each.last_ended_ms <= 1_000 * (BACKOFF_LAST_SECONDS + len(bad)) for each in tried.values())


TOPICS = ("a", "b", "c")


def spark_tasks(read: Read) -> list[tuple[str, int, int, int]]:
    """Divide as Spark's KafkaOffsetRangeCalculator does with `maxRecordsPerPartition` and no `minPartitions`.

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
    """Draw disjoint ranges of few sizes, with gaps where others are landed, over topics, partitions and generations."""
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
    (whole,) = [one for scan in scans for one in scan.reads if len(one.ranges) >= stretch and not one.ranges[0].offsets.start]
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
