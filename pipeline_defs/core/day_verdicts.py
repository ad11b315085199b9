"""How the update of one event day ended, with the facts of its file, or with what was violated. Nothing is decided here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

NAMED = 5


class DayDecided(StrEnum):
    """Says how the update of a day ended."""

    CREATED = "created"  # its first file
    UPDATED = "updated"  # another file stands in its place: rows were added, or went, or changed
    UNCHANGED = "unchanged"  # made anew from all its ranges: the same file
    UP_TO_DATE = "up_to_date"  # nothing to do
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


def day_failed(day: str, violation: str) -> DayVerdict:
    """Is the verdict of a day that is not up to date."""
    return DayVerdict(day, DayDecided.FAILED, violations=(violation,))
