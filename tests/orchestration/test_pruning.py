"""Pruning: old runs go from Dagster, and with them nothing that it shows, and nothing of the lake."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.latest import Latest
from pipeline_defs.definitions import build_defs
from pipeline_defs.housekeeping import JOBS, PRUNE
from pipeline_defs.pruning import DAY_MS, list_old_runs, prune_runs
from pipeline_defs.rebuilding import rebuild_topic
from pipeline_defs.retirement import retire_keys
from pipeline_defs.topics import LAND_PENDING
from tests.support.pulse import run_pulse
from tests.support.world import World


def land(world: World, records: int = 100) -> str:
    """Land some records by a run of the pulse, and return its id."""
    world.send_numbered(records)
    world.tick()
    result = run_pulse(world)
    assert result.success
    return result.run_id


def later(world: World, days: int) -> None:
    moment = world.edges.now_ms() + days * DAY_MS
    world.edges.now_ms = lambda: moment


def old_runs(world: World, days: int = 30) -> list[str]:
    runs = list_old_runs([world.topic], JOBS, world.instance, world.edges.now_ms(), days)
    return [run.run_id for run in runs]


def prune(world: World) -> tuple[int, int]:
    runs = list_old_runs([world.topic], JOBS, world.instance, world.edges.now_ms(), 30)
    return prune_runs(runs, world.instance)


def has_events(world: World, run_id: str) -> bool:
    return bool(world.instance.all_logs(run_id))


def test_an_old_run_goes_once_its_keys_are_retired(world: World) -> None:
    """[R-99] Not before: Dagster would show its ranges as missing. Its file of events goes too; the lake has all of it."""
    world.create_topic()
    first, second = land(world), land(world)
    assert old_runs(world) == []
    later(world, 31)
    assert old_runs(world) == [first, second]
    before = world.materialized()
    assert prune(world) == (0, 2) and world.materialized() == before and len(before) == 2

    world.topic = dataclasses.replace(world.topic, max_keys=1)
    assert len(retire_keys(world.topic, world.coverage, world.instance)) == 1
    shards = Path(world.settings.dagster_home) / "history" / "runs"
    assert (shards / f"{first}.db").exists(), "the control"
    assert prune(world) == (1, 1)
    assert world.instance.get_run_by_id(first) is None
    assert not list(shards.glob(f"{first}*")) and has_events(world, second)
    assert {each for each in before if each in world.instance.get_dynamic_partitions(f"{world.name}__ranges")} <= (
        world.materialized()
    )
    world.assert_all_landed_once()


def test_a_database_that_is_lost_is_rebuilt_as_before(world: World) -> None:
    """[R-99] Nothing that a rebuild needs is in a run."""
    world.create_topic()
    world.topic = dataclasses.replace(world.topic, max_keys=1)
    land(world)
    land(world)
    retire_keys(world.topic, world.coverage, world.instance)
    later(world, 31)
    assert prune(world) == (1, 1)
    shown = world.materialized() & {*world.instance.get_dynamic_partitions(f"{world.name}__ranges")}
    world.lose_dagster()
    rebuild_topic(world.topic, world.edges, world.instance)
    assert world.materialized() & {*world.instance.get_dynamic_partitions(f"{world.name}__ranges")} == shown


def test_a_run_whose_ranges_a_later_one_landed_again_goes(world: World) -> None:
    """[R-99]"""
    world.create_topic()
    first = land(world)
    (again,) = world.launch(list(world.coverage.log.ranges), redo=True)
    later(world, 31)
    assert prune(world) == (1, 1)
    assert world.instance.get_run_by_id(first) is None and world.instance.get_run_by_id(again.run_id) is not None
    assert len(world.materialized()) == 1


def test_the_run_of_the_newest_version_of_a_latest_table_stays(world: World) -> None:
    """[R-99] It is shown by no partition, but by the asset itself; the one before it goes once its ranges do."""
    world.topic = dataclasses.replace(
        world.topic, decode=Decode(value=Side(Format.STRING)), latest=Latest(), max_keys=1
    )
    world.create_topic()
    land(world)
    newest = land(world)
    retire_keys(world.topic, world.coverage, world.instance)
    world.instance.delete_dynamic_partition(f"{world.name}__ranges", "0-100-200")
    later(world, 31)
    assert prune(world) == (1, 1)
    assert world.instance.get_run_by_id(newest) is not None
    told = world.instance.get_latest_materialization_event(world.topic.latest_key)
    assert told is not None and told.run_id == newest


def test_runs_of_others_and_runs_that_have_not_ended_stay(world: World) -> None:
    """[R-99]"""
    world.create_topic()
    land(world, 10)
    others = [
        create_run_for_test(world.instance, job_name=name, status=status).run_id
        for name, status in (
            ("somebody_elses", dg.DagsterRunStatus.SUCCESS),
            ("__ASSET_JOB", dg.DagsterRunStatus.SUCCESS),
            (LAND_PENDING, dg.DagsterRunStatus.STARTED),
        )
    ]
    failed = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id
    later(world, 31)
    assert failed in old_runs(world) and not {*others} & {*old_runs(world)}
    prune(world)
    assert world.instance.get_run_by_id(failed) is None, "the control"
    assert all(world.instance.get_run_by_id(run_id) for run_id in others)


def test_a_pruning_that_dies_is_finished_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-99] Events go first: without their run nobody would find them again."""
    failed = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id
    world.instance.report_engine_event("anything", run_id=failed, job_name=LAND_PENDING)
    later(world, 31)

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(dg.DagsterInstance, "delete_run", die)
        with pytest.raises(Died):
            prune(world)
    assert not has_events(world, failed) and world.instance.get_run_by_id(failed) is not None, "the fault"
    assert prune(world) == (1, 0) and world.instance.get_run_by_id(failed) is None


@pytest.mark.parametrize("days", [30, None])
def test_the_job_prunes_by_the_setting(world: World, days: int | None) -> None:
    """[R-99]"""
    failed = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id
    world.edges.settings = dataclasses.replace(world.edges.settings, run_retention_days=days)
    definitions = build_defs(world.edges, topics=world.definitions)

    def is_launched() -> bool:
        schedule = definitions.resolve_schedule_def(f"{PRUNE}_schedule")
        with dg.build_schedule_context(instance=world.instance, resources={"edges": world.edges}) as context:
            return bool(schedule.evaluate_tick(context).run_requests)

    assert not is_launched()
    later(world, 31)
    assert is_launched() is (days is not None)
    assert definitions.resolve_job_def(PRUNE).execute_in_process(instance=world.instance).success
    assert (world.instance.get_run_by_id(failed) is None) is (days is not None)
