"""Who compacts a raw table, drops range files, lands or replaces, handed over at each call of the store, or struck there.

A few of all the ways, always the same; `HUNT=1000` draws 1,000 of them at random, each time others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.tables.vacuum import vacuum
from tests.support.fake_log import TOPIC
from tests.support.interleaving import FAULTS, Glob, SmallWorld, Writer, assert_all_is_in_order, drawing, hand_over, strike
from tests.support.strategies import EPOCH_MS

KINDS = ["disk", "bucket"]
STARTS = ["landed", "compacted", "half compacted", "half dropped", "dropped"]
ACTS = ["compact", "drop", "replace", "land", "vacuum", "land, compact, drop", "drop, replace, compact, drop"]
MOST_CALLS, MOST_WRITES = 60, 10
TO_ITS_END = 10_000
draw = drawing(11, 20)
pytestmark = pytest.mark.usefixtures("watched")


def make(folder: Path, kind: str, start: str) -> SmallWorld:
    """Return a topic of three landed ranges of two rows, so far as `start` says, and a fourth that is not landed yet.

    Kafka has one row less of the second range than was landed.
    """
    world = SmallWorld(folder, kind, records=6, grid=2)
    world.has_raw_table = True
    if start in {"landed", "compacted", "dropped"}:
        world.land()
    if start in {"compacted", "dropped"}:
        world.compact()
    if start == "dropped":
        world.drop()
    if start.startswith("half"):
        first, second, third = world.coverage.pending()
        world.land(only=first)
        world.land(only=second)
        world.compact()
        if start == "half dropped":
            world.drop()
        world.land(only=third)
    world.lose_a_row(2)
    world.grow(2)
    assert world.in_kafka() == {0, 1, 3, 4, 5, 6, 7}
    return world


def act(world: SmallWorld, names: str, writer: Writer) -> None:
    """Do one after the other; on a disk it may end at a lock with which the other writer stands still."""
    lake = world.open(writer)
    does = {"compact": world.compact, "drop": world.drop, "vacuum": vacuum_later}
    try:
        for name in names.split(", "):
            does.get(name, partial(world.land, name))(lake)
    except LakeUnavailable as error:
        if world.bucket is not None or "holds the lock" not in str(error):
            raise


def vacuum_later(lake: Lake) -> None:
    vacuum(lake, EPOCH_MS + 8 * 24 * 3_600_000)


def assert_nothing_is_twice_or_missing(world: SmallWorld) -> None:
    """At any moment: each landed row stands somewhere, a version has none twice, and a glob none twice."""
    assert max(world.in_table().values(), default=1) == 1
    assert max(world.shown().values(), default=1) == 1
    assert max(world.standing().values()) == 1
    assert {0, 1, 3, 4, 5} <= {*world.in_table(), *world.shown()}
    if world.bucket is None:
        found = Duck(Lake(str(world.folder)), [TOPIC]).query(f'SELECT "offset" FROM "{TOPIC}"')[1]
        offsets = [offset for (offset,) in found]
        assert {0, 1, 3, 4, 5} <= set(offsets) and len(offsets) == len(set(offsets)), "a view shows each once"


def assert_ends_well(world: SmallWorld, glob: Glob) -> None:
    """Does all of it once more, undisturbed."""
    assert glob.wrong == []
    world.lake = world.open(Writer())
    assert_nothing_is_twice_or_missing(world)
    world.land()
    append_landed(TOPIC, world.lake, lambda: EPOCH_MS)  # as the next tick does
    assert_all_is_in_order(world.lake)
    assert check_table(TOPIC, world.lake).violations == ()
    world.compact()
    world.drop()
    vacuum_later(world.lake)
    world.land("replace")
    assert world.standing() == world.in_table() == dict.fromkeys(world.in_kafka(), 1)
    assert_nothing_is_twice_or_missing(world)


def test_two_who_change_a_table_hand_over_anywhere(begin: Callable[..., SmallWorld]) -> None:
    """[R-62] [R-63] [R-73] Two compactors, one beside a replace, a drop, a landing or a vacuum: each row once, always."""
    calls, handed_over = range(MOST_CALLS), 0
    seconds = [*calls, *[TO_ITS_END] * (MOST_CALLS // 2)]  # so that the first stood still for all the other did
    drawn = draw(KINDS, STARTS, ACTS, ACTS, calls, seconds)
    for kind, start, one, other, first, second in drawn:
        world = begin(kind, start)
        glob = Glob(world)
        acts = partial(act, world, one), partial(act, world, other)
        check, told = partial(assert_ends_well, world, glob), f"{kind}, {start}: {one}, {other}"
        handed_over += hand_over(*acts, first, second, check, told, glob.look)
    assert handed_over > len(drawn) // 10, "the control: some do hand over"


@pytest.mark.parametrize("fault", FAULTS)
def test_one_who_changes_a_table_is_struck_anywhere(begin: Callable[..., SmallWorld], fault: str) -> None:
    """[R-62] [R-63] [R-73] At each call of the store: each row is there once, and who comes next ends it well."""
    struck = 0
    numbers = range(MOST_CALLS if fault == "dies" else MOST_WRITES)
    drawn = draw(KINDS, STARTS, ACTS, numbers)
    for kind, start, name, number in drawn:
        world = begin(kind, start)
        glob = Glob(world)
        check, told = partial(assert_ends_well, world, glob), f"{kind}, {start}: {name}"
        struck += strike(partial(act, world, name), fault, number, check, told, glob.look)
    assert struck > len(drawn) // 20, "the control: some are struck"
