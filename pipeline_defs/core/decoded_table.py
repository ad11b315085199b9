"""The decoded table of a topic: which of its files has the rows of a range, and what the log says of them.

A decoded range has rows, dead letters in the partition `_dead=true`, or both; each of these is in one file, its own or,
compacted, one of many ranges. One of its files says as a tag what became of the range. Invariant: a commit that gives a range
files takes away what it had, and nothing of any other range, so that each row is in one place at every version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .calendar import NO_DAY, clamped_moment
from .compaction import Group, choose_files
from .decoding import Decoding
from .delta import Commit, File, Snapshot
from .errors import BrokenManifest, OffsetlakeError
from .manifest import StagedFile
from .offsets import OffsetRange, parse_key
from .raw_table import DIGEST, KEY, WEIGHT, range_file, stats_of

_NAME = re.compile(r"_dead=(?:true|false)/(?:g\d+-p\d+-\d{20}-\d{20}|compacted)\.[0-9a-f-]{36}\.parquet", re.ASCII)
IDENTITY = ("topic", "generation", "partition", "offset", "timestamp")  # columns of decoded rows and of dead letters
EVENT_TIME = "event_time"  # a column of decoded rows, where the topic has days
DEAD = "_dead"  # the partition column: whether rows are dead letters
_RANGES = "ranges"  # tag of a compacted file: the keys of its ranges
_DECODINGS = "decodings"  # tag of one file of each range


@dataclass(frozen=True, slots=True)
class Contents:
    """The ranges whose rows a file has, and what became of those of them that no other file says it of."""

    ranges: tuple[OffsetRange, ...]
    decodings: tuple[Decoding, ...]

    def without(self, replaced: Collection[OffsetRange]) -> Contents:
        """Return what is left beside some ranges."""
        return Contents(
            tuple(offsets for offsets in self.ranges if offsets not in replaced),
            tuple(each for each in self.decodings if each.offsets not in replaced),
        )


def path_of(name: str, *, is_dead: bool) -> str:
    """Return where a file lies below the table's folder: Polars takes partition values from folders, and not from the log."""
    return f"{DEAD}={str(is_dead).lower()}/{name}"


def read_contents(table: Snapshot, known: Mapping[str, Contents]) -> dict[str, Contents]:
    """Return by path what each file of a table has; of `known` paths it need not be read again."""
    return {path: known.get(path) or _read_contents(file) for path, file in table.files.items()}


def _read_contents(file: File) -> Contents:
    try:
        decodings = _read_list(file.tags.get(_DECODINGS, "[]"))
        return Contents(ranges_of(file), tuple(Decoding.from_document(each, file.path) for each in decodings))
    except (ValueError, KeyError, TypeError, RecursionError, OffsetlakeError) as error:
        if isinstance(error, BrokenManifest):
            raise
        raise BrokenManifest(
            f"what the log says of {file.path} cannot be read: {error!r}; nothing was written; move the table's folder away, "
            "and all ranges are decoded again from what is landed"
        ) from error


def _read_list(text: str) -> list[Any]:
    found = json.loads(text)
    if not isinstance(found, list):
        raise TypeError(f"expected a list, found a {type(found).__name__}")
    return found


def ranges_of(file: File) -> tuple[OffsetRange, ...]:
    """Return the ranges whose rows a file has: its own, or of a compacted one any number."""
    keys = _read_list(file.tags[_RANGES]) if _RANGES in file.tags else [file.tags[KEY]]
    return tuple(map(parse_key, keys))


def is_of_dead_letters(file: File) -> bool:
    """Return whether the rows of a file are dead letters."""
    return file.partition[DEAD] == "true"


def by_range(contents: Iterable[Contents]) -> dict[OffsetRange, Decoding]:
    """Return what became of each range, sorted."""
    found = {each.offsets: each for content in contents for each in content.decodings}
    return dict(sorted(found.items()))


def find_files(table: Snapshot, contents: Mapping[str, Contents]) -> dict[tuple[OffsetRange, bool], File]:
    """Return which file has what of a range: by the range, and whether its dead letters are meant."""
    return {
        (offsets, is_of_dead_letters(file)): file
        for path, file in table.files.items()
        for offsets in contents[path].ranges
    }


def find_left(
    ranges: Collection[OffsetRange],
    files: Mapping[tuple[OffsetRange, bool], File],
    contents: Mapping[str, Contents],
) -> dict[str, Contents]:
    """Return what is left in each file that has anything of some ranges, by path, once these have gone from it."""
    replaced = set(ranges)
    paths = {file.path for each in ranges for is_dead in (False, True) if (file := files.get((each, is_dead)))}
    return {path: contents[path].without(replaced) for path in sorted(paths)}


def replace_ranges(
    ours: Iterable[Decoding], left: Mapping[str, Contents], rests: Mapping[str, File], now_ms: int
) -> Commit:
    """Return the commit that gives ranges their files, in the place of those that they have.

    `left` is as `find_left` says it of these ranges, and of any that are to be decoded no more; of a file that has others
    `rests` has one with those alone.
    """
    adds = [file for decoding in ours for file in _files_of(decoding)]
    return Commit(
        [*adds, *(rests[path] for path, content in left.items() if content.ranges)], dict.fromkeys(left, now_ms)
    )


