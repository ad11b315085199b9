"""Turns: runs of a topic never pile up, and whoever asks is told what blocks, and since when (L2, L3, U18)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import dagster as dg
import pytest
from dagster import DagsterRun
from dagster._core.instance.config import PoolGranularity
from dagster._daemon.types import DaemonHeartbeat

from pipeline_defs.checks import PROGRESS, build_standing_checks, standing_key
from pipeline_defs.core.advice import NOTHING
from pipeline_defs.core.latest import Latest
from pipeline_defs.deriving import build_derive_sensor
from pipeline_defs.latest_due import build_latest_sensor
from pipeline_defs.moments import time_text
from pipeline_defs.progress import check_progress, read_situation
from pipeline_defs.sensors import build_sensor
from pipeline_defs.siblings import BACKFILL_TAG
from pipeline_defs.topics import Duty
from tests.integration.test_days import configure, event
from tests.support.queued import queue_run
from tests.support.world import World

ASKED = {"dagster/sensor_name": "plan_and_land"}


@pytest.fixture
def filled(world: World) -> World:
    """A topic with planned ranges, over which Dagster's daemon watches."""
    world.create_topic()
    world.send_numbered(250)
    have_dagster_run(world)
    return world


def have_dagster_run(world: World) -> None:
    for daemon in ("SENSOR", "QUEUED_RUN_COORDINATOR"):
        world.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), daemon, "test", []))


def start(world: World, run: DagsterRun) -> None:
    for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
        world.instance.report_dagster_event(dg.DagsterEvent(kind.value, run.job_name), run.run_id)


def since(world: World, run: DagsterRun) -> str:
    record = world.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    return time_text(int((record.start_time or record.update_timestamp.timestamp()) * 1000))


def said_by(world: World, sensor: dg.SensorDefinition) -> str:
    """Return what a sensor's tick says that asks for nothing."""
    with dg.build_sensor_context(instance=world.instance, resources={"edges": world.edges}) as context:
        data = sensor.evaluate_tick(context)
    assert not data.run_requests
    return data.skip_message or ""


def said(world: World) -> list[str]:
    """Return what the sensor, the check and `status` say."""
    tick = said_by(world, build_sensor(world.topic))
    found = read_situation(world.topic, world.coverage, world.edges, world.instance)
    finding = check_progress(world.topic, found, world.instance, world.edges.now_ms())
    return [
        tick,
        finding.looked_at,
        world.status()["next_action"],
    ]


def test_while_a_run_waits_no_other_is_asked_for_and_the_next_has_all_that_came(filled: World) -> None:
    """[R-31] L2: eight minutes without landing queued 72 runs, one for each tick; a second topic is not kept out."""
    (first,) = filled.tick().requests
    waiting = queue_run(filled.instance, filled.topic.land_job, tags={**filled.topic.landing.tags, **ASKED})
    for _ in range(5):
        filled.send_numbered(20)
        assert filled.tick().requests == ()
    start(filled, waiting)
    (asked,) = filled.tick().requests
    assert len(asked.ranges) > len(first.ranges) and set(asked.ranges) == set(filled.pending), "in one run"


def test_a_persons_queued_backfill_does_not_keep_out_what_arrives(filled: World) -> None:
    """[R-31] However long it is; and the tick's run goes before it in the queue."""
    for _ in range(5):
        queue_run(filled.instance, "__ASSET_JOB", tags={**filled.topic.landing.tags, BACKFILL_TAG: "b"})
    with dg.build_sensor_context(instance=filled.instance, resources={"edges": filled.edges}) as context:
        (request,) = build_sensor(filled.topic).evaluate_tick(context).run_requests or ()
    assert int(request.tags["dagster/priority"]) > 0


@pytest.mark.parametrize("retry", ["dagster/parent_run_id", "dagster/auto_retry_run_id"])
def test_a_retry_of_a_persons_backfill_does_not_keep_out_what_arrives(filled: World, retry: str) -> None:
    """[R-31] It stands behind the whole backfill; a retry of what a tick asked for is the tick's, and waits for its turn."""
    duty = filled.topic.landing.tags
    queue_run(filled.instance, "__ASSET_JOB", tags={**duty, retry: "r"})
    assert filled.tick().requests
    queue_run(filled.instance, filled.topic.land_job, tags={**duty, **ASKED, retry: "r"})
    assert filled.tick().requests == ()


