"""Latency: how long records waited, from their timestamp until they could be read.

Of a file the timestamps of its oldest and newest record are known, and when it became visible; its records count as spread
evenly between the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isfinite

from .manifest import StagedFile

WINDOW_MS = 3_600_000  # over which quantiles are taken
BOUNDS_SECONDS = (1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 75.0, 90.0, 120.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0, inf)
"""Upper bounds of the histogram's buckets."""
PACKED = 64  # waits that one version of a table stores, at most
PRECISION_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Wait:
    """How long the records of a file waited: the newest the least, the oldest the most."""

    rows: int
    least_seconds: float
    most_seconds: float

    def rows_within(self, seconds: float) -> float:
        """Return how many of the records waited at most so long."""
        if seconds >= self.most_seconds:
            return self.rows
        if seconds < self.least_seconds:
            return 0.0
        return self.rows * (seconds - self.least_seconds) / (self.most_seconds - self.least_seconds)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Records by how long they waited: `counts` are cumulative, up to each of `BOUNDS_SECONDS`; `seconds` is the sum."""

    counts: Sequence[int]
    seconds: float

    def __post_init__(self) -> None:
        if len(self.counts) != len(BOUNDS_SECONDS) or not isfinite(self.seconds):
            raise ValueError(f"expected {len(BOUNDS_SECONDS)} counts and a number of seconds")

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of the records of both."""
        counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.seconds + other.seconds)


def wait_of(file: StagedFile | None, visible_ms: int) -> Wait | None:
    """Return how long a file's records had waited when it became visible; none without records or timestamps."""
    if file is None or not file.rows or file.min_timestamp_ms is None or file.max_timestamp_ms is None:
        return None
    if file.min_timestamp_ms < 0:  # Kafka's -1 is none
        return None
    least, most = (max(0.0, (visible_ms - at_ms) / 1000) for at_ms in (file.max_timestamp_ms, file.min_timestamp_ms))
    return Wait(file.rows, least, most)


def waits_of(files: Iterable[tuple[StagedFile | None, int]], since_ms: float = -inf) -> list[Wait]:
    """Return the waits of the files that became visible after `since_ms`; each file comes with that time."""
    found = (wait_of(file, visible_ms) for file, visible_ms in files if visible_ms > since_ms)
    return [wait for wait in found if wait is not None]


def latency_facts(waits: Sequence[Wait]) -> dict[str, float | None]:
    """Return the seconds within which 50 % and 95 % of the records could be read, by the names that people see."""
    found = {f"latency_p{share}_seconds": find_quantile(waits, share / 100) for share in (50, 95)}
    return {name: None if seconds is None else round(seconds, 3) for name, seconds in found.items()}


def file_facts(file: StagedFile | None, visible_ms: int) -> dict[str, float]:
    """Return the latency facts of one file; empty where they are not known."""
    facts = latency_facts(waits_of([(file, visible_ms)]))
    return {name: value for name, value in facts.items() if value is not None}


def find_quantile(waits: Sequence[Wait], share: float) -> float | None:
    """Return the seconds within which this share of the records could be read; none without records."""
    wanted = share * sum(wait.rows for wait in waits)
    if not wanted:
        return None
    low, high = 0.0, max(wait.most_seconds for wait in waits)
    while high - low > PRECISION_SECONDS and low < (low + high) / 2 < high:
        middle = (low + high) / 2
        if sum(wait.rows_within(middle) for wait in waits) < wanted:
            low = middle
        else:
            high = middle
    return high


def count_waits(waits: Iterable[Wait]) -> Histogram:
    """Count records by how long they waited."""
    bounds = BOUNDS_SECONDS
    rows, seconds = [0] * len(bounds), 0.0
    for wait in waits:
        seconds += wait.rows * (wait.least_seconds + wait.most_seconds) / 2
        before = 0
        for at in range(bisect_left(bounds, wait.least_seconds), len(bounds)):
            within = round(wait.rows_within(bounds[at]))  # rounded per wait, so that sums of parts equal the sum of all
            rows[at] += within - before
            before = within
            if within == wait.rows:
                break
    return Histogram([*accumulate(rows)], seconds)


def pack(waits: Iterable[Wait]) -> list[list[float]]:
    """Return waits as plain numbers; where there are many, similar ones are merged."""
    ordered = sorted(waits, key=lambda wait: wait.most_seconds)
    size = max(1, -(-len(ordered) // PACKED))
    groups = (ordered[at : at + size] for at in range(0, len(ordered), size))
    return [
        [
            sum(wait.rows for wait in group),
            round(min(wait.least_seconds for wait in group), 3),
            round(max(wait.most_seconds for wait in group), 3),
        ]
        for group in groups
    ]


def unpack(packed: Iterable[Sequence[float]]) -> list[Wait]:
    """Return waits from plain numbers; raise `ValueError` or `TypeError` where they are none."""
    found = [Wait(int(rows), float(least), float(most)) for rows, least, most in packed]
    if not all(isfinite(each.least_seconds) and isfinite(each.most_seconds) for each in found):
        raise ValueError("expected finite numbers")
    return found