def paths_of(decoding: Decoding) -> list[str]:
    """Return the paths of the files that a range was decoded to, below the table's folder."""
    return [file.path for file in (decoding.decoded, decoding.dead_letters) if file is not None]


def find_unwanted(names: Iterable[str], table: Snapshot) -> list[str]:
    """Return which names are of files that no version has any more, or that an attempt gave and did not commit."""
    return sorted(name for name in set(names) - table.files.keys() if _NAME.fullmatch(name))


def _files_of(decoding: Decoding) -> Iterator[File]:
    tags = {_DECODINGS: _to_json([decoding])}
    for staged, is_dead in ((decoding.decoded, False), (decoding.dead_letters, True)):
        if staged is not None:
            file = range_file(staged.path, decoding.offsets, staged, decoding.provenance.landed_at_ms, tags)
            stats = with_events(file.stats, [] if is_dead else [decoding])
            yield _in_partition(file, stats, is_dead=is_dead)
            tags = {}


def compacted_file(
    path: str, staged: StagedFile, contents: Contents, made_at_ms: int, weight_bytes: int, *, is_dead: bool
) -> File:
    """Return what the log says of a file with the rows of many ranges."""
    tags = {
        DIGEST: staged.sha256,
        WEIGHT: str(weight_bytes),
        _RANGES: json.dumps([offsets.key for offsets in contents.ranges], separators=(",", ":")),
        _DECODINGS: _to_json(contents.decodings),
    }
    stats = stats_of(staged, contents.ranges)
    file = File(path, staged.bytes, made_at_ms, stats, tags)
    return _in_partition(file, with_events(stats, [] if is_dead else contents.decodings), is_dead=is_dead)


def _in_partition(file: File, stats: Mapping[str, Any], *, is_dead: bool) -> File:
    return File(file.path, file.bytes, file.modified_at_ms, stats, file.tags, {DEAD: str(is_dead).lower()})


def _to_json(decodings: Iterable[Decoding]) -> str:
    return f"[{','.join(each.to_json() for each in decodings)}]"


def with_events(stats: Mapping[str, Any], decodings: Sequence[Decoding]) -> Mapping[str, Any]:
    """Return what the log says of a file with the span of its event times, by which a reader passes over files.

    Of each file with rows: delta-rs takes a column without a word for one that is null in all rows, and drops these from what a
    filter finds. A moment beyond the calendar counts as its end.
    """
    if not stats["numRecords"]:
        return stats
    bounds = [ms for each in decodings for ms in (each.first_event_ms, each.last_event_ms) if ms is not None]
    if not bounds:
        return {**stats, "nullCount": {**stats["nullCount"], EVENT_TIME: stats["numRecords"]}}
    counted = sum(each.event_days.get(NO_DAY, 0) if each.event_time else each.rows for each in decodings)
    events = {
        "minValues": clamped_moment(min(bounds)),
        "maxValues": clamped_moment(max(bounds)),
        "nullCount": min(counted, stats["numRecords"] - 1),  # with a bound there is a row with a time
    }
    return {**stats, **{name: {**stats[name], EVENT_TIME: value} for name, value in events.items()}}


# ---- compaction


@dataclass(frozen=True, slots=True)
class DecodedGroup(Group):
    """Files of a decoded table that become one; `contents` is what that has, `has_events` whether rows have an event time."""

    contents: Contents
    is_dead: bool
    has_events: bool


def find_groups(
    table: Snapshot, contents: Mapping[str, Contents], target_bytes: int, *, every: bool = False
) -> list[DecodedGroup]:
    """Find what to compact of a decoded table: its small files in the order of their event times, cut at `target_bytes`.

    A file without rows, which says that a range has none any more, stays as it is.
    """
    stretches: dict[bool, list[File]] = {False: [], True: []}
    for file in table.files.values():
        if file.rows:
            stretches[is_of_dead_letters(file)].append(file)
    ordered = [
        sorted(files, key=lambda file: (_first_event(contents[file.path]), contents[file.path].ranges))
        for files in stretches.values()
    ]
    chosen = choose_files(ordered, table, target_bytes, every=every)
    return [_group(files, contents) for files in chosen]


def _first_event(content: Contents) -> int:
    return min((each.first_event_ms for each in content.decodings if each.first_event_ms is not None), default=0)


def _group(files: Sequence[File], contents: Mapping[str, Contents]) -> DecodedGroup:
    found = [contents[file.path] for file in files]
    merged = Contents(
        tuple(sorted(offsets for each in found for offsets in each.ranges)),
        tuple(sorted((each for content in found for each in content.decodings), key=lambda each: each.offsets)),
    )
    key = f"{merged.ranges[0].key} and {len(merged.ranges) - 1} more"
    has_events = any(each.event_time for each in merged.decodings)
    return DecodedGroup(files, key, merged, is_of_dead_letters(files[0]), has_events)
