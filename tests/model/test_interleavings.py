"""Two writers of one range, handed over at each call of the store; one that dies there, or whose answer is lost.

A few of all the ways, always the same; `HUNT=3000` draws 3,000 of them at random, each time others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake.layout import published_path
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.landing.auditing import check_table
from tests.support.fake_log import TOPIC
from tests.support.interleaving import FAULTS, SmallWorld, Writer, assert_all_is_in_order, drawing, hand_over, strike
from tests.support.strategies import EPOCH_MS

KINDS = ["disk", "bucket"]
STARTS = ["planned", "committed", "landed", "compacted", "lost", "damaged"]
ACTS = ["land", "redo", "replace", "sweep"]
DELIVERIES = [Delivery.EFFECTIVELY_ONCE] * 3 + [Delivery.AT_LEAST_ONCE] * 2
TABLES = [False, True]
MOST_CALLS, MOST_WRITES = 60, 8  # of a writer of one range: of few it makes more
draw = drawing(7, 60)
pytestmark = pytest.mark.usefixtures("watched")


def make(folder: Path, kind: str, start: str, delivery: Delivery, has_raw_table: bool) -> SmallWorld:
    """Is a topic with one range, landed so far as `start` says."""
    world = SmallWorld(folder, kind, records=4, grid=4)
    world.delivery = delivery
    world.has_raw_table = has_raw_table
    if start == "planned":
        return world
    if start == "committed":
        world.die("commit")
        return world
    world.land()
    if start in {"compacted", "lost", "damaged"}:
        world.kafka.compact(100)
        assert world.in_kafka() == {0, 1, 3}
    if start in {"lost", "damaged"}:
        path = published_path(world.first)
        data = world.files()[path]
        world.lake.store.delete_folder(path)
    if start == "damaged":
        world.lake.store.put_new(path, first_row_of(data), "staging/careless")
    return world


def first_row_of(data: bytes) -> bytes:
    """Is a whole Parquet file, and not the one that was landed."""
    out = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(data)).slice(0, 1), out)
    return bytes(out.getvalue())


def act(world: SmallWorld, name: str, writer: Writer) -> None:
    """Does what a writer does, and holds it to what it says."""
    lake = world.open(writer)
    if name == "sweep":
        world.sweep(lake)
        return

    def believe(verdict: Verdict) -> None:
        now = world.open(Writer()).coverage(TOPIC)
        if verdict.outcome.is_landed:
            assert now.is_landed(verdict.offsets), verdict
            assert verdict.outcome is Outcome.ALREADY_LANDED or verdict.manifest == now.manifests[verdict.offsets]

    world.land(name, lake, on_verdict=believe)


def assert_nothing_is_twice(world: SmallWorld) -> None:
    """Also in the table, whose every file is there, as it was added."""
    assert max(world.in_table().values(), default=1) == 1
    assert world.delivery is Delivery.AT_LEAST_ONCE or max(world.shown().values(), default=1) == 1


def assert_ends_well(world: SmallWorld, *, was_replaced: bool, kept: Collection[int] = ()) -> None:
    """Show what is to be kept and Kafka has, then land what is pending, undisturbed.

    Where Kafka has other rows than were landed, a person's replace decides.
    """
    world.lake = world.open(Writer())
    assert {*world.shown()} >= {*kept} & world.in_kafka()
    assert_nothing_is_twice(world)
    world.land()
    if world.coverage.pending():
        world.land("replace")
    assert_all_is_in_order(world.lake)
    shown = world.shown()
    assert world.in_kafka() <= set(shown) <= {0, 1, 2, 3}
    if world.delivery is not Delivery.AT_LEAST_ONCE:
        assert max(shown.values()) == 1
    if was_replaced:
        world.land("replace")
        assert world.shown() == dict.fromkeys(world.in_kafka(), 1)
    if world.has_raw_table:
        append_landed(TOPIC, world.lake, lambda: EPOCH_MS)  # as the next tick does
        assert check_table(TOPIC, world.lake).violations == ()
        assert world.in_table() == world.landed()


def test_two_writers_who_hand_over_anywhere_leave_what_each_row_needs(begin: Callable[..., SmallWorld]) -> None:
    """[R-17] [R-25] [R-48] [R-81] Each verdict is true when given; then each row is shown once, and the audit is green."""
    calls = range(MOST_CALLS)
    handed_over = 0
    drawn = draw(KINDS, STARTS, ACTS, ACTS, calls, calls, TABLES)
    for kind, start, one, other, first, second, has_raw_table in drawn:
        world = begin(kind, start, Delivery.EFFECTIVELY_ONCE, has_raw_table)
        acts = partial(act, world, one), partial(act, world, other)
        check = partial(assert_ends_well, world, was_replaced="replace" in {one, other})
        handed_over += hand_over(*acts, first, second, check, f"{kind}, {start}: {one}, {other}")
    assert handed_over > len(drawn) // 10, "the control: some do hand over"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_writer_that_dies_or_gets_no_answer_anywhere_is_made_good(begin: Callable[..., SmallWorld], fault: str) -> None:
    """[R-18] [R-47] [R-81] Of landing and replacing, at each call: what was shown is shown, and the next run ends it well."""
    struck = 0
    drawn = draw(KINDS, STARTS, ["land", "replace"], DELIVERIES, range(MOST_CALLS if fault == "dies" else MOST_WRITES), TABLES)
    for kind, start, name, delivery, number, has_raw_table in drawn:
        world = begin(kind, start, delivery, has_raw_table)
        kept = set() if start in {"lost", "damaged"} else {*world.shown()}
        check = partial(assert_ends_well, world, was_replaced=name == "replace", kept=kept)
        struck += strike(partial(act, world, name), fault, number, check, f"{kind}, {start}, {delivery}: {name}")
    assert struck > len(drawn) // 20, "the control: some are struck"
