"""Ranges, their keys, intervals held against sets of integers, and each way to say which ranges one means."""

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BadKey, EmptySelection, Refused
from pipeline_defs.core.landing import selection
from pipeline_defs.core.landing.selection import Selection, choose_offsets, choose_times, parse_offsets, retired
from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange, check_topic, merge_intervals, parse_key, subtract_intervals
from tests.properties.test_coverage_laws import lakes
from tests.support import strategies
from tests.support.strategies import EPOCH_MS, TOPIC, covered, intervals, landed, offset_ranges, offsets_in


def in_state(coverage: Coverage, *states: State) -> list[OffsetRange]:
    return [o for o, state in coverage.states().items() if state in states and o in coverage.log.ranges]


@given(lakes())
def test_all_and_missing_are_by_state_in_log_order(coverage: Coverage) -> None:
    """What is lost for good is left out and said; where nothing is left the selection is refused."""
    landable, pending = in_state(coverage, State.LANDED, State.PENDING), in_state(coverage, State.PENDING)
    for choose, expected in ((selection.choose_all, landable), (selection.choose_missing, pending)):
        if expected:
            assert list(choose(coverage).ranges) == expected
        else:
            with pytest.raises(EmptySelection, match="nothing was launched"):
                choose(coverage)
    if landable:
        assert list(selection.choose_all(coverage).left_out) == in_state(coverage, State.LOST, State.CLAIMED, State.SKIPPED)


@given(lakes(), st.data())
def test_failed_are_those_not_landed_of_what_failed(coverage: Coverage, data: st.DataObject) -> None:
    """A range that failed once and was landed since is not failed."""
    pending = in_state(coverage, State.PENDING)
    assume(pending)
    failed = data.draw(st.sets(st.sampled_from(sorted(coverage.log.ranges)))) | {pending[0]}
    assert list(selection.choose_failed(coverage, failed).ranges) == [o for o in pending if o in failed]


@given(lakes(), st.data())
def test_offsets_are_the_ranges_that_hold_one_of_them(coverage: Coverage, data: st.DataObject) -> None:
    """Half-open: the range that begins where the offsets end is not meant."""
    landable = in_state(coverage, State.LANDED, State.PENDING)
    assume(landable)
    first = data.draw(st.sampled_from(landable))
    start = data.draw(st.integers(first.start, first.end - 1))
    wanted = replace(first, start=start, end=data.draw(st.integers(start + 1, first.end)))
    assert choose_offsets(coverage, [wanted]) == Selection((first,))


@given(lakes())
def test_offsets_outside_of_the_plan_log_are_refused_by_name(coverage: Coverage) -> None:
    landable = in_state(coverage, State.LANDED, State.PENDING)
    assume(landable)
    last = max(o for o in coverage.log.ranges if o.place == landable[0].place)
    end = max(link.offsets.end for link in coverage.log.links if link.offsets.place == last.place)
    beyond = replace(last, end=end + 5)
    with pytest.raises(Refused, match=rf"\[{end}, {end + 5}\) of .*; it holds \["):
        choose_offsets(coverage, [beyond])


def with_times(coverage: Coverage) -> Coverage:
    """Have the records of each landed range be of 150 ms, from 100 ms after those of the range before it."""
    manifests = {}
    for number, (offsets, manifest) in enumerate(sorted(coverage.manifests.items())):
        first = EPOCH_MS + 100 * number
        file = manifest.file and replace(manifest.file, min_timestamp_ms=first, max_timestamp_ms=first + 149)
        manifests[offsets] = replace(manifest, file=file)
    return replace(coverage, manifests=manifests)


@given(lakes(), st.sampled_from([100 * n + ms for n in range(4) for ms in (0, 149, 150)]), st.sampled_from([1, 50, 100, 300]))
def test_a_time_is_the_landed_ranges_with_a_record_of_it(coverage: Coverage, after: int, length: int) -> None:
    """By the timestamps in the manifests; the end of the time is not in it, and a range without records has none."""
    coverage = with_times(coverage)
    asked = set(range(EPOCH_MS + after, EPOCH_MS + after + length))
    files = {o: manifest.file for o, manifest in coverage.manifests.items() if manifest.file}
    times = {o: range(file.min_timestamp_ms or 0, (file.max_timestamp_ms or 0) + 1) for o, file in files.items()}
    expected = [o for o in coverage.log.ranges if o in times and not asked.isdisjoint(times[o])]
    if expected:
        assert list(choose_times(coverage, min(asked), max(asked) + 1, {}).ranges) == expected
    else:
        with pytest.raises(EmptySelection):
            choose_times(coverage, min(asked), max(asked) + 1, {})


