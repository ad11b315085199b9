"""Sealing: what is merged is contiguous, landed and large enough; which sealed files are read is decided by offset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.core.coverage import Coverage, State
from pipeline_defs.core.errors import BrokenManifest
from pipeline_defs.core.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.planlog import Head, Link, LinkKind, PlanLog, PlanStep, Watermarks
from pipeline_defs.core.seal import FOOTER_BYTES, Original, Seal, SealProvenance
from pipeline_defs.core.sealing import SealPlan, choose_seals, find_superseded, is_current, plan_seals, verify_sealed
from tests.properties.test_coverage_laws import Lake, manifest_of
from tests.support.strategies import EPOCH_MS, TOPIC, staged_file

TARGET = 100  # bytes beside the footer


@dataclass(frozen=True)
class Piece:
    """Is one link of a Kafka partition: landed, empty (landed without a row), pending or lost; its weight, its length."""

    state: str
    bytes: int = 10
    length: int = 1


def lake_of(*generations: Sequence[Sequence[Piece]]) -> Lake:
    """Builds a lake of generations of Kafka partitions of pieces."""
    steps: list[PlanStep] = []
    manifests: dict[OffsetRange, Manifest] = {}
    for generation, partitions in enumerate(generations):
        links: list[Link] = []
        heads: dict[int, Head] = {}
        for partition, pieces in enumerate(partitions):
            at = 0
            for piece in pieces:
                offsets = OffsetRange(generation, partition, at, at + piece.length)
                at = offsets.end
                links.append(Link(LinkKind.LOST if piece.state == "lost" else LinkKind.RANGE, offsets))
                if piece.state in {"landed", "empty"}:
                    manifest = manifest_of(offsets, is_empty=piece.state == "empty")
                    file = manifest.file and replace(manifest.file, bytes=FOOTER_BYTES + piece.bytes)
                    manifests[offsets] = replace(manifest, file=file)
            heads[partition] = Head(at, EPOCH_MS)
        marks = {partition: Watermarks(0, head.offset) for partition, head in heads.items()}
        name = f"id-{generation}"
        former = tuple(f"id-{before}" for before in range(generation))
        steps.append(
            PlanStep(generation, TOPIC, generation, name, EPOCH_MS, {}, marks, tuple(links), heads, "", former)
        )
    published = {offsets: m.file.bytes for offsets, m in manifests.items() if m.file}
    return Lake(PlanLog(TOPIC, tuple(steps)), manifests, published)


STATES = ["landed"] * 8 + ["empty", "pending", "lost"]
PIECES = st.builds(
    Piece, st.sampled_from(STATES), st.sampled_from([-500, 1, 10, 30, 50, 99, 100, 250]), st.integers(1, 2)
)
PARTITIONS = st.lists(st.lists(PIECES, max_size=14), min_size=1, max_size=2)


def sized_lakes() -> st.SearchStrategy[Lake]:
    """Draws a lake with long stretches of landed ranges that weigh from next to nothing to more than the target."""
    return st.lists(PARTITIONS, min_size=1, max_size=2).map(lambda drawn: lake_of(*drawn))


def seal_of(plan: SealPlan, target_bytes: int = TARGET) -> Seal:
    """Is the seal that carrying out a plan commits."""
    present = [
        o for manifest in plan.manifests if manifest.rows for o in range(manifest.offsets.start, manifest.offsets.end)
    ]
    file = staged_file(plan.offsets, present)
    assert file is not None
    provenance = SealProvenance("attempt-9", "run-9", "0.1.0+abc", "spark", EPOCH_MS, 0.5)
    return Seal(TOPIC, plan.offsets, plan.originals, file, provenance, target_bytes, plan.revision, {"offset": "int64"})


def seal_all(lake: Lake, seals: Sequence[Seal] = (), *, every: bool = False, target_bytes: int = TARGET) -> list[Seal]:
    """Carries out what is planned; returns all seals there are then."""
    plans = plan_seals(lake.coverage, seals, seals, target_bytes, every=every)
    return [*seals, *(seal_of(plan, target_bytes) for plan in plans)]


def stretches(coverage: Coverage) -> list[list[Manifest]]:
    """Is the model: the landed ranges in offset order, cut where one is not landed."""
    found: list[list[Manifest]] = []
    before: OffsetRange | None = None
    for offsets in sorted(o for o, state in coverage.states().items() if state is State.LANDED):
        place = (offsets.generation, offsets.partition, offsets.start)
        if before is None or place != (before.generation, before.partition, before.end):
            found.append([])
        found[-1].append(coverage.manifests[offsets])
        before = offsets
    return found


def weight(manifests: Iterable[Manifest]) -> int:
    return sum(Original.of(manifest).weight_bytes for manifest in manifests)


@given(sized_lakes(), st.booleans())
def test_what_is_sealed_is_landed_contiguous_and_disjoint(lake: Lake, every: bool) -> None:
    """[R-61] Never across what is pending, lost or skipped, nor from one Kafka partition or generation to another."""
    stretch_of = {m.offsets: n for n, stretch in enumerate(stretches(lake.coverage)) for m in stretch}
    taken: set[OffsetRange] = set()
    for plan in plan_seals(lake.coverage, [], [], TARGET, every=every):
        ranges = [manifest.offsets for manifest in plan.manifests]
        assert taken.isdisjoint(ranges)
        taken.update(ranges)
        assert len({stretch_of[offsets] for offsets in ranges}) == 1
        assert seal_of(plan).ranges == tuple(ranges), "they tile, else such a seal could not be built"
        assert sum(1 for manifest in plan.manifests if manifest.rows) > 1


@given(sized_lakes())
def test_files_are_as_few_as_their_bytes_allow(lake: Lake) -> None:
    """[R-61] AC23: for B bytes at most ceil(B / target) + 1 files; all but the last of a stretch weigh the target."""
    plans = plan_seals(lake.coverage, [], [], TARGET, every=True)
    sealed = {manifest.offsets: plan for plan in plans for manifest in plan.manifests}
    for stretch in stretches(lake.coverage):
        files = {sealed[m.offsets].offsets if m.offsets in sealed else m.offsets for m in stretch if m.rows}
        assert len(files) <= -(-weight(stretch) // TARGET) + 1
        merged = [plan for plan in plans if plan.manifests[0] in stretch]
        assert all(weight(plan.manifests) >= TARGET for plan in merged if plan.manifests[-1] != stretch[-1])
        assert all(weight(plan.manifests[:-1]) < TARGET for plan in merged), "nor is one larger than it takes"


@given(sized_lakes())
def test_the_open_tail_waits_until_it_weighs_enough(lake: Lake) -> None:
    """[R-61] What may still grow is not sealed unless asked; what is closed is."""
    log = lake.log
    for plan in plan_seals(lake.coverage, [], [], TARGET):
        last = plan.manifests[-1].offsets
        links = [
            link.offsets
            for link in log.links
            if (link.offsets.generation, link.offsets.partition) == (last.generation, last.partition)
        ]
        behind = [lake.coverage.states()[offsets] for offsets in links if offsets.start == last.end]
        may_grow = State.PENDING in behind or (not behind and last.generation == log.generation)
        assert weight(plan.manifests) >= TARGET or not may_grow


@pytest.mark.parametrize(
    ("behind", "is_sealed"),
    [([], False), ([Piece("pending")], False), ([Piece("lost")], True), ([Piece("landed", 100)], True)],
)
def test_a_small_stretch_is_sealed_where_nothing_can_land_behind_it(behind: list[Piece], is_sealed: bool) -> None:
    """[R-61] Two small ranges at the end, before a pending one, before a lost one, and before one that makes them enough."""
    lake = lake_of([[Piece("landed"), Piece("landed"), *behind]])
    assert bool(plan_seals(lake.coverage, [], [], TARGET)) == is_sealed
    assert plan_seals(lake.coverage, [], [], TARGET, every=True)
    closed = lake_of([[Piece("landed"), Piece("landed"), *behind]], [[Piece("landed")]])
    assert plan_seals(closed.coverage, [], [], TARGET), "nothing lands in a generation that is closed"


@given(sized_lakes(), st.booleans(), st.integers(1, 400))
def test_sealing_again_seals_nothing(lake: Lake, every: bool, later_target: int) -> None:
    """[R-61] Nor does another target unseal what weighed enough when it was sealed."""
    seals = seal_all(lake, every=every)
    assert seal_all(lake, seals, every=every) == seals
    full = [seal for seal in seals if seal.weight_bytes >= TARGET]
    again = plan_seals(lake.coverage, seals, seals, later_target, every=every)
    assert {o for seal in full for o in seal.ranges}.isdisjoint(m.offsets for plan in again for m in plan.manifests)


@given(sized_lakes(), st.data())
def test_sealing_early_and_late_comes_to_the_same_files(lake: Lake, data: st.DataObject) -> None:
    """[R-61] Even where everything was sealed at each moment: a small seal at the end is taken up by a larger one."""
    generation = lake.log.generation
    landed = sorted(o for o in lake.manifests if o.generation == generation)
    heads = {p: data.draw(st.integers(0, 20)) for p in sorted({o.partition for o in landed})}
    early = {
        o: lake.manifests[o] for p, n in heads.items() for o in [each for each in landed if each.partition == p][:n]
    }
    before = Lake(lake.log, early, {o: size for o, size in lake.published.items() if o in early})
    seals = seal_all(lake, seal_all(before, every=data.draw(st.booleans())))
    used = {seal.offsets for seal in choose_seals(lake.coverage, seals)}
    at_once = [seal for seal in seal_all(lake) if seal.offsets.generation == generation]
    assert {seal.offsets for seal in at_once if seal.weight_bytes >= TARGET} <= used


@st.composite
def sealed_lakes(draw: st.DrawFn) -> tuple[Lake, list[Seal]]:
    """Draws any seals of a lake, overlapping as they like, and has some of its ranges be replaced afterwards."""
    lake = draw(sized_lakes())
    seals = []
    for stretch in stretches(lake.coverage):
        for _ in range(draw(st.integers(0, 4))):
            first = draw(st.integers(0, len(stretch) - 1))
            last = draw(st.integers(first, len(stretch) - 1))
            plan = SealPlan(tuple(stretch[first : last + 1]), draw(st.integers(0, 2)))
            if plan.rows:
                seals.append(seal_of(plan))
    replaced = draw(st.sets(st.sampled_from(sorted(lake.published)), max_size=2)) if lake.published else set()
    manifests = dict(lake.manifests)
    for offsets in replaced:
        file = manifests[offsets].file
        assert file is not None
        manifests[offsets] = replace(manifests[offsets], revision=1, file=replace(file, sha256="cd" * 32))
    return replace(lake, manifests=manifests), list({(s.offsets, s.revision): s for s in seals}.values())


@given(sealed_lakes(), st.randoms())
def test_of_seals_that_overlap_one_is_used_and_of_replaced_ranges_none(
    drawn: tuple[Lake, list[Seal]], order: object
) -> None:
    """[R-62] Each landed range is read once: from one sealed file or from its own; in whatever order seals are listed."""
    lake, seals = drawn
    used = choose_seals(lake.coverage, seals)
    ranges = [offsets for seal in used for offsets in seal.ranges]
    assert len(ranges) == len(set(ranges))
    assert all(lake.manifests[offsets].revision == 0 for offsets in ranges)
    unused = [seal for seal in seals if seal not in used and is_current(seal, lake.coverage)]
    assert all(not set(ranges).isdisjoint(seal.ranges) for seal in unused), "what is free and current is used"
    shuffled = list(seals)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_seals(lake.coverage, shuffled) == used


@given(sealed_lakes())
def test_what_nobody_reads_is_found_with_since_when(drawn: tuple[Lake, list[Seal]]) -> None:
    """[R-65] All but what is used, and what alone has rows that `data/` has not; not before something took its place."""
    lake, seals = drawn
    later = [replace(s, provenance=replace(s.provenance, sealed_at_ms=EPOCH_MS + n)) for n, s in enumerate(seals)]
    used, found = choose_seals(lake.coverage, later), find_superseded(lake.coverage, later)
    pairs = [pair for seal in used for pair in zip(seal.ranges, seal.originals, strict=True)]
    read = {(offsets, original.revision) for offsets, original in pairs}

    def is_alone(seal: Seal) -> bool:
        return any(
            (offsets, original.revision) not in read
            and original.revision == lake.manifests[offsets].revision
            and original.rows > 0
            and not lake.coverage.is_landed(offsets)
            for offsets, original in zip(seal.ranges, seal.originals, strict=True)
        )

    assert [seal for seal in later if seal not in used and not is_alone(seal)] == [each.seal for each in found]
    for each in found:
        over = [other for other in later if not set(other.ranges).isdisjoint(each.seal.ranges)]
        assert each.since_ms == max(other.provenance.sealed_at_ms for other in over)


@given(sized_lakes(), st.data())
def test_a_replaced_range_makes_its_seal_stale_and_the_next_revision_due(lake: Lake, data: st.DataObject) -> None:
    """[R-62] The same offsets are sealed again, under the next name; the others stay."""
    seals = seal_all(lake)
    assume(seals)
    stale = data.draw(st.sampled_from(seals))
    offsets = data.draw(st.sampled_from([o for o in stale.ranges if lake.manifests[o].rows]))
    newer = replace(lake.manifests[offsets], revision=1)
    now = replace(lake, manifests={**lake.manifests, offsets: newer})
    assert stale not in choose_seals(now.coverage, seals)
    (plan,) = plan_seals(now.coverage, seals, seals, TARGET)
    assert (plan.offsets, plan.revision) == (stale.offsets, 1)
    used = choose_seals(now.coverage, [*seals, seal_of(plan)])
    assert {seal.offsets: seal.revision for seal in used} == {**{s.offsets: 0 for s in seals}, stale.offsets: 1}


@given(sized_lakes())
def test_a_range_that_is_not_landed_any_more_makes_its_seal_stale(lake: Lake) -> None:
    """[R-62] Between the commit of a replace and its exchange, say; readers take the range's own file."""
    seals = seal_all(lake)
    assume(seals)
    gone = next(o for o in seals[0].ranges if lake.manifests[o].rows)
    unfinished = replace(lake.coverage, unfinished=frozenset({gone}))
    assert seals[0] not in choose_seals(unfinished, seals)


