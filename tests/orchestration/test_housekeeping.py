"""Housekeeping: one job and one schedule of each kind for all topics, of which none pays for another.

Pruning takes old runs from Dagster, and with them nothing that it shows, and nothing of the lake.
"""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType, SensorInstigatorData
from dagster._core.storage.compute_log_manager import ComputeIOType
from dagster._core.test_utils import create_run_for_test
from dagster_shared.error import DagsterError

from pipeline_defs.adapters.spark.spark import Spark
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BrokenManifest, LakeUnavailable, PruningFailed, ScanFailed, TopicsFailed, UnknownTopic
from pipeline_defs.core.log.losses import Loss
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing import auditing
from pipeline_defs.orchestration.assets.checks import PUBLISHED
from pipeline_defs.orchestration.runs.moments import DAY_MS
from pipeline_defs.orchestration.runs.projection import report_losses
from pipeline_defs.orchestration.upkeep import housekeeping
from pipeline_defs.orchestration.upkeep.housekeeping import AUDIT, COMPACT, JOBS, PRUNE, RETIRE, SWEEP
from pipeline_defs.orchestration.upkeep.pruning import Pruning, retire_keys
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import LAND_PENDING, TOPIC_TAG, Topic
from tests.support.lakes import damage
from tests.support.pulse import location_of, queue_run, reasons, refuse, requests_of, run_job, run_pulse
from tests.support.redecoding import Killed
from tests.support.world import World


def run(job: str, world: World, other: World, *, topics: Sequence[str] = (), fails: bool = False) -> dg.ExecuteInProcessResult:
    config = {"ops": {job.partition("_")[0]: {"config": {"topics": [*topics]}}}}
    return run_job(world, job, other.topic, run_config=config, raise_on_error=not fails)


def keep_one_key(*worlds: World) -> None:
    """Land three ranges of each, of which Dagster is to show one."""
    for each in worlds:
        each.topic = dataclasses.replace(each.topic, max_keys=1)
        each.fill(300)
        each.tick()
        each.land()


def test_a_broken_topic_stops_no_other(world: World, other: World) -> None:
    """Neither where it is looked what is due, nor where that is done; and it is named."""
    keep_one_key(world, other)
    (world.lake_folder / "plan" / world.name / "what.json").write_text("{}")
    world.adapters.forget_lake()
    assert len(requests_of(world, RETIRE, other.topic)) == 1
    result = run(RETIRE, world, other, fails=True)
    assert f"{world.name}: what is no step lies in the plan log" in reasons(result)
    assert len(world.keys) == 3 and len(other.keys) == 1
    with pytest.raises(DagsterError) as caught:
        requests_of(world, RETIRE, other.topic)
    assert isinstance(caught.value.__cause__, TopicsFailed)
    assert "1 of 2 topics cannot be looked at" in str(caught.value.__cause__)


