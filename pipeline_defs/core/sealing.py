"""Sealing: which contiguous landed ranges become one larger file, and which sealed files a reader may use.

Pure, and without a clock. Invariant: of seals that overlap at most one is used, and none of which a range was replaced
since; what to seal is cut from the left, so sealing early and late comes to the same files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from .coverage import Coverage, State
from .manifest import Manifest, StagedFile
from .offsets import OffsetRange
from .seal import Original, Seal

Holders = Mapping[tuple[OffsetRange, int], tuple[Seal, ...]]  # of originals, by range and revision


class SealOutcome(StrEnum):
    """Says how a run of ranges ended in an attempt at sealing."""

    SEALED = "sealed"  # this attempt's seal decided
    SUPERSEDED = "superseded"  # another attempt's seal of the same ranges was there first
    ROLLED_FORWARD = "rolled_forward"  # a seal was there, unpublished; this attempt published its file
    FAILED = "failed"  # not sealed; nothing became visible, the ranges stay as they are


@dataclass(frozen=True, slots=True)
class SealPlan:
    """Is what is to become one sealed file: landed ranges that tile, of one generation, Kafka partition and schema."""

    manifests: tuple[Manifest, ...]
    revision: int

    @property
    def offsets(self) -> OffsetRange:
        """Are the offsets from the first range to the last."""
        first, last = self.manifests[0].offsets, self.manifests[-1].offsets
        return OffsetRange(first.generation, first.partition, first.start, last.end)

    @property
    def originals(self) -> tuple[Original, ...]:
        """Are its ranges as a seal names them."""
        return tuple(Original.of(manifest) for manifest in self.manifests)

    @property
    def with_rows(self) -> tuple[Manifest, ...]:
        """Are its ranges that have a row, whose files are read."""
        return tuple(manifest for manifest in self.manifests if manifest.rows)

    @property
    def rows(self) -> int:
        """Is the number of rows that the sealed file must have."""
        return sum(manifest.rows for manifest in self.manifests)


@dataclass(frozen=True, slots=True)
class SealVerdict:
    """Is the outcome of one run of ranges, with its seal, or with what was violated."""

    offsets: OffsetRange
    outcome: SealOutcome
    seal: Seal | None = None
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Superseded:
    """Is a seal that no reader uses since a moment, and the used ones that have those rows of it which `data/` has not."""

    seal: Seal
    since_ms: int
    instead: tuple[Seal, ...]


def is_current(seal: Seal, coverage: Coverage) -> bool:
    """Says whether each range of a seal is landed as it was sealed; one that was replaced since makes the seal stale."""
    for offsets, original in zip(seal.ranges, seal.originals, strict=True):
        manifest = coverage.manifests.get(offsets)
        if manifest is None or Original.of(manifest) != original or not coverage.is_landed(offsets):
            return False
    return True


def choose_seals(coverage: Coverage, published: Iterable[Seal]) -> tuple[Seal, ...]:
    """Chooses the seals that a reader uses: current ones, no two of which overlap, in offset order.

    The widest goes first, of equally wide ones the first, of the same offsets the latest revision.
    """
    chosen: list[Seal] = []
    taken: dict[tuple[int, int], list[OffsetRange]] = defaultdict(list)
    for seal in sorted(published, key=lambda seal: (-len(seal.offsets), seal.offsets, -seal.revision)):
        others = taken[seal.offsets.generation, seal.offsets.partition]
        if not any(_overlap(other, seal.offsets) for other in others) and is_current(seal, coverage):
            others.append(seal.offsets)
            chosen.append(seal)
    return tuple(sorted(chosen, key=lambda seal: seal.offsets))


def find_holders(seals: Iterable[Seal]) -> Holders:
    """Finds for each original, by range and revision, the seals that have its rows, current or not; the last goes first."""
    holders: dict[tuple[OffsetRange, int], tuple[Seal, ...]] = {}
    for seal in seals:
        for offsets, original in zip(seal.ranges, seal.originals, strict=True):
            holders[offsets, original.revision] = (seal, *holders.get((offsets, original.revision), ()))
    return holders


def find_superseded(coverage: Coverage, published: Sequence[Seal]) -> list[Superseded]:
    """Finds the seals whose files no reader takes any more, each with since when at the latest.

    That is when the last seal over any of its offsets was made, or the last revision of any of its ranges. A file that has
    rows which stand neither in `data/` nor in a used sealed file is never among them.
    """
    chosen = choose_seals(coverage, published)
    used = {(seal.offsets, seal.revision) for seal in chosen}
    holders, not_in_data = find_holders(chosen), _not_in_data(coverage)
    found = []
    for seal in published:
        needed = find_holders([seal]).keys() & not_in_data
        if (seal.offsets, seal.revision) in used or not needed <= holders.keys():
            continue
        over = [other.provenance.sealed_at_ms for other in published if _overlap(other.offsets, seal.offsets)]
        known = [coverage.manifests[offsets] for offsets in seal.ranges if offsets in coverage.manifests]
        since_ms = max([*over, *(manifest.provenance.landed_at_ms for manifest in known)])
        instead = {holders[each][0].offsets: holders[each][0] for each in needed}
        found.append(Superseded(seal, since_ms, tuple(instead.values())))
    return found


def _not_in_data(coverage: Coverage) -> set[tuple[OffsetRange, int]]:
    """Are the ranges, each in its revision, whose own file was retired, swept, or lost."""
    lost = {
        (offsets, manifest.revision)
        for offsets, manifest in coverage.manifests.items()
        if manifest.rows and not coverage.is_landed(offsets)
    }
    return lost | set(coverage.retired.items())


def _overlap(one: OffsetRange, other: OffsetRange) -> bool:
    is_same_place = (one.generation, one.partition) == (other.generation, other.partition)
    return is_same_place and one.start < other.end and other.start < one.end


def plan_seals(
    coverage: Coverage, published: Sequence[Seal], known: Iterable[Seal], target_bytes: int, *, every: bool = False
) -> list[SealPlan]:
    """Decides what to seal: landed ranges from the left, until they weigh `target_bytes`.

    `known` are the seals that were ever committed, whose names are taken. A stretch ends before what is not landed, lost or
    skipped, and where the columns change. Its last ranges, which weigh less, wait while more may land behind them, unless
    `every` says otherwise; they are sealed again, with what has landed, when they weigh enough. A seal that weighed enough
    when it was made stays, whatever the target is by now. One range alone is not sealed.
    """
    used = choose_seals(coverage, published)
    full = [seal for seal in used if seal.weight_bytes >= min(seal.target_bytes, target_bytes)]
    settled = frozenset(offsets for seal in full for offsets in seal.ranges)
    done = {(seal.offsets, seal.originals) for seal in used}
    revisions: dict[OffsetRange, int] = {}
    for seal in known:
        revisions[seal.offsets] = max(revisions.get(seal.offsets, 0), seal.revision + 1)
    plans = []
    inside = {offsets for seal in used for offsets in seal.ranges if offsets.end != seal.offsets.end}
    for stretch, may_grow in _stretches(coverage, settled):
        for group in _groups(stretch, inside, target_bytes, leave_tail=may_grow and not every):
            plan = SealPlan(tuple(group), 0)
            plan = SealPlan(plan.manifests, revisions.get(plan.offsets, 0))
            if len(plan.with_rows) > 1 and (plan.offsets, plan.originals) not in done:
                plans.append(plan)
    return plans


def verify_sealed(
    topic: str, plan: SealPlan, file: StagedFile, runs: Sequence[tuple[int, int]], difference: str | None
) -> list[str]:
    """Returns every law that a staged sealed file breaks; none means it may be committed.

    `runs` are the contiguous half-open runs of its offsets in file order; `difference` is what differs from its originals,
    row by row.
    """
    where = f"sealed file of {plan.offsets.text(topic)}"
    violations = [f"{where}: {difference}"] if difference else []
    found = sum(end - start for start, end in runs)
    if not plan.rows == file.rows == found:
        violations.append(
            f"{where}: its ranges have {plan.rows} rows, its footer says {file.rows}, its offset column has {found}"
        )
    violations += [
        f"{where}: offset {start} follows {end - 1}: offsets are not strictly increasing"
        for (_, end), (start, _) in pairwise(runs)
        if start < end
    ]
    if runs and not (plan.offsets.start <= runs[0][0] and runs[-1][1] <= plan.offsets.end):
        violations.append(f"{where}: found offsets {runs[0][0]} to {runs[-1][1] - 1}, outside of it")
    return violations


def _stretches(coverage: Coverage, settled: frozenset[OffsetRange]) -> Iterator[tuple[list[Manifest], bool]]:
    """Yields the landed ranges that are not settled, contiguous and of the same columns, and whether more may follow."""
    states = coverage.states()
    by_place: dict[tuple[int, int], list[OffsetRange]] = defaultdict(list)
    for offsets in states:
        by_place[offsets.generation, offsets.partition].append(offsets)
    for (generation, _), links in sorted(by_place.items()):
        stretch: list[Manifest] = []
        for offsets in links:
            is_free = states[offsets] is State.LANDED and offsets not in settled
            if stretch and not (is_free and _have_equal_columns(stretch, coverage.manifests[offsets])):
                yield stretch, states[offsets] is State.PENDING
                stretch = []
            if is_free:
                stretch.append(coverage.manifests[offsets])
        if stretch:
            yield stretch, generation == coverage.log.generation


def _have_equal_columns(stretch: Sequence[Manifest], manifest: Manifest) -> bool:
    known = next((each.schema for each in stretch if each.rows), None)
    return known is None or not manifest.rows or known == manifest.schema


def _groups(
    stretch: Sequence[Manifest], inside: Collection[OffsetRange], target_bytes: int, *, leave_tail: bool
) -> Iterator[list[Manifest]]:
    """Cuts a stretch from the left; never inside a sealed file that readers use, which would go on to be used then."""
    group: list[Manifest] = []
    weight = 0
    for manifest in stretch:
        group.append(manifest)
        weight += Original.of(manifest).weight_bytes
        if weight >= target_bytes and manifest.offsets not in inside:
            yield group
            group, weight = [], 0
    if group and not leave_tail:
        yield group
