"""Pruning: old runs go from Dagster, and with them nothing that it shows, and nothing of the lake."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.adapters.spark.spark import Spark
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import PruningFailed, ScanFailed
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.orchestration.upkeep.housekeeping import AUDIT, JOBS, PRUNE
from pipeline_defs.orchestration.upkeep.pruning import DAY_MS, Pruning
from pipeline_defs.orchestration.upkeep.retirement import retire_keys
from pipeline_defs.topics import LAND_PENDING
from tests.support.pulse import requests_of, run_job, run_pulse
from tests.support.queued import queue_run
from tests.support.redecoding import Killed
from tests.support.world import World


def land(world: World, records: int = 100) -> str:
    world.send_numbered(records)
    world.tick()
    result = run_pulse(world)
    assert result.success
    return result.run_id


def pruning_of(world: World, location: str | None = None) -> Pruning:
    return Pruning([world.topic], JOBS, world.instance, location)


def old_runs(world: World, location: str | None = None) -> list[str]:
    return [run.run_id for run in pruning_of(world, location).find_old(world.edges.now_ms(), 30)]


def prune(world: World) -> tuple[int, int]:
    pruning = pruning_of(world)
    return pruning.prune(pruning.find_old(world.edges.now_ms(), 30))


def has_events(world: World, run_id: str) -> bool:
    return bool(world.instance.all_logs(run_id))


def test_an_old_run_goes_once_its_keys_are_retired(world: World) -> None:
    """[R-99] Not before: Dagster would show its ranges as missing. Its file of events goes too; the lake has all of it."""
    world.create_topic()
    first, second = land(world), land(world)
    assert old_runs(world) == []
    world.later(31 * DAY_MS)
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
    assert before & {*world.keys} <= world.materialized()
    world.assert_all_landed_once()


def test_a_run_whose_ranges_a_later_one_landed_again_goes(world: World) -> None:
    """[R-99]"""
    world.create_topic()
    first = land(world)
    (again,) = world.launch(list(world.coverage.log.ranges), redo=True)
    world.later(31 * DAY_MS)
    assert prune(world) == (1, 1)
    assert world.instance.get_run_by_id(first) is None and world.instance.get_run_by_id(again.run_id) is not None
    assert len(world.materialized()) == 1


def test_the_run_of_the_newest_version_of_a_latest_table_stays(world: World) -> None:
    """[R-99] It is shown by no partition, but by the asset itself; the one before it goes once its ranges do."""
    world.topic = dataclasses.replace(world.topic, decode=Decode(value=Side(Format.STRING)), latest=Latest(), max_keys=1)
    world.create_topic()
    land(world)
    newest = land(world)
    retire_keys(world.topic, world.coverage, world.instance)
    world.instance.delete_dynamic_partition(f"{world.name}__ranges", "0-100-200")
    world.later(31 * DAY_MS)
    assert prune(world) == (1, 1)
    assert world.instance.get_run_by_id(newest) is not None
    told = world.instance.get_latest_materialization_event(world.topic.latest_key)
    assert told is not None and told.run_id == newest


def test_runs_of_others_and_runs_that_have_not_ended_stay(world: World) -> None:
    """[R-99] Of another location, too."""
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
    world.later(31 * DAY_MS)
    assert failed in old_runs(world) and not {*others} & {*old_runs(world)}
    prune(world)
    assert world.instance.get_run_by_id(failed) is None, "the control"
    assert all(world.instance.get_run_by_id(run_id) for run_id in others)
    mine = queue_run(world.instance, AUDIT)  # of the location `offsetlake`; its jobs have the names that another's have
    world.instance.report_run_canceled(mine)
    world.later(31 * DAY_MS)
    for location, expected in (("offsetlake", True), ("another", False), (None, False)):
        assert (mine.run_id in old_runs(world, location)) is expected, location


def test_a_pruning_that_dies_is_finished_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-99] Events go first: without their run nobody would find them again."""
    failed = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id
    world.instance.report_engine_event("anything", run_id=failed, job_name=LAND_PENDING)
    world.later(31 * DAY_MS)

    with monkeypatch.context() as patch:
        patch.setattr(type(world.instance.run_storage), "delete_run", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            prune(world)
    assert world.instance.get_run_by_id(failed) is not None, "the fault"
    assert not has_events(world, failed)
    assert prune(world) == (1, 0) and world.instance.get_run_by_id(failed) is None


def test_the_events_of_a_run_that_is_gone_are_swept(world: World) -> None:
    """[R-99] A pruning that dies right after its run is deleted leaves their file."""
    land_of = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.STARTED).run_id
    gone = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id
    for run_id in (land_of, gone):
        world.instance.report_engine_event("anything", run_id=run_id, job_name=LAND_PENDING)
    world.instance.run_storage.delete_run(gone)
    shards = Path(world.settings.dagster_home) / "history" / "runs"
    assert (shards / f"{gone}.db").exists(), "the fault"
    pruning_of(world).sweep()
    assert not list(shards.glob(f"{gone}*")) and (shards / f"{land_of}.db").exists()