def test_the_first_runs_of_a_topic_take_turns_too(filled: World) -> None:
    """L3: Dagster knows the topic's pool, and its limit, before the first run is queued."""
    assert filled.topic.landing.pool not in filled.instance.event_log_storage.get_concurrency_keys()
    filled.tick()
    assert filled.instance.event_log_storage.get_concurrency_info(filled.topic.landing.pool).slot_count == 1
    assert filled.instance.get_concurrency_config().pool_config.pool_granularity is PoolGranularity.RUN


def test_full_run_slots_are_named_with_who_holds_them_and_since_when(filled: World) -> None:
    """L1: never that there is nothing to do."""
    filled.tick()
    holders = [queue_run(filled.instance, "others") for _ in range(4)]
    for run in holders:
        start(filled, run)
    own = queue_run(filled.instance, filled.topic.land_job, tags={**filled.topic.landing.tags, **ASKED})
    for text in said(filled):
        assert NOTHING not in text
        assert f"run {own.run_id[:8]} of {own.job_name} is queued since {since(filled, own)}" in text
        assert "4 of 4 run slots are taken by " in text
        assert all(f"run {run.run_id[:8]} of others (started since {since(filled, run)})" in text for run in holders)


def test_a_run_that_lands_nothing_and_a_daemon_that_is_silent_are_named(filled: World) -> None:
    filled.tick()
    own = queue_run(filled.instance, filled.topic.land_job, tags={**filled.topic.landing.tags, **ASKED})
    filled.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - 600, "QUEUED_RUN_COORDINATOR", "test", []))
    assert all("Dagster's daemon, which would start it, is silent" in text for text in said(filled))
    start(filled, own)
    filled.with_policy(max_age_seconds=10**6)
    found = read_situation(filled.topic, filled.coverage, filled.edges, filled.instance)
    assert found.block is not None and found.block.why == "nothing done"
    filled.land()
    assert read_situation(filled.topic, filled.coverage, filled.edges, filled.instance).block is None


def test_the_sensors_of_what_is_derived_say_what_blocks_them_and_since_when(world: World) -> None:
    """L1: decoding and latest in the words of landing; for decoding `status` and the progress check say it too."""
    configure(world)
    latest = Latest()
    world.topic = dataclasses.replace(world.topic, latest=latest)
    world.create_topic()
    have_dagster_run(world)
    world.send(event("2013-01-01", n) for n in range(50))
    world.plan_and_land()
    world.tick()
    holders = [queue_run(world.instance, "others") for _ in range(4)]
    for run in holders:
        start(world, run)

    def blocked(duty: Duty, say: Callable[[], list[str]]) -> None:
        own = queue_run(world.instance, duty.job, tags={**duty.tags, **ASKED})
        who = f"run {own.run_id[:8]} of {duty.job} is queued since {since(world, own)}"
        for text in say():
            assert f"{who}: 4 of 4 run slots are taken by run {holders[0].run_id[:8]} of others" in text
            assert NOTHING not in text

    def said_of_decoding() -> list[str]:
        key = standing_key(world.topic, PROGRESS)
        (progress,) = (each for each in build_standing_checks(world.topic) if key in each.check_keys)
        context = dg.build_asset_check_context(instance=world.instance)
        result = progress(context, edges=world.edges)
        advice = world.status()["next_action"]
        return [said_by(world, build_derive_sensor(world.topic)), str(result.metadata["looked_at"].value), advice]

    blocked(world.topic.decoding, said_of_decoding)
    world.decode()
    upserts = build_latest_sensor(world.topic, latest)
    blocked(world.topic.upserting, lambda: [said_by(world, upserts)])
    assert said_of_decoding()[0] == "nothing waits to be decoded", "the control"


def test_a_tail_that_waits_for_its_age_says_so(world: World) -> None:
    """U18, U22: 0 pending ranges are not nothing."""
    world.create_topic()
    have_dagster_run(world)
    world.with_policy(max_age_seconds=3600)
    now_ms = world.edges.now_ms()
    world.edges.now_ms = lambda: now_ms
    world.send([{"partition": 0, "value": b"v", "timestamp_ms": now_ms - 100_000}] * 40)
    for text in said(world):
        assert "40 records wait for a full range, the oldest for 100 s, cut at 60 min" in text
