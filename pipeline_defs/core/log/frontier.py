"""The frontier document: sums of all plan steps before a given one, so that opening a topic reads only newer steps.

A range that may yet change, or has to be named, is kept with its step: it is read like newer ones and is in no sum.
Invariant: a document may be missing, old or deleted at any time, and decides nothing by itself; where it is no longer true it
is not used.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from zlib import crc32

from ..offsets import OffsetRange, Place
from .document import FORMAT, UNREADABLE, plain, read_plain
from .latency import Histogram
from .plan_step import Growth, LogState, Look, PlanStep


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of the landed ranges of one Kafka partition: their number, rows, bytes, and holes by cause in offsets.

    `contents` is the sum of `content_of` over those with rows, `weight` of revision + 1; `last_landed_ms` is when the last one
    was landed (ms since 1970).
    """

    ranges: int = 0
    contents: int = 0
    weight: int = 0
    rows: int = 0
    bytes: int = 0
    last_landed_ms: int = 0
    holes: Mapping[str, int] = field(default_factory=dict)


CONTENTS = 2**64  # modulus of sums of contents


def content_of(offsets: OffsetRange, digest: str) -> int:
    """Return a number for a range and the sha256 of its file: sets of ranges with equal sums are taken to be equal."""
    return (crc32(offsets.key.encode()) << 32) ^ int(digest[:16], 16)


@dataclass(frozen=True, slots=True)
class Frontier:
    """Sums of all steps before step `seq`, except for the steps and ranges that are kept.

    `kept` maps each kept step to the number of ranges before it, and `open` those of which only some ranges are kept to their
    numbers, counted from 0; `ranges` is the number of ranges before `seq`. `ends` are the offsets at which the links of each
    place end, `growths` those of each generation, `opened` when each was opened (ms since 1970). `looks` at the broker are of
    the hour before the document was made, oldest first. `steps_sha256` is of the kept steps; the last one before `seq` is
    always kept.
    """

    topic: str
    seq: int
    steps_sha256: str
    made_at_ms: int
    state: LogState
    ranges: int
    kept: Mapping[int, int]
    ends: Mapping[Place, int]
    growths: Mapping[int, tuple[Growth, ...]]
    opened: Mapping[int, int]
    sums: Mapping[Place, Sums]
    waits: Histogram
    looks: tuple[Look, ...]
    open: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def sums_up(self, seq: int) -> bool:
        """Return whether the document has only sums of a step."""
        return seq < self.seq and seq not in self.kept

    def sums_up_any_of(self, seq: int) -> bool:
        """Return whether the document sums up any range of a step."""
        return self.sums_up(seq) or seq in self.open

    def kept_ranges(self, step: PlanStep) -> tuple[OffsetRange, ...]:
        """Return the ranges of a step that are not summed up."""
        ranges = () if self.sums_up(step.seq) else step.ranges
        return tuple(ranges[number] for number in self.open[step.seq]) if step.seq in self.open else ranges

    def to_json(self) -> bytes:
        """Encode the document; the same one gives the same bytes."""
        document = {"format": FORMAT, **plain(self)}
        return (json.dumps({**document, "sha256": _digest(document)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self | None:
        """Decode a document; return none where it cannot be read, since everything works without it."""
        try:
            document = json.loads(data)
            is_whole = document.pop("sha256") == _digest(document) and document.pop("format") == FORMAT
            return read_plain(cls, document) if is_whole else None
        except UNREADABLE:
            return None


def digest_of(steps: Iterable[PlanStep]) -> str:
    """Return the digest of the documents of steps, in hex; the same steps give the same digest."""
    digest = hashlib.sha256()
    for step in steps:
        digest.update(step.to_json())
    return digest.hexdigest()


def _digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a document that does not have its own digest yet."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
