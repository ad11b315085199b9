"""SIGKILL at every step: a real child dies there, the half-done state is proven, and a restart lands every offset once.

Ground truth is what the producer sent. The control is the step `report`: killed when all is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dagster import DagsterRunStatus

from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.lab.drills.systems import KILLS, OURS
from pipeline_defs.settings import PROJECT
from tests.support.killing import stopped_at
from tests.support.markdown import read_table
from tests.support.world import World

DELIVERY = (PROJECT / "docs" / "delivery.md").read_text()
State = dict[str, int]


def lake_state(world: World) -> State:
    """Counts what the lake has: plan steps, manifests, published and staged Parquet files."""
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
        assert len(world.instance.get_dynamic_partitions(f"{world.name}__ranges")) == keys
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
    """After SIGKILL a restart lands each offset once, with equal rows and digests, no lock to clean.

    [R-18] [R-26]
    """
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
    assert world.instance.get_run_by_id(dead.run_id).status is DagsterRunStatus.FAILURE  # type: ignore[union-attr]
    world.launch()
    world.assert_all_landed_once()
    assert {offsets.key for offsets in world.coverage.log.ranges} == world.materialized_after_tick()
    world.assert_proven()
    assert digests.items() <= world.digests.items()
    again = world.land([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    assert {verdict.outcome for verdict in again} == {Outcome.UNCHANGED}
