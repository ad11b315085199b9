"""The seal: the one immutable document that says which landed ranges a sealed file holds, with its digest.

Invariant: the originals of a seal that exists tile its offsets, and its rows are theirs; anything else is refused on
construction. A seal takes nothing away: its originals stay what they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from .errors import BrokenManifest
from .manifest import Manifest, StagedFile
from .offsets import OffsetRange

FORMAT = 1
FOOTER_BYTES = 3_000  # about what a file of ours takes beside its rows: many small files merge into less than their sum


@dataclass(frozen=True, slots=True)
class Original:
    """Is one landed range as it was when it was sealed: which revision of its manifest, with which digest."""

    start: int
    end: int
    revision: int
    digest: str
    rows: int
    bytes: int

    @classmethod
    def of(cls, manifest: Manifest) -> Original:
        """Is a landed range as its manifest has it now."""
        offsets, size = manifest.offsets, manifest.file.bytes if manifest.file else 0
        return cls(offsets.start, offsets.end, manifest.revision, manifest.digest, manifest.rows, size)

    @property
    def weight_bytes(self) -> int:
        """Is about how many bytes it adds to a sealed file; 0 where it has no row."""
        return max(1, self.bytes - FOOTER_BYTES) if self.rows else 0


@dataclass(frozen=True, slots=True)
class SealProvenance:
    """Is who sealed, with what, when."""

    attempt: str
    run_id: str
    code_version: str
    writer: str
    sealed_at_ms: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Seal:
    """Is the record of one sealed file; a later `revision` is of the same offsets after a range of them was replaced."""

    topic: str
    offsets: OffsetRange
    originals: tuple[Original, ...]
    file: StagedFile
    provenance: SealProvenance
    target_bytes: int
    revision: int = 0
    schema: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = self.offsets.text(self.topic)
        cuts = [self.offsets.start, *(original.end for original in self.originals)]
        starts = [*(original.start for original in self.originals), self.offsets.end]
        rows = sum(original.rows for original in self.originals)
        if cuts != starts or any(start >= end for start, end in pairwise(starts)):
            raise BrokenManifest(
                f"seal {where} is of ranges that do not tile it: {starts}; such a seal is never written"
            )
        if rows != self.file.rows:
            raise BrokenManifest(
                f"seal {where} has {self.file.rows} rows, expected {rows}, those of its ranges; such a seal is never written"
            )

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """Are the landed ranges that it holds, in offset order."""
        place = self.offsets.generation, self.offsets.partition
        return tuple(OffsetRange(*place, original.start, original.end) for original in self.originals)

    @property
    def weight_bytes(self) -> int:
        """Is about how many bytes its originals were to add up to."""
        return sum(original.weight_bytes for original in self.originals)

    def to_json(self) -> bytes:
        """Encodes the seal; the same seal gives the same bytes."""
        document = {**asdict(self), "schema": dict(self.schema), "format": FORMAT, "key": self.offsets.key}
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Seal:
        """Decodes a seal; `where` names the object in the error."""
        try:
            document = json.loads(data)
            if document.pop("format") != FORMAT:
                raise ValueError(f"expected format {FORMAT}")
            offsets = OffsetRange(**document.pop("offsets"))
            if document.pop("key") != offsets.key:
                raise ValueError(f"key is not {offsets.key}")
            return cls(
                offsets=offsets,
                originals=tuple(Original(**original) for original in document.pop("originals")),
                file=StagedFile(**document.pop("file")),
                provenance=SealProvenance(**document.pop("provenance")),
                **document,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BrokenManifest) as error:
            raise BrokenManifest(
                f"seal {where} cannot be read: {error!r}; a seal never changes: restore it from a backup of the lake, or "
                "delete it and the sealed file of its name: the landed ranges stand, and `offsetlake seal TOPIC` makes it "
                "again"
            ) from error
