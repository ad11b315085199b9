"""Latest by key: what each bucket's file holds, and what is to be done to it now. Nothing here reads a record.

The state of a key is its record with the greatest (generation, partition, offset); where that is a tombstone the key is not
there. The greatest of a set does not depend on the order in which it was found, nor on how often each was looked at: so late
and repeated ranges need no care, and redone ones only where they held what had won.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from .applied import Applied, Stretch
from .errors import BadSetting, BrokenManifest, LatestOutdated
from .offsets import OffsetRange, merge_intervals

FORMAT = 1
BUCKETS = 16
MOST_BUCKETS = 500  # an update holds all open at once, by processes that may have 1,024 files open


@dataclass(frozen=True, slots=True)
class Latest:
    """Is how the latest state of a topic is kept: in how many files, by the hash of the key."""

    buckets: int = BUCKETS

    def __post_init__(self) -> None:
        if not 1 <= self.buckets <= MOST_BUCKETS:
            raise BadSetting(
                f"found {self.buckets} as `latest.buckets`, expected 1 to {MOST_BUCKETS}; nothing was written; correct it"
            )


@dataclass(frozen=True, slots=True)
class BucketFacts:
    """Is what a bucket's file says of itself beside its rows, in the same file, so that both change in one step.

    `applied` are the ranges that went in. Tombstones that have won lie in the file where no reader looks, a Parquet file of
    its own of `tombstone_bytes` from `tombstones_at`: a late older record must lose against them.
    """

    topic: str
    bucket: int
    buckets: int
    key_type: str
    applied: Applied
    keys: int = 0
    tombstones: int = 0
    tombstones_at: int = 0
    tombstone_bytes: int = 0
    attempt: str = ""
    run_id: str = ""
    code_version: str = ""

    def to_json(self) -> str:
        """Encodes the facts; equal facts give equal text."""
        document = asdict(self) | {"format": FORMAT, "applied": json.loads(self.applied.to_json())}
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes | None, where: str) -> BucketFacts:
        """Decodes the facts; `where` names the file in the error."""
        try:
            document = json.loads(text or "")
            if document.pop("format") != FORMAT:
                raise ValueError(f"expected format {FORMAT}")
            applied = Applied.from_json(json.dumps(document.pop("applied")))
            return cls(applied=applied, **document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenManifest(
                f"{where} does not say what it holds: {error!r}; nothing was written; delete it, and the next update makes it "
                "from the decoded ranges"
            ) from error


@dataclass(frozen=True, slots=True)
class Update:
    """Is what is to be done: what the due buckets will hold, which ranges to read for it, and whose rows count no more.

    `fresh` is read whole. A standing row that lies in `changed` counts only as far as `fresh` has it again: where it does
    not, its key is looked up in all ranges.
    """

    targets: Mapping[int, Applied]
    fresh: tuple[OffsetRange, ...]
    changed: tuple[OffsetRange, ...]


def plan_update(present: Mapping[int, Applied | None], decoded: Mapping[OffsetRange, int]) -> Update:
    """Plans what brings the buckets to the decoded ranges, each at its revision; no target where nothing is due.

    `present` must have been read before `decoded`: else what another update has just applied would seem gone. A bucket that
    is none yet is due.
    """
    targets: dict[int, Applied] = {}
    fresh: set[OffsetRange] = set()
    changed: set[OffsetRange] = set()
    planned: dict[Applied, tuple[Applied, Collection[OffsetRange], Collection[OffsetRange]]] = {}
    for bucket, found in sorted(present.items()):
        applied = found or Applied()
        if applied not in planned:
            difference = applied.compare(decoded)
            planned[applied] = (
                Applied.of(decoded),
                {*difference.new, *difference.redone},
                {*difference.redone, *difference.gone},
            )
        target, its_fresh, its_changed = planned[applied]
        if found is None or target != applied:
            targets[bucket] = target
            fresh.update(its_fresh)
            changed.update(its_changed)
    return Update(targets, tuple(sorted(fresh)), tuple(sorted(changed)))


def stretches_of(ranges: Collection[OffsetRange]) -> list[Stretch]:
    """Returns the same offsets as few stretches, for a condition on rows."""
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for offsets in ranges:
        lanes.setdefault((offsets.generation, offsets.partition), []).append((offsets.start, offsets.end))
    return [
        Stretch(*lane, *interval, 0) for lane, found in sorted(lanes.items()) for interval in merge_intervals(found)
    ]


def check_layout(topic: str, buckets: int, found: Sequence[BucketFacts]) -> None:
    """Refuses files that keys are spread over otherwise: one exchanged file would show keys of others a second time."""
    numbers = {each.buckets for each in found} - {buckets}
    if numbers:
        raise LatestOutdated(
            f"latest/{topic} has files of {', '.join(map(str, sorted(numbers)))} buckets, defs.yaml says {buckets}; nothing "
            f"was written; put `buckets: {min(numbers)}` back, or delete the folder latest/{topic} and update: it is made "
            "again from the decoded ranges"
        )
