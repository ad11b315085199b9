"""A decoding: the result of decoding a landed range's records, as the log of the decoded table records it.

Derived from the landed file alone, so it can be made again at any time. Invariant: `decoded + dead letters` are the rows of
the landed range, each row in one of them; with its holes and losses the equation of the range holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from ..log.coverage import Coverage
from ..log.document import compact
from ..log.manifest import Manifest, Provenance, StagedFile
from ..offsets import OffsetRange, Stretches, find_misplaced, merge_intervals


@dataclass(frozen=True, slots=True)
class Budget:
    """How many dead letters one range may have before it fails: a count, and a share of its rows from 0 to 1."""

    records: int = 1_000
    share: float = 0.01

    def allows(self, dead: int, rows: int) -> bool:
        """Return whether so many dead letters among so many rows are within both bounds.

        One record is always within a share above 0, since among few rows it would exceed any small share.
        """
        return dead <= self.records and dead <= (max(1, self.share * rows) if self.share else 0)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The record of one decoded range. `source` is the digest of the landed file that it was decoded from.

    `decoder` is the fingerprint of every setting and schema that decides the outcome, `configured` that of the settings alone.
    `schema_ids` counts rows by the registry id that they were written with, `value:7`; `event_days` by the day of their event
    time, `event_time` names where that is taken from; both are empty where the topic has no days. No event is before
    `first_event_ms` or after `last_event_ms`. `columns` are the decoded file's, `schemas` those of a registry, the reader's and
    the writers' by their ids: each is the digest under which the table keeps the text. `revision` is 0 at first, and grows by
    one each time that the outcome, the decoder or the landed file is another.
    """

    topic: str
    offsets: OffsetRange
    source: str
    decoder: str
    configured: str
    decoded: StagedFile | None
    dead_letters: StagedFile | None
    provenance: Provenance
    revision: int = 0
    schema_ids: Mapping[str, int] = field(default_factory=dict)
    event_days: Mapping[str, int] = field(default_factory=dict)
    error_classes: Mapping[str, int] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    columns: str = ""
    event_time: str = ""
    first_event_ms: int | None = None
    last_event_ms: int | None = None

    @property
    def rows(self) -> int:
        """The number of records decoded."""
        return self.decoded.rows if self.decoded else 0

    @property
    def dead(self) -> int:
        """The number of dead letters."""
        return self.dead_letters.rows if self.dead_letters else 0

    @property
    def digest(self) -> str:
        """The decoded range's data version: the digests of both files, `empty` for one that it does not have."""
        return "+".join(file.sha256 if file else "empty" for file in (self.decoded, self.dead_letters))

    def is_of(self, manifest: Manifest) -> bool:
        """Return whether it was decoded from the file that this manifest names."""
        return self.source == manifest.digest

    def is_like(self, other: Self) -> bool:
        """Return whether both were decoded from the same landed file by the same decoder: only then can one stand for both."""
        return (self.source, self.decoder, self.configured) == (other.source, other.decoder, other.configured)

    def to_json(self) -> str:
        """Encode it; the same decoding gives the same text."""
        return compact(self)


def of_nothing(manifest: Manifest) -> Decoding:
    """Return the decoding of a landed range without rows, of which the table has no file: it counts as decoded."""
    return Decoding(manifest.topic, manifest.offsets, manifest.digest, "", "", None, None, manifest.provenance)


def find_due(coverage: Coverage, look_up: Callable[[OffsetRange], Decoding | None]) -> list[OffsetRange]:
    """Find the landed ranges that are not decoded from their current landed file, in log order; `look_up` finds a decoding.

    A changed decoder makes nothing due: old ranges keep what they have until a person has them decoded again.
    """
    return [
        offsets
        for offsets in coverage.log.ranges
        if coverage.is_landed(offsets) and not _is_decoded(coverage.manifests[offsets], look_up(offsets))
    ]


def _is_decoded(manifest: Manifest, decoding: Decoding | None) -> bool:
    return decoding.is_of(manifest) if decoding is not None else not manifest.rows


def choose_schema(decodings: Mapping[OffsetRange, Decoding], schema_id: str) -> list[OffsetRange]:
    """Choose the ranges with rows that were written with a registry id: `7`, or on one side only, `value:7`."""
    wanted = {schema_id} if ":" in schema_id else {f"key:{schema_id}", f"value:{schema_id}"}
    return [offsets for offsets, decoding in sorted(decodings.items()) if wanted & decoding.schema_ids.keys()]


def choose_dead(decodings: Mapping[OffsetRange, Decoding]) -> list[OffsetRange]:
    """Choose the ranges that have dead letters."""
    return [offsets for offsets, decoding in sorted(decodings.items()) if decoding.dead]


def choose_outdated(decodings: Mapping[OffsetRange, Decoding], configured: str) -> list[OffsetRange]:
    """Choose the ranges with rows that were decoded by other settings than these."""
    return [offsets for offsets, each in sorted(decodings.items()) if each.configured not in {configured, ""}]


def completeness_of(
    topic: str, manifests: Mapping[OffsetRange, Manifest], decodings: Mapping[OffsetRange, Decoding]
) -> list[str]:
    """Name every decoded range for which rows + dead letters + holes + lost is not its number of offsets."""
    violations = []
    for offsets, decoding in sorted(decodings.items()):
        manifest = manifests.get(offsets)
        where = offsets.text(topic)
        if manifest is None:
            violations.append(f"range {where} is decoded and not landed: its manifest is gone")
        elif not decoding.is_of(manifest):
            violations.append(f"range {where} was decoded from another landed file than stands now: decode it again")
        elif decoding.rows + decoding.dead != manifest.rows:
            gone = sum(hole.end - hole.start for hole in manifest.holes)
            violations.append(
                f"range {where}: {decoding.rows} rows + {decoding.dead} dead letters + {gone} holes and lost, expected "
                f"{len(offsets)} offsets in all"
            )
    return violations


def verify_decoding(topic: str, offsets: OffsetRange, landed: Stretches, decoded: Stretches, dead: Stretches) -> list[str]:
    """Return every violation of a staged decoding: each landed row must be in one of its two files, once."""
    where = offsets.text(topic)
    violations = find_misplaced(f"decoded rows of range {where}", offsets, decoded)
    violations += find_misplaced(f"dead letters of range {where}", offsets, dead)
    rows, kept, aside = (sum(end - start for start, end in stretches) for stretches in (landed, decoded, dead))
    if kept + aside != rows or merge_intervals([*decoded, *dead]) != merge_intervals(landed):
        violations.append(
            f"range {where}: {kept} decoded rows + {aside} dead letters are not its {rows} landed rows, each once; nothing "
            "became visible"
        )
    return violations


class Decided(StrEnum):
    """How the decoding of a range ended."""

    DECODED = "decoded"  # for the first time
    REPLACED = "replaced"  # another outcome than before, another decoder, or another landed file
    UNCHANGED = "unchanged"  # decoded again: the same rows
    ALREADY_DECODED = "already_decoded"  # nothing to do
    SUPERSEDED = "superseded"  # another attempt decided at the same time
    FAILED = "failed"  # nothing became visible


@dataclass(frozen=True, slots=True)
class DecodeVerdict:
    """The outcome of one range's decoding, with its document, or with what was violated."""

    offsets: OffsetRange
    outcome: Decided
    decoding: Decoding | None = None
    violations: tuple[str, ...] = ()


def decode_failed(offsets: OffsetRange, *violations: str) -> DecodeVerdict:
    """Return the verdict of a range that is not decoded."""
    return DecodeVerdict(offsets, Decided.FAILED, violations=violations)
