"""What is said of the pace of work: true numbers, and not too often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.orchestration.runs.moments import TELL_MS, Pace, pace_text


@pytest.mark.parametrize(
    ("done", "total", "seconds", "text"),
    [
        (0, None, 12.0, "12 s so far"),
        (0, 10, 12.0, "0 of 10 in 12 s, 0.0/s"),
        (5, 10, 10.0, "5 of 10 in 10 s, 0.5/s, 10 s left"),
        (1_500, 3_000, 150.0, "1,500 of 3,000 in 2 min, 10.0/s, 2 min left"),
        (7, None, 2.0, "7 in 2 s, 3.5/s"),
        (10, 10, 0.0, "10 of 10 in 0 s, 0.0/s"),
    ],
)
def test_the_pace_in_words(done: int, total: int | None, seconds: float, text: str) -> None:
    assert pace_text(done, total, seconds) == text


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=60))
def test_a_run_speaks_every_few_seconds_and_at_its_end(waits_ms: list[int]) -> None:
    """Never twice within the interval before the end; and where more than that went by, with the next range."""
    now_ms = 0
    pace = Pace(len(waits_ms), lambda: now_ms)
    told_ms = 0
    for number, wait_ms in enumerate(waits_ms, 1):
        now_ms += wait_ms
        said = pace.after_one()
        assert (said is not None) == (number == len(waits_ms) or now_ms - told_ms >= TELL_MS)
        if said is not None:
            assert said.startswith(f"{number} of {len(waits_ms)} in ")
            told_ms = now_ms
