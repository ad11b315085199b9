"""The decoded table of a topic: which of its files has the rows of a range, and what the log says of them.

A decoded range has rows, dead letters in the partition `_dead=true`, or both; each of these is in one file, its own or,
compacted, one of many ranges. Its own file says as a tag what became of the range; a compacted one only what its ranges come
to, and a document beside it what became of each. Invariant: a commit that gives a range files takes away what it had, and
nothing of any other range, so that each row is in one place at every version.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..errors import BrokenManifest, OffsetlakeError, cause_of
from ..log.frontier import place_of, place_text
from ..log.manifest import StagedFile
from ..offsets import OffsetRange, Place, parse_key
from .compaction import Group, choose_files, grown, weight_of
from .days import NO_DAY, clamped_moment
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
_DECODING = "decoding"  # tag of one file of a range that has files of its own
_PACKED = "packed"  # tag of a compacted file


@dataclass(frozen=True, slots=True)
class Contents:
    """The ranges whose rows a file has, and what became of those of them that no other file says it of; both sorted."""

    ranges: tuple[OffsetRange, ...]
    decodings: tuple[Decoding, ...]

    def has(self, offsets: OffsetRange) -> bool:
        """Return whether the file has rows of a range."""
        at = bisect_left(self.ranges, offsets)
        return self.ranges[at : at + 1] == (offsets,)

    def get(self, offsets: OffsetRange) -> Decoding | None:
        """Return what became of a range, where it is said here."""
        at = bisect_left(self.decodings, offsets, key=lambda each: each.offsets)
        found = self.decodings[at] if at < len(self.decodings) else None
        return found if found is not None and found.offsets == offsets else None

    def without(self, replaced: Collection[OffsetRange]) -> Contents:
        """Return what is left beside some ranges."""
        return Contents(
            tuple(offsets for offsets in self.ranges if offsets not in replaced),
            tuple(each for each in self.decodings if each.offsets not in replaced),
        )

    def to_json(self) -> bytes:
        """Encode it as the document of a compacted file; the same contents give the same bytes."""
        keys = json.dumps([offsets.key for offsets in self.ranges])
        decodings = ",\n".join(each.to_json() for each in self.decodings)
        return f'{{"ranges": {keys},\n"decodings": [\n{decodings}\n]}}\n'.encode()


def merge(contents: Iterable[Contents]) -> Contents:
    """Return what one file has with the rows of several."""
    found = list(contents)
    return Contents(
        tuple(sorted(offsets for each in found for offsets in each.ranges)),
        tuple(sorted((each for content in found for each in content.decodings), key=lambda each: each.offsets)),
    )


@dataclass(frozen=True, slots=True)
class Lane:
    """Where the ranges of one Kafka partition begin and end that a file has, and the newest timestamp of their decoded rows."""

    start: int
    end: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class Packed:
    """What the log says of a compacted file: how many ranges it has rows of, and the first of these.

    `sums` are of those that its document says more of, whose digest is `sha256`.
    """

    sha256: str
    ranges: int
    first: OffsetRange
    lanes: Mapping[Place, Lane]
    sums: DecodedSums

    def may_have(self, offsets: OffsetRange) -> bool:
        """Return whether the file may have rows of a range: where not, its document need not be read."""
        lane = self.lanes.get(offsets.place)
        return lane is not None and lane.start <= offsets.start and offsets.end <= lane.end

    def to_json(self) -> str:
        """Encode it as a tag."""
        lanes = {place_text(place): [lane.start, lane.end, lane.newest_ms] for place, lane in self.lanes.items()}
        document = {"sha256": self.sha256, "ranges": self.ranges, "first": self.first.key, "lanes": lanes}
        return json.dumps({**document, "sums": self.sums.to_document()}, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Packed:
        """Decode a tag; raise `ValueError`, `KeyError`, `TypeError` or `AttributeError` where it is none."""
        document = json.loads(text)
        lanes = {place_of(place): Lane(*lane) for place, lane in document["lanes"].items()}
        first, sums = parse_key(document["first"]), DecodedSums.from_document(document["sums"])
        return cls(document["sha256"], document["ranges"], first, lanes, sums)


def pack(contents: Contents) -> Packed:
    """Return what the log is to say of a compacted file."""
    newest = {each.offsets: each.decoded.max_timestamp_ms for each in contents.decodings if each.decoded}
    lanes: dict[Place, Lane] = {}
    for offsets in contents.ranges:
        lane = lanes.get(offsets.place, Lane(offsets.start, offsets.end, None))
        known = [ms for ms in (lane.newest_ms, newest.get(offsets)) if ms is not None]
        lanes[offsets.place] = Lane(lane.start, offsets.end, max(known, default=None))
    digest = hashlib.sha256(contents.to_json()).hexdigest()
    return Packed(digest, len(contents.ranges), contents.ranges[0], lanes, sum_up(contents.decodings))


def path_of(name: str, *, is_dead: bool) -> str:
    """Return where a file lies below the table's folder: Polars takes partition values from folders, and not from the log."""
    return f"{DEAD}={str(is_dead).lower()}/{name}"


