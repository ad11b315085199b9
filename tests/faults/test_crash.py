"""SIGKILL at every step: a real child dies there, the half-done state is proven, and a restart has every offset once.

Landed, decoded, and under each delivery policy. Ground truth is what the producer sent. The control is the last step: the same
child, killed when it has told all. What else may happen between commit and publish is in `tests/model/test_published_files.py`.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterRunStatus

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.losses import ABANDONED
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.lab.drills.systems import KILLS, OURS
from pipeline_defs.landing.auditing import check_tiling
from pipeline_defs.orchestration.home.dead_runs import end_dead_runs
from pipeline_defs.orchestration.pulse.ticking import run_derive_tick
from pipeline_defs.orchestration.runs.ledger import accept_loss, read_ledger
from pipeline_defs.topics import NOTHING_LOST
from tests.support.decoded import shown_places
from tests.support.killing import everywhere, stopped_at
from tests.support.markdown import read_table
from tests.support.world import World

DELIVERY = (PROJECT / "docs" / "delivery.md").read_text()
State = dict[str, int]


def lake_state(world: World) -> State:
    """Count what the lake has: plan steps, manifests, published and staged Parquet files."""
    count: Callable[[str], int] = lambda pattern: len(list(world.lake_folder.glob(pattern)))  # noqa: E731
    return {
        "steps": count("plan/**/*.json"),
        "manifests": count("manifests/**/*.json"),
        "published": count("data/**/*.parquet"),
        "staged": count("staging/**/*.parquet"),
    }


TICK_STEPS: dict[str, tuple[int, int]] = {
    # step -> (plan steps in the lake, keys in Dagster) when the process dies there
    "plan_decided": (0, 0),
    "plan_committed": (1, 0),
    "keys_registered": (1, 3),
    "tick_requested": (1, 3),
}


@pytest.mark.parametrize("step", TICK_STEPS)
def test_a_tick_killed_at_any_step_is_made_good_by_the_next(world: World, step: str) -> None:
    """[R-1] Nothing is lost or doubled when the planner dies before, between or after its writes."""
    world.fill(150, 60)
    world.with_policy(max_age_seconds=0)
    with stopped_at(world, "tick", step):
        steps, keys = TICK_STEPS[step]
        assert lake_state(world)["steps"] == steps
        assert len(world.keys) == keys
    tick = world.tick()
    assert sorted(o.key for o in tick.due) == ["0-0-100", "0-100-150", "1-0-60"]
    assert lake_state(world)["steps"] == 1
    world.launch()
    world.assert_all_landed_once()


LAND_STEPS: dict[str, State] = {
    "find": {"manifests": 0, "published": 0, "staged": 0},
    "scan": {"manifests": 0, "published": 0, "staged": 0},
    "stage": {"manifests": 0, "published": 0, "staged": 2},
    "verify": {"manifests": 0, "published": 0, "staged": 2},
    "commit": {"manifests": 1, "published": 0, "staged": 2},
    "publish": {"manifests": 1, "published": 1, "staged": 2},
    "landed": {"manifests": 1, "published": 1, "staged": 2},
    "reported": {"manifests": 1, "published": 1, "staged": 2},
    "report": {"manifests": 3, "published": 3, "staged": 0},
}
# where the JVM dies too; elsewhere it outlives its driver, as a cluster's would
WITH_JVM = [
    pytest.param(step, True, id=f"{step} with its JVM", marks=[pytest.mark.long] * (step != "stage"))
    for step in ("scan", "stage", "publish")
]
WITHOUT = [
    pytest.param(step, False, id=step, marks=[pytest.mark.long] * (step == "landed")) for step in LAND_STEPS if step != "stage"
]


def test_every_row_of_the_documents_kill_table_is_executed_here() -> None:
    """docs/delivery.md says of the default policy that a kill at any step costs nothing; the tests below kill at each."""
    table = {step: said for step, said, *_ in read_table(DELIVERY, "| killed at |")}
    assert list(table) == list(KILLS[OURS])
    killed = [step for step in (*TICK_STEPS, *LAND_STEPS) if step in table]
    assert {step: said for step, said in table.items() if said} == dict.fromkeys(killed, "nothing")
    tests = (test_a_tick_killed_at_any_step_is_made_good_by_the_next, test_landing_killed_at_any_step_ends_with_every_row_once)
    assert [step for step in killed if step not in {*steps_of(*tests)}] == [], "left out of `make test`"


def steps_of(*tests: Any) -> Iterator[str]:
    """Yield the steps that tests kill at in `make test`, which leaves out what is marked `long`."""
    marks = [mark for test in tests for mark in test.pytestmark]
    if any(mark.name == "long" for mark in marks):
        return
    for case in (case for mark in marks if mark.name == "parametrize" for case in mark.args[1]):
        if isinstance(case, str):
            yield case
        elif all(mark.name != "long" for mark in case.marks):
            yield case.values[0]


@pytest.mark.parametrize(("step", "own_jvm"), [*WITH_JVM, *WITHOUT])
def test_landing_killed_at_any_step_ends_with_every_row_once(world: World, step: str, own_jvm: bool) -> None:
    """[R-18] [R-26] After SIGKILL a restart lands each offset once, with equal rows and digests, no lock to clean."""
    world.fill(150, 60)
    world.tick()
    with stopped_at(world, "land", step, own_jvm=own_jvm):
        state = lake_state(world)
        at_least = LAND_STEPS[step]
        # other ranges of the scan are decided side by side, so a step later than this one may be further on
        assert all(state[what] >= count for what, count in at_least.items() if what != "staged"), state
        assert (state["staged"] > 0) == (at_least["staged"] > 0), state
        half = world.rows()
        assert set(half) <= set(world.sent.values()), "a reader saw a row that was never sent, in the middle of it"
        assert len(half) == len(set(half))
    (dead,) = world.instance.get_runs()
    assert dead.status is DagsterRunStatus.STARTED, "the run is left as a killed process leaves it"
    digests = world.digests

    world.tick()
    assert world.run(dead.run_id).status is DagsterRunStatus.FAILURE
    world.launch()
    world.assert_all_landed_once()
    assert {offsets.key for offsets in world.coverage.log.ranges} == world.materialized_after_tick()
    world.assert_proven()
    assert digests.items() <= world.digests.items()
    again = world.land([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    assert {verdict.outcome for verdict in again} == {Outcome.UNCHANGED}


DECODE_STEPS: dict[str, tuple[int, bool, bool | None]] = {
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
    """A topic with three landed ranges, a poison record in each."""
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
    return shown_places(world.adapters.lake, world.name, is_dead=is_dead)


def restart(world: World) -> None:
    """Tick, and run what the tick asks for: the dead run is failed first, and its back-off waited for."""
    world.later(60_000)
    end_dead_runs(world.instance, world.adapters.now_ms())
    for launched in world.in_process.decode(
        run_derive_tick(world.topic, world.instance, world.adapters, world.known).due, redo=False
    ):
        assert launched.succeeded, launched.reason


@pytest.mark.parametrize(
    ("placed", "step"), everywhere(DECODE_STEPS, [("disk", "place_decoded"), ("bucket", "place_decoded")]), indirect=["placed"]
)
def test_decoding_killed_at_any_step_ends_with_every_row_in_one_place(poisoned: World, step: str) -> None:
    """[R-68] After SIGKILL each landed row is decoded or a dead letter, once; redone it is the same; no lock to clean."""
    ranges, *is_staged = DECODE_STEPS[step]
    store = poisoned.adapters.lake.store
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


def times_seen(world: World) -> Counter[int]:
    """Count how often a plain glob shows each offset; every row must be one that was sent."""
    rows = world.rows()
    assert set(rows) <= set(world.sent.values())
    return Counter(row[1] for row in rows)


def test_at_most_once_abandons_what_a_crash_leaves(world: World) -> None:
    """[R-50] Killed after the claim: never read again by anybody, in the ledger by its offsets; what follows lands."""
    world.topic = dataclasses.replace(world.topic, delivery=Delivery.AT_MOST_ONCE)
    world.fill(150)
    world.tick()
    with stopped_at(world, "land", "stage"):
        assert [o.key for o in world.coverage.claims] == ["0-0-100"] and not world.rows(), "claimed, read, and not landed"
    world.tick()
    world.launch()  # what is of another scan had not been claimed
    assert not world.pending and times_seen(world) == Counter(range(100, 150))
    losses = read_ledger(world.topic, world.adapters)
    assert [(loss.key, loss.cause) for loss in losses] == [("0-0-100", ABANDONED)]
    told = world.checked(world.topic.check_key(NOTHING_LOST))
    assert told is not None and not told.passed, "the sensor has told Dagster"
    (verdict,) = world.land(["0-0-100"])
    assert verdict.outcome is Outcome.FAILED and "never reads a range twice" in verdict.violations[0]

    accept_loss(world.topic, "0-0-100", world.adapters, "somebody")
    world.send_numbered(30)
    world.tick()
    world.launch()
    assert times_seen(world) == Counter(range(100, 180))
    assert check_tiling(world.name, world.adapters.lake).passed


def files(world: World) -> dict[Path, int]:
    """Return the published files with their inodes: another file under the same name has another one."""
    return {path: path.stat().st_ino for path in (world.lake_folder / "data").rglob("*.parquet")}


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_zombie_before_its_commit_ends_as_superseded(world: World, is_overtaken: bool) -> None:
    """[R-16] [R-25] Paused before its commit, it resumes once another has landed; the control is one not overtaken."""
    world.fill(100)
    world.tick()
    with stopped_at(world, "land", "stage") as zombie:
        assert world.rows() == [], "the zombie has published nothing yet"
        if is_overtaken:
            assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
        landed, manifests = files(world), world.coverage.manifests
        zombie.resume()
    world.assert_all_landed_once()
    assert not is_overtaken or (files(world), world.coverage.manifests) == (landed, manifests)
    assert not list((world.lake_folder / "staging").rglob("*.parquet"))
    (told,) = world.events(world.topic.asset_key)
    expected = Outcome.SUPERSEDED if is_overtaken else Outcome.LANDED
    assert (told.partition, told.metadata["outcome"].value) == ("0-0-100", expected.value), "by the zombie's own run"
