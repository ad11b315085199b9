"""The decoded table of a topic: which of its files has the rows of a range, and what the log says of them.

A decoded range has rows, dead letters in the partition `_dead=true`, or both; each of these is in one file, its own or a
compacted one of many ranges. A tag of its own file has the range's decoding; that of a compacted file has only sums, and a
document beside it has the decoding of each range. Invariant: a commit that gives a range files removes those that it had, and
nothing of any other range, so each row is in one place at every version.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..errors import BrokenTable, cause_of
from ..log.document import UNREADABLE, compact, read_plain
from ..log.manifest import StagedFile
from ..offsets import OffsetRange, Place, parse_key
from .compaction import Group, choose_files, grown, weight_of
from .days import NO_DAY, TOMBSTONE, clamped_moment
from .decoded_sums import DecodedSums, sum_up
from .decoding import Decoding
from .delta import Commit, File, Snapshot
from .raw_table import DIGEST, KEY, WEIGHT, range_file, stats_of

_NAME = re.compile(r"_dead=(?:true|false)/(?:g\d+-p\d+-\d{20}-\d{20}|compacted)\.[0-9a-f-]{36}\.parquet", re.ASCII)
_DOCUMENT = re.compile(r"_ranges/(_dead=(?:true|false)/compacted\.[0-9a-f-]{36}\.parquet)\.json", re.ASCII)
IDENTITY = ("topic", "generation", "partition", "offset", "timestamp")  # columns of decoded rows and of dead letters
EVENT_TIME = "event_time"  # a column of decoded rows, where the topic has days
TREE = "tables/decoded"  # below the lake's root
DEAD = "_dead"  # the partition column: whether rows are dead letters
_DECODING = "decoding"  # tag of a range's own file, of one of them where it has two
_PACKED = "packed"  # tag of a compacted file


@dataclass(frozen=True, slots=True)
class Contents:
    """The ranges whose rows a file has, and those of their decodings that this file is to record; both sorted."""

    ranges: tuple[OffsetRange, ...]
    decodings: tuple[Decoding, ...]

    def has(self, offsets: OffsetRange) -> bool:
        """Return whether the file has rows of a range."""
        at = bisect_left(self.ranges, offsets)
        return self.ranges[at : at + 1] == (offsets,)

    def get(self, offsets: OffsetRange) -> Decoding | None:
        """Return the decoding of a range, where this file records it."""
        at = bisect_left(self.decodings, offsets, key=lambda each: each.offsets)
        found = self.decodings[at] if at < len(self.decodings) else None
        return found if found is not None and found.offsets == offsets else None

    def without(self, replaced: Collection[OffsetRange]) -> Contents:
        """Return the contents without some ranges."""
        return Contents(
            tuple(offsets for offsets in self.ranges if offsets not in replaced),
            tuple(each for each in self.decodings if each.offsets not in replaced),
        )

    def to_json(self) -> bytes:
        """Encode it as the document of a compacted file; the same contents give the same bytes."""
        return compact(self).encode()


def merge(contents: Iterable[Contents]) -> Contents:
    """Return the contents of one file with the rows of several."""
    found = list(contents)
    return Contents(
        tuple(sorted(offsets for each in found for offsets in each.ranges)),
        tuple(sorted((each for content in found for each in content.decodings), key=lambda each: each.offsets)),
    )


@dataclass(frozen=True, slots=True)
class Lane:
    """Span of a file's ranges of one Kafka partition, in offsets, and the newest timestamp of their decoded rows."""

    IS_LIST: ClassVar = True
    start: int
    end: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class Packed:
    """What the log says of a compacted file: the number of ranges in it, and the first of them.

    `sums` are of the decodings in its document, whose digest is `sha256`.
    """

    sha256: str
    ranges: int
    first: OffsetRange
    lanes: Mapping[Place, Lane]
    sums: DecodedSums

    def may_have(self, offsets: OffsetRange) -> bool:
        """Return whether the file may have rows of a range; where not, its document need not be read."""
        lane = self.lanes.get(offsets.place)
        return lane is not None and lane.start <= offsets.start and offsets.end <= lane.end

    def to_json(self) -> str:
        """Encode it as a tag."""
        return compact(self)