def document_path(path: str) -> str:
    """Return where the document of a compacted file lies, below the table's folder: no reader looks there."""
    return f"_ranges/{path}.json"


def is_packed(file: File) -> bool:
    """Return whether a file is a compacted one."""
    return _PACKED in file.tags


def read_packed(file: File) -> Packed:
    """Read what the log says of a compacted file."""
    with _reading(file):
        return Packed.from_json(file.tags[_PACKED])


def read_contents(file: File) -> Contents:
    """Read what the log says of a file with the rows of one range."""
    with _reading(file):
        text = file.tags.get(_DECODING)
        decodings = [] if text is None else [Decoding.from_document(json.loads(text))]
        return Contents((parse_key(file.tags[KEY]),), tuple(decodings))


def read_document(data: bytes, file: File) -> Contents:
    """Read the document of a compacted file; raise `BrokenManifest` where it is not the one that was written with it."""
    with _reading(file):
        if hashlib.sha256(data).hexdigest() != read_packed(file).sha256:
            raise ValueError("its document is gone, or was changed")
        document = json.loads(data)
        decodings = (Decoding.from_document(each) for each in document["decodings"])
        return Contents(tuple(map(parse_key, document["ranges"])), tuple(decodings))


@contextmanager
def _reading(file: File) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OffsetlakeError) as error:
        raise BrokenManifest(
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
    """Return the commit that gives ranges their files, in the place of those that they have.

    `left` is what is left in each file that they have, by path, and in those of ranges that are to be decoded no more; of a
    file that has others `rests` has one with those alone.
    """
    adds = [file for decoding in ours for file in _files_of(decoding)]
    return Commit([*adds, *(rests[path] for path, content in left.items() if content.ranges)], dict.fromkeys(left, now_ms))


def paths_of(decoding: Decoding) -> list[str]:
    """Return the paths of the files that a range was decoded to, below the table's folder."""
    return [file.path for file in (decoding.decoded, decoding.dead_letters) if file is not None]


def find_unwanted(names: Iterable[str], table: Snapshot) -> list[str]:
    """Return which names are of files that no version has any more, or that an attempt gave and did not commit.

    So is the document of such a file.
    """
    return sorted(name for name in set(names) if (path := owner_of(name)) is not None and path not in table.files)


def owner_of(name: str) -> str | None:
    """Return which file of a table a name is of: its own or its document's; none for anybody else's."""
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
    """Return what the log says of a file with the rows of many ranges."""
    tags = {DIGEST: staged.sha256, WEIGHT: str(weight_bytes), _PACKED: pack(contents).to_json()}
    file = File(path, staged.bytes, made_at_ms, stats_of(staged, contents.ranges), tags)
    return _in_partition(file, contents.decodings, is_dead=is_dead)


def _in_partition(file: File, decodings: Sequence[Decoding], *, is_dead: bool) -> File:
    stats = with_events(file.stats, [] if is_dead else decodings)
    return replace(file, stats=stats, partition={DEAD: str(is_dead).lower()})


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


@dataclass(frozen=True, slots=True)
class DecodedGroup(Group):
    """Files of a decoded table that become one."""

    is_dead: bool


def find_groups(table: Snapshot, target_bytes: int, *, every: bool = False) -> list[DecodedGroup]:
    """Find what to compact of a decoded table: its small files in the order of their event times, cut at `target_bytes`.

    A file without rows, which says that a range has none any more, stays as it is, and so does one that weighs that much.
    """
    target_bytes = grown(target_bytes, table)
    stretches: dict[bool, list[File]] = {False: [], True: []}
    for file in table.files.values():
        if file.rows and weight_of(file) < target_bytes:
            stretches[is_of_dead_letters(file)].append(file)
    ordered = [sorted(files, key=_order) for files in stretches.values()]
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
