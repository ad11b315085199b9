"""A decoding: what became of a landed range's records when they were decoded, as the log of the decoded table says it.

Derived from the landed file alone, so it can be made again at any time. Invariant: `decoded + dead letters` are the rows of
the landed range, each row in one of them; with its holes and losses the equation of the range holds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from ..log.coverage import Coverage
from ..log.document import FORMAT, take_offsets
from ..log.manifest import Manifest, Provenance, StagedFile
from ..offsets import OffsetRange, Stretches, find_misplaced, merge_intervals


@dataclass(frozen=True, slots=True)
class Budget:
    """How many records of one range may be set aside before the range fails: a count, and a share from 0 to 1."""

    records: int = 1_000
    share: float = 0.01

    def allows(self, dead: int, rows: int) -> bool:
        """Return whether so many dead letters of so many rows are within both.

        Of few rows one is more than any small share; unless the share is 0, one record stops nothing.
        """
        return dead <= self.records and dead <= (max(1, self.share * rows) if self.share else 0)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The record of one decoded range. `source` is the digest of the landed file that it was decoded from.

    `decoder` says what decoded it, every setting and schema that decides the outcome; `configured` the settings alone.
    `schema_ids` counts rows by the registry id that they were written with, `value:7`; `event_days` by the day of their event
    time, of which `event_time` says where it was taken from; both are empty where the topic has no days. No event is before
    `first_event_ms`, and none after `last_event_ms`. `columns` are the decoded file's, `schemas` what a registry gave, of the
    reader and of writers by their ids: each by the digest that the table keeps it under. `revision` is 0 at first, and one more
    for each time that something else came out, or was decoded by another decoder, or from another landed file.
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
        """The number of records set aside."""
        return self.dead_letters.rows if self.dead_letters else 0

    @property
    def digest(self) -> str:
        """The decoded range's data version: both files' digests, or `empty` for those that it has not."""
        return "+".join(file.sha256 if file else "empty" for file in (self.decoded, self.dead_letters))

    def is_of(self, manifest: Manifest) -> bool:
        """Return whether it was decoded from what is landed now."""
        return self.source == manifest.digest

    def is_like(self, other: Self) -> bool:
        """Return whether both were decoded from the same landed file by the same decoder: only then one can stand for both."""
        return (self.source, self.decoder, self.configured) == (other.source, other.decoder, other.configured)

    def to_json(self) -> str:
        """Encode it; the same decoding gives the same text."""
        document = asdict(self) | {"format": FORMAT, "key": self.offsets.key}
        return json.dumps(document, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Return what a parsed `to_json` says.

        Raise `ValueError`, `KeyError`, `TypeError` or `AttributeError` for anything else.
        """
        document = dict(document)
        offsets = take_offsets(document)
        decoded, dead_letters = (document.pop(name) for name in ("decoded", "dead_letters"))
        return cls(
            offsets=offsets,
            decoded=StagedFile(**decoded) if decoded else None,
            dead_letters=StagedFile(**dead_letters) if dead_letters else None,
            provenance=Provenance(**document.pop("provenance")),
            **document,
        )


def of_nothing(manifest: Manifest) -> Decoding:
    """Return what there is to say of a range without rows, which no table has a file of: it is decoded as it is landed."""
    return Decoding(manifest.topic, manifest.offsets, manifest.digest, "", "", None, None, manifest.provenance)


def find_due(coverage: Coverage, look_up: Callable[[OffsetRange], Decoding | None]) -> list[OffsetRange]:
    """Find the landed ranges that are not decoded as they are landed now, in log order; `look_up` says what became of one.

    A decoder that has changed makes nothing due: old ranges keep what they have until a person has them decoded again.
    """
    return [
        offsets
        for offsets in coverage.log.ranges
        if coverage.is_landed(offsets) and not _is_decoded(coverage.manifests[offsets], look_up(offsets))
    ]


def _is_decoded(manifest: Manifest, decoding: Decoding | None) -> bool:
    return decoding.is_of(manifest) if decoding is not None else not manifest.rows


def choose_schema(decodings: Mapping[OffsetRange, Decoding], schema_id: str) -> list[OffsetRange]:
    """Choose the ranges that have rows written with a registry id: `7`, or of one side only, `value:7`."""
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
    """Return every law that a staged decoding breaks: each landed row must stand in one of its two files, once."""
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
    REPLACED = "replaced"  # something else came out than before: a mended decoder, or another landed file
    UNCHANGED = "unchanged"  # decoded again: the same rows
    ALREADY_DECODED = "already_decoded"  # nothing to do
    SUPERSEDED = "superseded"  # another attempt decided at the same time
    FAILED = "failed"  # nothing became visible


@dataclass(frozen=True, slots=True)
class DecodeVerdict:
    """What became of one range's decoding, with its document, or with what was violated."""

    offsets: OffsetRange
    outcome: Decided
    decoding: Decoding | None = None
    violations: tuple[str, ...] = ()


def decode_failed(offsets: OffsetRange, *violations: str) -> DecodeVerdict:
    """Return the verdict of a range that is not decoded."""
    return DecodeVerdict(offsets, Decided.FAILED, violations=violations)
