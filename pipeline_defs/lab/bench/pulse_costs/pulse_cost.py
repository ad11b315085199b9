"""The part `pulse` of the benchmark: from produced to visible under a Dagster that is up, and what a long history costs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ....settings import Settings
from ..measurement import Tell, open_bench
from ..rounds import missed_aims, p95, section, spread
from ..visible import measure_visible
from .history import measure_history

AIMS: Mapping[str, float] = {
    "visible_seconds": 8.0,
    # at the longest history, which is to be as quick as the shortest
    "tick_seconds": 1.0,
    "peak_mb": 300.0,
    "status_seconds": 2.0,
    "trace_seconds": 3.0,
}
RANGES = (1_000, 10_000, 100_000, 1_000_000)  # that are landed


def measure_pulse(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Measure both, each history in a world of its own; what was started is stopped and deleted."""
    with open_bench(settings, tell) as bench:
        visible = measure_visible(bench, rounds, tell)
    repeats = visible["repeats"]
    assert isinstance(repeats, list)
    seconds = spread([each["total"] for each in repeats])
    history = []
    for ranges in RANGES:
        with open_bench(settings, tell) as bench:
            history.append(measure_history(bench, ranges, tell))
    found = {
        **section({"visible_seconds": seconds}, {"visible": visible}),
        "visible_p95_seconds": p95([each["total"] for each in repeats]),
        "history": history,
    }
    slow = [f"{each['ranges']:,} ranges: {text}" for each in history for text in missed_aims(each, AIMS)]
    return {"pulse": found}, [*missed_aims(found, AIMS), *slow]
