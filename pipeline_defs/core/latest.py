"""Latest by key: in which order the records of a key count, and which decoded ranges an update has to read.

The order is total: within a Kafka partition the offset decides; between partitions the epoch, which the plan log's growths cut,
then how far the timestamps of the row's partition had come when it was written. Invariant: where a row stands follows from one
version of the decoded table and the plan log alone, so an update and a recomputation come to the same winners.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .decoding import Decoding
from .errors import BadSetting
from .offsets import OffsetRange, merge_intervals

FORMAT = 1  # of the order; a table that was made by another one is made anew
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
        """A number that says by which order a table was made."""
        return int.from_bytes(hashlib.sha256(f"{FORMAT} {self.sequence or ''}".encode()).digest()[:7])


def refuse_sequence(topic: str, path: str, found: str) -> BadSetting:
    """Return the error for a sequence that there is not or that has no order; `found` says what is there."""
    return BadSetting(
        f"topic {topic} has `latest: {{sequence: {path}}}`, expected a field of decoded values that is a whole number, "
        f"decimal, timestamp, date or string, found {found}; nothing was written; correct the path in defs.yaml"
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """The file that has the decoded rows of a range, and where these stand in the order; `path` is below the lake's root.

    `reached_ms` is the greatest timestamp of the rows before it in its Kafka partition and epoch (ms since 1970), none where
    there is none.
    """

    path: str = field(compare=False)
    revision: int
    digest: str
    epoch: int
    reached_ms: int | None


Ranges = Mapping[OffsetRange, Placed]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Decoded ranges of one file that an update reads, one after the other, of one Kafka partition and epoch.

    `placed` is the first one's, from which the greatest timestamp so far goes on.
    """

    offsets: OffsetRange
    placed: Placed


def join_stretches(placed: Ranges, chosen: Collection[OffsetRange]) -> list[Stretch]:
    """Return what is to be read of some ranges, those that follow each other in one file together, as few as there can be."""
    stretches, wanted, before = list[Stretch](), set(chosen), None
    for offsets, each in placed.items():  # sorted; one that is not chosen ends a stretch
        if offsets not in wanted:
            before = None
            continue
        if before is not None and _follows(offsets, each, before):
            first = before.offsets
            before = Stretch(OffsetRange(first.generation, first.partition, first.start, offsets.end), before.placed)
            stretches[-1] = before
        else:
            before = Stretch(offsets, each)
            stretches.append(before)
    return stretches


def _follows(offsets: OffsetRange, placed: Placed, before: Stretch) -> bool:
    def lane(of: OffsetRange, at: Placed) -> tuple[str, int, int, int]:
        return at.path, of.generation, of.partition, at.epoch

    return lane(offsets, placed) == lane(before.offsets, before.placed)


def place_ranges(
    decoded: Iterable[Decoding], epoch_of: Callable[[OffsetRange], int], path_of: Callable[[OffsetRange], str]
) -> dict[OffsetRange, Placed]:
    """Return where the rows of each decoded range stand; ranges without rows are left out."""
    placed: dict[OffsetRange, Placed] = {}
    lane: tuple[int, int, int] | None = None
    reached: int | None = None
    for each in sorted(decoded, key=lambda each: each.offsets):
        if each.decoded is None or not each.rows:
            continue
        epoch = epoch_of(each.offsets)
        if lane != (lane := (each.offsets.generation, each.offsets.partition, epoch)):
            reached = None
        placed[each.offsets] = Placed(path_of(each.offsets), each.revision, each.decoded.sha256, epoch, reached)
        newest = each.decoded.max_timestamp_ms
        reached = max((ms for ms in (reached, newest) if ms is not None), default=None)
    return placed


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be read of the ranges: `fresh` ones are read whole; a standing row that lies in `changed` counts no more.

    Of such a row's key all ranges are looked at.
    """

    fresh: tuple[OffsetRange, ...]
    changed: tuple[OffsetRange, ...]


def compare(before: Ranges, after: Ranges) -> Change:
    """Return what has changed from the ranges that a table was made of to those there are now.

    A late range with newer timestamps than the ones before it moves all that come after it in its partition and epoch.
    """
    return Change(
        tuple(offsets for offsets, placed in after.items() if before.get(offsets) != placed),
        tuple(offsets for offsets, placed in before.items() if after.get(offsets) != placed),
    )


def stretches_of(ranges: Collection[OffsetRange]) -> list[OffsetRange]:
    """Return the same offsets in as few ranges as there can be, for a condition on rows."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for offsets in ranges:
        lanes.setdefault((offsets.generation, offsets.partition), []).append((offsets.start, offsets.end))
    return [OffsetRange(*lane, *each) for lane, found in sorted(lanes.items()) for each in merge_intervals(found)]