@given(lakes())
def test_what_is_not_landed_is_left_out_of_a_time_only_where_it_is_older(coverage: Coverage) -> None:
    pending = [o for o in in_state(coverage, State.PENDING) if o.generation == coverage.log.generation]
    assume(pending)
    one = pending[0]
    assert one in choose_times(coverage, 0, 1, {one.partition: one.end - 1}).ranges
    with pytest.raises(EmptySelection):
        choose_times(coverage, 0, 1, {o.partition: o.end for o in pending})


@dataclass(frozen=True)
class Day:
    """A Kafka partition whose producers set times as they like, cut into ranges, which land while the broker deletes."""

    times: list[int]  # of each record, after the epoch
    ranges: list[OffsetRange]
    landed_at: list[int]  # in which moment each range is landed
    earliest: list[int]  # of each moment: where the broker's log begins; the last is when all is landed

    def coverage(self, moment: int) -> Coverage:
        step = strategies.step_of(0, *((each.start, each.end) for each in self.ranges), head=len(self.times))
        pairs = zip(self.ranges, self.landed_at, strict=True)
        manifests = [self._manifest(offsets, self.earliest[at]) for offsets, at in pairs if at <= moment]
        return covered(PlanLog(TOPIC, (step,)), manifests)

    def _manifest(self, offsets: OffsetRange, earliest: int) -> Manifest:
        there = range(max(offsets.start, earliest), offsets.end)
        found = [EPOCH_MS + self.times[offset] for offset in there]
        manifest = landed(offsets, there)
        file = manifest.file and replace(manifest.file, min_timestamp_ms=min(found), max_timestamp_ms=max(found))
        return replace(manifest, file=file)

    def first(self, moment: int, start_ms: int) -> int:
        """What the broker answers: of what it still has the first record of that time or later."""
        end = len(self.times)
        there = range(self.earliest[moment], end)
        return next((offset for offset in there if EPOCH_MS + self.times[offset] >= start_ms), end)

    def chosen(self, moment: int, start_ms: int, end_ms: int) -> set[OffsetRange]:
        try:
            found = choose_times(self.coverage(moment), start_ms, end_ms, {0: self.first(moment, start_ms)})
        except EmptySelection:
            return set()
        return set(found.ranges)


@st.composite
def days(draw: st.DrawFn) -> Day:
    times = draw(st.lists(st.integers(0, 100), min_size=1, max_size=30))
    cuts = sorted({0, len(times), *draw(st.sets(st.integers(0, len(times)), max_size=8))})
    ranges = [OffsetRange(0, 0, start, end) for start, end in pairwise(cuts)]
    moments = draw(st.integers(1, 4))
    landed_at = [draw(st.integers(0, moments)) for _ in ranges]
    return Day(times, ranges, landed_at, sorted(draw(st.integers(0, len(times))) for _ in range(moments + 1)))


@given(days(), st.integers(-5, 105), st.integers(1, 60))
def test_a_time_chosen_again_only_narrows_to_the_landed_ranges_of_it(day: Day, start: int, length: int) -> None:
    """[R-64] Before landing, while ranges land, and after the broker has deleted all: timestamps need not be in order."""
    start_ms, end_ms = EPOCH_MS + start, EPOCH_MS + start + length
    found = [day.chosen(moment, start_ms, end_ms) for moment in range(len(day.earliest))]
    for earlier, later in pairwise(found):
        assert later <= earlier
    for moment, chosen in enumerate(found):
        landed = day.coverage(moment).manifests
        assert found[-1] <= chosen
        assert {o for o in chosen if o in landed} == {o for o in found[-1] if o in landed}, "of what is landed: the same"


def test_the_offsets_that_the_broker_gives_are_of_the_open_generation() -> None:
    """The topic was made anew: what the broker now has at these offsets is not what was lost of the one before."""
    policy = Policy(records_per_range=10)
    coverage = covered(
        strategies.log_of(strategies.Script(policy, True, [("grow", (0, 10)), ("recreate", (1, 10))]).play()), []
    )
    assert coverage.states() == {OffsetRange(0, 0, 0, 10): State.LOST, OffsetRange(1, 0, 0, 10): State.PENDING}
    assert choose_times(coverage, 0, 1, {0: 0}) == Selection((OffsetRange(1, 0, 0, 10),), left_out=())


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(1, 2**60))
def test_offsets_are_read_as_they_are_written(partition: int, start: int, length: int) -> None:
    assert parse_offsets(f"{partition}:{start}-{start + length}", 3) == OffsetRange(3, partition, start, start + length)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0:5", "0:5-5", "0:6-5", "0:-1-5", "a:0-5", "0:0-5-g1", "0:0-5 ", "٣:0-5", f"0:0-{2**63}", "2147483648:0-5"],
)
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"are not P:S-E: .*expected (a Kafka partition|partitions up to 2147483647)"):
        parse_offsets(text, 0)


