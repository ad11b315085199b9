"""The days of a lake's topics: one file per day, each exchanged in one step, and what they are due from.

    days/<topic>/2013-01-01.parquet                               the rows of a day; days/<topic>/*.parquet is always right
    event_days/<topic>/g0/p0003/<start20>-<end20>.<digest>.json   which days a range touches, where its document does not say

What went into a day is in the footer of its own file, so it changes with its rows. A range that was decoded before its
topic had days, or by another event time, is counted from its decoded file, once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager

import obstore

from ..core.calendar import NO_DAY, parse_day
from ..core.days import Counts, DayState, EventTime
from ..core.decoding import Decoding
from ..core.errors import BrokenManifest
from ..core.offsets import OffsetRange
from . import event_time as times
from .decodings import path_of
from .lake import Lake
from .swapping import Seen, see, swap

TREE, COUNTS = "days", "event_days"
FORMAT = 1


class DayFiles:
    """Reads and exchanges the days of one lake; keeps what it has read of versions that are still there."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._states: dict[str, tuple[str | None, DayState]] = {}
        self._counts: dict[str, Counts] = {}

    # ---- days

    def read_states(self, topic: str) -> tuple[dict[str, DayState], dict[str, str]]:
        """Reads what the file of each day says of itself, and what is wrong of each day whose file cannot be read.

        Of those that are as they were nothing is read.
        """
        states, broken = {}, {}
        for path, version in self._versions(f"{TREE}/{topic}").items():
            day = _day_of(path)
            if day is None:
                continue
            known = self._states.get(path)
            if known is None or version is None or known[0] != version:
                try:
                    found = self.read_state(topic, day)
                except BrokenManifest as error:
                    broken[day] = error.message
                    continue
                if found is None:
                    continue  # taken away since it was listed
                known = self._states[path] = (version, found)
            states[day] = known[1]
        return states, broken

    def read_state(self, topic: str, day: str) -> DayState | None:
        """Reads what the file of one day says of itself now; none where there is none. Raises `BrokenManifest`."""
        path = day_path(topic, day)
        if not self.lake.store.exists(path):
            return None
        url = self.lake.store.url(path)
        try:
            with self.lake.local_copy(path) as copy:
                note, rows = times.read_note(copy)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise BrokenManifest(
                f"day {url} is no Parquet file: {error}; move it away, and it is made anew from the decoded ranges"
            ) from error
        state = DayState.from_json(note or "", url)
        if (state.topic, state.day, state.rows) != (topic, day, rows):
            raise BrokenManifest(
                f"day {url} has {rows} rows and says that it is {state.day} of {state.topic} with {state.rows}: move it away, "
                "and it is made anew from the decoded ranges"
            )
        return state

    def read_strays(self, topic: str) -> list[str]:
        """Lists what lies among the days and is none."""
        return [path for path in self.lake.store.list(f"{TREE}/{topic}") if _day_of(path) is None]

    def see(self, topic: str, day: str) -> AbstractContextManager[Seen | None]:
        """Looks at a day's file before it is read, for `swap`."""
        return see(self.lake.store, day_path(topic, day))

    def swap(self, staged: str, topic: str, day: str, seen: Seen | None) -> bool:
        """Puts a staged file in the place of a day's, if that is still the version `seen`; says whether it did."""
        return swap(self.lake.store, staged, day_path(topic, day), seen)

    def _versions(self, prefix: str) -> dict[str, str | None]:
        with self.lake.store.explained("list", prefix):
            pages = list(obstore.list(self.lake.store.objects, prefix))
        return {meta["path"]: meta["e_tag"] for page in pages for meta in page}

    # ---- which days a range touches

    def read_counts(
        self, topic: str, decodings: Mapping[OffsetRange, Decoding], event_time: EventTime
    ) -> dict[OffsetRange, Counts]:
        """Reads which days decoded ranges touch; a range that was never counted by this event time is left out."""
        lacking = {offsets: each for offsets, each in decodings.items() if not event_time.counted(each)}
        counts = {offsets: each.event_days for offsets, each in decodings.items() if offsets not in lacking}
        written = self.lake.store.list(f"{COUNTS}/{topic}") if lacking else {}
        for offsets, decoding in lacking.items():
            path = _counts_path(decoding, event_time)
            if path in written:
                counts[offsets] = self._read_counts(path)
        return counts

    def count(self, decoding: Decoding, event_time: EventTime) -> Counts | None:
        """Counts a range's decoded file by day, and keeps the answer in the lake.

        None, and nothing is kept, where the range is decoded anew since: the answer would be of other rows, for ever.
        """
        found: Counts | None = {}
        if decoding.decoded is not None and decoding.rows:
            with self.lake.local_copy(path_of(decoding)) as file:
                found = times.count_days_of(file, decoding.decoded.sha256, event_time)
        if found is None:
            return None
        path = _counts_path(decoding, event_time)
        document = {"format": FORMAT, "event_time": event_time.text, "days": found}
        data = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
        self.lake.store.put_new(path, data, "staging/count")
        self._counts[path] = found
        return found

    def url_of(self, decoding: Decoding) -> str:
        """Return where the decoded rows of a range lie."""
        return self.lake.store.url(path_of(decoding))

    def refuse_wrong_column(self, decoding: Decoding, event_time: EventTime) -> None:
        """Raises `BadSetting` where a decoded range's file has no such event time."""
        if decoding.rows:
            with self.lake.local_copy(path_of(decoding)) as file:
                kind, found = times.find_kind(file, event_time)
            if not event_time.accepts(kind):
                raise event_time.refuse(found)

    def _read_counts(self, path: str) -> Counts:
        if path not in self._counts:
            data = self.lake.store.get(path)
            try:
                self._counts[path] = {_parse(day): int(rows) for day, rows in json.loads(data or b"")["days"].items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BrokenManifest(
                    f"{self.lake.store.url(path)} cannot be read: {error!r}; delete it, and the range is counted again"
                ) from error
        return self._counts[path]


def _parse(day: str) -> str:
    """Reads the name of a day, or of none; raises `ValueError`."""
    return day if day == NO_DAY else parse_day(day)


def day_path(topic: str, day: str) -> str:
    """Is where the rows of a day lie, below the lake's root."""
    return f"{TREE}/{topic}/{day}.parquet"


def _day_of(path: str) -> str | None:
    name = path.rsplit("/", 1)[-1]
    try:
        return parse_day(name.removesuffix(".parquet")) if name.endswith(".parquet") else None
    except ValueError:
        return None


def _counts_path(decoding: Decoding, event_time: EventTime) -> str:
    offsets = decoding.offsets
    identity = f"{event_time.text} {decoding.decoded.sha256 if decoding.decoded else ''}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return f"{COUNTS}/{decoding.topic}/{offsets.folder}/{offsets.stem}.{digest}.json"