def test_a_person_chooses_topics_and_hears_of_unknown_ones(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of one topic is let go before the next: a hundred long histories would not fit."""
    keep_one_key(world, other)
    assert run(RETIRE, world, other, topics=[other.name]).success
    assert (len(world.keys), len(other.keys)) == (3, 1)
    with pytest.raises(UnknownTopic, match="no topic of this code location is nope; nothing was done"):
        run(RETIRE, world, other, topics=["nope", world.name])
    assert len(world.keys) == 3
    (failed,) = world.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
    lines = [event.user_message for event in world.instance.all_logs(failed.run_id) if event.level == logging.ERROR]
    assert any(line.startswith("unknown_topic: no topic of this") for line in lines), "where the docs send a person"

    lakes = []
    retire = housekeeping._RETIREMENT.do

    def watch(topic: Topic, context: dg.OpExecutionContext, adapters: Adapters, *rest: object) -> None:
        lakes.append(adapters.lake)
        retire(topic, context, adapters, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(housekeeping, "_RETIREMENT", dataclasses.replace(housekeeping._RETIREMENT, do=watch))
    assert run(RETIRE, world, other).success and len(world.keys) == 1
    assert len(lakes) == 2 and lakes[0] is not lakes[1]


def test_a_run_begins_no_further_topic_after_its_time(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    chore = dataclasses.replace(housekeeping._COMPACTION, do=lambda topic, *_: done.append(topic.name), longest_seconds=0.0)
    monkeypatch.setattr(housekeeping, "_COMPACTION", chore)
    assert run(COMPACT, world, other).success and done == []
    monkeypatch.setattr(housekeeping, "_COMPACTION", dataclasses.replace(chore, longest_seconds=None))
    assert run(COMPACT, world, other).success and sorted(done) == sorted([world.name, other.name]), "the control"


def test_who_looks_for_too_long_has_the_job_look(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster gives a schedule a minute, in which topics that cannot be looked at may take all of it too."""
    broken = Mock(side_effect=LakeUnavailable("it cannot be looked at"))
    assert requests_of(world, COMPACT, other.topic) == []
    monkeypatch.setattr(housekeeping, "LOOKING_SECONDS", 0.0)
    assert len(requests_of(world, COMPACT, other.topic)) == 1
    monkeypatch.setattr(housekeeping, "_COMPACTION", dataclasses.replace(housekeeping._COMPACTION, is_due=broken))
    assert len(requests_of(world, COMPACT, other.topic)) == 1


def test_each_topic_is_audited_in_a_run_of_its_own(world: World, other: World) -> None:
    for each in (world, other):
        each.create_topic()
    requests = requests_of(world, AUDIT, other.topic)
    assert [request.tags[TOPIC_TAG] for request in requests] == [world.name, other.name]
    chosen = set(requests[1].asset_check_keys or ())
    assert {key.name for key in chosen} >= {"tiling", "replay", "nothing_lost", "progress", "coverage_map"}
    job = location_of(world, other.topic).resolve_job_def(AUDIT).get_subset(asset_check_selection=chosen)
    result = job.execute_in_process(instance=world.instance)
    assert {each.asset_check_key for each in result.get_asset_check_evaluations()} == chosen
    assert {key.asset_key.path[-1] for key in chosen} == {other.name}


def test_what_rots_of_a_large_topic_stays_red(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-39] It is found within some nights, as each reads other files, and again what was named; mended, it is green."""
    key = other.topic.check_key(PUBLISHED)
    other.fill(300)
    other.plan_and_land()
    files = sorted((other.lake_folder / "data" / other.name).rglob("*.parquet"))
    monkeypatch.setattr(auditing, "NIGHTLY_BYTES", sum(each.stat().st_size for each in files) // 2)
    job = location_of(world, other.topic).resolve_job_def(AUDIT).get_subset(asset_check_selection={key})

    def audit_a_night_later() -> tuple[bool, str]:
        other.later(86_400_000)
        (found,) = job.execute_in_process(instance=world.instance).get_asset_check_evaluations()
        return found.passed, str(found.metadata["looked_at"].value)

    part = "; all 3 within 3 nights"
    assert [audit_a_night_later() for _ in range(3)] == [(True, f"1 files{part}")] * 3, "the control"
    before = files[1].read_bytes()
    damage(files[1])
    nights = [audit_a_night_later() for _ in range(5)]
    red = next(number for number, (passed, _) in enumerate(nights) if not passed)
    assert red < 3 and not any(passed for passed, _ in nights[red:])
    assert {looked for _, looked in nights} == {f"1 files{part}", f"2 files{part}"}
    files[1].write_bytes(before)
    assert all(passed for passed, _ in [audit_a_night_later() for _ in range(3)])


def land(world: World, records: int = 100) -> str:
    world.send_numbered(records)
    world.tick()
    result = run_pulse(world)
    assert result.success
    return result.run_id


def pruning_of(world: World, location: str | None = None) -> Pruning:
    return Pruning([world.topic], JOBS, world.instance, location)


def old_runs(world: World, location: str | None = None) -> list[str]:
    return [run.run_id for run in pruning_of(world, location).find_old(world.adapters.now_ms(), 30)]


def prune(world: World) -> tuple[int, int]:
    pruning = pruning_of(world)
    return pruning.prune(pruning.find_old(world.adapters.now_ms(), 30))


def has_events(world: World, run_id: str) -> bool:
    return bool(world.instance.all_logs(run_id))


def create_run(world: World, status: dg.DagsterRunStatus = dg.DagsterRunStatus.FAILURE, job_name: str = LAND_PENDING) -> str:
    """Have a run in Dagster that nobody has executed, of the job that lands and failed; return its id."""
    return str(create_run_for_test(world.instance, job_name=job_name, status=status).run_id)


def is_there(world: World, run_id: str) -> bool:
    return world.instance.get_run_by_id(run_id) is not None


def shards(world: World, run_id: str) -> list[Path]:
    """Return the files of a run's events."""
    return [*(world.settings.dagster_home / "history" / "runs").glob(f"{run_id}*")]


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
    assert shards(world, first), "the control"
    assert prune(world) == (1, 1)
    assert not is_there(world, first)
    assert not shards(world, first) and has_events(world, second)
    assert before & {*world.keys} <= world.materialized()
    world.assert_all_landed_once()


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
    assert is_there(world, newest)
    told = world.instance.get_latest_materialization_event(world.topic.latest_key)
    assert told is not None and told.run_id == newest


def test_runs_of_others_and_runs_that_have_not_ended_stay(world: World) -> None:
    """[R-99] Of another location, too."""
    world.create_topic()
    land(world, 10)
    others = [create_run(world, dg.DagsterRunStatus.SUCCESS, name) for name in ("somebody_elses", "__ASSET_JOB")]
    others.append(create_run(world, dg.DagsterRunStatus.STARTED))
    failed = create_run(world)
    world.later(31 * DAY_MS)
    assert failed in old_runs(world) and not {*others} & {*old_runs(world)}
    prune(world)
    assert not is_there(world, failed), "the control"
    assert all(is_there(world, run_id) for run_id in others)
    mine = queue_run(world.instance, AUDIT)  # of the location `offsetlake`; its jobs have the names that another's have
    world.instance.report_run_canceled(mine)
    world.later(31 * DAY_MS)
    for location, expected in (("offsetlake", True), ("another", False), (None, False)):
        assert (mine.run_id in old_runs(world, location)) is expected, location


def test_a_pruning_that_dies_is_finished_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-99] Events go first: without their run nobody would find them again."""
    failed = create_run(world)
    world.instance.report_engine_event("anything", run_id=failed, job_name=LAND_PENDING)
    world.later(31 * DAY_MS)

    with monkeypatch.context() as patch:
        patch.setattr(type(world.instance.run_storage), "delete_run", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            prune(world)
    assert is_there(world, failed), "the fault"
    assert not shards(world, failed)
    world.instance.event_log_storage._initialized_dbs.clear()  # type: ignore[attr-defined]  # as another process begins
    assert prune(world) == (1, 0) and not is_there(world, failed) and not shards(world, failed)


def test_staging_that_cannot_be_swept_keeps_no_table_from_its_vacuum(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that cannot be read may need what is there; it is told, once tables are vacuumed."""
    vacuumed = Mock(return_value=([], []))
    monkeypatch.setattr(housekeeping, "vacuum", vacuumed)
    monkeypatch.setattr(housekeeping, "sweep_orphans", Mock(side_effect=BrokenManifest("the fault")))
    result = run_job(world, SWEEP)
    assert vacuumed.called and not result.success and "the fault" in reasons(result)


