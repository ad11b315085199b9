"""Latency: quantiles and counts of waits, against the records themselves."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.log.latency import (
    BOUNDS_SECONDS,
    PACKED,
    Wait,
    count_waits,
    find_quantile,
    pack,
    unpack,
    wait_of,
    waits_of,
)
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, staged_file


@st.composite
def waits(draw: st.DrawFn) -> Wait:
    least, spread = draw(st.integers(0, 200)), draw(st.integers(0, 100_000))
    return Wait(draw(st.integers(1, 1000)), float(least), float(least + spread))


def seconds_of(wait: Wait) -> list[float]:
    """Return how long each record waited, spread evenly."""
    step = (wait.most_seconds - wait.least_seconds) / wait.rows
    return [wait.least_seconds + (number + 1) * step for number in range(wait.rows)]


@given(st.lists(waits(), min_size=1, max_size=6), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_that_of_the_records(drawn: list[Wait], share: float) -> None:
    """[R-94] Within it so great a share of them could be read, and in less time fewer could."""
    found = find_quantile(drawn, share)
    assert found is not None
    records = [seconds for wait in drawn for seconds in seconds_of(wait)]
    # the last record of a step counts as soon as the step has begun
    assert sum(seconds <= found + 1e-6 for seconds in records) >= share * len(records) - len(drawn)
    assert sum(seconds < found - 1e-3 for seconds in records) <= share * len(records)


@given(st.lists(waits(), max_size=6))
def test_a_histogram_counts_each_record_once(drawn: list[Wait]) -> None:
    """[R-94] Up to each bound those that waited no longer, at the end all."""
    found = count_waits(drawn)
    assert BOUNDS_SECONDS[-1] == inf
    assert list(found.counts) == sorted(found.counts)
    assert found.counts[-1] == sum(wait.rows for wait in drawn)
    for bound, count in zip(BOUNDS_SECONDS, found.counts, strict=True):
        assert count == pytest.approx(sum(wait.rows_within(bound) for wait in drawn), abs=0.51 * len(drawn))
    first, second = drawn[::2], drawn[1::2]
    assert (count_waits(first) + count_waits(second)).counts == found.counts, "or a sum of parts would fall when they change"
    assert found.seconds == pytest.approx(sum(w.rows * (w.least_seconds + w.most_seconds) / 2 for w in drawn))


@given(st.lists(waits(), max_size=200))
def test_what_a_version_tells_is_bounded_and_hides_no_wait(drawn: list[Wait]) -> None:
    told = unpack(pack(drawn))
    assert len(told) <= PACKED and sum(w.rows for w in told) == sum(w.rows for w in drawn)
    assert max((w.most_seconds for w in told), default=0) == max((w.most_seconds for w in drawn), default=0)
    if len(drawn) <= PACKED:
        assert told == sorted(drawn, key=lambda wait: wait.most_seconds)


def test_what_has_no_records_or_no_times_waits_for_nothing() -> None:
    file = staged_file(OffsetRange(0, 0, 0, 10), range(10))
    assert file is not None
    timed = replace(file, min_timestamp_ms=EPOCH_MS - 60_000, max_timestamp_ms=EPOCH_MS + 5_000)
    assert wait_of(timed, EPOCH_MS) == Wait(10, 0.0, 60.0), "a record of the future has not waited"
    assert wait_of(None, EPOCH_MS) is None and wait_of(replace(timed, max_timestamp_ms=None), EPOCH_MS) is None
    assert waits_of([(timed, EPOCH_MS), (timed, EPOCH_MS - 1), (None, EPOCH_MS)], EPOCH_MS - 1) == [Wait(10, 0.0, 60.0)]
    assert wait_of(replace(timed, min_timestamp_ms=-1), EPOCH_MS) is None, "Kafka's none"
    assert find_quantile([], 0.5) is None
    old = Wait(1, 9e15, 9e15)
    assert find_quantile([Wait(10**6, 2.0, 2.0), old], 0.5) == pytest.approx(2.0, abs=0.001), "one old record says nothing"
    with pytest.raises(ValueError, match="finite"):
        unpack([[1, 0, inf]])
