"""The decoded table of a topic: which of its files a range has, and what the log says of them.

A decoded range has a file of rows, one of dead letters in the partition `_dead=true`, or both. One of them carries as a tag
what became of the range. Invariant: a commit that gives a range files takes those away that it had, so that each row of it is
in one place at every version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .calendar import NO_DAY, day_at, moment_at
from .decoding import Decoding
from .delta import Commit, File, Snapshot
from .offsets import OffsetRange
from .raw_table import range_file

_NAME = re.compile(r"g\d+-p\d+-\d{20}-\d{20}\.[0-9a-f-]{36}\.parquet", re.ASCII)
EVENT_TIME = "event_time"  # a column of decoded rows, where the topic has days
DEAD = "_dead"  # the partition column: whether rows are dead letters
_DECODING = "decoding"  # tag of one file of each range


def read_decodings(table: Snapshot, known: Mapping[str, Decoding]) -> dict[str, Decoding]:
    """Return what became of each range, by the path of the file that says it; `known` ones need not be read again."""
    return {
        path: known.get(path) or Decoding.from_json(file.tags[_DECODING], path)
        for path, file in table.files.items()
        if _DECODING in file.tags
    }


def by_range(decodings: Iterable[Decoding]) -> dict[OffsetRange, Decoding]:
    """Return decodings by their ranges, sorted."""
    return {each.offsets: each for each in sorted(decodings, key=lambda each: each.offsets)}


def replace_ranges(ours: Iterable[Decoding], standing: Mapping[OffsetRange, Decoding], now_ms: int) -> Commit:
    """Return the commit that gives ranges their files, in the place of those that they have."""
    adds, removes = list[File](), dict[str, int]()
    for decoding in ours:
        adds += _files_of(decoding)
        if decoding.offsets in standing:
            removes |= dict.fromkeys(paths_of(standing[decoding.offsets]), now_ms)
    return Commit(adds, removes)


def paths_of(decoding: Decoding) -> list[str]:
    """Return the paths of a range's files below the table's folder."""
    return [file.path for file in (decoding.decoded, decoding.dead_letters) if file is not None]


def find_unwanted(names: Iterable[str], table: Snapshot) -> list[str]:
    """Return which names are of files that no version has any more, or that an attempt gave and did not commit."""
    return sorted(name for name in set(names) - table.files.keys() if _NAME.fullmatch(name))


def with_events(stats: Mapping[str, Any], decoding: Decoding) -> Mapping[str, Any]:
    """Return what the log says of a file with the span of its event times, by which a reader passes over files."""
    first_ms, last_ms = decoding.first_event_ms, decoding.last_event_ms
    if first_ms is None or last_ms is None or NO_DAY in (day_at(first_ms), day_at(last_ms)):
        return stats
    bounds = {"minValues": moment_at(first_ms), "maxValues": moment_at(last_ms)}
    counted = {"nullCount": decoding.event_days.get(NO_DAY, 0)}
    return {**stats, **{name: {**stats[name], EVENT_TIME: value} for name, value in (bounds | counted).items()}}


def _files_of(decoding: Decoding) -> Iterator[File]:
    tags = {_DECODING: decoding.to_json()}
    for staged, is_dead in ((decoding.decoded, "false"), (decoding.dead_letters, "true")):
        if staged is not None:
            file = range_file(staged.path, decoding.offsets, staged, decoding.provenance.landed_at_ms, tags)
            stats = file.stats if is_dead == "true" else with_events(file.stats, decoding)
            yield File(file.path, file.bytes, file.modified_at_ms, stats, file.tags, {DEAD: is_dead})
            tags = {}