def test_what_another_asset_shows_stays(world: World) -> None:
    """[R-99] Also where its key begins as ours do, and its partitions are of days."""
    key, partitions = dg.AssetKey(["raw", "billing"]), dg.DailyPartitionsDefinition("2026-01-01")

    @dg.asset(key=key, partitions_def=partitions)
    def billing() -> None:
        """Somebody else's."""

    run_id = dg.materialize([billing], instance=world.instance, partition_key="2026-01-02").run_id
    assert pruning_of(world).is_shown(run_id)
    dg.materialize([billing], instance=world.instance, partition_key="2026-01-02")
    assert not pruning_of(world).is_shown(run_id), "the control"


def test_a_range_that_is_shown_as_failed_stays_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-99] By the last run that tried it; those before it go."""
    world.fill(100)
    world.tick()
    runs = []
    with monkeypatch.context() as patch:
        patch.setattr(Spark, "stage", Mock(side_effect=ScanFailed("the fault")))
        for _ in range(2):
            runs.append(run_pulse(world).run_id)
            world.later(3_600_000)
    world.later(31 * DAY_MS)
    assert prune(world) == (1, 1)
    assert world.instance.get_run_by_id(runs[0]) is None and world.instance.get_run_by_id(runs[1]) is not None


def test_a_run_that_cannot_be_deleted_keeps_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-99] The oldest comes first each night."""
    failed = [
        create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id for _ in range(3)
    ]
    world.later(31 * DAY_MS)
    storage = type(world.instance.run_storage)
    real = storage.delete_run

    def refuse(self: object, run_id: str) -> None:
        if run_id == failed[0]:
            raise RuntimeError("the fault")
        real(self, run_id)

    monkeypatch.setattr(storage, "delete_run", refuse)
    with pytest.raises(PruningFailed, match="1 runs could not be deleted; 2 were") as caught:
        prune(world)
    assert failed[0] in str(caught.value)
    assert [world.instance.get_run_by_id(each) is None for each in failed] == [False, True, True]


@pytest.mark.parametrize("days", [30, None])
def test_the_job_prunes_by_the_setting(world: World, days: int | None) -> None:
    """[R-99]"""
    failed = create_run_for_test(world.instance, job_name=LAND_PENDING, status=dg.DagsterRunStatus.FAILURE).run_id
    world.edges.settings = dataclasses.replace(world.edges.settings, run_retention_days=days)
    assert not requests_of(world, PRUNE)
    world.later(31 * DAY_MS)
    assert bool(requests_of(world, PRUNE)) is (days is not None)
    assert run_job(world, PRUNE).success
    assert (world.instance.get_run_by_id(failed) is None) is (days is not None)
