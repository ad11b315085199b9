"""Coverage: landed, pending, lost and skipped tile; what is taken away or shifted is named; each loss and each skip is told."""

from __future__ import annotations

import base64
import gzip
import json
import re
from array import array
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog, Refused
from pipeline_defs.core.landing.dispatch import NEVER_TRIED
from pipeline_defs.core.landing.picture import CAUSES, LOOKS, Line, LinkLook, Picture, draw_picture
from pipeline_defs.core.landing.tiling import check_planned, completeness_violations, tiling_violations
from pipeline_defs.core.log import losses
from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Acceptance
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.losses import BEFORE_LANDED, all_losses, find_losses, find_skips, read_from, unrecorded_losses
from pipeline_defs.core.log.manifest import Manifest, StagedFile
from pipeline_defs.core.log.plan_step import Head, Link, LinkKind, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.offsets import OffsetRange, merge_intervals, parse_key
from pipeline_defs.orchestration.map.page import bar, page, summary
from tests.properties.test_progress_laws import two_ranges
from tests.support import strategies
from tests.support.strategies import EPOCH_MS, TOPIC, Script, covered, landed, log_of, logs, skip_in


def without(found: Mapping[OffsetRange, Any], gone: OffsetRange) -> dict[OffsetRange, Any]:
    return {offsets: value for offsets, value in found.items() if offsets != gone}


@st.composite
def lakes(draw: st.DrawFn) -> Coverage:
    """Draw a log of which each partition is landed without a gap up to a drawn number of ranges; some are empty."""
    log = draw(logs())
    found: list[Manifest] = []
    for place in sorted({o.place for o in log.ranges}):
        ranges = [o for o in log.ranges if o.place == place]
        some = ranges[: draw(st.integers(0, len(ranges)))]
        found += [landed(offsets, None if draw(st.integers(0, 3)) else ()) for offsets in some]
    return covered(log, found)


def violation_of(offsets: OffsetRange, coverage: Coverage) -> str:
    """Return the violation that names exactly these offsets; fail the test where there is none."""
    found = [violation for violation in tiling_violations(coverage) if offsets.text(TOPIC) in violation]
    assert found
    return found[0]


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
    left = replace(coverage, manifests=without(coverage.manifests, gone))
    said = violation_of(gone, left)
    assert "gap" in said
    is_read_again = gone in coverage.published and left.states()[gone] is State.PENDING
    assert ("it is landed again" in said) == is_read_again, "of a topic that is gone a backup alone has it"


@given(lakes(), st.data())
def test_a_deleted_file_is_named_with_its_offsets(coverage: Coverage, data: st.DataObject) -> None:
    """[R-37] A manifest without its file is a gap."""
    assume(coverage.published)
    gone = data.draw(st.sampled_from(sorted(coverage.published)))
    assert "its file is not published" in violation_of(gone, replace(coverage, published=without(coverage.published, gone)))


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
def test_a_file_for_a_range_without_records_is_named(coverage: Coverage, data: st.DataObject) -> None:
    empty = [offsets for offsets, manifest in coverage.manifests.items() if manifest.file is None]
    assume(empty)
    offsets = data.draw(st.sampled_from(empty))
    coverage = replace(coverage, published={**coverage.published, offsets: 100})
    assert "overlap" in violation_of(offsets, coverage)


FULL = strategies.Landing(OffsetRange(0, 0, 0, 10), (0, 1, 4, 5, 9), ())
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
    manifest = Manifest(TOPIC, FULL.offsets, file, holes, strategies.provenance(FULL.offsets))
    violations = completeness_violations(Coverage(PlanLog(TOPIC), {FULL.offsets: manifest}, {}))
    assert [said in violation and "orders/0 [0, 10)" in violation for violation in violations if said] == [True] * bool(said)
    assert bool(violations) == bool(said)


RANGES = st.builds(lambda start, size: OffsetRange(0, 0, start, start + size), st.integers(0, 50), st.integers(1, 50))


@given(RANGES, st.integers(0, 120))
def test_what_is_read_and_what_is_lost_are_the_range(offsets: OffsetRange, earliest: int) -> None:
    reading = read_from(offsets, earliest)
    lost = [(hole.start, hole.end) for hole in reading.lost]
    rest = [(reading.rest.start, reading.rest.end)] if reading.rest else []
    assert merge_intervals([*lost, *rest]) == [(offsets.start, offsets.end)]
    assert sum(end - start for start, end in [*lost, *rest]) == len(offsets)
    assert all(end <= earliest for _, end in lost)
    assert all(start >= earliest for start, _ in rest)


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    """Draw a log of which some ranges are landed, some of them with a lost beginning."""
    log, manifests = draw(logs()), []
    for offsets in log.ranges:
        if draw(st.booleans()):
            reading = read_from(offsets, draw(st.integers(offsets.start, offsets.end)))
            rows = range(reading.rest.start, reading.rest.end) if reading.rest else ()
            manifests.append(replace(landed(offsets, rows), holes=reading.lost))
    return covered(log, manifests)


