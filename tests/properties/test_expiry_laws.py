"""Time to loss: the soonest of all that may delete the oldest record that is not landed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.log.expiry import Exposure, Rates, Retention, kept_seconds, read_rates, read_retention, seconds_to_loss
from pipeline_defs.core.log.plan_step import Look, Watermarks
from tests.support.strategies import EPOCH_MS

HOUR, HOUR_MS = 3600.0, 3_600_000
NOW = EPOCH_MS
bounds = st.none() | st.integers(0, 10**12)
rates_st = st.builds(Rates, st.floats(0, 1e6), st.floats(0, 1e6))
exposures = st.builds(
    lambda earliest, ahead, behind, age, size: Exposure(
        earliest + ahead, None if age is None else NOW - age, Watermarks(earliest, earliest + ahead + behind), size
    ),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.none() | st.integers(0, 10**9),
    st.floats(0, 1e4),
)


@pytest.mark.parametrize(
    ("retention", "rates", "exposed", "seconds"),
    [
        pytest.param(Retention(), Rates(), Exposure(5, NOW, Watermarks(0, 9)), None, id="kept for ever"),
        pytest.param(Retention(ms=1), Rates(), Exposure(5, None, Watermarks(0, 9)), None, id="age not known"),
        pytest.param(Retention(bytes=1000), Rates(0, 2), Exposure(10, None, Watermarks(0, 50), 10.0), 30.0, id="by size"),
        pytest.param(Retention(bytes=1000), Rates(), Exposure(10, None, Watermarks(0, 50), 10.0), None, id="no growth"),
        pytest.param(Retention(bytes=100), Rates(), Exposure(10, None, Watermarks(0, 50), 10.0), 0.0, id="too big now"),
        pytest.param(Retention(), Rates(start=2), Exposure(30, None, Watermarks(10, 50)), 10.0, id="as seen to move"),
        pytest.param(Retention(), Rates(2, is_steady=False), Exposure(30, None, Watermarks(10, 50)), 10.0, id="moved once"),
        pytest.param(
            Retention(ms=HOUR_MS), Rates(2, is_steady=False), Exposure(30, NOW, Watermarks(10, 50)), HOUR, id="by age, moved"
        ),
        pytest.param(Retention(ms=10**9), Rates(), Exposure(3, NOW, Watermarks(7, 50)), 0.0, id="gone already"),
    ],
)
def test_time_to_loss_is_what_the_broker_promises(
    retention: Retention, rates: Rates, exposed: Exposure, seconds: float | None
) -> None:
    """[R-43]"""
    assert seconds_to_loss(retention, rates, exposed, NOW) == seconds


@given(bounds, bounds, rates_st, exposures)
def test_it_is_the_soonest_of_each_alone(ms: int | None, size: int | None, rates: Rates, exposed: Exposure) -> None:
    """[R-43] Whatever else may delete a record never makes it safer."""
    alone = [
        seconds_to_loss(Retention(ms=ms), Rates(), exposed, NOW),
        seconds_to_loss(Retention(bytes=size), Rates(end=rates.end), exposed, NOW),
        seconds_to_loss(Retention(), Rates(start=rates.start), exposed, NOW),
    ]
    expected = min((seconds for seconds in alone if seconds is not None), default=None)
    assert seconds_to_loss(Retention(ms, size), rates, exposed, NOW) == expected
    assert expected is None or expected >= 0


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_it_runs_out_as_time_goes_by(ms: int, age: int, later: int) -> None:
    exposed = Exposure(0, NOW - age, Watermarks(0, 10))
    assert seconds_to_loss(Retention(ms=ms), Rates(), exposed, NOW + later) == max(0.0, (ms - age - later) / 1000)


def look(at_ms: int, earliest: int, end: int, generation: int = 0) -> Look:
    return Look(at_ms, generation, {0: Watermarks(earliest, end)})


def test_rates_are_of_the_newest_hour_of_the_open_generation() -> None:
    """[R-43]"""
    looks = [
        look(NOW - 9_000_000, 0, 10),
        look(NOW - 500_000, 0, 1000, generation=0),
        look(NOW - 100_000, 0, 100, generation=1),
        look(NOW - 50_000, 10, 300, generation=1),
    ]
    assert read_rates(looks, 0, Watermarks(50, 400), 50, NOW) == Rates(0.5, 3.0)
    assert read_rates(looks[:2], 0, Watermarks(50, 2000), 50, NOW) == Rates(0.1, 2.0, is_steady=False), "it has moved once"
    assert read_rates(looks[:1], 0, Watermarks(50, 400), 50, NOW) == Rates(), "too long ago to say anything"
    assert read_rates(looks, 1, Watermarks(50, 400), 50, NOW) == Rates(), "a partition not seen before"
    assert read_rates([], 0, Watermarks(0, 4), 0, NOW) == Rates()


@pytest.mark.parametrize("deleted_at", [0, 1, 2, 3])
def test_a_log_that_was_emptied_once_is_not_expected_to_go_on_so(deleted_at: int) -> None:
    """[R-43] A quiet topic whose records all expired, once they were landed; the control is a log whose start moves on."""
    ends = [100 if number > deleted_at else 0 for number in range(4)]
    looks = [look(NOW - (4 - number) * 600_000, ends[number], 100) for number in range(4)]
    assert read_rates(looks, 0, Watermarks(100, 120), 100, NOW).start == 0.0
    assert read_rates(looks, 0, Watermarks(100, 120), 99, NOW).start == (100 - ends[0]) / 2400, "it took one that is not landed"
    moving = [look(NOW - (4 - number) * 600_000, 20 * number, 110) for number in range(4)]
    assert read_rates(moving, 0, Watermarks(80, 120), 80, NOW).start == 80 / 2400


@pytest.mark.parametrize(
    ("config", "retention"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "-1"}, Retention(5, None)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "7"}, Retention(None, 7)),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "7"}, Retention()),
        ({"retention.ms": "0"}, Retention(0, None)),
    ],
)
def test_retention_is_read_in_kafkas_own_names(config: dict[str, str], retention: Retention) -> None:
    assert read_retention(config) == retention


def test_a_record_is_kept_for_the_shorter_of_both_bounds() -> None:
    assert kept_seconds(Retention(), Rates(0, 5), 10) is None
    assert kept_seconds(Retention(ms=60_000), Rates(0, 5), 10) == 60
    assert kept_seconds(Retention(60_000, 1000), Rates(0, 5), 10) == 20
    assert kept_seconds(Retention(60_000, 1000), Rates(), 10) == 60
