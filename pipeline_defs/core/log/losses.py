"""Losses: offsets that the broker deleted before they were landed, each with its place, its cause and who accepted it.

Derived from the plan log, the manifests and the acceptances; nothing is stored twice. Invariant: an offset that is in
no file is skipped, pending, in a non-`lost` hole or exactly one loss.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..offsets import OffsetRange, merge_ranges
from .coverage import Coverage, State
from .delivery import Acceptance
from .holes import Cause, Interval
from .plan_step import Link, LinkKind, PlanStep, Watermarks

BEFORE_PLANNED = "deleted by the broker before it was planned"
BEFORE_LANDED = "deleted by the broker after it was planned and before it was landed"
ABANDONED = "claimed by an attempt that has not landed it, and at_most_once never reads twice"
CLOSED = "not landed when its generation was closed: the topic was recreated, truncated or moved"
GONE = "landed, and their file is gone or cut short: landing their range again gives it back where the raw table has it"


@dataclass(frozen=True, slots=True)
class Reading:
    """A range and the rest of it that the broker still has: all of it, part of it, or nothing (none)."""

    offsets: OffsetRange
    rest: OffsetRange | None

    @property
    def lost(self) -> tuple[Interval, ...]:
        """The lost offsets: the beginning of the range, since brokers delete from there."""
        end = self.rest.start if self.rest else self.offsets.end
        return (Interval(self.offsets.start, end, Cause.LOST),) if end > self.offsets.start else ()


def read_from(offsets: OffsetRange, earliest: int) -> Reading:
    """Return what can be read of a range where the log begins at `earliest`."""
    if earliest >= offsets.end:
        return Reading(offsets, None)
    start = max(offsets.start, earliest)
    return Reading(offsets, OffsetRange(offsets.generation, offsets.partition, start, offsets.end))


@dataclass(frozen=True, slots=True)
class Loss:
    """One lost interval: `offsets` are the lost ones, `key` names the range or link that they belong to.

    `recorded_at_ms` is none while its range is pending: only an acceptance, or `on_loss: record`, lets that be landed.
    """

    offsets: OffsetRange
    key: str
    cause: str
    recorded_at_ms: int | None
    acceptance: Acceptance | None = None

    def text(self, topic: str) -> str:
        """Return the form for messages: the offsets, how many, the cause."""
        return f"{self.offsets.text(topic)}: {len(self.offsets)} offsets {self.cause}"


def find_losses(coverage: Coverage) -> list[Loss]:
    """List every loss that is recorded in the lake, in log order.

    | recorded as | cause |
    |---|---|
    | a lost link of the plan log | before it was planned |
    | a lost interval in a landed range's manifest | before it was landed |
    | a range of a closed generation that is not landed | closed, or, with a manifest, gone |
    | a claim (`at_most_once`) of a range that is not landed | abandoned, unless its attempt still runs |
    """
    closed_at_ms = {generation - 1: at_ms for generation, at_ms in coverage.log.opened.items()}
    return [
        loss
        for step in coverage.log.steps
        for link in coverage.log.links_of(step)
        for loss in _losses_of(link, step, coverage, closed_at_ms)
    ]


def _losses_of(link: Link, step: PlanStep, coverage: Coverage, closed_at_ms: Mapping[int, int]) -> Iterator[Loss]:
    offsets, state = link.offsets, coverage.states()[link.offsets]
    accepted, manifest = coverage.accepted.get(offsets), coverage.manifests.get(offsets)
    if state is State.CLAIMED:
        yield Loss(offsets, offsets.key, ABANDONED, coverage.claims[offsets].claimed_at_ms, accepted)
    elif state is State.LOST and link.kind is LinkKind.RANGE:
        at_ms = closed_at_ms.get(offsets.generation, step.planned_at_ms)
        yield Loss(offsets, offsets.key, GONE if manifest is not None else CLOSED, at_ms, accepted)
    elif state is State.LOST:
        yield Loss(offsets, offsets.key, BEFORE_PLANNED, step.planned_at_ms, accepted)
    elif manifest is not None:
        for hole in manifest.holes:
            if hole.cause is Cause.LOST:
                gone = OffsetRange(offsets.generation, offsets.partition, hole.start, hole.end)
                yield Loss(gone, offsets.key, BEFORE_LANDED, manifest.provenance.landed_at_ms, accepted)


@dataclass(frozen=True, slots=True)
class Skip:
    """Contiguous offsets left out on purpose and not landed, why, and when that was decided (ms since 1970).

    Offsets before a topic's `start` are in no range, and Kafka has none of a closed generation: neither can be landed.
    """

    offsets: OffsetRange
    cause: str
    said_at_ms: int
    is_landable: bool

    def text(self, topic: str) -> str:
        """Return the form for messages: the offsets, how many, who said so."""
        return f"{self.offsets.text(topic)}: {len(self.offsets)} offsets left out on purpose, {self.cause}"


def find_skips(coverage: Coverage) -> list[Skip]:
    """List the stretches that were left out on purpose and not landed since, in log order."""
    steps, left_out = coverage.log.steps, coverage.skipped()
    first = [step for step in steps[:1] if step.seq == 0]
    at_start = (link for step in first for link in step.links if link.kind is LinkKind.SKIPPED)
    found = [Skip(link.offsets, link.cause, steps[0].planned_at_ms, is_landable=False) for link in at_start]
    for step in steps:
        is_open = step.generation == coverage.log.generation
        for link in step.skips:
            rest = merge_ranges(o for o in left_out if coverage.log.skipped[o] is link)
            found += [Skip(each, link.cause, step.planned_at_ms, is_landable=is_open) for each in rest]
    return found


def unrecorded_losses(coverage: Coverage, watermarks: Mapping[int, Watermarks]) -> list[Loss]:
    """List what the broker has deleted of ranges that are planned and not landed: a person must accept these losses.

    Once accepted, the range waits for its run; what the broker deletes of it until then is accepted too.
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
    """Return the ledger: every recorded loss, then those of pending ranges."""
    return [*find_losses(coverage), *unrecorded_losses(coverage, watermarks)]
