"""Holes: offsets inside a range that hold no record, each explained by what the log itself shows.

Invariant: an offset without a row is explained by exactly one cause, or it is reported as unexplained; it is
never assumed away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .offsets import OffsetRange, merge_intervals, subtract_intervals


class Cause(StrEnum):
    """Says why an offset holds no row."""

    TRANSACTION_MARKER = "transaction_marker"
    ABORTED = "aborted_transaction"
    COMPACTED = "compacted"
    LOST = "lost"


class SpanKind(StrEnum):
    """Says what a record batch of the log is to a reader at the chosen isolation level."""

    CONTROL = "control"
    ABORTED = "aborted"
    DATA = "data"


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """Is a half-open interval of offsets without rows, with its cause."""

    start: int
    end: int
    cause: Cause

    def __post_init__(self) -> None:
        object.__setattr__(self, "cause", Cause(self.cause))
        if not 0 <= self.start < self.end:
            raise ValueError(f"no such interval: [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Is the offsets `[start, end)` of one record batch as the log holds it now; compaction leaves gaps between."""

    start: int
    end: int
    kind: SpanKind


def missing_offsets(offsets: OffsetRange, runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the half-open intervals of the range that the rows leave out; `runs` are the offsets that have rows."""
    return subtract_intervals([(offsets.start, offsets.end)], runs)


def explain_holes(
    missing: Sequence[tuple[int, int]], spans: Iterable[BatchSpan], *, compacted_from: int | None
) -> tuple[tuple[Interval, ...], list[tuple[int, int]]]:
    """Explains the missing offsets; returns the explained intervals and what is left unexplained.

    `compacted_from` is where the log of a compacted topic began when it was asked, none for other topics. Before it
    nobody can say whether compaction or retention took a record.

    | the log shows | cause |
    |---|---|
    | a control batch there | transaction_marker |
    | a batch of an aborted transaction there | aborted_transaction |
    | no batch, or a batch with gaps, in the log of a compacted topic | compacted |
    | anything else | unexplained: a violation |
    """
    by_kind: dict[SpanKind, list[tuple[int, int]]] = {kind: [] for kind in SpanKind}
    for span in spans:
        by_kind[span.kind].append((span.start, span.end))
    left = merge_intervals(missing)
    explained: list[Interval] = []
    for kind, cause in ((SpanKind.CONTROL, Cause.TRANSACTION_MARKER), (SpanKind.ABORTED, Cause.ABORTED)):
        rest = subtract_intervals(left, by_kind[kind])
        explained += [Interval(start, end, cause) for start, end in subtract_intervals(left, rest)]
        left = rest
    if compacted_from is not None:
        rest = [(start, min(end, compacted_from)) for start, end in left if start < compacted_from]
        explained += [Interval(start, end, Cause.COMPACTED) for start, end in subtract_intervals(left, rest)]
        left = rest
    return tuple(sorted(explained)), left
