"""Coverage: landed + pending + lost + skipped tile, and whatever is taken away or shifted is named."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.log.coverage import Coverage, State, check_planned, completeness_violations, tiling_violations
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.manifest import Manifest, StagedFile
from pipeline_defs.core.log.plan_step import Head, Link, LinkKind, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, TOPIC, Landing, covered, landed, logs, provenance


@dataclass(frozen=True)
class Lake:
    """Is what a lake holds of a topic: of each Kafka partition all landed up to somewhere, of the open generation."""

    log: PlanLog
    manifests: dict[OffsetRange, Manifest]
    published: dict[OffsetRange, int]

    @property
    def coverage(self) -> Coverage:
        return Coverage(self.log, self.manifests, self.published)


def without(found: Mapping[OffsetRange, object], gone: OffsetRange) -> dict[OffsetRange, object]:
    return {offsets: value for offsets, value in found.items() if offsets != gone}


@st.composite
def lakes(draw: st.DrawFn) -> Lake:
    """Draws a log of which each partition is landed without a gap up to a drawn number of ranges; some are empty."""
    log = draw(logs())
    found: list[Manifest] = []
    places = sorted({o.place for o in log.ranges})
    for place in places:
        ranges = [o for o in log.ranges if o.place == place]
        some = ranges[: draw(st.integers(0, len(ranges)))]
        found += [landed(offsets, None if draw(st.integers(0, 3)) else ()) for offsets in some]
    coverage = covered(log, found)
    return Lake(log, {**coverage.manifests}, {**coverage.published})


def violation_of(offsets: OffsetRange, coverage: Coverage) -> str:
    """Returns the violation that names exactly these offsets; it fails the test where there is none."""
    found = [violation for violation in tiling_violations(coverage) if offsets.text(TOPIC) in violation]
    assert found
    return found[0]


# ---- the states


def beginnings(log: PlanLog) -> dict[tuple[int, int], int]:
    """Is where Kafka partitions begin that do not at 0: those of a log that was truncated under the same topic id."""
    return {
        (step.generation, partition): marks.earliest
        for before, step in pairwise(log.steps)
        if step.generation > before.generation and step.topic_id == before.topic_id
        for partition, marks in step.watermarks.items()
    }


@given(lakes())
def test_landed_pending_lost_and_skipped_tile_each_partition_from_its_first_link_to_its_head(lake: Lake) -> None:
    """Coverage has no gap and no overlap, whatever is landed so far."""
    states = lake.coverage.states()
    assert len(states) == len(lake.log.links)
    ends: dict[tuple[int, int], int] = defaultdict(int, beginnings(lake.log))
    for offsets in states:
        place = offsets.place
        assert offsets.start == ends[place]
        ends[place] = offsets.end
    log_state = lake.log.state
    for partition, head in log_state.heads.items():
        assert ends[log_state.generation, partition] == head.offset


@given(lakes())
def test_a_planned_range_is_landed_or_pending_and_lost_only_when_its_generation_is_closed(lake: Lake) -> None:
    """[R-9] What a recreated topic took with it is said to be lost, and never asked for again."""
    coverage = lake.coverage
    for link in lake.log.links:
        state = coverage.states()[link.offsets]
        if link.kind is not LinkKind.RANGE:
            assert state.value == link.kind.value
        elif link.offsets in lake.manifests:
            assert state is State.LANDED
        elif link.offsets in lake.log.skipped:
            assert state is State.SKIPPED
        else:
            closed = link.offsets.generation < lake.log.state.generation
            assert state is (State.LOST if closed else State.PENDING)
    assert coverage.pending() == [o for o, state in coverage.states().items() if state is State.PENDING]


@given(lakes())
def test_landed_means_manifest_and_file(lake: Lake) -> None:
    """[R-16] A manifest alone, or a file alone, is not landed; a range without records needs no file."""
    for offsets, manifest in lake.manifests.items():
        assert lake.coverage.is_landed(offsets)
        assert Coverage(lake.log, lake.manifests, {}).is_landed(offsets) == (manifest.file is None)
        assert not Coverage(lake.log, {}, lake.published).is_landed(offsets)


@given(logs(), st.data())
def test_the_frontier_is_contiguous(log: PlanLog, data: st.DataObject) -> None:
    """[R-36] All before it is landed, lost or skipped; at it a pending range begins, or the head is reached."""
    some = data.draw(st.sets(st.sampled_from(list(log.ranges)))) if log.ranges else set()
    coverage = covered(log, (landed(offsets, ()) for offsets in some))
    states, log_state = coverage.states(), log.state
    for generation in range(log_state.generation + 1):
        frontier = coverage.frontier(generation)
        assert set(frontier) == {o.partition for o in states if o.generation == generation}
        for partition, at in frontier.items():
            here = [o for o in states if o.place == (generation, partition)]
            assert all(states[o] is not State.PENDING for o in here if o.end <= at)
            behind = [o for o in here if o.end > at]
            assert [o.start for o in behind[:1]] == [at][: len(behind)]
            assert all(states[o] is State.PENDING for o in behind[:1])


# ---- tiling


@given(lakes())
def test_an_intact_lake_has_no_violation(lake: Lake) -> None:
    """[R-37] Control: half-landed backlogs, empty ranges, loss and closed generations are no alarm."""
    assert tiling_violations(lake.coverage) == []
    assert completeness_violations(lake.coverage) == []


def inner_of(lake: Lake) -> list[OffsetRange]:
    """Are the landed ranges of the open generation, not left out since, behind which another one is landed."""
    last = {o.place: o for o in lake.manifests}.values()
    generation = lake.log.state.generation
    return [o for o in lake.manifests if o not in last and o.generation == generation and o not in lake.log.skipped]


@given(lakes(), st.data())
def test_a_deleted_manifest_is_named_with_its_offsets(lake: Lake, data: st.DataObject) -> None:
    """[R-37] But for a range without rows that is the last landed one, or was skipped since: it is only planned again."""
    inner = inner_of(lake)
    seen = [offsets for offsets, manifest in lake.manifests.items() if manifest.file or offsets in inner]
    assume(seen)
    gone = data.draw(st.sampled_from(seen))
    assert "gap" in violation_of(gone, replace(lake.coverage, manifests=without(lake.manifests, gone)))  # type: ignore[arg-type]


@given(lakes(), st.data())
def test_a_deleted_file_is_named_with_its_offsets(lake: Lake, data: st.DataObject) -> None:
    """[R-37] A manifest without its file is a gap."""
    assume(lake.published)
    gone = data.draw(st.sampled_from(sorted(lake.published)))
    found = violation_of(gone, replace(lake.coverage, published=without(lake.published, gone)))  # type: ignore[arg-type]
    assert "its file is not published" in found


@given(lakes(), st.data(), st.sampled_from(["start", "end"]), st.sampled_from([-1, 1]))
def test_a_shifted_end_is_named_with_its_offsets(lake: Lake, data: st.DataObject, end: str, by: int) -> None:
    """[R-37] Of a manifest, of a published file, or of both together."""
    assume(lake.published)
    right = data.draw(st.sampled_from(sorted(lake.published)))
    offset = getattr(right, end) + by
    assume(offset >= 0 and (len(right) > 1 or (end, by) not in {("start", 1), ("end", -1)}))
    wrong = replace(right, **{end: offset})
    manifests = {**without(lake.manifests, right), wrong: landed(wrong)}
    published = {**without(lake.published, right), wrong: 1}
    for coverage in (
        replace(lake.coverage, manifests=manifests),  # type: ignore[arg-type]
        replace(lake.coverage, published=published),  # type: ignore[arg-type]
        replace(lake.coverage, manifests=manifests, published=published),  # type: ignore[arg-type]
    ):
        with pytest.raises(BrokenPlanLog, match=re.escape(wrong.text(coverage.log.topic))):
            check_planned(coverage)


@given(lakes(), st.data())
def test_a_gap_behind_landed_ranges_is_named(lake: Lake, data: st.DataObject) -> None:
    """[R-37] Manifest and file deleted together leave a planned range with later ones landed."""
    inner = inner_of(lake)
    assume(inner)
    gone = data.draw(st.sampled_from(inner))
    left = Coverage(lake.log, without(lake.manifests, gone), without(lake.published, gone))  # type: ignore[arg-type]
    assert "planned and not landed, while later offsets are" in violation_of(gone, left)


@given(lakes(), st.data())
def test_a_file_for_a_range_without_records_is_named(lake: Lake, data: st.DataObject) -> None:
    empty = [offsets for offsets, manifest in lake.manifests.items() if manifest.file is None]
    assume(empty)
    offsets = data.draw(st.sampled_from(empty))
    coverage = replace(lake.coverage, published={**lake.published, offsets: 100})
    assert "overlap" in violation_of(offsets, coverage)


def test_what_a_recreated_topic_took_with_it_is_lost_and_not_a_gap() -> None:
    """[R-9] The check would else be red for ever; a file without a manifest is still named."""
    ranges = [OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)]
    links = tuple(Link(LinkKind.RANGE, offsets) for offsets in ranges)
    marks = {0: Watermarks(0, 20)}
    first = PlanStep(0, TOPIC, 0, "id-0", EPOCH_MS, {}, marks, links, {0: Head(20, 0)})
    second = PlanStep(1, TOPIC, 1, "id-1", EPOCH_MS, {}, {0: Watermarks(0, 0)}, (), {0: Head(0, 0)}, "", ("id-0",))
    still_open = covered(PlanLog(TOPIC, (first,)), [landed(ranges[1])])
    closed = replace(still_open, log=PlanLog(TOPIC, (first, second)))
    assert len(tiling_violations(still_open)) == 1
    assert tiling_violations(closed) == []
    assert closed.states()[ranges[0]] is State.LOST
    assert closed.pending() == []
    assert len(tiling_violations(replace(closed, manifests={}))) == 1


# ---- completeness


FULL = Landing(OffsetRange(0, 0, 0, 10), (0, 1, 4, 5, 9), ())
HOLES = (Interval(2, 4, Cause.COMPACTED), Interval(6, 9, Cause.ABORTED))


@pytest.mark.parametrize(
    ("holes", "file", "said"),
    [
        pytest.param(HOLES, FULL.file, None, id="control"),
        pytest.param(
            (Interval(2, 4, Cause.COMPACTED), Interval(3, 6, Cause.ABORTED)), FULL.file, "holes overlap at [3, 4)", id="overlap"
        ),
        pytest.param((Interval(2, 4, Cause.COMPACTED), Interval(8, 11, Cause.LOST)), FULL.file, "lies outside", id="outside"),
        pytest.param(HOLES, replace(FULL.file, max_offset=10), "rows from 0 to 10 lie outside", id="rows outside"),  # type: ignore[type-var]
    ],
)
def test_holes_and_rows_that_cannot_be_are_named(holes: tuple[Interval, ...], file: StagedFile, said: str | None) -> None:
    """[R-38] The equation may hold by accident: holes that overlap, or lie outside, are named too."""
    manifest = Manifest(TOPIC, FULL.offsets, file, holes, provenance(FULL.offsets))
    violations = completeness_violations(Coverage(PlanLog(TOPIC), {FULL.offsets: manifest}, {}))
    assert [said in violation and "orders/0 [0, 10)" in violation for violation in violations if said] == [True] * bool(said)
    assert bool(violations) == bool(said)
