"""Losses: offsets that the broker deleted before they were landed, each with its place, its cause and who accepted it.

Derived from the plan log, the manifests and the acceptances; nothing is stored twice. Invariant: an offset that is in
no file and that no hole explains is in exactly one loss, or it is still pending.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import BrokenManifest
from .holes import Cause, Interval
from .offsets import OffsetRange
from .planlog import Watermarks

if TYPE_CHECKING:
    from .coverage import Coverage

FORMAT = 1
BEFORE_PLANNED = "deleted by the broker before it was planned"
BEFORE_LANDED = "deleted by the broker after it was planned and before it was landed"
ABANDONED = "claimed by an attempt that has not landed it, and at_most_once never reads twice"
CLOSED = "not landed when its generation was closed: the topic was recreated or truncated"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Is a person's word that what is lost of a range or link is lost; the first one stands.

    `lost` is what was gone of it then, half-open; by the time the rest is landed more may be.
    """

    topic: str
    offsets: OffsetRange
    lost: tuple[int, int]
    accepted_by: str
    accepted_at_ms: int

    def to_json(self) -> bytes:
        """Encodes the acceptance; the same acceptance gives the same bytes."""
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "key": self.offsets.key,
            "generation": self.offsets.generation,
            "partition": self.offsets.partition,
            "start": self.offsets.start,
            "end": self.offsets.end,
            "lost": list(self.lost),
            "accepted_by": self.accepted_by,
            "accepted_at_ms": self.accepted_at_ms,
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Acceptance:
        """Decodes an acceptance; `where` names the object in the error."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}, expected {FORMAT}")
            offsets = OffsetRange(*(document[name] for name in ("generation", "partition", "start", "end")))
            first, last = document["lost"]
            return cls(document["topic"], offsets, (first, last), document["accepted_by"], document["accepted_at_ms"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenManifest(
                f"acceptance {where} cannot be read: {error!r}; restore it from a backup of the lake, or delete it and "
                "accept the loss again"
            ) from error


@dataclass(frozen=True, slots=True)
class Reading:
    """Is a range and the rest of it that the broker still has: all of it, part of it, or nothing (none)."""

    offsets: OffsetRange
    rest: OffsetRange | None

    @property
    def lost(self) -> tuple[Interval, ...]:
        """Is what the rest leaves out: the beginning, since brokers delete from there."""
        end = self.rest.start if self.rest else self.offsets.end
        return (Interval(self.offsets.start, end, Cause.LOST),) if end > self.offsets.start else ()


def read_from(offsets: OffsetRange, earliest: int) -> Reading:
    """Is what can be read of a range where the log begins at `earliest`."""
    if earliest >= offsets.end:
        return Reading(offsets, None)
    start = max(offsets.start, earliest)
    return Reading(offsets, OffsetRange(offsets.generation, offsets.partition, start, offsets.end))


@dataclass(frozen=True, slots=True)
class Loss:
    """Is one lost interval: `offsets` are the lost ones, `key` is of the range or link that they belong to.

    `recorded_at_ms` is none while its range is not landed, which it is not before a person has accepted the loss.
    """

    offsets: OffsetRange
    key: str
    cause: str
    recorded_at_ms: int | None
    acceptance: Acceptance | None = None

    def text(self, topic: str) -> str:
        """Is the form for messages: the offsets, how many, the cause."""
        return f"{self.offsets.text(topic)}: {len(self.offsets)} offsets {self.cause}"


def find_losses(coverage: Coverage) -> list[Loss]:
    """Lists every loss that is recorded in the lake, in log order.

    | recorded as | cause |
    |---|---|
    | a lost link of the plan log | before it was planned |
    | a lost interval in a landed range's manifest | before it was landed |
    | a range of a closed generation that is not landed | closed |
    | a claim (`at_most_once`) of a range that is not landed | abandoned, unless its attempt is still at it |
    """
    return list(_losses(coverage))


def unrecorded_losses(coverage: Coverage, watermarks: Mapping[int, Watermarks]) -> list[Loss]:
    """Lists what the broker has deleted of ranges that are planned and not landed: they wait for a person's word.

    Where a person has said it, they wait for their run, and are accepted; what is deleted until then is too.
    """
    generation = coverage.log.generation
    losses = []
    for offsets in coverage.pending():
        marks = watermarks.get(offsets.partition)
        if marks is not None and offsets.generation == generation:
            accepted = coverage.accepted.get(offsets)
            for lost in read_from(offsets, marks.earliest).lost:
                gone = OffsetRange(generation, offsets.partition, lost.start, lost.end)
                losses.append(Loss(gone, offsets.key, BEFORE_LANDED, None, accepted))
    return losses


def all_losses(coverage: Coverage, watermarks: Mapping[int, Watermarks]) -> list[Loss]:
    """Is the ledger: every loss that is recorded, then those of ranges that are not landed."""
    return [*find_losses(coverage), *unrecorded_losses(coverage, watermarks)]


def _losses(coverage: Coverage) -> Iterator[Loss]:
    states = coverage.states()
    closed_at_ms: dict[int, int] = {}  # when the generation after it was opened
    for step in coverage.log.steps:
        closed_at_ms.setdefault(step.generation - 1, step.planned_at_ms)
    for step in coverage.log.steps:
        for link in step.links:
            offsets = link.offsets
            accepted = coverage.accepted.get(offsets)
            if states[offsets] == "claimed":
                yield Loss(offsets, offsets.key, ABANDONED, coverage.claims[offsets].claimed_at_ms, accepted)
                continue
            if states[offsets] == "lost":
                planned = offsets in coverage.log.ranges
                at_ms = closed_at_ms.get(offsets.generation, step.planned_at_ms) if planned else step.planned_at_ms
                yield Loss(offsets, offsets.key, CLOSED if planned else BEFORE_PLANNED, at_ms, accepted)
                continue
            manifest = coverage.manifests.get(offsets)
            for hole in manifest.holes if manifest else ():
                if manifest is not None and hole.cause is Cause.LOST:
                    gone = OffsetRange(offsets.generation, offsets.partition, hole.start, hole.end)
                    yield Loss(gone, offsets.key, BEFORE_LANDED, manifest.provenance.landed_at_ms, accepted)
