"""Pace: landed records a second over a window, from manifests; what is old, or of another clock, is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline_defs.core.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.pace import PACE_WINDOW_MS, landed_per_second
from tests.support.strategies import EPOCH_MS, TOPIC, provenance, staged_file


def landed(rows: int, seconds_ago: float, seconds: float = 1.0) -> Manifest:
    """Is a range of so many rows that a run took `seconds` to land."""
    offsets = OffsetRange(0, 0, 0, rows)
    said = replace(provenance(offsets), landed_at_ms=EPOCH_MS - int(seconds_ago * 1000), seconds=seconds)
    return Manifest(TOPIC, offsets, staged_file(offsets, range(rows)), (), said)


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
