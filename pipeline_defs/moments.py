"""How moments and time spans are written, in messages, checks and tables."""

from __future__ import annotations

import datetime


def time_text(moment_ms: int | None) -> str:
    """Is a moment (ms since 1970) as ISO 8601 in UTC, or a dash."""
    if moment_ms is None:
        return "-"
    return datetime.datetime.fromtimestamp(moment_ms / 1000, datetime.UTC).isoformat(timespec="seconds")


def duration_text(seconds: float | None) -> str:
    """Is a time span in its largest unit, or a dash."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
