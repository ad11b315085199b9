"""Pace: how many records a second were landed lately, from the manifests alone.

Invariant: a landing counts from when it began to read, so a pipeline that has just started is not called slow.
"""

from __future__ import annotations

from collections.abc import Iterable

from .manifest import Manifest

PACE_WINDOW_MS = 600_000


def landed_per_second(manifests: Iterable[Manifest], now_ms: int, window_ms: int = PACE_WINDOW_MS) -> float:
    """Is the rows landed within the window, divided by the time since the first of them began to be read; 0 for none.

    What was landed at a time that is still to come is of another clock and is left out.
    """
    lately = [each for each in manifests if now_ms - window_ms < each.provenance.landed_at_ms <= now_ms]
    if not lately:
        return 0.0
    began_ms = min(each.provenance.landed_at_ms - 1000 * each.provenance.seconds for each in lately)
    return sum(each.rows for each in lately) * 1000 / max(1000.0, now_ms - max(began_ms, now_ms - window_ms))
