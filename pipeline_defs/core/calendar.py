"""Days of the calendar as text, `2013-01-01`, and as numbers since 1970-01-01; UTC, the Gregorian calendar throughout.

The arithmetic is Howard Hinnant's (chrono-compatible low-level date algorithms): core has no clock, and so no `datetime`.
"""

from __future__ import annotations

import re

NO_DAY = "none"
SECONDS_A_DAY = 86_400
FIRST, LAST = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31
_DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)


def day_of(number: int) -> str:
    """Is the day so many days after 1970-01-01, as `2013-01-01`; none where no calendar has it."""
    if not FIRST <= number <= LAST:
        return NO_DAY
    shifted = number + 719_468  # days since 0000-03-01
    era, of_era = divmod(shifted, 146_097)  # 400 years
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153  # of years that begin in March
    day = of_year - (153 * month + 2) // 5 + 1
    year = year_of_era + 400 * era + (month >= 10)
    return f"{year:04d}-{(month + 2) % 12 + 1:02d}-{day:02d}"


def number_of(day: str) -> int:
    """Is how many days after 1970-01-01 a day is; raises `ValueError` for what is not written as `2013-01-01`."""
    match = _DAY.fullmatch(day)
    if match is not None:
        year, month, of_month = (int(each) for each in match.groups())
        year -= month <= 2
        era, year_of_era = divmod(year, 400)
        of_year = (153 * ((month + 9) % 12) + 2) // 5 + of_month - 1
        number = era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + of_year - 719_468
        if day_of(number) == day:
            return number
    raise ValueError(f"expected a day such as 2013-01-01, found {day!r}")


def parse_day(text: str) -> str:
    """Reads a day; raises `ValueError` for what is none."""
    return day_of(number_of(text))


def day_at(moment_ms: int) -> str:
    """Is the day of a moment."""
    return day_of(moment_ms // (SECONDS_A_DAY * 1_000))


def clamped_moment(moment_ms: int) -> str:
    """Return a moment as Delta writes it, `2013-01-01T00:00:00.000Z`; the calendar's end for one beyond it."""
    day_ms = SECONDS_A_DAY * 1_000
    day, of_day = divmod(max(FIRST * day_ms, min(moment_ms, (LAST + 1) * day_ms - 1)), day_ms)
    seconds, ms = divmod(of_day, 1_000)
    return f"{day_of(day)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}Z"