@given(coverages())
def test_every_offset_is_accounted_for_once(coverage: Coverage) -> None:
    """[R-41] Rows, losses, pending and skipped links tile each Kafka partition, whatever was landed."""
    found = find_losses(coverage)
    for loss in found:
        offsets = parse_key(loss.key)
        closed = losses.GONE if offsets in coverage.manifests else losses.CLOSED
        cause = closed if offsets in coverage.log.ranges else losses.BEFORE_PLANNED
        assert loss.cause == (BEFORE_LANDED if coverage.is_landed(offsets) else cause)
    pieces = [loss.offsets for loss in found]
    for offsets, state in coverage.states().items():
        if state in {State.PENDING, State.SKIPPED}:
            pieces.append(offsets)
        elif state is State.LANDED:
            lost = [h for h in coverage.manifests[offsets].holes if h.cause is Cause.LOST]
            start = lost[-1].end if lost else offsets.start
            if start < offsets.end:
                pieces.append(OffsetRange(offsets.generation, offsets.partition, start, offsets.end))
    whole = sorted(link.offsets for link in coverage.log.links)
    assert sum(map(len, pieces)) == sum(map(len, whole))
    for place in {o.place for o in whole}:
        mine = [[(o.start, o.end) for o in found if o.place == place] for found in (pieces, whole)]
        assert merge_intervals(mine[0]) == merge_intervals(mine[1])


@given(coverages(), st.data())
def test_what_the_broker_deleted_of_pending_ranges_waits_for_a_word(coverage: Coverage, chance: st.DataObject) -> None:
    log = coverage.log
    marks = {p: Watermarks(chance.draw(st.integers(0, head.offset)), head.offset) for p, head in log.state.heads.items()}
    waiting = unrecorded_losses(coverage, marks)
    assert {(o.partition, at) for loss in waiting for o in [loss.offsets] for at in range(o.start, o.end)} == {
        (o.partition, at)
        for o in coverage.pending()
        if o.generation == log.generation
        for at in range(o.start, min(o.end, marks[o.partition].earliest))
    }
    words = {o: Acceptance(TOPIC, o, (o.start, o.end), "ada", 1) for o in log.ranges if chance.draw(st.booleans())}
    said = {loss.offsets: loss.acceptance for loss in unrecorded_losses(replace(coverage, accepted=words), marks)}
    assert said == {loss.offsets: words.get(parse_key(loss.key)) for loss in waiting}, "a word counts before its run"


# up to the middle of a range, beside another partition
EXPIRED = [("grow", (0, 20)), ("add_partition", (20,)), ("expire", (0, 25))]


@given(strategies.scripts(), st.integers(0, 100), st.sets(st.integers(0, 40)), st.integers(1, 12))
@example(Script(Policy(10, max_age_seconds=0), True, EXPIRED), 100, set(), 10)
def test_what_waits_before_a_skip_is_left_out_and_no_more(script: Script, percent: int, numbers: set[int], grid: int) -> None:
    """[R-92] Planned or not; what is landed stays so, what lies beyond waits as before, and nothing counts as lost."""
    ticks = script.play()
    log, state, now_ms = log_of(ticks), ticks[-1].state, ticks[-1].now_ms + 1
    before = covered(log, (landed(offsets, ()) for number, offsets in enumerate(log.ranges) if number in numbers))
    policy = Policy(records_per_range=grid)
    skip = skip_in(state, log.state, percent, before.pending())
    step = plan(log.state, state, policy, now_ms, skip=skip)
    marks = {p: seen.watermarks for p, seen in state.partitions.items()}
    seen = [o for o in before.pending() if o.generation == log.generation and o.partition in marks]
    waiting = [o for o in seen if o.start >= marks[o.partition].earliest]
    if step is None:
        assert not any(offsets.end <= skip.to[offsets.partition] for offsets in waiting)
        assert all(log.state.heads[p].offset >= at for p, at in skip.to.items())
        return
    after = Coverage(PlanLog(TOPIC, (*log.steps, step)), before.manifests, {})
    for offsets, kept in before.states().items():
        is_before = kept is State.PENDING and offsets in waiting and offsets.end <= skip.to[offsets.partition]
        assert after.states()[offsets] is (State.SKIPPED if is_before else kept)
    assert all(after.states()[o] is State.SKIPPED and o.end <= skip.to[o.partition] for o in step.ranges)
    assert {p: head.offset for p, head in step.after(log.state).heads.items()} == {
        p: max(head.offset, skip.to.get(p, 0)) for p, head in log.state.heads.items()
    }
    assert {*tiling_violations(after)} <= {*tiling_violations(before)}, "a gap that is left out is none"
    assert find_losses(after) == find_losses(before)
    assert unrecorded_losses(after, marks) == unrecorded_losses(before, marks), "what is lost waits for a person's word"
    listed = [(s.offsets.partition, at) for s in find_skips(after) for at in range(s.offsets.start, s.offsets.end)]
    skipped = [(o.partition, at) for o in after.skipped() for at in range(o.start, o.end)]
    assert sorted(listed) == sorted(skipped)
    again = replace(skip, pending=(*after.pending(),))
    assert plan(step.after(log.state), state, policy, now_ms, skip=again) is None, "nothing is decided twice"