@given(lakes(), st.integers(1, 12))
def test_only_landed_ranges_before_the_newest_are_retired(coverage: Coverage, most: int) -> None:
    """What Dagster keeps is the newest `max_keys` and, of the older ones, whatever waits; nothing that was skipped."""
    away = retired(coverage, most)
    ranges = list(coverage.log.ranges)
    older, newest = ranges[:-most], ranges[-most:]
    skipped = set(in_state(coverage, State.SKIPPED))
    assert away - skipped == {o for o in older if coverage.is_landed(o)}
    assert skipped <= away and (away - skipped).isdisjoint(newest)
    assert away.isdisjoint(in_state(coverage, State.PENDING))


@given(offset_ranges())
def test_a_key_reads_back_as_its_range(offsets: OffsetRange) -> None:
    assert parse_key(offsets.key) == offsets


@given(st.text(alphabet="0123-+g _\n.٣²a", max_size=14) | st.from_regex(r"[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}(-g[0-9]{1,2})?"))
@example("0-0-1-g01")
def test_a_text_is_refused_or_is_exactly_the_key_of_its_range(text: str) -> None:
    """[R-11] One range, one key: Dagster lets people type any text, and a second spelling would be a second partition."""
    try:
        offsets = parse_key(text)
    except BadKey:
        return
    assert offsets.key == text


@pytest.mark.parametrize("text", ["", "03-0-1", "+3-0-1", "\u0663-0-1", "3-0-1\n", "3-1-1", "3-0-1-g0", "9" * 5000 + "-0-1"])
def test_a_key_that_is_not_canonical_is_refused_in_words_that_say_what_to_type(text: str) -> None:
    with pytest.raises(BadKey, match=r"expected <kafka partition>-<start>-<end>\[-g<generation>\]") as caught:
        parse_key(text)
    assert caught.value.fields == {"key": text}
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "numbers", [(0, 0, 5, 5), (0, 0, 6, 5), (0, 0, -1, 5), (0, -1, 0, 5), (-1, 0, 0, 5), (0, 0, 0, 2**63), (0, 2**31, 0, 5)]
)
def test_a_bad_range_cannot_exist(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="no such range"):
        OffsetRange(*numbers)


@given(offset_ranges(), offset_ranges())
def test_names_in_the_lake_sort_as_offsets_do_and_are_unique(one: OffsetRange, other: OffsetRange) -> None:
    """Padded as Kafka's own segment files, so that a listing is in order."""
    assert (one.stem < other.stem) == ((one.start, one.end) < (other.start, other.end))
    assert ((one.folder, one.stem) == (other.folder, other.stem)) == (one == other)
    assert (one.key == other.key) == (one == other)
    assert (one.text("orders") == other.text("orders")) == (one == other)


def test_the_text_forms_are_those_of_the_design() -> None:
    first, second = OffsetRange(0, 3, 1000, 2000), OffsetRange(1, 12345, 0, 7)
    assert [first.key, first.folder, first.text("orders")] == ["3-1000-2000", "g0/p0003", "orders/3 [1000, 2000)"]
    assert [second.key, second.folder, second.text("a.b")] == ["12345-0-7-g1", "g1/p12345", "a.b/12345 g1 [0, 7)"]
    assert first.stem == "00000000000000001000-00000000000000002000"


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a" * 250, "a:b", "../x", "a\\b"])
def test_a_topic_that_kafka_does_not_allow_is_refused(topic: str) -> None:
    """A topic is a folder of the lake: `..` would leave it."""
    with pytest.raises(ValueError, match="is not one Kafka allows"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "a.b_c-D9", "...", "a" * 249])
def test_a_topic_that_kafka_allows_is_taken(topic: str) -> None:
    assert check_topic(topic) == topic


@given(intervals())
def test_merged_intervals_are_the_same_offsets_sorted_disjoint_and_apart(found: list[tuple[int, int]]) -> None:
    merged = merge_intervals(found)
    assert offsets_in(merged) == offsets_in(found)
    assert all(start < end for start, end in merged)
    assert all(end < start for (_, end), (start, _) in pairwise(merged))
    assert merge_intervals(merged) == merged


@given(intervals(), intervals())
def test_subtracting_intervals_is_subtracting_their_offsets(whole: list[tuple[int, int]], gone: list[tuple[int, int]]) -> None:
    left = subtract_intervals(merge_intervals(whole), gone)
    assert offsets_in(left) == offsets_in(whole) - offsets_in(gone)
    assert all(start < end for start, end in left)
    assert left == sorted(left)
    assert sum(end - start for start, end in left) == len(offsets_in(left))