def test_the_ledger_in_dagster_is_bounded_and_told_where_it_is_news(world: World) -> None:
    """Each time the whole of it would make a database that grows with its square."""
    losses = [Loss(OffsetRange(0, 0, at, at + 1), f"0-{at}-{at + 1}", "retention", None) for at in range(150)]

    def told() -> int:
        last = world.instance.get_latest_materialization_event(world.topic.losses_key)
        report_losses(world.instance, world.topic, losses, (), last)
        return len(world.instance.fetch_materializations(world.topic.losses_key, limit=10).records)

    assert (told(), told()) == (1, 1)
    losses.append(dataclasses.replace(losses[0], key="0-0-2"))
    assert told() == 2
    last = world.instance.get_latest_materialization_event(world.topic.losses_key)
    assert last is not None and last.asset_materialization is not None
    ledger = str(last.asset_materialization.metadata["ledger"].value).splitlines()
    assert len(ledger) == 101 and ledger[-1].startswith("- 51 more: `offsetlake losses ")


def test_old_results_of_checks_and_events_of_no_run_go_but_for_the_last(world: World) -> None:
    """[R-99] Dagster would keep each for ever; what is newer, and somebody else's, stays."""
    billing = dg.AssetKey("billing")
    world.create_topic()
    land(world)
    for number in range(3):
        for key in (world.topic.source_key, billing):
            world.instance.report_runless_asset_event(dg.AssetObservation(key, metadata={"number": number}))
        found = dg.AssetCheckEvaluation(world.topic.losses_key, "nothing_lost", passed=bool(number % 2), metadata={})
        world.instance.report_runless_asset_event(found)

    def counts() -> list[int]:
        observed = [len(world.instance.fetch_observations(key, limit=10).records) for key in (world.topic.source_key, billing)]
        checks = world.instance.event_log_storage.get_asset_check_execution_history(found.asset_check_key, limit=10)
        return [*observed, len(checks)]

    before, materialized = counts(), world.materialized()
    assert before[1] == 3 and min(before) >= 3
    assert pruning_of(world).forget_events(world.adapters.now_ms(), 30) == 0 and counts() == before, "the control"
    world.later(31 * DAY_MS)
    assert pruning_of(world).forget_events(world.adapters.now_ms(), 30) >= sum(before) - 5
    assert counts() == [1, 3, 1] and world.materialized() == materialized
    (last,) = world.instance.fetch_observations(world.topic.source_key, limit=10).records
    assert last.asset_observation is not None and last.asset_observation.metadata["number"].value == 2
    assert pruning_of(world).forget_events(world.adapters.now_ms(), 30) == 0


