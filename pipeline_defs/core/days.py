"""Event days: when the event of a decoded row happened, which days a range touches, and which days are due.

A day's file says which ranges went into it, and their documents say which days they touch: what is due is the difference,
never remembered. Invariant: a day that is not due holds each row of its ranges once.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Literal

from .applied import Applied
from .calendar import NO_DAY, day_at
from .decoding import Decoding
from .errors import BadSetting, BrokenManifest
from .offsets import OffsetRange

FORMAT = 1
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}
Kind = Literal["timestamp", "date", "integer"]
_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")

Counts = Mapping[str, int]
"""How many rows of a range are of which day, `2013-01-01`, and how many of none."""


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
        """Says whether a range's document has counted its rows by this event time."""
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
    """Is how a topic's rows are put into days: by which time, and from which day on. Days are UTC's."""

    start: str
    event_time: EventTime = field(default_factory=EventTime)

    def place(self, day: str, now_ms: int) -> Literal["held", "before", "future", "none"]:
        """Says where rows of a day are: in the day's file, or in the decoded ranges only, and why."""
        if day == NO_DAY:
            return "none"
        if day < self.start:
            return "before"
        return "held" if day <= day_at(now_ms) else "future"


@dataclass(frozen=True, slots=True)
class DayState:
    """Is what a day's file says of itself, in its footer: it changes in the same step as its rows.

    `sources` is one number over the digests of the decoded files that went in: a document that was deleted and made anew
    may say the same revision and be of other rows.
    """

    topic: str
    day: str
    event_time: str
    applied: Applied
    sources: int
    rows: int

    def to_json(self) -> str:
        """Encodes the state; equal states give equal text, so that equal rows are equal files."""
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "day": self.day,
            "event_time": self.event_time,
            "applied": json.loads(self.applied.to_json()),
            "sources": f"{self.sources:016x}",
            "rows": self.rows,
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> DayState:
        """Decodes a state; `where` names the file in the error."""
        try:
            document = json.loads(text)
            if document.pop("format") != FORMAT:
                raise ValueError(f"expected format {FORMAT}")
            applied = Applied.from_json(json.dumps(document.pop("applied")))
            return cls(applied=applied, sources=int(document.pop("sources"), 16), **document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenManifest(
                f"day {where} does not say which ranges it holds: {error!r}; move it away, and it is made anew from the "
                "decoded ranges"
            ) from error


@dataclass(frozen=True, slots=True)
class DayUpdate:
    """Is what one day needs: `add` the rows of ranges to its file, or made anew from all ranges that touch it."""

    day: str
    ranges: Mapping[OffsetRange, Decoding]
    added: tuple[OffsetRange, ...]
    is_whole: bool
    rows: int

    def state(self, topic: str, event_time: EventTime) -> DayState:
        """Is what the day's file says of itself once it is up to date."""
        revisions = {offsets: decoding.revision for offsets, decoding in self.ranges.items()}
        return DayState(
            topic, self.day, event_time.text, Applied.of(revisions), sources_of(self.ranges.values()), self.rows
        )

    @property
    def reads(self) -> Collection[OffsetRange]:
        """Are the ranges whose decoded files are read for it."""
        return self.ranges.keys() if self.is_whole else self.added


def sources_of(decodings: Collection[Decoding]) -> int:
    """Is one number over the decoded files of ranges, whatever their order; it can be added to."""
    number = 0
    for decoding in decodings:
        identity = f"{decoding.offsets.key}:{decoding.decoded.sha256 if decoding.decoded else ''}"
        number ^= int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8])
    return number


def touching(counts: Mapping[OffsetRange, Counts]) -> dict[str, list[OffsetRange]]:
    """Turns the counts around: of each day, the ranges that have rows of it, sorted."""
    found: dict[str, list[OffsetRange]] = {}
    for offsets, days in sorted(counts.items()):
        for day in days:
            found.setdefault(day, []).append(offsets)
    return found