def pack(contents: Contents) -> Packed:
    """Return the log's entry of a compacted file."""
    newest = {each.offsets: each.decoded.max_timestamp_ms for each in contents.decodings if each.decoded}
    lanes: dict[Place, Lane] = {}
    for offsets in contents.ranges:
        lane = lanes.get(offsets.place, Lane(offsets.start, offsets.end, None))
        known = [ms for ms in (lane.newest_ms, newest.get(offsets)) if ms is not None]
        lanes[offsets.place] = Lane(lane.start, offsets.end, max(known, default=None))
    digest = hashlib.sha256(contents.to_json()).hexdigest()
    return Packed(digest, len(contents.ranges), contents.ranges[0], lanes, sum_up(contents.decodings))


def path_of(name: str, *, is_dead: bool) -> str:
    """Return the path of a file below the table's folder: Polars takes partition values from folders, not from the log."""
    return f"{DEAD}={str(is_dead).lower()}/{name}"


def document_path(path: str) -> str:
    """Return the path of a compacted file's document below the table's folder, where no reader looks."""
    return f"_ranges/{path}.json"


def is_packed(file: File) -> bool:
    """Return whether a file is a compacted one."""
    return _PACKED in file.tags


def read_packed(file: File) -> Packed:
    """Read what the log says of a compacted file."""
    with _reading(file):
        return read_plain(Packed, json.loads(file.tags[_PACKED]))


def read_contents(file: File) -> Contents:
    """Read what the log says of a file with the rows of one range."""
    with _reading(file):
        text = file.tags.get(_DECODING)
        decodings = [] if text is None else [read_plain(Decoding, json.loads(text))]
        return Contents((parse_key(file.tags[KEY]),), tuple(decodings))


def read_document(data: bytes, file: File) -> Contents:
    """Read the document of a compacted file; raise `BrokenTable` where it is not the one that was written with it."""
    with _reading(file):
        if hashlib.sha256(data).hexdigest() != read_packed(file).sha256:
            raise ValueError("its document is gone, or was changed")
        return read_plain(Contents, json.loads(data))


@contextmanager
def _reading(file: File) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise BrokenTable(
            f"what the log says of {file.path} cannot be read: {cause_of(error)}; nothing was written; move the table's folder "
            "away, and all ranges are decoded again from what is landed"
        ) from error


def first_range(file: File) -> OffsetRange:
    """Return the first range whose rows a file has."""
    return read_packed(file).first if is_packed(file) else parse_key(file.tags[KEY])


def is_of_dead_letters(file: File) -> bool:
    """Return whether the rows of a file are dead letters."""
    return file.partition[DEAD] == "true"


def replace_ranges(ours: Iterable[Decoding], left: Mapping[str, Contents], rests: Mapping[str, File], now_ms: int) -> Commit:
    """Return the commit that gives ranges their files in place of their present ones.

    `left` has by path what is left in each present file of these ranges, and of ranges to be taken out without a new file;
    where other ranges are left in a file, `rests` has a file with only those.
    """
    adds = [file for decoding in ours for file in _files_of(decoding)]
    return Commit([*adds, *(rests[path] for path, content in left.items() if content.ranges)], dict.fromkeys(left, now_ms))


def paths_of(decoding: Decoding) -> list[str]:
    """Return the paths of the files that a range was decoded to, below the table's folder."""
    return [file.path for file in (decoding.decoded, decoding.dead_letters) if file is not None]


def find_unwanted(names: Iterable[str], table: Snapshot) -> list[str]:
    """Return the names of files, and of their documents, that the table no longer has or an attempt did not commit."""
    return sorted(name for name in set(names) if (path := owner_of(name)) is not None and path not in table.files)


def owner_of(name: str) -> str | None:
    """Return the path of the table's file that a name belongs to, as the file or its document; none for foreign names."""
    document = _DOCUMENT.fullmatch(name)
    return document[1] if document else name if _NAME.fullmatch(name) else None


