"""The mark that range files were dropped from `data/`: from then on the raw table has the only rows of these ranges.

Invariant: it is written while a compacted file of the table has all of them as they are landed, and it is never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import BadKey, BrokenManifest
from .offsets import OffsetRange, parse_key

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Dropped:
    """Says of which ranges, in which revision, the files were dropped, and between which offsets they lie.

    `file` is the table's that had their rows then.
    """

    topic: str
    offsets: OffsetRange
    revisions: Mapping[OffsetRange, int]
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
            "revisions": {offsets.key: revision for offsets, revision in sorted(self.revisions.items())},
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
            revisions = {parse_key(key): int(revision) for key, revision in document.pop("revisions").items()}
            return cls(offsets=parse_key(document.pop("key")), revisions=revisions, **document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadKey) as error:
            raise BrokenManifest(
                f"{where}, which says that range files were dropped, cannot be read: {error!r}; it never changes: restore it "
                "from a backup of the lake; without it its ranges would be landed again, as far as Kafka has them"
            ) from error


def find_dropped(marks: Iterable[Dropped]) -> dict[OffsetRange, int]:
    """Return the ranges whose file was dropped, each with the newest revision of which that is said."""
    dropped: dict[OffsetRange, int] = {}
    for mark in marks:
        for offsets, revision in mark.revisions.items():
            dropped[offsets] = max(revision, dropped.get(offsets, 0))
    return dropped
