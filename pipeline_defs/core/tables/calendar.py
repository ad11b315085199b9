"""Days of the calendar as text, `2013-01-01`, and as numbers since 1970-01-01; UTC, the Gregorian calendar throughout.

Arithmetic only: `date` is asked for no day of now.
"""

import re
from datetime import date

NO_DAY = "none"
SECONDS_A_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
FIRST, LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def day_of(number: int) -> str:
    """Return the day so many days after 1970-01-01, as `2013-01-01`; none where no calendar has it."""
    return date.fromordinal(number + _EPOCH).isoformat() if FIRST <= number <= LAST else NO_DAY


def number_of(day: str) -> int:
    """Return how many days after 1970-01-01 a day is; raise `ValueError` for what is not written as `2013-01-01`."""
    try:
        if _DAY.fullmatch(day):
            return date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError:
        pass
    raise ValueError(f"expected a day such as 2013-01-01, found {day!r}")


def parse_day(text: str) -> str:
    """Read a day; raise `ValueError` for what is none."""
    return day_of(number_of(text))


def day_at(moment_ms: int) -> str:
    """Return the day of a moment."""
    return day_of(moment_ms // (SECONDS_A_DAY * 1_000))


def clamped_moment(moment_ms: int) -> str:
    """Return a moment as Delta writes it, `2013-01-01T00:00:00.000Z`; the calendar's end for one beyond it."""
    day_ms = SECONDS_A_DAY * 1_000
    day, of_day = divmod(max(FIRST * day_ms, min(moment_ms, (LAST + 1) * day_ms - 1)), day_ms)
    seconds, ms = divmod(of_day, 1_000)
    return f"{day_of(day)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}Z"