def _files_of(decoding: Decoding) -> Iterator[File]:
    tags = {_DECODING: decoding.to_json()}
    for staged, is_dead in ((decoding.decoded, False), (decoding.dead_letters, True)):
        if staged is not None:
            file = range_file(staged.path, decoding.offsets, staged, decoding.provenance.landed_at_ms, tags)
            yield _in_partition(file, [decoding], is_dead=is_dead)
            tags = {}


def compacted_file(
    path: str, staged: StagedFile, contents: Contents, made_at_ms: int, weight_bytes: int, *, is_dead: bool
) -> File:
    """Return the log's entry of a file with the rows of many ranges."""
    tags = {DIGEST: staged.sha256, WEIGHT: str(weight_bytes), _PACKED: pack(contents).to_json()}
    file = File(path, staged.bytes, made_at_ms, stats_of(staged, contents.ranges), tags)
    return _in_partition(file, contents.decodings, is_dead=is_dead)


def _in_partition(file: File, decodings: Sequence[Decoding], *, is_dead: bool) -> File:
    stats = with_events(file.stats, [] if is_dead else decodings)
    return replace(file, stats=stats, partition={DEAD: str(is_dead).lower()})


def with_events(stats: Mapping[str, Any], decodings: Sequence[Decoding]) -> Mapping[str, Any]:
    """Return a file's statistics with the span of its event times, by which readers skip files.

    Each file with rows needs them: delta-rs takes a column without statistics for null in all rows, and leaves those rows out
    of what a filter finds. A moment beyond the calendar counts as its end.
    """
    if not stats["numRecords"]:
        return stats
    bounds = [ms for each in decodings for ms in (each.first_event_ms, each.last_event_ms) if ms is not None]
    if not bounds:
        return {**stats, "nullCount": {**stats["nullCount"], EVENT_TIME: stats["numRecords"]}}
    counted = sum(
        each.event_days.get(NO_DAY, 0) + each.event_days.get(TOMBSTONE, 0) if each.event_time else each.rows
        for each in decodings
    )
    events = {
        "minValues": clamped_moment(min(bounds)),
        "maxValues": clamped_moment(max(bounds)),
        "nullCount": min(counted, stats["numRecords"] - 1),  # with a bound there is a row with a time
    }
    return {**stats, **{name: {**stats[name], EVENT_TIME: value} for name, value in events.items()}}


@dataclass(frozen=True, slots=True)
class DecodedGroup(Group):
    """Files of a decoded table that become one."""

    is_dead: bool


def find_groups(
    table: Snapshot, target_bytes: int, epoch_of: Callable[[OffsetRange], int], *, every: bool = False
) -> list[DecodedGroup]:
    """Find what to compact of a decoded table: its small files in the order of their event times, cut at `target_bytes`.

    A file without rows, which says that a range no longer has any, stays as it is, and so does one that weighs that much.
    Growth epochs stay apart: of a file with rows of several an update of the latest table would have to read all ranges.
    """
    target_bytes = grown(target_bytes, table)
    stretches: dict[tuple[bool, int, int], list[File]] = defaultdict(list)
    for file in table.files.values():
        if file.rows and weight_of(file) < target_bytes:
            first = first_range(file)
            stretches[is_of_dead_letters(file), first.generation, epoch_of(first)].append(file)
    ordered = [sorted(stretches[each], key=_order) for each in sorted(stretches)]
    return [_group(files) for files in choose_files(ordered, target_bytes, every=every)]


def _order(file: File) -> tuple[int, OffsetRange]:
    if is_packed(file):
        packed = read_packed(file)
        return packed.sums.first_event_ms or 0, packed.first
    contents = read_contents(file)
    return min((each.first_event_ms or 0 for each in contents.decodings), default=0), contents.ranges[0]


def _group(files: Sequence[File]) -> DecodedGroup:
    others = sum(read_packed(file).ranges if is_packed(file) else 1 for file in files) - 1
    return DecodedGroup(files, f"{min(map(first_range, files)).key} and {others} more", is_of_dead_letters(files[0]))
