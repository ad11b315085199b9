"""Where a topic's event days stand: what is decoded, which days that touches, and what the days' files say they hold.

Read anew each time, never remembered. Invariant: the files are read before the documents, so that a document is at least as
new as what a file was made from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .core.command_lines import command
from .core.day_verdicts import DayFacts
from .core.days import Days, DayState, DayUpdate, find_held_up, find_left_behind, find_updates
from .core.decoding import Decoding
from .core.errors import BadSetting, BrokenManifest
from .core.offsets import OffsetRange
from .edges import event_time as times
from .edges import parquet
from .edges.days import DayFiles, day_path
from .edges.decodings import DecodedRanges, Decodings

NEWEST = 5  # ranges that a day's facts name


@dataclass(frozen=True, slots=True)
class Situation:
    """Is what there is of a topic's days: its decoded ranges, which days those touch that can be read, and the days' files.

    `broken` says of days whose files cannot be read what is wrong. `moving` are ranges that nobody has counted by day.
    """

    decoded: DecodedRanges
    counts: Mapping[OffsetRange, Mapping[str, int]]
    states: Mapping[str, DayState]
    broken: Mapping[str, str]
    moving: frozenset[OffsetRange]

    @property
    def decodings(self) -> Mapping[OffsetRange, Decoding]:
        """What became of the ranges with rows."""
        return self.decoded.known

    @property
    def days(self) -> set[str]:
        """Are all days that a decoded row is of, or that have a file."""
        return {day for days in self.counts.values() for day in days} | self.states.keys() | self.broken.keys()

    def due(self, days: Days, now_ms: int) -> list[str]:
        """Are the days that are not up to date, in order, also those whose files cannot be read; not those that wait."""
        return sorted({update.day for update in self.updates(days, now_ms)} | self.broken_days(days, now_ms))

    def broken_days(self, days: Days, now_ms: int) -> set[str]:
        """Are the days that there are to be, and whose files cannot be read."""
        return {day for day in self.broken if days.place(day, now_ms) == "held"}

    def updates(self, days: Days, now_ms: int, anew: Collection[str] = ()) -> list[DayUpdate]:
        """Are the days that are due, and those that are to be made anew, but for those that wait or cannot be read."""
        ranges = self.decodings, self.counts
        found = find_updates(days, *ranges, self.states, now_ms, moving=self.moving, anew=anew)
        return [update for update in found if update.day not in self.broken]

    def refuse_left_behind(self, topic: str, days: Days) -> None:
        """Raises `BadSetting` where days before the first one show rows that are decoded otherwise now."""
        left = find_left_behind(days, self.decodings, self.counts, self.states, self.moving)
        if left:
            raise BadSetting(
                f"{len(left)} days of {topic}, {left[0]} to {left[-1]}, stand before `days.start` {days.start} in defs.yaml, "
                "and their rows are decoded otherwise now, or of another event time: beside up-to-date days, "
                f"days/{topic}/*.parquet would show rows twice; nothing was written; move these files away, or `start` back"
            )

    @property
    def held_up(self) -> Mapping[str, Sequence[OffsetRange]]:
        """Are the days with a file that wait, each with the ranges that it waits for."""
        return find_held_up(self.states, self.moving)

    def waits_for(self, day: str, days: Days) -> list[OffsetRange]:
        """Are the ranges whose rows of a day cannot be read yet: those in its file, and those that have or may have some."""
        coming = {
            offsets
            for offsets in self.moving
            if not days.event_time.counted(self.decoded.known[offsets]) or day in self.decoded.known[offsets].event_days
        }
        return sorted(coming.union(self.held_up.get(day, ())))


def read_days(
    topic: str, days: Days, files: DayFiles, decodings: Decodings, count_at_most: int | None = None
) -> Situation:
    """Reads where a topic's days stand; counts what was never counted, or so many of it.

    The files are read before the documents: then a document is at least as new as what a file was made from. Raises
    `BadSetting`, and `BrokenManifest` where what is to be counted is not what was decoded.
    """
    states, broken = files.read_states(topic)
    decoded = decodings.read_ranges(topic)
    visible = decoded.known
    counts = files.read_counts(topic, visible, days.event_time)
    lacking = sorted(visible.keys() - counts.keys())
    if lacking:
        newest = max(visible.values(), key=lambda each: (each.rows > 0, each.provenance.landed_at_ms))
        files.refuse_wrong_column(newest, days.event_time)
    for offsets in lacking[:count_at_most]:
        counted = files.count(visible[offsets], days.event_time)
        if counted is not None:
            counts[offsets] = counted
        elif decodings.read(topic).get(offsets) == visible[offsets]:  # else it is decoded anew, and counted later
            raise BrokenManifest(
                f"range {offsets.text(topic)} is decoded to another file than its document names, "
                f"{files.url_of(visible[offsets])}: its rows cannot be counted by day; nothing was written; "
                f"`{command('decode', topic, '--partition', offsets.key)}` decodes it again"
            )
    return Situation(decoded, counts, states, broken, frozenset(visible.keys() - counts.keys()))


def read_facts(topic: str, day: str, situation: Situation, files: DayFiles) -> DayFacts:
    """Reads the facts of a day's file as it stands, of which the documents say what went in."""
    ranges = [offsets for offsets, days in sorted(situation.counts.items()) if day in days]
    with files.lake.local_copy(day_path(topic, day)) as file:
        return facts_of(file, day, ranges, situation.decoded.known)


def facts_of(
    file: Path, day: str, ranges: Sequence[OffsetRange], decodings: Mapping[OffsetRange, Decoding]
) -> DayFacts:
    """Are the facts of a day's file, whose rows are of these ranges."""
    newest = sorted(ranges, key=lambda offsets: decodings[offsets].provenance.landed_at_ms)[-NEWEST:]
    return DayFacts(
        parquet.digest(file),
        times.read_note(file)[1],
        times.count_late(file, day),
        file.stat().st_size,
        len(ranges),
        tuple(offsets.key for offsets in newest),
    )
