"""SIGKILL of the run of a backfill that lands its siblings' ranges too: each range is landed once, no run waits for ever.

The runs are as the daemon makes them, one per scattered key; the killed one is a real child, and dies in the middle. The
control is the run after it, which nobody kills: it lands what its siblings wait for, and ends them.
"""

from __future__ import annotations

from typing import cast

import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.orchestration.runs.projection import ACTIVE, RANGE_END, RANGE_START
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG, LANDED_BY_TAG
from pipeline_defs.topics import REDO_TAG, TOPIC_TAG
from tests.support.killing import stopped_at, work_off
from tests.support.world import World

LOCATION = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("offsetlake"), "__repository__")
CHOSEN = (0, 2, 4, 6)  # of eight ranges, so that Dagster makes a run of each


def scattered(world: World) -> tuple[list[OffsetRange], list[DagsterRun]]:
    """Plans eight ranges and queues a run of every other one, all of one backfill."""
    world.with_policy(records_per_range=10)
    world.fill(80)
    world.tick()
    ranges = [list(world.coverage.log.ranges)[place] for place in CHOSEN]
    runs = []
    for offsets in ranges:
        run = create_run_for_test(
            world.instance,
            job_name="__ASSET_JOB",
            status=DagsterRunStatus.QUEUED,
            remote_job_origin=RemoteJobOrigin(LOCATION, "__ASSET_JOB"),
            asset_selection=frozenset({world.topic.asset_key}),
            tags={BACKFILL_TAG: "one", TOPIC_TAG: world.name, REDO_TAG: "no", RANGE_START: offsets.key, RANGE_END: offsets.key},
        )
        runs.append(cast("DagsterRun", run))
    return ranges, runs


def status_of(world: World, run: DagsterRun) -> tuple[DagsterRunStatus, str | None]:
    now = world.instance.get_run_by_id(run.run_id)
    assert now is not None
    return now.status, now.tags.get(LANDED_BY_TAG)


def landed(world: World) -> set[OffsetRange]:
    return {offsets for offsets, state in world.coverage.states().items() if state is State.LANDED}


def work_off_the_queue(world: World) -> list[str]:
    """Gives each run that waits its turn, the oldest first, as the daemon would; returns which had one."""
    turns: list[str] = []
    while waiting := world.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.QUEUED])):
        turns.append(waiting[-1].run_id)
        assert work_off(turns[-1], world.topic, world.edges, world.instance)
    return turns


# step and how often it is passed -> ranges that are landed when the run dies there, at least and at most
KILLED: dict[tuple[str, int], tuple[int, int]] = {("landed", 2): (2, 4), ("reported", 4): (4, 4)}


@pytest.mark.parametrize(("step", "nth"), [("landed", 2), pytest.param("reported", 4, marks=pytest.mark.long)])
def test_a_run_killed_with_its_siblings_ranges_leaves_them_to_their_own_runs(world: World, step: str, nth: int) -> None:
    """[R-18] In the middle, and after all is landed and before its siblings have been told."""
    ranges, (first, *others) = scattered(world)
    with stopped_at(world, f"run {first.run_id}", step, nth):
        at_least, at_most = KILLED[step, nth]
        assert at_least <= len(landed(world)) <= at_most and landed(world) <= set(ranges)
        held = [entry.user_message for entry in world.instance.all_logs(first.run_id)]
        assert any("step=find" in text and "ranges=4" in text for text in held), "the fault: it holds those of all four"
        assert status_of(world, first)[0] is DagsterRunStatus.STARTED
        assert [status_of(world, run) for run in others] == [(DagsterRunStatus.QUEUED, None)] * 3
    digests = world.digests

    world.tick()
    assert status_of(world, first)[0] is DagsterRunStatus.FAILURE, "its slot is free, and its own range nobody's"
    assert work_off_the_queue(world) == [others[0].run_id], "one more session, which takes the rest with it"
    assert [status_of(world, run) for run in others] == [
        (DagsterRunStatus.SUCCESS, None),
        *[(DagsterRunStatus.CANCELED, others[0].run_id)] * 2,
    ]
    assert landed(world) >= set(ranges[1:])
    world.launch()
    world.assert_all_landed_once()
    assert not world.instance.get_runs(RunsFilter(statuses=ACTIVE))
    assert world.materialized_after_tick() == {offsets.key for offsets in world.coverage.log.ranges}
    assert digests.items() <= world.digests.items()
    world.assert_proven()