def find_updates(
    days: Days,
    decodings: Mapping[OffsetRange, Decoding],
    counts: Mapping[OffsetRange, Counts],
    states: Mapping[str, DayState],
    now_ms: int,
    *,
    moving: AbstractSet[OffsetRange] = frozenset(),
    anew: Collection[str] = (),
) -> list[DayUpdate]:
    """Finds the days whose files do not hold what the documents say, in order.

    A day that a range is of which is just being decoded again, one of `moving`, waits for that.

    | the day's file | what it needs |
    |---|---|
    | is not there, or of another event time, or of no range | made anew |
    | lacks ranges | theirs are added |
    | holds a range otherwise than it is decoded now, or one that does not touch it any more | made anew |
    | whatever it holds, where the day is among `anew` | made anew |
    """
    by_day = touching(counts)
    held_up = find_held_up(states, moving)
    updates = []
    for day in sorted(by_day.keys() | states.keys()):
        if days.place(day, now_ms) != "held":
            continue
        ranges = {offsets: decodings[offsets] for offsets in by_day.get(day, ()) if offsets in decodings}
        state = states.get(day)
        if not moving.isdisjoint(ranges) or day in held_up:
            continue
        update = _update(days, day, ranges, counts, state, is_anew=day in anew)
        if update is not None:
            updates.append(update)
    return updates


def find_held_up(
    states: Mapping[str, DayState], moving: AbstractSet[OffsetRange]
) -> dict[str, tuple[OffsetRange, ...]]:
    """Finds the days whose files hold rows of ranges that are just being decoded again, each with those ranges."""
    moved = dict.fromkeys(moving, 0)
    found = {}
    for day, state in states.items() if moving else ():
        untouched = set(state.applied.compare(moved).new)
        if held := tuple(sorted(moving - untouched)):
            found[day] = held
    return found


def find_left_behind(
    days: Days,
    decodings: Mapping[OffsetRange, Decoding],
    counts: Mapping[OffsetRange, Counts],
    states: Mapping[str, DayState],
    moving: AbstractSet[OffsetRange] = frozenset(),
) -> list[str]:
    """Finds the days before the first one whose rows are not what is decoded now: a day that is kept may show them too."""
    before = {day: state for day, state in sorted(states.items()) if day < days.start and state.rows}
    by_day, held_up, found = touching(counts) if before else {}, find_held_up(before, moving), []
    for day, state in before.items():
        if day not in held_up:
            ranges = {offsets: decodings[offsets] for offsets in by_day.get(day, ()) if offsets in decodings}
            update = _update(days, day, ranges, counts, state)
            if update is not None and update.is_whole:
                found.append(day)
    return found


def _update(
    days: Days,
    day: str,
    ranges: Mapping[OffsetRange, Decoding],
    counts: Mapping[OffsetRange, Counts],
    state: DayState | None,
    *,
    is_anew: bool = False,
) -> DayUpdate | None:
    rows = sum(counts[offsets][day] for offsets in ranges)
    whole = DayUpdate(day, ranges, tuple(ranges), is_whole=True, rows=rows)
    if state is None or is_anew or state.event_time != days.event_time.text:
        return whole if rows or state else None
    if not state.applied.stretches:
        return whole if rows else None  # without rows it keeps columns that may be of no range that there is
    change = state.applied.compare({offsets: each.revision for offsets, each in ranges.items()})
    kept = [each for offsets, each in ranges.items() if offsets not in set(change.new)]
    if sources_of(kept) != state.sources:
        return whole  # a range is redone, gone, or its document was made anew: not all rows that are there are theirs
    return DayUpdate(day, ranges, change.new, is_whole=False, rows=rows) if change.new else None


def split_jobs(updates: Sequence[DayUpdate], days_per_job: int) -> list[list[DayUpdate]]:
    """Splits updates into jobs, each of which reads each of its files once: days that are added to, and days made anew.

    A job takes of every range that it reads the rows of all its days. So a day that is added to, and that holds already what
    is read for another one, is made anew instead.
    """
    jobs = []
    whole = [update for update in updates if update.is_whole]
    adding = [update for update in updates if not update.is_whole]
    for at in range(0, len(adding), days_per_job):
        batch = adding[at : at + days_per_job]
        read = {offsets for update in batch for offsets in update.added}
        clean = []
        for each in batch:
            if read.isdisjoint(each.ranges.keys() - set(each.added)):
                clean.append(each)
            else:
                whole.append(replace(each, added=tuple(each.ranges), is_whole=True))
        if clean:
            jobs.append(clean)
    whole.sort(key=lambda update: update.day)
    return jobs + [whole[at : at + days_per_job] for at in range(0, len(whole), days_per_job)]
