"""Latest by key: the order of the records of a key, and which decoded ranges an update has to read.

The order is total: within a Kafka partition the offset decides; between partitions first generation and growth epoch, then the
greatest timestamp so far in the row's partition and epoch. Invariant: a row's place in the order follows from one version of
the decoded table and the plan log alone, so an update and a recomputation find the same winners.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import BadSetting
from ..offsets import OffsetRange, Place
from .decoded_ranges import DecodedRanges
from .decoding import Decoding

FORMAT = 1  # of the order; a table that was made with another one is made anew
_PATH = re.compile(r"value(\.[^.\s`\"]+)+")


@dataclass(frozen=True, slots=True)
class Latest:
    """How the latest record of a key is found: by the field that `sequence` names, else by the position."""

    sequence: str | None = None

    def __post_init__(self) -> None:
        if self.sequence is not None and not _PATH.fullmatch(self.sequence):
            raise BadSetting(
                f"found {self.sequence!r} as `latest.sequence`, expected the path of a field such as value.version; nothing "
                "was written; correct it"
            )

    @property
    def order(self) -> int:
        """A number that identifies the order by which a table was made."""
        return int.from_bytes(hashlib.sha256(f"{FORMAT} {self.sequence or ''}".encode()).digest()[:7])


def refuse_sequence(topic: str, path: str, found: str) -> BadSetting:
    """Return the error for a sequence that does not exist or has no order; `found` says what is there."""
    return BadSetting(
        f"topic {topic} has `latest: {{sequence: {path}}}`, expected a field of decoded values that is a whole number, "
        f"decimal, timestamp, date or string, found {found}; nothing was written; correct the path in defs.yaml"
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """The file that has the decoded rows of a range, and their place in the order; `path` is below the lake's root.

    `reached_ms` is the greatest timestamp of the rows before them in their Kafka partition and epoch (ms since 1970), none
    where there is none.
    """

    path: str = field(compare=False)
    revision: int
    digest: str
    epoch: int
    reached_ms: int | None


Ranges = Mapping[OffsetRange, Placed]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive decoded ranges of one file, Kafka partition and epoch that an update reads together.

    `placed` is the first one's, from which the greatest timestamp so far continues.
    """

    offsets: OffsetRange
    placed: Placed


def join_stretches(placed: Ranges, chosen: Collection[OffsetRange]) -> list[Stretch]:
    """Return the stretches to read for some ranges, as few as possible: consecutive ranges of one file are one stretch."""
    stretches, wanted, before = list[Stretch](), set(chosen), None
    for offsets, each in placed.items():  # sorted; one that is not chosen ends a stretch
        if offsets not in wanted:
            before = None
            continue
        lane = offsets.place, each.path, each.epoch
        if before is not None and lane == (before.offsets.place, before.placed.path, before.placed.epoch):
            first = before.offsets
            before = Stretch(OffsetRange(first.generation, first.partition, first.start, offsets.end), before.placed)
            stretches[-1] = before
        else:
            before = Stretch(offsets, each)
            stretches.append(before)
    return stretches


def place_ranges(
    decoded: Iterable[Decoding],
    epoch_of: Callable[[OffsetRange], int],
    path_of: Callable[[OffsetRange], str],
    reached_by: Mapping[tuple[int, int, int], int] | None = None,
) -> dict[OffsetRange, Placed]:
    """Return the place in the order of each decoded range; ranges without rows are left out.

    `reached_by` has the greatest timestamps of the ranges before these, by generation, Kafka partition and epoch.
    """
    placed: dict[OffsetRange, Placed] = {}
    lane: tuple[int, int, int] | None = None
    reached: int | None = None
    for each in sorted(decoded, key=lambda each: each.offsets):
        if each.decoded is None or not each.rows:
            continue
        epoch = epoch_of(each.offsets)
        if lane != (lane := (each.offsets.generation, each.offsets.partition, epoch)):
            reached = (reached_by or {}).get(lane)
        placed[each.offsets] = Placed(path_of(each.offsets), each.revision, each.decoded.sha256, epoch, reached)
        newest = each.decoded.max_timestamp_ms
        reached = max((ms for ms in (reached, newest) if ms is not None), default=None)
    return placed


@dataclass(frozen=True, slots=True)
class Change:
    """What an update has to read: all rows of the ranges in `fresh`; rows of the table from ranges in `changed` are void.

    For the key of a void row all ranges are searched.
    """

    fresh: tuple[OffsetRange, ...]
    changed: tuple[OffsetRange, ...]


def compare(before: Ranges, after: Ranges) -> Change:
    """Return the change from the ranges that a table was made of to the present ones.

    A late range with newer timestamps than the ones before it moves all that come after it in its partition and epoch.
    """
    return Change(
        tuple(offsets for offsets, placed in after.items() if before.get(offsets) != placed),
        tuple(offsets for offsets, placed in before.items() if after.get(offsets) != placed),
    )


def find_fresh(
    before: DecodedRanges, after: DecodedRanges, epoch_of: Callable[[OffsetRange], int]
) -> dict[OffsetRange, Placed] | None:
    """Return the places of the new ranges where nothing else has changed; none where `compare` has to find the change.

    New ranges must come after all others of their Kafka partitions; so only files that one version lacks are read.
    """
    added = after.table.files.keys() - before.table.files.keys()
    was, now = _decoded_in(before, before.table.files.keys() - after.table.files.keys()), _decoded_in(after, added)
    if not all(_has_same_rows(each, now.get(offsets)) for offsets, each in was.items()):
        return None
    fresh = {offsets: each for offsets, each in now.items() if offsets not in was and each.rows}
    starts: dict[Place, int] = {}
    for offsets in sorted(fresh, reverse=True):
        starts[offsets.place] = offsets.start
    reached: dict[tuple[int, int, int], int] = {}
    for lane, newest_ms in _lanes(after, added, fresh):
        if lane.place not in starts:
            continue
        epoch = epoch_of(lane)
        last = OffsetRange(*lane.place, lane.end - 1, lane.end)
        if lane.end > starts[lane.place] or epoch_of(last) != epoch:
            return None
        if newest_ms is not None:
            reached[*lane.place, epoch] = max(newest_ms, reached.get((*lane.place, epoch), newest_ms))
    return place_ranges(fresh.values(), epoch_of, after.path_of, reached)


def _decoded_in(decoded: DecodedRanges, paths: Iterable[str]) -> dict[OffsetRange, Decoding]:
    return {each.offsets: each for path in paths for each in decoded.contents_of(path).decodings}


def _has_same_rows(before: Decoding, after: Decoding | None) -> bool:
    """Return whether a range has the same rows as before, even if in another file."""
    if before.decoded is None or after is None or after.decoded is None:
        return not before.rows and (after is None or not after.rows)
    return (before.revision, before.decoded.sha256) == (after.revision, after.decoded.sha256)


def _lanes(
    decoded: DecodedRanges, looked_into: Collection[str], fresh: Collection[OffsetRange]
) -> Iterator[tuple[OffsetRange, int | None]]:
    """Yield the offsets and greatest timestamps of all ranges that are not fresh; unread compacted files as one each."""
    for path in decoded.table.files:
        packed = decoded.packed.get(path)
        if packed is not None and path not in looked_into:
            for place, lane in packed.lanes.items():
                yield OffsetRange(*place, lane.start, lane.end), lane.newest_ms
            continue
        for each in decoded.contents_of(path).decodings:
            if each.rows and each.decoded is not None and each.offsets not in fresh:
                yield each.offsets, each.decoded.max_timestamp_ms
