"""Verification of a staged range: each offset without a row has one cause or is unexplained; each corruption is a violation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline_defs.core.landing.verdicts import Outcome, Verdict, failed, verify_staged
from pipeline_defs.core.log.holes import BatchSpan, Cause, Interval, Missing, Rows, SpanKind, explain_holes, missing_offsets
from pipeline_defs.core.log.manifest import StagedFile
from pipeline_defs.core.log.plan_step import TopicIds
from pipeline_defs.core.offsets import OffsetRange, merge_intervals
from tests.support.strategies import TOPIC, Landing, intervals, landings, offsets_in, runs_of

lengths = st.tuples(st.integers(0, 40), st.integers(1, 10), st.sampled_from(SpanKind))
spans = st.lists(lengths.map(lambda drawn: BatchSpan(drawn[0], drawn[0] + drawn[1], drawn[2], 0, ())), max_size=8)


def offsets_of(explained: tuple[Interval, ...], cause: Cause) -> set[int]:
    return offsets_in((hole.start, hole.end) for hole in explained if hole.cause is cause)


NO_ROWS = Rows(OffsetRange(0, 0, 0, 60), ())
log_starts = st.none() | st.integers(0, 50)  # of a compacted topic; none for another


@given(intervals(), spans, log_starts)
@example([(0, 3)], [BatchSpan(0, 2, SpanKind.ABORTED, 2), BatchSpan(1, 3, SpanKind.CONTROL, 2)], None)
def test_each_missing_offset_has_the_one_cause_that_the_log_shows_there_or_is_unexplained(
    missing: list[tuple[int, int]], found: list[BatchSpan], begins: int | None
) -> None:
    """[R-28] A control batch first, then an aborted transaction, then compaction; a data batch explains nothing.

    Where the log has gone past a hole of a compacted topic, nobody can say what took the record. The equation's `holes` are
    exact: nothing is counted twice.
    """
    explained, unexplained, *_ = explain_holes(missing, found, NO_ROWS, compacted_from=begins)
    counted = sum(hole.end - hole.start for hole in explained) + sum(end - start for start, end in unexplained)
    assert counted == len(offsets_in(missing))
    assert list(explained) == sorted(explained)
    assert unexplained == merge_intervals(unexplained)
    shown = {kind: offsets_in((s.start, s.end) for s in found if s.kind is kind) for kind in SpanKind}
    gone = offsets_in(missing)
    rest = gone - shown[SpanKind.CONTROL] - shown[SpanKind.ABORTED]
    assert offsets_of(explained, Cause.TRANSACTION_MARKER) == gone & shown[SpanKind.CONTROL]
    assert offsets_of(explained, Cause.ABORTED) == (gone & shown[SpanKind.ABORTED]) - shown[SpanKind.CONTROL]
    still_there = set() if begins is None else {offset for offset in rest if offset >= begins}
    assert offsets_of(explained, Cause.COMPACTED) == still_there
    assert offsets_in(unexplained) == rest - still_there
    assert offsets_of(explained, Cause.LOST) == set()


@dataclass(frozen=True)
class Compacted:
    """Range of a compacted topic: the offsets of each batch, what of them the log has now, and what a reader returned."""

    offsets: OffsetRange
    batches: list[tuple[int, int]]
    now: set[int]
    rows: set[int]
    has_codec: bool

    @property
    def known(self) -> Rows:
        return Rows(self.offsets, runs_of(sorted(self.rows)))

    def spans(self) -> list[BatchSpan]:
        """Return the batches as the adapter reads them: with offsets where the header does not tell enough."""
        found = []
        for start, end in self.batches:
            left = tuple(sorted(self.now & set(range(start, end))))
            span = BatchSpan(start, end, SpanKind.DATA, len(left))
            found.append(span if self.known.are_all_of(span) or not self.has_codec else replace(span, offsets=left))
        return found

    def explain(self) -> set[int]:
        missing = missing_offsets(self.offsets, runs_of(sorted(self.rows)))
        explained, unexplained, left_out, _ = explain_holes(missing, self.spans(), self.known, compacted_from=0)
        assert left_out == unexplained, "the log is asked from its beginning"
        assert offsets_of(explained, Cause.COMPACTED) == offsets_in(missing) - offsets_in(unexplained)
        return offsets_in(unexplained)


@st.composite
def compacted(draw: st.DrawFn) -> Compacted:
    """Draw a log that is compacted before a reader comes and again after it, and a reader that may leave records out."""
    bounds = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=6)))
    batches = list(pairwise(bounds))
    start = draw(st.integers(bounds[0], bounds[-1] - 1))
    offsets = OffsetRange(0, 0, start, draw(st.integers(start + 1, bounds[-1])))
    when_read = draw(st.sets(st.sampled_from(range(bounds[0], bounds[-1]))))
    now = {offset for offset in when_read if draw(st.integers(0, 4))}
    rows = {offset for offset in when_read if offset in offsets and draw(st.integers(0, 6))}
    return Compacted(offsets, batches, now, rows, draw(st.booleans()))


@given(compacted())
def test_what_the_log_has_now_and_a_reader_did_not_return_is_never_compacted(case: Compacted) -> None:
    """[R-28] P6: compaction may run at any time; it only removes, so a record that is there must be a row.

    Where a batch has as many rows as records, the header is believed; where a batch is cut by the range and cannot be
    decompressed, only what is certain is said.
    """
    missed = {offset for offset in case.now - case.rows if offset in case.offsets}
    unexplained = case.explain()
    if case.has_codec:
        told = {
            offset
            for start, end in case.batches
            if not case.known.are_all_of(BatchSpan(start, end, SpanKind.DATA, len(case.now & set(range(start, end)))))
            for offset in range(start, end)
        }
        assert unexplained == missed & told
    elif not missed:
        assert not unexplained
    if case.rows <= case.now:  # nothing was compacted in between
        whole = [(s, e) for s, e in case.batches if case.offsets.start <= s and e <= case.offsets.end]
        assert all(unexplained & set(range(s, e)) for s, e in whole if missed & set(range(s, e)))


@given(st.sets(st.integers(100, 130)), st.integers(100, 120), st.integers(1, 10))
def test_what_the_rows_leave_out_of_a_range_is_missing(rows: set[int], start: int, length: int) -> None:
    missing = missing_offsets(OffsetRange(0, 0, start, start + length), runs_of(sorted(rows)))
    assert offsets_in(missing) == set(range(start, start + length)) - rows


@pytest.mark.timeout(120)  # it takes a fraction of a second; every hole against every other would be more
@pytest.mark.parametrize("compacted", [True, False])
def test_twenty_thousand_holes_are_explained_in_one_pass(compacted: bool) -> None:
    """[R-28] A compacted range, or one of single-record transactions, has a hole at every other offset."""
    offsets = OffsetRange(0, 0, 0, 40_000)
    rows = [(at, at + 1) for at in range(0, 40_000, 2)]
    missing = missing_offsets(offsets, rows)
    markers = [BatchSpan(at, at + 1, SpanKind.CONTROL, 1) for at in range(1, 40_000, 4)]
    explained, unexplained, *_ = explain_holes(missing, markers, Rows(offsets, rows), compacted_from=0 if compacted else None)
    assert len(missing) == 20_000
    assert len(explained) + len(unexplained) == 20_000
    assert len(unexplained) == (0 if compacted else 10_000)


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_a_hole_that_holds_no_offset_cannot_exist(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="no such interval"):
        Interval(start, end, Cause.COMPACTED)


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
    left_out: tuple[tuple[int, int], ...] = (),
    compacted_from: int | None = None,
    ids: Ids = IDS,
) -> list[str]:
    """Verify a landing of which one thing was changed; `column` is the offset column, and the footer agrees."""
    offsets = list(landing.present) if column is None else column
    if file is None and offsets:
        file = StagedFile("x", 1, "ab", len(offsets), min(offsets), max(offsets), 0, 0)
    holes = landing.holes if holes is None else holes
    missing = Missing(holes, unexplained, left_out, compacted_from)
    return verify_staged(TOPIC, landing.offsets, file, runs_of(offsets), missing, ids)


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
    """[R-14] Also when another row is missing, so that the count is right; a person sees all that is wrong at once."""
    column = list(landing.present)
    twice = data.draw(st.sampled_from(column))
    doubled = sorted([*column, twice])
    said = refusal(landing, column=doubled, ids=ids_of("a", "b", "b"))
    assert f"offset {twice} follows {twice}: offsets are not strictly increasing" in said
    assert "offsets in all" in said and "the topic was recreated" in said
    others = [offset for offset in column if offset != twice]
    if others:
        doubled.remove(data.draw(st.sampled_from(others)))
        assert "not strictly increasing" in refusal(landing, column=doubled)


@given(landings(least_rows=1), st.data())
def test_a_missing_row_is_a_violation(landing: Landing, data: st.DataObject) -> None:
    """[R-14] A range landed short does not add up, or its missing offset is unexplained."""
    gone = data.draw(st.sampled_from(landing.present))
    column = [offset for offset in landing.present if offset != gone]
    assert f"expected {len(landing.offsets)} offsets in all" in refusal(landing, column=column)
    unexplained = refusal(landing, column=column, unexplained=((gone, gone + 1),))
    assert f"no row for [{gone}, {gone + 1}) and the broker's log does not explain it" in unexplained
    assert unexplained.count("compacted under an earlier `cleanup.policy`: `offsetlake explain ranges_failed` says how") == 1
    front_gone = refusal(landing, column=column, unexplained=((gone, gone + 1),), compacted_from=gone + 1)
    assert f"Kafka's log begins at {gone + 1} now: the next try says" in front_gone and "cleanup.policy" not in front_gone
    both, (first, last) = ((gone, gone + 3),), ((gone, gone + 1), (gone + 1, gone + 3))
    for in_kafka, elsewhere in (first, last), (last, first):
        found = verify(landing, column=column, unexplained=both, left_out=(in_kafka,))
        (read_short,) = (said for said in found if f"no row for [{in_kafka[0]}, {in_kafka[1]})" in said)
        (compacted,) = (said for said in found if f"no row for [{elsewhere[0]}, {elsewhere[1]})" in said)
        assert "it has records there" in read_short and "compacted under" not in read_short
        assert "it has records there" not in compacted and "compacted under" in compacted


@given(landings(least_rows=1), st.booleans())
def test_a_row_outside_the_range_is_a_violation(landing: Landing, before: bool) -> None:
    """[R-14] Also when it takes the place of a row inside, so that the count is right."""
    stray = landing.offsets.start - 1 if before else landing.offsets.end
    assume(stray >= 0)
    column = sorted([*landing.present, stray])
    assert "outside of it" in refusal(landing, column=column)
    column.remove(landing.present[0])
    assert "outside of it" in refusal(landing, column=column)


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
    assert "offsets in all" in refusal(landing, holes=tuple(other for other in landing.holes if other != hole))
    assert "offsets in all" in refusal(landing, holes=(*landing.holes, hole))


@pytest.mark.parametrize("seen", [("a", "b", "b"), ("a", "a", "b"), ("a", "b", "a"), (None, "a", "b")])
@given(landing=landings())
def test_another_topic_id_is_a_violation(landing: Landing, seen: tuple[str | None, str, str]) -> None:
    """[R-14] A topic that is recreated, before the scan or during it, is never landed under an old range."""
    assert "the topic was recreated" in refusal(landing, ids=ids_of(*seen))


@pytest.mark.parametrize("clusters", [("a", "b", "b"), ("a", "a", "b"), (None, "a", "b")])
@given(landing=landings())
def test_another_cluster_is_a_violation(landing: Landing, clusters: tuple[str | None, str, str]) -> None:
    """[R-9] [R-14] Also where its topic has the same id, as that of a cluster that was copied has."""
    assert "leads elsewhere" in refusal(landing, ids=ids_of("id-0", "id-0", "id-0", clusters=clusters))


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
