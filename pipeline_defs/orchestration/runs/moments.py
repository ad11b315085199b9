"""How moments and time spans are written, in messages, checks and tables, and how people write them."""

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

T = TypeVar("T")

DAY_MS = 24 * 3_600_000
TELL_MS = 3_000  # how often a run says how far it is


def time_text(moment_ms: int | None) -> str:
    """Return a moment (ms since 1970) as ISO 8601 in UTC, or a dash; a producer may write years that no calendar here has."""
    if moment_ms is None:
        return "-"
    try:
        return datetime.datetime.fromtimestamp(moment_ms / 1000, datetime.UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{moment_ms} ms since 1970"


def parse_time(text: str, zone: str | None, *, zone_name: str) -> int:
    """Read ISO 8601 as ms since 1970; `zone` is of a time without one. Raises `ValueError`, which says what was expected.

    `zone_name` is what the person would call the zone's own field.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time, expected ISO 8601 such as 2026-11-17T10:00+01:00") from None
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError(f"{text} does not say in which time zone: end it with Z or +01:00, or give {zone_name}")
        try:
            moment = moment.replace(tzinfo=ZoneInfo(zone))
        except (ZoneInfoNotFoundError, ValueError, OSError):  # the last: a folder of zones, or too long a name
            raise ValueError(f"{text}: {zone_name} {zone} is no time zone, expected such as Europe/Zurich") from None
        later = moment.replace(fold=1)
        if later.utcoffset() != moment.utcoffset():
            both = f"{moment.isoformat()} or {later.isoformat()}"
            raise ValueError(f"{text} is no one moment in {zone}, whose clocks are changed then: expected {both}")
    return round(moment.timestamp() * 1000)


def pace_text(done: int, total: int | None, seconds: float) -> str:
    """Return how far a piece of work is: done, total, how long it took, the rate, and, from a tenth on, the time left so."""
    if total is None and not done:
        return f"{duration_text(seconds)} so far"
    rate = done / seconds if seconds > 0 else 0.0
    of = f" of {total:,}" if total is not None else ""
    left = (
        f", {duration_text((total - done) / rate)} left" if total is not None and rate and total / 10 <= done <= total else ""
    )
    return f"{done:,}{of} in {duration_text(seconds)}, {rate:.1f}/s{left}"


def duration_text(seconds: float | None) -> str:
    """Return a time span in its largest unit, or a dash."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def telling_pace(done: Iterable[T], total: int, now_ms: Callable[[], int], tell: Callable[[str], None]) -> Iterator[T]:
    """Yield what a run has done, one by one; tell its pace in words every few seconds and at the end."""
    started_ms = told_ms = now_ms()
    for number, each in enumerate(done, 1):
        if number >= total or now_ms() - told_ms >= TELL_MS:
            told_ms = now_ms()
            tell(pace_text(number, total, (told_ms - started_ms) / 1000))
        yield each