@given(logs(), st.data())
def test_a_skip_that_is_not_over_whole_ranges_is_refused(log: PlanLog, data: st.DataObject) -> None:
    """[R-92] A step whose skip was shortened, moved or said of another generation is no step of the log."""
    steps = [step for step in log.steps if step.skips]
    assume(steps)
    step = data.draw(st.sampled_from(steps))
    link = step.skips[0]
    field, by = data.draw(st.sampled_from([("end", 1), ("partition", 9), ("generation", 1)]))
    wrong = replace(link.offsets, **{field: getattr(link.offsets, field) + by})
    assume(not any(o.place == wrong.place and o.end == wrong.end for o in log.ranges))  # over whole ranges all the same
    changed = replace(step, skips=(replace(link, offsets=wrong), *step.skips[1:]))
    with pytest.raises(BrokenPlanLog) as refused:
        PlanLog(TOPIC, tuple(changed if each is step else each for each in log.steps))
    assert wrong.text(TOPIC) in str(refused.value)


def test_a_skip_of_a_topic_that_was_recreated_meanwhile_is_refused() -> None:
    """[R-92] Where it goes was asked of the topic before."""
    world = strategies.World()
    world.grow(0, 10)
    policy = Policy(records_per_range=4)
    log_state = strategies.open_log(world, policy)
    skip = skip_in(world.observe(log_state), log_state, 100)
    world.recreate(1, 10)
    with pytest.raises(Refused, match="deleted and created again"):
        plan(log_state, world.observe(log_state), policy, EPOCH_MS, skip=skip)


def test_what_was_skipped_of_a_topic_that_is_gone_cannot_be_landed() -> None:
    policy = Policy(records_per_range=4, max_age_seconds=0)
    log = log_of(Script(policy, True, [("grow", (0, 4)), ("skip", (100,)), ("recreate", (1, 4))]).play())
    before = PlanLog(TOPIC, log.steps[:-1])
    assert [each.is_landable for each in find_skips(Coverage(before, {}, {}))] == [True], "the control"
    assert [each.is_landable for each in find_skips(Coverage(log, {}, {}))] == [False]


def ranges_of(picture: Picture) -> dict[OffsetRange, LinkLook]:
    """Read the links back from the columns, as the page does."""
    found = {}
    for line in picture.lines:
        span = slice(line.first, line.first + line.count)
        ends = [int(end) for end in accumulate(picture.lengths[span], initial=line.start)]
        for start, end, look in zip(ends, ends[1:], picture.looks[span], strict=False):
            found[OffsetRange(line.generation, line.partition, start, end)] = LinkLook(look)
    return found


@given(coverages(), st.data())
def test_every_link_is_drawn_once_with_its_state(coverage: Coverage, chance: st.DataObject) -> None:
    pending = coverage.pending()
    failed = chance.draw(st.sets(st.sampled_from(pending))) if pending else set()
    tried = {offsets: NEVER_TRIED.then_failed("run-1", EPOCH_MS) for offsets in failed}
    picture = draw_picture(coverage, tried, {}, find_losses(coverage))
    expected = {o: LinkLook.FAILED if o in failed else LOOKS[state] for o, state in coverage.states().items()}
    assert ranges_of(picture) == expected
    assert all(picture.runs[at] for at, look in enumerate(picture.looks) if look in {LinkLook.LANDED, LinkLook.FAILED})
    drawn = sum(count for _, _, count in picture.totals)
    assert drawn == sum(len(o) - m.rows for o, m in coverage.manifests.items()), "each offset without a row, once"
    assert all(picture.notes[at] for at, look in enumerate(picture.looks) if look in {LinkLook.LOST, LinkLook.FAILED})


