"""A code location over real parts, in this process, above all its pulse; and runs in its queue, which nothing executes."""

from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg
import pytest
from dagster import DagsterRun
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.definitions import build_defs
from pipeline_defs.orchestration.pulse.pulse import build_pulse
from pipeline_defs.orchestration.runs.projection import RANGE_END, RANGE_START, failure_text
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.orchestration.upkeep.housekeeping import AUDIT, build_housekeeping
from pipeline_defs.resources import Adapters
from pipeline_defs.topics import LAND_PENDING, Topic
from tests.support.interleaving import beside
from tests.support.world import World


def location_of(world: World, *others: Topic) -> dg.Definitions:
    topics = [world.topic, *others]
    of_topics = (build_topic_defs(each, world.settings.lake) for each in topics)
    defs = [*of_topics, build_pulse(topics), build_housekeeping(topics)]
    found = build_defs(world.adapters, topics=dg.Definitions.merge(*defs))
    found.get_repository_def().load_all_definitions()  # as a code location does
    return found


def run_job(world: World, name: str, *others: Topic, **how: Any) -> dg.ExecuteInProcessResult:
    """Run a job of the code location, successfully or not."""
    job = location_of(world, *others).resolve_job_def(name)
    return job.execute_in_process(instance=world.instance, **{"raise_on_error": False, **how})


def reasons(result: dg.ExecuteInProcessResult) -> str:
    """Return why the steps of a run have failed."""
    return "\n".join(failure_text(event) for event in result.all_events if event.is_step_failure)


def audited(world: World, check: str) -> dg.AssetCheckEvaluation:
    """Run a check of the raw asset as the nightly audit does, without the others, and return what it found."""
    job = location_of(world).resolve_job_def(AUDIT).get_subset(asset_check_selection={world.topic.check_key(check)})
    (found,) = job.execute_in_process(instance=world.instance).get_asset_check_evaluations()
    return found


def requests_of(world: World, job: str, *others: Topic) -> list[dg.RunRequest]:
    """Evaluate the schedule of a job, as Dagster's daemon does; return what it asks for."""
    schedule = location_of(world, *others).resolve_schedule_def(f"{job}_schedule")
    with dg.build_schedule_context(world.instance, datetime.now(UTC), resources={"adapters": world.adapters}) as context:
        return [*(schedule.evaluate_tick(context).run_requests or ())]


def evaluate(world: World, definitions: dg.Definitions, cursor: str | None = None) -> SensorExecutionData:
    """Evaluate the only sensor of definitions, as Dagster's daemon does."""
    (sensor,) = definitions.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.build_sensor_context(instance=world.instance, resources={"adapters": world.adapters}, cursor=cursor) as context:
        return sensor.evaluate_tick(context)


def check_of(world: World, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    """Return what Dagster was told last of a check."""
    found = world.checked(key)
    assert found is not None
    return found


def ask(world: World, *others: Topic) -> SensorExecutionData:
    """Evaluate the pulse's sensor."""
    return evaluate(world, build_pulse([world.topic, *others]))


def is_asked(world: World, *others: Topic) -> bool:
    return bool(ask(world, *others).run_requests)


def said(world: World, *others: Topic) -> str:
    """Return what the sensor says where it asks for nothing."""
    data = ask(world, *others)
    assert not data.run_requests
    return data.skip_message or ""


def refuse(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, name: str, error: Exception) -> None:
    """Have a method fail for a topic of that name, or whatever else it is given first."""

    def raise_for_it(_: object, topic: Topic | str, *rest: object) -> None:
        if name == getattr(topic, "name", topic):
            raise error

    beside(monkeypatch, kind, method, raise_for_it)


def refuse_tools(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have all that is tried of a topic fail: its part of the lake cannot be used."""
    refuse(monkeypatch, Adapters, "tools", name, LakeUnavailable("the fault"))


def run_pulse(world: World, *others: Topic) -> dg.ExecuteInProcessResult:
    """Run the job that the sensor asks for, successfully or not."""
    return run_job(world, LAND_PENDING, *others)


def queue_run(instance: dg.DagsterInstance, job_name: str = "land", **facts: Any) -> DagsterRun:
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1, location_name="offsetlake")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job_name)
    run = cast("DagsterRun", create_run_for_test(instance, job_name=job_name, remote_job_origin=origin, **facts))
    instance.report_dagster_event(dg.DagsterEvent.job_enqueue(run), run.run_id)
    queued = instance.get_run_by_id(run.run_id)
    assert queued is not None and queued.status is dg.DagsterRunStatus.QUEUED
    return queued


def queue_asset_run(world: World, first: OffsetRange, last: OffsetRange, **facts: Any) -> DagsterRun:
    """Queue a run of a topic's raw asset from one range to another, as a backfill does."""
    tags = {RANGE_START: first.key, RANGE_END: last.key, **facts.pop("tags")}
    selection = frozenset({world.topic.asset_key})
    return queue_run(world.instance, "__ASSET_JOB", asset_selection=selection, tags=tags, **facts)
