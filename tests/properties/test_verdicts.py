"""Verification of a staged range: each single corruption is a violation, a correct one has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.core.landing.verdicts import Outcome, Verdict, failed, verify_staged
from pipeline_defs.core.log.holes import Interval, Missing
from pipeline_defs.core.log.manifest import StagedFile
from pipeline_defs.core.log.plan_step import TopicIds
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import TOPIC, Landing, landings, runs_of

Ids = tuple[TopicIds, TopicIds, TopicIds]


def ids_of(*topic_ids: str | None, clusters: Sequence[str | None] = ("c", "c", "c")) -> Ids:
    planned, before, after = map(TopicIds, topic_ids, clusters)
    return planned, before, after


IDS = ids_of("id-0", "id-0", "id-0")
NO_IDS = ids_of(None, None, None, clusters=(None, None, None))


def verify(
    landing: Landing,
    *,
    column: list[int] | None = None,
    file: StagedFile | None = None,
    holes: tuple[Interval, ...] | None = None,
    unexplained: tuple[tuple[int, int], ...] = (),
    ids: Ids = IDS,
) -> list[str]:
    """Verifies a landing of which one thing was changed; `column` is the offset column, and the footer agrees."""
    offsets = list(landing.present) if column is None else column
    if file is None and offsets:
        file = StagedFile("x", 1, "ab", len(offsets), min(offsets), max(offsets), 0, 0)
    holes = landing.holes if holes is None else holes
    return verify_staged(TOPIC, landing.offsets, file, runs_of(offsets), Missing(holes, unexplained), ids)


def refusal(landing: Landing, **change: Any) -> str:
    """Return what is said of a landing of which one thing was changed; each violation names the range."""
    violations = verify(landing, **change)
    assert violations
    assert all(f"range {landing.offsets.text(TOPIC)}" in violation for violation in violations)
    return "\n".join(violations)


@given(landings(), st.sampled_from([IDS, ids_of(None, "id-0", "id-0", clusters=(None, "c", "c")), NO_IDS]))
def test_a_correct_range_has_no_violation(landing: Landing, ids: Ids) -> None:
    """[R-14] Control: legal holes, empty ranges and brokers without topic ids are fine."""
    assert verify(landing, ids=ids) == []


@given(landings(least_rows=1), st.data())
def test_a_doubled_offset_is_a_violation(landing: Landing, data: st.DataObject) -> None:
    """[R-14] Also when another row is missing, so that the count is right."""
    column = list(landing.present)
    twice = data.draw(st.sampled_from(column))
    doubled = sorted([*column, twice])
    assert f"offset {twice} follows {twice}: offsets are not strictly increasing" in refusal(landing, column=doubled)
    others = [offset for offset in column if offset != twice]
    if others:
        doubled.remove(data.draw(st.sampled_from(others)))
        assert "not strictly increasing" in refusal(landing, column=doubled)


@given(landings(least_rows=2), st.data())
def test_rows_out_of_order_are_a_violation(landing: Landing, data: st.DataObject) -> None:
    """[R-14] Offsets rise from row to row."""
    column = list(landing.present)
    at = data.draw(st.integers(0, len(column) - 2))
    column[at], column[at + 1] = column[at + 1], column[at]
    assert "not strictly increasing" in refusal(landing, column=column)


@given(landings(least_rows=1), st.data())
def test_a_missing_row_is_a_violation(landing: Landing, data: st.DataObject) -> None:
    """[R-14] A range landed short does not add up, or its missing offset is unexplained."""
    gone = data.draw(st.sampled_from(landing.present))
    column = [offset for offset in landing.present if offset != gone]
    assert f"expected {len(landing.offsets)} offsets in all" in refusal(landing, column=column)
    unexplained = refusal(landing, column=column, unexplained=((gone, gone + 1),))
    assert f"no row for [{gone}, {gone + 1}) and the broker's log does not explain it" in unexplained


@given(landings(least_rows=1), st.booleans())
def test_a_row_outside_the_range_is_a_violation(landing: Landing, before: bool) -> None:
    """[R-14] Also when it takes the place of a row inside, so that the count is right."""
    stray = landing.offsets.start - 1 if before else landing.offsets.end
    assume(stray >= 0)
    column = sorted([*landing.present, stray])
    assert "outside the range" in refusal(landing, column=column)
    column.remove(landing.present[0])
    assert "outside the range" in refusal(landing, column=column)


@given(landings(least_rows=1), st.sampled_from([-1, 1]))
def test_a_footer_that_counts_other_rows_is_a_violation(landing: Landing, by: int) -> None:
    rows = len(landing.present)
    file = replace(landing.manifest.file, rows=rows + by)  # type: ignore[type-var]
    assert f"the footer says {rows + by} rows, the offset column has {rows}" in refusal(landing, file=file)


@given(landings(), st.data())
def test_a_hole_too_few_or_too_many_is_a_violation(landing: Landing, data: st.DataObject) -> None:
    """[R-27] The equation is exact in both directions."""
    assume(landing.holes)
    hole = data.draw(st.sampled_from(landing.holes))
    fewer = tuple(other for other in landing.holes if other != hole)
    assert "offsets in all" in refusal(landing, holes=fewer)
    assert "offsets in all" in refusal(landing, holes=(*landing.holes, hole))


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(ids_of("id-0", "id-1", "id-1"), id="recreated before the scan"),
        pytest.param(ids_of("id-0", "id-0", "id-1"), id="recreated during the scan"),
        pytest.param(ids_of("id-0", "id-1", "id-0"), id="told otherwise once"),
        pytest.param(ids_of(None, "id-0", "id-1"), id="planned without an id, recreated during the scan"),
    ],
)
@given(landing=landings())
def test_another_topic_id_is_a_violation(landing: Landing, ids: Ids) -> None:
    """[R-14] A recreated topic's records are never landed under an old range."""
    assert "the topic was recreated" in refusal(landing, ids=ids)


@pytest.mark.parametrize("clusters", [("a", "b", "b"), ("a", "a", "b"), (None, "a", "b")])
@given(landing=landings())
def test_another_cluster_is_a_violation(landing: Landing, clusters: tuple[str | None, str, str]) -> None:
    """[R-9] [R-14] Also where its topic has the same id, as that of a cluster that was copied has."""
    assert "leads elsewhere" in refusal(landing, ids=ids_of("id-0", "id-0", "id-0", clusters=clusters))


def test_all_violations_are_collected() -> None:
    """[R-14] A person sees all that is wrong at once."""
    landing = Landing(OffsetRange(0, 3, 10, 15), (10, 11, 12, 13, 14), ())
    violations = verify(landing, column=[9, 11, 11, 13], unexplained=((12, 13),), ids=ids_of("a", "b", "b"))
    assert len(violations) == 4


# ---- verdicts


def test_only_a_failed_range_has_no_manifest() -> None:
    """[R-33] A verdict without a manifest cannot pass for success."""
    landing = Landing(OffsetRange(0, 0, 0, 1), (0,), ())
    for outcome in Outcome:
        assert outcome.is_landed == (outcome is not Outcome.FAILED)
        right, wrong = (landing.manifest, None) if outcome.is_landed else (None, landing.manifest)
        assert Verdict(landing.offsets, outcome, right).manifest == right
        with pytest.raises(ValueError, match=f"{outcome} of 0-0-1 with manifest"):
            Verdict(landing.offsets, outcome, wrong)
    assert failed(landing.offsets, "why").violations == ("why",)
