"""The mark that range files were dropped from `data/`: from then on the raw table has the only rows of these ranges.

Invariant: it is written while a compacted file of the table has all of them as they are landed, and it is never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import BadKey, BrokenManifest
from .manifest import Manifest
from .offsets import OffsetRange, parse_key

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Dropped:
    """Says of which ranges, in which revision, the files were dropped: all between two offsets of a Kafka partition.

    `revisions` has those that are not 0, by where a range starts; `file` is the table's that had their rows then.
    """

    topic: str
    offsets: OffsetRange
    revisions: Mapping[int, int]
    file: str
    sha256: str
    code_version: str
    dropped_at_ms: int

    def to_json(self) -> bytes:
        """Encode it."""
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "key": self.offsets.key,
            "revisions": {str(start): revision for start, revision in sorted(self.revisions.items())},
            "file": self.file,
            "sha256": self.sha256,
            "code_version": self.code_version,
            "dropped_at_ms": self.dropped_at_ms,
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Dropped:
        """Decode it; `where` names the object in the error, which is `BrokenManifest`."""
        try:
            document = json.loads(data)
            if document.pop("format") != FORMAT:
                raise ValueError(f"expected format {FORMAT}")
            revisions = {int(start): int(revision) for start, revision in document.pop("revisions").items()}
            return cls(offsets=parse_key(document.pop("key")), revisions=revisions, **document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadKey) as error:
            raise BrokenManifest(
                f"{where}, which says that range files were dropped, cannot be read: {error!r}; it never changes: restore it "
                "from a backup of the lake; deleted it would have its ranges counted as lost"
            ) from error

    def revision_of(self, offsets: OffsetRange) -> int | None:
        """Return the revision of a range whose file was dropped; none where the range is not among these."""
        whole = self.offsets
        is_same_place = (offsets.generation, offsets.partition) == (whole.generation, whole.partition)
        is_within = is_same_place and whole.start <= offsets.start and offsets.end <= whole.end
        return self.revisions.get(offsets.start, 0) if is_within else None


def find_dropped(marks: Iterable[Dropped], manifests: Mapping[OffsetRange, Manifest]) -> dict[OffsetRange, int]:
    """Return the ranges that have rows and whose file was dropped, each with the newest revision of which that is said."""
    by_place: dict[tuple[int, int], list[Dropped]] = {}
    for mark in marks:
        by_place.setdefault((mark.offsets.generation, mark.offsets.partition), []).append(mark)
    dropped: dict[OffsetRange, int] = {}
    for offsets, manifest in manifests.items():
        for mark in by_place.get((offsets.generation, offsets.partition), ()) if manifest.file is not None else ():
            revision = mark.revision_of(offsets)
            if revision is not None:
                dropped[offsets] = max(revision, dropped.get(offsets, 0))
    return dropped
