"""Holes: offsets inside a range that hold no record, each explained by what Kafka's log shows.

Invariant: an offset without a row has exactly one cause, or is reported as unexplained; it is never assumed away.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ..offsets import OffsetRange, Stretches, merge_intervals, subtract_intervals


class Cause(StrEnum):
    """Why an offset has no row."""

    TRANSACTION_MARKER = "transaction_marker"
    ABORTED = "aborted_transaction"
    COMPACTED = "compacted"
    LOST = "lost"


class SpanKind(StrEnum):
    """What a record batch of the log is to a reader at the chosen isolation level."""

    CONTROL = "control"
    ABORTED = "aborted"
    DATA = "data"


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """A half-open interval of offsets without rows, with its cause."""

    start: int
    end: int
    cause: Cause

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"no such interval: [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """One record batch as Kafka's log has it now: offsets `[start, end)`, of which compaction may have left few.

    `records` is the number of records in its header, `offsets` their offsets, where these were read.
    """

    start: int
    end: int
    kind: SpanKind
    records: int
    offsets: tuple[int, ...] | None = None


class Rows:
    """Offsets of a range that have rows, to compare with the record batches of Kafka's log."""

    def __init__(self, offsets: OffsetRange, stretches: Stretches) -> None:
        self._offsets = offsets
        self._stretches = merge_intervals(stretches)
        self._starts = [start for start, _ in self._stretches]
        self._before = [0]
        for start, end in self._stretches:
            self._before.append(self._before[-1] + end - start)

    def count(self, start: int, end: int) -> int:
        """Return how many rows there are in `[start, end)`."""
        return self._count_before(end) - self._count_before(start)

    def _count_before(self, offset: int) -> int:
        at = bisect_right(self._starts, offset)
        if not at:
            return 0
        start, end = self._stretches[at - 1]
        return self._before[at - 1] + min(offset, end) - start

    def are_all_of(self, span: BatchSpan) -> bool:
        """Return whether a batch has as many rows as records; false for one that the range cuts: only its offsets can tell."""
        is_whole = self._offsets.start <= span.start and span.end <= self._offsets.end
        return is_whole and self.count(span.start, span.end) == span.records

    def missing_of(self, span: BatchSpan) -> list[tuple[int, int]]:
        """Return at which offsets a batch has records without a row.

        Where the offsets of its records were not read, and it has more records than there are rows: all offsets without one.
        """
        start, end = max(span.start, self._offsets.start), min(span.end, self._offsets.end)
        if start >= end or self.are_all_of(span):
            return []
        if span.offsets is not None:
            there = merge_intervals((offset, offset + 1) for offset in span.offsets if start <= offset < end)
            return subtract_intervals(there, self._stretches)
        elsewhere = (span.end - span.start) - (end - start)  # offsets of the batch outside the range: each may be a record's
        is_short = self.count(start, end) + elsewhere < span.records
        return subtract_intervals([(start, end)], self._stretches) if is_short else []


def missing_offsets(offsets: OffsetRange, stretches: Stretches) -> list[tuple[int, int]]:
    """Return the half-open intervals of the range without rows; `stretches` are the offsets that have rows."""
    return subtract_intervals([(offsets.start, offsets.end)], stretches)


class Missing(NamedTuple):
    """Offsets without rows: `holes` have a cause, `unexplained` have none; of these Kafka has records at `left_out`.

    `compacted_from` is the first offset of the log of a compacted topic, none for other topics.
    """

    holes: tuple[Interval, ...]
    unexplained: Sequence[tuple[int, int]] = ()
    left_out: Sequence[tuple[int, int]] = ()
    compacted_from: int | None = None


def explain_holes(
    missing: Sequence[tuple[int, int]], spans: Iterable[BatchSpan], rows: Rows, *, compacted_from: int | None
) -> Missing:
    """Explain the missing offsets.

    Compaction only ever removes: a record that the log has now was there when the range was read, so it must be a row,
    however much is compacted in the meantime.

    `compacted_from` is the first offset of the log of a compacted topic, none for other topics. Of records before it nobody
    can say whether compaction or retention deleted them.

    | the log shows | cause |
    |---|---|
    | a control batch there | transaction_marker |
    | a batch of an aborted transaction there | aborted_transaction |
    | a data batch with a record there, or with more records than there are rows | unexplained: a violation |
    | no batch, or a batch without a record there, in the log of a compacted topic | compacted |
    | anything else | unexplained: a violation |
    """
    by_kind: dict[SpanKind, list[tuple[int, int]]] = {kind: [] for kind in SpanKind}
    left_out: list[tuple[int, int]] = []
    for span in spans:
        by_kind[span.kind].append((span.start, span.end))
        if span.kind is SpanKind.DATA:
            left_out += rows.missing_of(span)
    left = merge_intervals(missing)
    explained: list[Interval] = []
    for kind, cause in ((SpanKind.CONTROL, Cause.TRANSACTION_MARKER), (SpanKind.ABORTED, Cause.ABORTED)):
        rest = subtract_intervals(left, by_kind[kind])
        explained += [Interval(start, end, cause) for start, end in subtract_intervals(left, rest)]
        left = rest
    kept = subtract_intervals(left, subtract_intervals(left, merge_intervals(left_out)))
    if compacted_from is not None:
        gone = subtract_intervals(left, [(compacted_from, left[-1][1])]) if left else []
        rest = merge_intervals([*gone, *kept])
        explained += [Interval(start, end, Cause.COMPACTED) for start, end in subtract_intervals(left, rest)]
        left = rest
    return Missing(tuple(sorted(explained)), left, kept, compacted_from)
