"""SIGKILL at every step of decoding: the half-done state is proven, and a restart decodes every landed row once.

The control is the last step: the same child, killed when it has told all.
"""

from __future__ import annotations

import dataclasses

import pytest

from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.orchestration.home.dead_runs import end_dead_runs
from pipeline_defs.orchestration.pulse.ticking import run_derive_tick
from tests.support.decoded import shown_places
from tests.support.killing import everywhere, stopped_at
from tests.support.world import World

STEPS: dict[str, tuple[int, bool, bool | None]] = {
    # step -> (ranges that are decoded, whether the lake has anything staged: on a disk, in a bucket) when the process dies
    # there; of ranges that are verified side by side the others may be in the bucket already
    "find_landed": (0, False, False),
    "read_landed": (0, False, False),
    "stage_decoded": (0, True, False),
    "verify_decoded": (0, True, None),
    "place_decoded": (0, True, True),
    "commit_decoded": (3, True, True),
    "reported_decoded": (3, True, True),
}
POISONED = [(0, 7), (0, 120), (1, 30)]


@pytest.fixture
def poisoned(placed: World) -> World:
    """Is a topic with three landed ranges, a poison record in each."""
    world = placed
    world.derive("id INT")
    world.create_topic(2)
    for partition, count in ((0, 150), (1, 60)):
        world.send(
            {"partition": partition, "value": b'{"id": 0.5}' if (partition, n) in POISONED else b'{"id": %d}' % n}
            for n in range(count)
        )
    world.plan_and_land()
    return world


def seen(world: World, *, is_dead: bool = False) -> list[tuple[int, int]]:
    return shown_places(world.edges.lake, world.name, is_dead=is_dead)


def restart(world: World) -> None:
    """Ticks, and runs what the tick asks for: the dead run is failed first, and its back-off waited for."""
    late = dataclasses.replace(world.edges)
    late.now_ms = lambda: world.edges.now_ms() + 60_000
    end_dead_runs(world.instance, late.now_ms())
    tick = run_derive_tick(world.topic, world.instance, late)
    for launched in world.in_process.decode(tick.due, redo=False):
        assert launched.succeeded, launched.reason


QUICK = [("disk", "place_decoded"), ("bucket", "place_decoded")]  # in make test; the others in make test-long


@pytest.mark.parametrize(("placed", "step"), everywhere(STEPS, QUICK), indirect=["placed"])
def test_decoding_killed_at_any_step_ends_with_every_row_in_one_place(poisoned: World, step: str) -> None:
    """[R-68] After SIGKILL each landed row is decoded or a dead letter, once; redone it is the same; no lock to clean."""
    ranges, *is_staged = STEPS[step]
    store = poisoned.edges.lake.store
    expected = is_staged[store.is_remote]
    with stopped_at(poisoned, "decode", step):
        assert len(poisoned.decodings) == ranges
        assert expected in {None, any(path.endswith(".parquet") for path in store.list("staging"))}
        assert len(seen(poisoned)) + len(seen(poisoned, is_dead=True)) == (len(poisoned.sent) if ranges else 0)
    restart(poisoned)
    assert seen(poisoned, is_dead=True) == POISONED
    assert seen(poisoned) == sorted({*poisoned.sent} - {*POISONED})
    again = poisoned.decode([offsets.key for offsets in poisoned.decodings], redo=True)
    assert {verdict.outcome for verdict in again} == {Decided.UNCHANGED}


@pytest.mark.parametrize(
    ("placed", "step"),
    everywhere(["place_decoded", "commit_decoded"], [("disk", "place_decoded"), ("disk", "commit_decoded")]),
    indirect=["placed"],
)
def test_a_mended_decoding_killed_at_its_commit_shows_each_row_once(poisoned: World, step: str) -> None:
    """[R-68] [R-69] Before it each row is where it was, after it where it is now: never nowhere, never twice."""
    poisoned.decode()
    poisoned.derive("id DOUBLE")
    with stopped_at(poisoned, "decode_again", step):
        rows, letters = seen(poisoned), seen(poisoned, is_dead=True)
        assert sorted([*rows, *letters]) == sorted(poisoned.sent)
        assert letters == (POISONED if step == "place_decoded" else []), "the control"
    assert {verdict.outcome for verdict in poisoned.decode([o.key for o in poisoned.decodings], redo=True)} == {
        Decided.REPLACED if step == "place_decoded" else Decided.UNCHANGED
    }
    assert (seen(poisoned), seen(poisoned, is_dead=True)) == (sorted(poisoned.sent), [])
