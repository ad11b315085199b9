"""The picture of coverage: its columns say of each link what plan log and manifests say, and every boundary is theirs."""

from __future__ import annotations

import base64
import gzip
import json
import re
from array import array
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.landing.dispatch import NEVER_TRIED
from pipeline_defs.core.landing.picture import CAUSES, LOOKS, Line, LinkLook, Picture, draw_picture
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.holes import Cause
from pipeline_defs.core.log.losses import all_losses, find_losses
from pipeline_defs.core.log.plan_step import Head, Link, LinkKind, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.orchestration.map.page import page
from pipeline_defs.orchestration.map.words import bar, summary
from tests.properties.test_coverage_laws import coverages
from tests.properties.test_progress_laws import two_ranges
from tests.support.strategies import EPOCH_MS, TOPIC


def ranges_of(picture: Picture) -> dict[OffsetRange, LinkLook]:
    """Reads the links back from the columns, as the page does."""
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
    """Unpacks a page as the browser does."""
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
    line = Line(0, 0, 0, 0, 10_000, None, None)
    assert bar(picture, line) == "█" * 24 + "✕" + "█" * 25


def test_a_skipped_link_without_a_cause_is_drawn_all_the_same() -> None:
    """A log of another planner may say none."""
    offsets = OffsetRange(0, 0, 0, 4)
    links, heads = (Link(LinkKind.SKIPPED, offsets),), {0: Head(4, 0)}
    step = PlanStep(0, TOPIC, 0, None, EPOCH_MS, {}, {0: Watermarks(0, 4)}, links, heads)
    picture = draw_picture(Coverage(PlanLog(TOPIC, (step,)), {}, {}), {}, {}, [])
    assert picture.notes == {0: "left out on purpose: by the start of the topic"}
