"""How the update of one event day ended, with the facts of its file, or with what was violated. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .offsets import OffsetRange

NAMED = 5


class DayDecided(StrEnum):
    """Says how the update of a day ended."""

    CREATED = "created"  # its first file
    UPDATED = "updated"  # another file stands in its place: rows were added, or went, or changed
    UNCHANGED = "unchanged"  # made anew from all its ranges: the same file
    UP_TO_DATE = "up_to_date"  # nothing to do
    WAITING = "waiting"  # for ranges that are decoded and not seen yet: what stood stands
    EMPTY = "empty"  # no decoded row is of it: it has no file
    OVERTAKEN = "overtaken"  # another update was first, again and again: what is left is found due again
    FAILED = "failed"  # what stood stands


@dataclass(frozen=True, slots=True)
class DayFacts:
    """Are the facts of a day's file: `late` rows were written to Kafka after the day had ended."""

    digest: str
    rows: int
    late: int
    bytes: int
    ranges: int
    newest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DayVerdict:
    """Is what became of one day, with the facts of its file, where it has one, or with what was violated.

    `added` are the rows that were not there before.
    """

    day: str
    outcome: DayDecided
    facts: DayFacts | None = None
    added: int = 0
    seconds: float = 0.0
    violations: tuple[str, ...] = ()


def day_waits(topic: str, day: str, ranges: Sequence[OffsetRange]) -> DayVerdict:
    """Is the verdict of a day that cannot be made yet, for the sake of these ranges."""
    named = ", ".join(offsets.text(topic) for offsets in ranges[:NAMED]) + (", ..." if len(ranges) > NAMED else "")
    text = (
        f"day {day} of {topic} waits for {len(ranges)} ranges that are decoded and not seen yet: {named}; what stood stands; "
        f"the next run of decoded/{topic} has them seen, and the day is made then"
    )
    return DayVerdict(day, DayDecided.WAITING, violations=(text,))


def day_failed(day: str, violation: str) -> DayVerdict:
    """Is the verdict of a day that is not up to date."""
    return DayVerdict(day, DayDecided.FAILED, violations=(violation,))
