"""Event days: the calendar days on which the events of decoded rows happened, and which of them decoded ranges have rows of.

A day is text, `2013-01-01`, or a number since 1970-01-01; UTC, the Gregorian calendar throughout. It has no file of its own:
counts in the log of the decoded table say which ranges have rows of it, and a column of these which rows. No clock is read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import ClassVar, Literal

from ..errors import BadSetting
from ..log.frontier import CONTENTS
from ..offsets import OffsetRange
from .decoding import Decoding

NO_DAY = "none"
TOMBSTONE = "tombstone"  # in the place of a day, for a row whose value would have the event time, and is null
SECONDS_A_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
FIRST, LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}
_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")
SHOWN = 5  # ranges that the facts of a day name


def day_of(number: int) -> str:
    """Return the day so many days after 1970-01-01, as `2013-01-01`; `NO_DAY` where the calendar does not have it."""
    return date.fromordinal(number + _EPOCH).isoformat() if FIRST <= number <= LAST else NO_DAY


def number_of(day: str) -> int:
    """Return how many days after 1970-01-01 a day is; raise `ValueError` for anything not written as `2013-01-01`."""
    try:
        if _DAY.fullmatch(day):
            return date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError:
        pass
    raise ValueError(f"expected a day such as 2013-01-01, found {day!r}")


def parse_day(text: str) -> str:
    """Read a day; raise `ValueError` for anything else."""
    return day_of(number_of(text))


def day_at(moment_ms: int) -> str:
    """Return the day of a moment (ms since 1970)."""
    return day_of(moment_ms // (SECONDS_A_DAY * 1_000))


def clamped_moment(moment_ms: int) -> str:
    """Return a moment (ms since 1970) as Delta writes it, `2013-01-01T00:00:00.000Z`, clamped to the calendar."""
    day_ms = SECONDS_A_DAY * 1_000
    day, of_day = divmod(max(FIRST * day_ms, min(moment_ms, (LAST + 1) * day_ms - 1)), day_ms)
    seconds, ms = divmod(of_day, 1_000)
    return f"{day_of(day)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}Z"


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where a decoded row has the time of its event: a column's path, and the unit where it is an integer."""

    path: str = "timestamp"
    unit: str | None = None

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise ValueError(f"expected a column's path such as value.ordered_at, found {self.path!r}")
        if self.unit is not None and self.unit not in UNITS:
            raise ValueError(f"expected unit s, ms or us, found {self.unit!r}")

    def counted(self, decoding: Decoding) -> bool:
        """Return whether a range's rows were counted by this event time; true without rows."""
        return not decoding.rows or decoding.event_time == self.text

    @property
    def parts(self) -> tuple[str, ...]:
        """The names on the path, the column first."""
        return tuple(self.path.split("."))

    @property
    def text(self) -> str:
        """The name of the definition: counts by the same definition can be compared."""
        return f"{self.path}:{self.unit or ''}" if self.unit or ":" in self.path else self.path

    def accepts(self, kind: str | None) -> bool:
        """Return whether a column of that kind is such a time: with a unit an integer, else a timestamp or date."""
        return kind == "integer" if self.unit else kind in {"timestamp", "date"}

    def refuse(self, found: str) -> BadSetting:
        """Return the error for a column that is no such time; `found` says what is there."""
        expected = f"an integer, as unit {self.unit} says" if self.unit else "a TIMESTAMP or DATE"
        integer = "" if self.unit else ", or name the unit of an integer (s, ms, us)"
        return BadSetting(
            f"event time {self.path} of `days` in defs.yaml: expected {expected}, found {found}; nothing was written; correct "
            f"the path{integer}"
        )


@dataclass(frozen=True, slots=True)
class Days:
    """How a topic's rows are counted by day: by which time, and from which day on (UTC)."""

    start: str
    event_time: EventTime = field(default_factory=EventTime)

    def place(self, day: str, now_ms: int) -> Literal["told", "before", "future", "none", "tombstone"]:
        """Return `told` for a day that Dagster is told of, else why it is not."""
        if day == NO_DAY:
            return "none"
        if day == TOMBSTONE:
            return "tombstone"
        if day < self.start:
            return "before"
        return "told" if day <= day_at(now_ms) else "future"


@dataclass(frozen=True, slots=True)
class DayFacts:
    """Facts of a day in decoded ranges: rows, number of ranges, the last ranges, and the newest timestamp (ms since 1970).

    `contents` is a sum that changes with the ranges that have rows of the day, their decoded files, or their number of rows.
    """

    IS_LIST: ClassVar = True
    rows: int = 0
    ranges: int = 0
    last_ranges: tuple[OffsetRange, ...] = ()
    newest_ms: int | None = None
    contents: int = 0

    @property
    def version(self) -> str:
        """The day's data version."""
        return f"{self.contents:016x}" if self.ranges else "empty"

    def __add__(self, other: DayFacts) -> DayFacts:
        """Return the facts of the day over the ranges of both, which share none."""
        return DayFacts(
            self.rows + other.rows,
            self.ranges + other.ranges,
            tuple(sorted((*self.last_ranges, *other.last_ranges))[-SHOWN:]),
            max((at_ms for at_ms in (self.newest_ms, other.newest_ms) if at_ms is not None), default=None),
            (self.contents + other.contents) % CONTENTS,
        )


GONE = DayFacts()  # of a day that had rows and no longer has any


def days_of(decodings: Iterable[Decoding]) -> dict[str, dict[str, DayFacts]]:
    """Return the facts of each day, `NO_DAY` and `TOMBSTONE` too, by the event time that counted (empty: none did)."""
    found: dict[str, dict[str, DayFacts]] = {}
    for each in decodings:
        days = found.setdefault(each.event_time, {}) if each.rows else {}
        days |= {day: days.get(day, GONE) + _facts(each, rows) for day, rows in each.event_days.items()}
    return found


def add_days(one: Mapping[str, DayFacts], other: Mapping[str, DayFacts]) -> dict[str, DayFacts]:
    """Return the facts of each day over the ranges of both, sorted by day."""
    return {day: one.get(day, GONE) + other.get(day, GONE) for day in sorted(one.keys() | other.keys())}


def _facts(decoding: Decoding, rows: int) -> DayFacts:
    file = decoding.decoded
    text = f"{decoding.offsets.key} {file.sha256 if file else ''} {rows}"
    contents = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)
    return DayFacts(rows, 1, (decoding.offsets,), file.max_timestamp_ms if file else None, contents)
