"""Lag and pace: what is not landed is counted, an idle topic is told once, old landings make no pace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.landing.lag import (
    PACE_WINDOW_MS,
    TOLD_EVERY_MS,
    TOLD_WAITING_EVERY_MS,
    PartitionLag,
    Told,
    find_lag,
    is_lag_news,
    landed_per_second,
)
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from tests.support import strategies
from tests.support.strategies import EPOCH_MS, logs

COUNTS = st.integers(0, 10**9)


@given(logs(), st.integers(0, 1000))
def test_lag_is_what_stands_behind_the_first_range_that_is_not_landed(log: PlanLog, more: int) -> None:
    """Nothing landed: all from the first planned range on, and what no range has yet."""
    heads = log.state.heads
    marks = {p: Watermarks(0, head.offset + more) for p, head in heads.items()}
    pending = Coverage(log, {}, {}).pending()
    for each in find_lag(Coverage(log, {}, {}), marks):
        mine = [offsets for offsets in pending if offsets.partition == each.partition]
        first = min((offsets.start for offsets in mine), default=heads[each.partition].offset)
        assert (each.landed, each.end) == (first, heads[each.partition].offset + more)
        assert each.offsets == each.end - first


def test_a_partition_that_no_plan_has_seen_lags_by_all_it_has() -> None:
    (lag,) = find_lag(Coverage(PlanLog("orders"), {}, {}), {7: Watermarks(40, 100)})
    assert (lag.partition, lag.landed, lag.offsets) == (7, 40, 60)


def test_a_topic_that_ends_before_what_is_landed_lags_by_nothing() -> None:
    """As after an unclean election, or where it was made anew: less than nothing would hide the lag of another partition."""
    assert PartitionLag(0, landed=40, end=30).offsets == 0


@given(COUNTS, COUNTS, st.integers(0, 10**12))
def test_an_idle_topic_that_is_landed_is_told_once_and_never_again(end: int, at: int, later: int) -> None:
    """[R-56] However long it is idle."""
    assert is_lag_news(None, 0, end, at)
    assert not is_lag_news(Told(0, end, at), 0, end, at + later)


@given(COUNTS, COUNTS, st.integers(0, 2 * TOLD_EVERY_MS))
def test_a_change_is_told_once_a_minute(lag: int, now_lag: int, waited: int) -> None:
    """A topic that is landed as it comes changes its lag at each tick; what was told last is true within a minute."""
    told = Told(lag, 10**9, EPOCH_MS)
    is_due = waited >= TOLD_EVERY_MS and lag != now_lag
    assert is_lag_news(told, now_lag, 10**9, EPOCH_MS + waited) == is_due
    assert is_lag_news(told, now_lag, 10**9, EPOCH_MS - waited) == is_due, "nor is it silent after a clock was set back"


@given(st.integers(1, 10**9), st.integers(0, 2 * TOLD_WAITING_EVERY_MS))
def test_what_waits_unchanged_is_told_each_ten_minutes(lag: int, waited: int) -> None:
    """Else the plot of a topic that stands still would end where it began to."""
    assert is_lag_news(Told(lag, lag, EPOCH_MS), lag, lag, EPOCH_MS + waited) == (waited >= TOLD_WAITING_EVERY_MS)


def landed(rows: int, seconds_ago: float, seconds: float = 1.0) -> Manifest:
    """Is a range of so many rows that a run took `seconds` to land."""
    at_ms = EPOCH_MS - int(seconds_ago * 1000)
    return strategies.landed(OffsetRange(0, 0, 0, rows), landed_at_ms=at_ms, seconds=seconds)


@pytest.mark.parametrize(
    ("manifests", "per_second"),
    [
        ([], 0.0),
        ([landed(100, 0, 10)], 10.0),  # since it began to read
        ([landed(100, 10, 10), landed(100, 0, 10)], 10.0),
        ([landed(60, 50, 10)], 1.0),  # and since then nothing
        ([landed(100, PACE_WINDOW_MS / 1000)], 0.0),
        ([landed(100, -5)], 0.0),
        ([landed(600, 0, 10_000)], 1.0),  # what was read before the window is not counted longer than the window
        ([landed(50, 0, 0)], 50.0),  # at once: over a second
    ],
)
def test_the_pace_of_what_was_landed_lately(manifests: list[Manifest], per_second: float) -> None:
    assert landed_per_second(manifests, EPOCH_MS) == pytest.approx(per_second)
