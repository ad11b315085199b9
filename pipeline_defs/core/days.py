"""Event days: when the event of a decoded row happened, and which days the decoded ranges have rows of.

A day has no file of its own: what the log of the decoded table counts says which ranges it is in, and a column of theirs when.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .calendar import NO_DAY, day_at
from .decoding import Decoding
from .errors import BadSetting
from .offsets import OffsetRange

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}
Kind = Literal["timestamp", "date", "integer"]
_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")


@dataclass(frozen=True, slots=True)
class EventTime:
    """Is where a decoded row says when its event happened: a column's path, and the unit where it is an integer."""

    path: str = "timestamp"
    unit: str | None = None

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise ValueError(f"expected a column's path such as value.ordered_at, found {self.path!r}")
        if self.unit is not None and self.unit not in UNITS:
            raise ValueError(f"expected unit s, ms or us, found {self.unit!r}")

    def counted(self, decoding: Decoding) -> bool:
        """Return whether a range has counted its rows by this event time."""
        return not decoding.rows or decoding.event_time == self.text

    @property
    def parts(self) -> tuple[str, ...]:
        """Are the names on the path, the column first."""
        return tuple(self.path.split("."))

    @property
    def text(self) -> str:
        """Names the definition: documents that were counted by the same one can be compared."""
        return f"{self.path}:{self.unit or ''}" if self.unit or ":" in self.path else self.path

    def accepts(self, kind: Kind | None) -> bool:
        """Says whether a column of that kind is a time: an integer with a unit, everything else without."""
        return kind is not None and (kind == "integer") == (self.unit is not None)

    def refuse(self, found: str) -> BadSetting:
        """Is the error for a column that is none; `found` says what is there."""
        expected = f"an integer, as unit {self.unit} says" if self.unit else "a TIMESTAMP or DATE"
        integer = "" if self.unit else ", or name the unit of an integer (s, ms, us)"
        return BadSetting(
            f"event time {self.path} of `days` in defs.yaml: expected {expected}, found {found}; nothing was written; correct "
            f"the path{integer}"
        )


@dataclass(frozen=True, slots=True)
class Days:
    """How a topic's rows are counted by day: by which time, and from which day on. Days are UTC's."""

    start: str
    event_time: EventTime = field(default_factory=EventTime)

    def place(self, day: str, now_ms: int) -> Literal["held", "before", "future", "none"]:
        """Return whether a day is one that Dagster is told of, and why not."""
        if day == NO_DAY:
            return "none"
        if day < self.start:
            return "before"
        return "held" if day <= day_at(now_ms) else "future"


@dataclass(frozen=True, slots=True)
class DayFacts:
    """A day as the decoded ranges have it: rows, ranges, and the newest record of these (ms since 1970).

    `version` is another one where the ranges that have rows of the day, their decoded files or these rows are others.
    """

    rows: int
    ranges: tuple[OffsetRange, ...]
    newest_ms: int | None
    version: str


GONE = DayFacts(0, (), None, "empty")  # of a day that had rows, and has none any more


def find_days(decodings: Iterable[Decoding], event_time: EventTime) -> dict[str, DayFacts]:
    """Find the days that decoded rows are of, `none` among them, sorted; ranges that were counted otherwise are left out."""
    touching: dict[str, list[Decoding]] = {}
    for each in sorted(decodings, key=lambda each: each.offsets):
        for day in each.event_days if event_time.counted(each) else ():
            touching.setdefault(day, []).append(each)
    return {day: _facts(day, found) for day, found in sorted(touching.items())}


def _facts(day: str, decodings: Sequence[Decoding]) -> DayFacts:
    digest = hashlib.sha256()
    for each in decodings:
        digest.update(
            f"{each.offsets.key} {each.decoded.sha256 if each.decoded else ''} {each.event_days[day]}\n".encode()
        )
    newest = [each.decoded.max_timestamp_ms for each in decodings if each.decoded]
    return DayFacts(
        sum(each.event_days[day] for each in decodings),
        tuple(each.offsets for each in decodings),
        max((at_ms for at_ms in newest if at_ms is not None), default=None),
        digest.hexdigest(),
    )
