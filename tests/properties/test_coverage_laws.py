"""Coverage: landed + pending + lost + skipped tile, and whatever is taken away or shifted is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.log.coverage import Coverage, State, check_planned, completeness_violations, tiling_violations
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.manifest import Manifest, StagedFile
from pipeline_defs.core.log.plan_step import LinkKind
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import TOPIC, Landing, Script, covered, landed, log_of, logs, provenance


def without(found: Mapping[OffsetRange, Any], gone: OffsetRange) -> dict[OffsetRange, Any]:
    return {offsets: value for offsets, value in found.items() if offsets != gone}


@st.composite
def lakes(draw: st.DrawFn) -> Coverage:
    """Draws a log of which each partition is landed without a gap up to a drawn number of ranges; some are empty."""
    log = draw(logs())
    found: list[Manifest] = []
    for place in sorted({o.place for o in log.ranges}):
        ranges = [o for o in log.ranges if o.place == place]
        some = ranges[: draw(st.integers(0, len(ranges)))]
        found += [landed(offsets, None if draw(st.integers(0, 3)) else ()) for offsets in some]
    return covered(log, found)


def violation_of(offsets: OffsetRange, coverage: Coverage) -> str:
    """Returns the violation that names exactly these offsets; it fails the test where there is none."""
    found = [violation for violation in tiling_violations(coverage) if offsets.text(TOPIC) in violation]
    assert found
    return found[0]


# ---- the states


@given(lakes())
def test_a_planned_range_is_landed_or_pending_and_lost_only_when_its_generation_is_closed(coverage: Coverage) -> None:
    """[R-9] What a recreated topic took with it is said to be lost, and never asked for again."""
    for link in coverage.log.links:
        state = coverage.states()[link.offsets]
        if link.kind is not LinkKind.RANGE:
            assert state.value == link.kind.value
        elif link.offsets in coverage.manifests:
            assert state is State.LANDED
        elif link.offsets in coverage.log.skipped:
            assert state is State.SKIPPED
        else:
            closed = link.offsets.generation < coverage.log.state.generation
            assert state is (State.LOST if closed else State.PENDING)
    assert coverage.pending() == [o for o, state in coverage.states().items() if state is State.PENDING]


@given(lakes())
def test_landed_means_manifest_and_file(coverage: Coverage) -> None:
    """[R-16] A manifest alone, or a file alone, is not landed; a range without records needs no file."""
    for offsets, manifest in coverage.manifests.items():
        assert coverage.is_landed(offsets)
        assert Coverage(coverage.log, coverage.manifests, {}).is_landed(offsets) == (manifest.file is None)
        assert not Coverage(coverage.log, {}, coverage.published).is_landed(offsets)


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
def test_an_intact_lake_has_no_violation(coverage: Coverage) -> None:
    """[R-37] Control: half-landed backlogs, empty ranges, loss and closed generations are no alarm."""
    assert tiling_violations(coverage) == []
    assert completeness_violations(coverage) == []


def inner_of(coverage: Coverage) -> list[OffsetRange]:
    """Return the landed ranges of the open generation, not left out since, behind which another one is landed."""
    last = {o.place: o for o in coverage.manifests}.values()
    generation = coverage.log.state.generation
    return [o for o in coverage.manifests if o not in last and o.generation == generation and o not in coverage.log.skipped]


@given(lakes(), st.data())
def test_a_deleted_manifest_is_named_with_its_offsets(coverage: Coverage, data: st.DataObject) -> None:
    """[R-37] But for a range without rows that is the last landed one, or was skipped since: it is only planned again."""
    inner = inner_of(coverage)
    seen = [offsets for offsets, manifest in coverage.manifests.items() if manifest.file or offsets in inner]
    assume(seen)
    gone = data.draw(st.sampled_from(seen))
    assert "gap" in violation_of(gone, replace(coverage, manifests=without(coverage.manifests, gone)))


@given(lakes(), st.data())
def test_a_deleted_file_is_named_with_its_offsets(coverage: Coverage, data: st.DataObject) -> None:
    """[R-37] A manifest without its file is a gap."""
    assume(coverage.published)
    gone = data.draw(st.sampled_from(sorted(coverage.published)))
    found = violation_of(gone, replace(coverage, published=without(coverage.published, gone)))
    assert "its file is not published" in found


@given(lakes(), st.data(), st.sampled_from(["start", "end"]), st.sampled_from([-1, 1]))
def test_a_shifted_end_is_named_with_its_offsets(coverage: Coverage, data: st.DataObject, end: str, by: int) -> None:
    """[R-37] Of a manifest, of a published file, or of both together."""
    assume(coverage.published)
    right = data.draw(st.sampled_from(sorted(coverage.published)))
    offset = getattr(right, end) + by
    assume(offset >= 0 and (len(right) > 1 or (end, by) not in {("start", 1), ("end", -1)}))
    wrong = replace(right, **{end: offset})
    manifests = {**without(coverage.manifests, right), wrong: landed(wrong)}
    published = {**without(coverage.published, right), wrong: 1}
    for shifted in (
        replace(coverage, manifests=manifests),
        replace(coverage, published=published),
        replace(coverage, manifests=manifests, published=published),
    ):
        with pytest.raises(BrokenPlanLog, match=re.escape(wrong.text(TOPIC))):
            check_planned(shifted)


@given(lakes(), st.data())
def test_a_gap_behind_landed_ranges_is_named(coverage: Coverage, data: st.DataObject) -> None:
    """[R-37] Manifest and file deleted together leave a planned range with later ones landed."""
    inner = inner_of(coverage)
    assume(inner)
    gone = data.draw(st.sampled_from(inner))
    left = Coverage(coverage.log, without(coverage.manifests, gone), without(coverage.published, gone))
    assert "planned and not landed, while later offsets are" in violation_of(gone, left)


@given(lakes(), st.data())
def test_a_file_for_a_range_without_records_is_named(coverage: Coverage, data: st.DataObject) -> None:
    empty = [offsets for offsets, manifest in coverage.manifests.items() if manifest.file is None]
    assume(empty)
    offsets = data.draw(st.sampled_from(empty))
    coverage = replace(coverage, published={**coverage.published, offsets: 100})
    assert "overlap" in violation_of(offsets, coverage)


def test_what_a_recreated_topic_took_with_it_is_lost_and_not_a_gap() -> None:
    """[R-9] The check would else be red for ever; a file without a manifest is still named."""
    ranges = [OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)]
    log = log_of(Script(Policy(records_per_range=10), True, [("grow", (0, 20)), ("recreate", (1, 0))]).play())
    still_open = covered(PlanLog(TOPIC, log.steps[:-1]), [landed(ranges[1])])
    closed = replace(still_open, log=log)
    assert len(tiling_violations(still_open)) == 1
    assert tiling_violations(closed) == []
    assert closed.states()[ranges[0]] is State.LOST
    assert closed.pending() == []
    without_manifest = [tiling_violations(replace(each, manifests={}))[-1] for each in (still_open, closed)]
    assert [("it is landed again" in said, "restore that from a backup" in said) for said in without_manifest] == [
        (True, True),
        (False, True),
    ]


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