@given(coverages())
def test_a_budget_leaves_out_holes_and_no_count(coverage: Coverage) -> None:
    whole = draw_picture(coverage, {}, {}, [])
    poor = draw_picture(coverage, {}, {}, [], budget=1)
    assert len(poor.intervals) <= 1
    assert poor.totals == whole.totals


def test_what_the_broker_deleted_of_a_pending_range_is_drawn_inside_it() -> None:
    coverage, marks = Coverage(two_ranges(), {}, {}), {0: Watermarks(4, 20)}
    picture = draw_picture(coverage, {}, marks, all_losses(coverage, marks))
    assert [LinkLook(look) for look in picture.looks] == [LinkLook.PLANNED, LinkLook.PLANNED]
    assert picture.intervals == [(0, 0, 4, CAUSES.index(Cause.LOST))]
    assert "4 offsets deleted by the broker after it was planned" in picture.notes[0]
    assert (picture.lines[0].earliest, picture.lines[0].end) == (4, 20)


def columns_of(html: str) -> tuple[dict[str, Any], dict[str, array[Any]]]:
    """Unpack a page as the browser does."""
    document = json.loads(re.findall(r'id="document">(.*?)</script>', html, re.DOTALL)[0])
    blob = gzip.decompress(base64.b64decode(re.findall(r'id="columns">(.*?)</script>', html, re.DOTALL)[0]))
    assert len(blob) == document["bytes"]
    kinds = {"f64": "d", "u32": "I", "u8": "B"}
    return document, {name: array(kinds[kind], blob[at : at + size]) for name, (kind, at, size) in document["layout"].items()}


@given(coverages())
def test_the_page_holds_the_picture_and_reaches_for_nothing(coverage: Coverage) -> None:
    picture = draw_picture(coverage, {}, {}, find_losses(coverage))
    html = page(picture, EPOCH_MS)
    _, columns = columns_of(html)
    assert columns["lengths"] == picture.lengths and columns["looks"] == picture.looks
    assert array("d", accumulate(columns["newest"])) == picture.newest_ms
    assert not re.search(r"https?://|src=|href=|@import", html), "one file, no network"


def test_what_is_said_in_a_page_cannot_end_it_or_take_its_parts() -> None:
    """A remark is a broker's words: it is shown, and never run."""
    remark = "</script><script>alert(1)</script>{{COLUMNS}}"
    html = page(Picture("orders"), EPOCH_MS, remark)
    document, _ = columns_of(html)
    assert document["remark"] == remark
    assert html.count("<script>") == 1


@given(coverages())
def test_a_bar_shows_what_is_wrong_however_little_it_is(coverage: Coverage) -> None:
    picture = draw_picture(coverage, {}, {}, find_losses(coverage))
    for line in picture.lines:
        looks = {LinkLook(look) for look in picture.looks[line.first : line.first + line.count]}
        drawn = bar(picture, line)
        assert len(drawn) == 50
        assert ("▪" in drawn) == (LinkLook.LOST in looks)
        assert (drawn == "█" * 50) == (looks == {LinkLook.LANDED})
    assert ("nothing is planned yet" in summary(picture)) == (not picture.lines)


def test_one_failed_range_of_ten_thousand_is_in_the_bar() -> None:
    picture = Picture(TOPIC)
    picture.lengths.extend([100] * 10_000)
    picture.looks.extend([LinkLook.LANDED] * 10_000)
    picture.looks[4_999] = LinkLook.FAILED
    assert bar(picture, Line(0, 0, 0, 0, 10_000, None, None)) == "█" * 24 + "✕" + "█" * 25


def test_a_skipped_link_without_a_cause_is_drawn_all_the_same() -> None:
    """A log of another planner may say none."""
    offsets = OffsetRange(0, 0, 0, 4)
    links, heads = (Link(LinkKind.SKIPPED, offsets),), {0: Head(4, 0)}
    step = PlanStep(0, TOPIC, 0, None, EPOCH_MS, {}, {0: Watermarks(0, 4)}, links, heads)
    picture = draw_picture(Coverage(PlanLog(TOPIC, (step,)), {}, {}), {}, {}, [])
    assert picture.notes == {0: "left out on purpose: by the start of the topic"}