@given(sized_lakes())
def test_a_seal_reads_back_as_it_was_written(lake: Lake) -> None:
    """[R-61] And one whose ranges do not tile, or whose rows are not theirs, cannot be."""
    for seal in seal_all(lake, every=True):
        assert Seal.from_json(seal.to_json(), "x") == seal
        with pytest.raises(BrokenManifest, match="do not tile"):
            replace(seal, originals=seal.originals[1:])
        with pytest.raises(BrokenManifest, match="those of its ranges"):
            replace(seal, file=replace(seal.file, rows=seal.file.rows + 1))
        with pytest.raises(BrokenManifest, match="cannot be read"):
            Seal.from_json(seal.to_json().replace(b'"format": 1', b'"format": 2'), "x")


@given(sized_lakes())
def test_columns_that_change_end_a_sealed_file(lake: Lake) -> None:
    """[R-61] An older Offsetlake wrote other columns: a file has one schema."""
    landed = sorted(o for o in lake.manifests if lake.manifests[o].rows)
    schemas = {o: {"offset": "int64", **({"more": "string"} if n % 3 == 0 else {})} for n, o in enumerate(landed)}
    manifests = {o: replace(m, schema=schemas.get(o, {})) for o, m in lake.manifests.items()}
    mixed = replace(lake, manifests=manifests)
    for plan in plan_seals(mixed.coverage, [], [], TARGET, every=True):
        assert len({tuple(m.schema) for m in plan.manifests if m.rows}) == 1


@given(sized_lakes())
def test_a_staged_file_that_is_not_its_ranges_is_refused(lake: Lake) -> None:
    """[R-61] Rows missing, doubled, out of order, outside, or otherwise: each is named."""
    for plan in plan_seals(lake.coverage, [], [], TARGET, every=True):
        file = seal_of(plan).file
        runs = [(m.offsets.start, m.offsets.end) for m in plan.manifests if m.rows]
        assert verify_sealed(TOPIC, plan, file, runs, None) == []
        assert verify_sealed(TOPIC, plan, file, runs, "column key differs")
        assert verify_sealed(TOPIC, plan, replace(file, rows=file.rows - 1), runs, None)
        assert verify_sealed(TOPIC, plan, file, runs[1:], None)
        assert verify_sealed(TOPIC, plan, file, [*runs, runs[0]], None)
        assert verify_sealed(TOPIC, plan, file, [*runs[1:], runs[0]], None)
        beyond = [(start + len(plan.offsets), end + len(plan.offsets)) for start, end in runs]
        assert verify_sealed(TOPIC, plan, file, beyond, None)
