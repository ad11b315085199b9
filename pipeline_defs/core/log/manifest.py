"""The manifest: the one immutable document that says a range is landed, with its facts and its digest.

Invariant: a manifest that exists satisfies the completeness equation
`rows + holes + lost = end - start`; anything else is refused on construction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from ..errors import BrokenManifest
from ..offsets import OffsetRange
from .delivery import Delivery
from .document import decode, encode
from .holes import Interval


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Facts of a staged Parquet file, read from its footer, its offset column and its bytes."""

    path: str
    bytes: int
    sha256: str
    rows: int
    min_offset: int
    max_offset: int
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Lineage of a range: who landed it, with what and when; kept out of Parquet files, so that a redo gives equal bytes."""

    attempt: str
    run_id: str
    code_version: str
    writer: str
    plan_seq: int
    topic_id: str | None
    landed_at_ms: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Drop:
    """The last drop of a range's published file: how many there were, and the revision and time of this one."""

    number: int
    revision: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of one landed range. `file` is none where there was no record to land.

    `revision` counts the times that the range was replaced. `named_after` is the attempt whose name the published file
    carries, or empty; each revision keeps the name of the one before, so an exchange supersedes all of them.
    `drop` is the range's last: of this revision, so that only the raw table has the rows, or of an earlier one.
    """

    topic: str
    offsets: OffsetRange
    file: StagedFile | None
    holes: tuple[Interval, ...]
    provenance: Provenance
    revision: int = 0
    isolation_level: str = "read_committed"
    delivery: Delivery = Delivery.EFFECTIVELY_ONCE
    named_after: str = ""
    schema: Mapping[str, str] = field(default_factory=dict)
    drop: Drop | None = None

    def __post_init__(self) -> None:
        gone = sum(hole.end - hole.start for hole in self.holes)
        if self.rows + gone != len(self.offsets):
            raise BrokenManifest(
                f"range {self.offsets.text(self.topic)} has {self.rows} rows and {gone} explained offsets, "
                f"expected {len(self.offsets)} in all; such a manifest is never written"
            )

    @property
    def serial(self) -> int:
        """Number of this document among those of its range: each revision and each drop takes the next one."""
        return self.revision + (self.drop.number if self.drop else 0)

    @property
    def is_dropped(self) -> bool:
        """Whether the file of this revision was dropped, and the raw table has its only rows."""
        return self.drop is not None and self.drop.revision == self.revision

    def dropped(self, at_ms: int) -> Self:
        """Return the range's next document, which says that its file is dropped."""
        return replace(self, drop=Drop(self.drop.number + 1 if self.drop else 1, self.revision, at_ms))

    @property
    def rows(self) -> int:
        """The number of records landed."""
        return self.file.rows if self.file else 0

    @property
    def digest(self) -> str:
        """The range's data version: the file's sha256, or `empty` for a range without records."""
        return self.file.sha256 if self.file else "empty"

    def to_json(self) -> bytes:
        """Encode the manifest; the same manifest gives the same bytes."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode a manifest; `where` names the object in the error."""
        return decode(cls, data, f"manifest {where}", "delete it and land the range again while Kafka has it")
