"""Holes: each offset without a row has exactly one cause, or is reported as unexplained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.log.holes import BatchSpan, Cause, Interval, Rows, SpanKind, explain_holes, missing_offsets
from pipeline_defs.core.offsets import OffsetRange, merge_intervals
from tests.support.strategies import intervals, offsets_in, runs_of

spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 10), st.sampled_from(SpanKind)).map(
        lambda drawn: BatchSpan(drawn[0], drawn[0] + drawn[1], drawn[2], 0, ())
    ),
    max_size=8,
)


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
    explained, unexplained = explain_holes(missing, found, NO_ROWS, compacted_from=begins)
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
        """Return the batches as the edge reads them: with offsets where the header does not tell enough."""
        found = []
        for start, end in self.batches:
            left = tuple(sorted(self.now & set(range(start, end))))
            span = BatchSpan(start, end, SpanKind.DATA, len(left))
            found.append(span if self.known.are_all_of(span) or not self.has_codec else replace(span, offsets=left))
        return found

    def explain(self) -> set[int]:
        missing = missing_offsets(self.offsets, runs_of(sorted(self.rows)))
        explained, unexplained = explain_holes(missing, self.spans(), self.known, compacted_from=0)
        assert offsets_of(explained, Cause.COMPACTED) == offsets_in(missing) - offsets_in(unexplained)
        return offsets_in(unexplained)


@st.composite
def compacted(draw: st.DrawFn) -> Compacted:
    """Draws a log that is compacted before a reader comes and again after it, and a reader that may leave records out."""
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
    offsets = OffsetRange(0, 0, start, start + length)
    missing = missing_offsets(offsets, runs_of(sorted(rows)))
    assert offsets_in(missing) == set(range(start, start + length)) - rows


@pytest.mark.timeout(120)  # it takes a fraction of a second; every hole against every other would be more
@pytest.mark.parametrize("compacted", [True, False])
def test_twenty_thousand_holes_are_explained_in_one_pass(compacted: bool) -> None:
    """[R-28] A compacted range, or one of single-record transactions, has a hole at every other offset."""
    offsets = OffsetRange(0, 0, 0, 40_000)
    rows = [(at, at + 1) for at in range(0, 40_000, 2)]
    missing = missing_offsets(offsets, rows)
    markers = [BatchSpan(at, at + 1, SpanKind.CONTROL, 1) for at in range(1, 40_000, 4)]
    explained, unexplained = explain_holes(missing, markers, Rows(offsets, rows), compacted_from=0 if compacted else None)
    assert len(missing) == 20_000
    assert len(explained) + len(unexplained) == 20_000
    assert len(unexplained) == (0 if compacted else 10_000)


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_a_hole_that_holds_no_offset_cannot_exist(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="no such interval"):
        Interval(start, end, Cause.COMPACTED)