def test_logs_of_old_ticks_go(world: World) -> None:
    """[R-99] Dagster deletes ticks only; the logs of another code location, and of the last days, stay."""

    def left() -> list[str]:
        return [each for each in locations if manager.get_log_data(["r", each, "1"]).stderr]

    locations, manager = ["another", "offsetlake"], world.instance.compute_log_manager
    for each in locations:
        repository = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin("127.0.0.1", 1, location_name=each), "r")
        origin, data = RemoteInstigatorOrigin(repository, each), SensorInstigatorData()
        world.instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, data))
        with manager.open_log_stream(["r", each, "1"], ComputeIOType.STDERR) as log:
            assert log is not None
            log.write("said")
    pruning = pruning_of(world, "offsetlake")
    assert pruning.forget_tick_logs(world.adapters.now_ms(), 30) == 0 and left() == locations, "the control"
    world.later(31 * DAY_MS)
    assert pruning.forget_tick_logs(world.adapters.now_ms(), 30) == 1 and left() == ["another"]


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
    assert [is_there(world, each) for each in runs] == [False, True]


def test_a_run_that_cannot_be_deleted_keeps_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-99] The oldest comes first each night."""
    failed = [create_run(world) for _ in range(3)]
    world.later(31 * DAY_MS)
    refuse(monkeypatch, type(world.instance.run_storage), "delete_run", failed[0], RuntimeError("the fault"))
    with pytest.raises(PruningFailed, match="1 runs could not be deleted; 2 were") as caught:
        prune(world)
    assert failed[0] in str(caught.value)
    assert [is_there(world, each) for each in failed] == [True, False, False]


@pytest.mark.parametrize("days", [30, None])
def test_the_job_prunes_by_the_setting(world: World, days: int | None) -> None:
    """[R-99]"""
    failed = create_run(world)
    world.adapters.settings = dataclasses.replace(world.adapters.settings, run_retention_days=days)
    assert not requests_of(world, PRUNE)
    world.later(31 * DAY_MS)
    assert bool(requests_of(world, PRUNE)) is (days is not None)
    assert run_job(world, PRUNE).success
    assert is_there(world, failed) is (days is None)
