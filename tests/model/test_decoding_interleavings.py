"""Who decodes a topic, decodes it again, compacts, vacuums or replaces, handed over at each call of the store, or struck there.

A few of all the ways, always the same; `HUNT=1000` draws 1,000 of them at random, each time others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pipeline_defs.adapters.tables.decodings import Decodings, decoded_table_log
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoding import Decided, completeness_of
from pipeline_defs.landing.appending import try_append
from pipeline_defs.tables.vacuum import vacuum
from tests.support.compacting import compact_decoded
from tests.support.fake_log import TOPIC
from tests.support.interleaving import FAULTS, SmallWorld, Writer, drawing, hand_over, strike
from tests.support.redecoding import OffsetDecoder, decode_by, decode_due
from tests.support.strategies import EPOCH_MS

KINDS = ["disk", "bucket"]
STARTS = ["landed", "decoded", "half decoded", "compacted"]
ACTS = ["decode", "mend", "compact", "replace", "land", "vacuum"]
MOST_CALLS, MOST_WRITES = 60, 14
draw = drawing(12, 20)
OLD = OffsetDecoder("id BIGINT")
MENDED = OffsetDecoder("id BIGINT NOT NULL", is_mended=True)
pytestmark = pytest.mark.usefixtures("watched")


def make(folder: Path, kind: str, start: str) -> SmallWorld:
    """Return a topic of three landed ranges of two rows, decoded so far as `start` says, and a fourth that is not landed.

    Kafka has one row less of the second range than was landed.
    """
    world = SmallWorld(folder, kind, records=6, grid=2)
    world.land()
    if start != "landed":
        ranges = list(world.coverage.log.ranges)
        decode_by(OLD, world.lake, ranges[:2] if start == "half decoded" else ranges)
    if start == "compacted":
        compact_decoded(world.lake, TOPIC)
    world.lose_a_row(2)
    world.grow(2)
    return world


def act(world: SmallWorld, name: str, writer: Writer) -> None:
    lake = world.open(writer)
    if name == "decode":
        decode_due(OLD, lake)
    elif name == "mend":
        coverage = lake.coverage(TOPIC)
        landed = [offsets for offsets in coverage.log.ranges if coverage.is_landed(offsets)]
        decode_by(MENDED, lake, landed, redo=True)
    elif name == "compact":
        compact_decoded(lake, TOPIC)
    elif name == "vacuum":
        vacuum(lake, EPOCH_MS + 8 * 24 * 3_600_000)
    else:
        world.land(name, lake)


def in_table(world: SmallWorld) -> Counter[int]:
    return world.in_table(decoded_table_log(TOPIC, world.open(Writer())))


def assert_ends_well(world: SmallWorld, before: set[int]) -> None:
    """No row is twice, none that was decoded is gone but those of a replaced range, and the next run does the rest."""
    found = in_table(world)
    assert max(found.values(), default=1) == 1
    assert before - {2} <= found.keys() or any(each.revision for each in world.coverage.manifests.values())
    world.lake = world.open(Writer())
    world.land()
    decode_due(OLD, world.lake)
    lake = world.open(Writer())
    assert {each.outcome for each in compact_decoded(lake, TOPIC)} <= {CompactionOutcome.COMPACTED}
    assert len(decoded_table_log(TOPIC, lake).read().files) <= 2
    coverage, decodings = lake.coverage(TOPIC), Decodings(lake).read_ranges(TOPIC)
    assert decodings.find_due(coverage) == [] and Decodings(lake).find_lacking(decodings) == []
    assert completeness_of(TOPIC, coverage.manifests, decodings.known) == []
    assert in_table(world) == world.landed()


def test_two_who_decode_hand_over_anywhere(begin: Callable[..., SmallWorld]) -> None:
    """[R-68] [R-69] Two decoders, of one mind or of two, one beside a landing or a replace: each row once, always."""
    calls, handed_over = range(MOST_CALLS), 0
    drawn = draw(KINDS, STARTS, ACTS, ACTS, calls, calls)
    for kind, start, one, other, first, second in drawn:
        world = begin(kind, start)
        acts = partial(act, world, one), partial(act, world, other)
        check = partial(assert_ends_well, world, {*in_table(world)})
        handed_over += hand_over(*acts, first, second, check, f"{kind}, {start}: {one}, {other}")
    assert handed_over > len(drawn) // 10, "the control: some do hand over"


@pytest.mark.parametrize("fault", FAULTS)
def test_one_who_decodes_is_struck_anywhere(begin: Callable[..., SmallWorld], fault: str) -> None:
    """[R-68] [R-69] At each call of the store: each row is once, and who comes next ends it well."""
    struck = 0
    numbers = range(MOST_CALLS if fault == "dies" else MOST_WRITES)
    drawn = draw(KINDS, STARTS, ["decode", "mend", "compact"], numbers)
    for kind, start, name, number in drawn:
        world = begin(kind, start)
        check = partial(assert_ends_well, world, {*in_table(world)})
        struck += strike(partial(act, world, name), fault, number, check, f"{kind}, {start}: {name}")
    assert struck > len(drawn) // 20, "the control: some are struck"


def files_beside_tables(world: SmallWorld) -> set[str]:
    return {path for tree in ("plan", "manifests", "data", "begun") for path in world.lake.store.list(f"{tree}/{TOPIC}")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("records", [1, 4])
def test_tables_that_are_newer_than_the_plan_log_double_nothing_and_say_what_to_do(
    tmp_path: Path, kind: str, records: int
) -> None:
    """[R-67] [R-81] As in a backup that was copied while runs were at work: what was planned anew has other boundaries."""
    world = SmallWorld(tmp_path / "lake", kind, records=6, grid=2)
    world.has_raw_table = True
    world.land()
    decode_due(OLD, world.lake)
    kept = files_beside_tables(world)
    world.grow(records - records // 2)
    world.grow(records // 2)
    world.land()
    decode_due(OLD, world.lake)
    for path in files_beside_tables(world) - kept:
        world.lake.store.delete_folder(path)
    world.lake = world.open(Writer())
    world.policy = replace(world.policy, records_per_range=3)
    world.grow(8)
    ranges = list(world.coverage.log.ranges)
    world.land()
    refused = decode_by(OLD, world.lake, ranges)
    why = try_append(TOPIC, world.lake, lambda: EPOCH_MS)
    assert why is not None and "in its place, which no plan step has" in why
    said = [each.violations for each in refused if each.outcome is Decided.FAILED]
    assert said and all("away, and all ranges are decoded again" in each for (each,) in said)
    assert max(in_table(world).values()) == max(world.in_table().values()) == 1
    assert {*range(ranges[-1].start, ranges[-1].end)} <= in_table(world).keys(), "one range keeps no other from being decoded"
    for folder in (f"tables/raw/{TOPIC}", f"tables/decoded/{TOPIC}"):
        world.lake.store.delete_folder(folder)
    world.lake = world.open(Writer())
    decode_due(OLD, world.lake)
    assert try_append(TOPIC, world.lake, lambda: EPOCH_MS) is None
    assert in_table(world) == world.in_table() == world.landed()
