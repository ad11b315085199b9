"""Turns: runs of a topic never pile up, and whoever asks is told what blocks, and since when (L2, L3, U18)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRun
from dagster._core.execution.api import create_execution_plan
from dagster._core.instance.config import PoolGranularity
from dagster._core.snap import snapshot_from_execution_plan
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from pipeline_defs.core.advice import NOTHING
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.orchestration.assets.checks import build_checks
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.pulse.pulse import LOCATION_TAG
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.progress import check_progress, read_situation
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG
from pipeline_defs.settings import PROJECT
from pipeline_defs.topics import LAND_PENDING, PROGRESS
from tests.integration.test_decoding import configure, event
from tests.support.pulse import ask
from tests.support.pulse import said as sensor_says
from tests.support.queued import queue_run
from tests.support.world import World


def test_a_pool_that_a_wipe_left_without_slots_has_them_again(world: World) -> None:
    """[R-34] `dagster run wipe` leaves limits, and no slots: whatever is in such a pool would be queued for ever."""
    world.create_topic()
    chosen, closed = "somebody_else", "closed"
    ask(world)
    storage = world.instance.event_log_storage
    pool = world.topic.landing.pool
    storage.set_concurrency_slots(chosen, 3)
    storage.set_concurrency_slots(closed, 0)

    def slots() -> dict[str, int]:
        return {name: found.slot_count for name, found in storage.get_concurrency_infos([pool, chosen, closed]).items()}

    before = slots()
    assert before == {pool: 1, chosen: 3, closed: 0}
    world.instance.wipe()
    assert slots() == dict.fromkeys(before, 0) and pool in storage.get_concurrency_keys(), "the fault"
    ask(world)
    assert slots() == before


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_backfill_of_many_runs_keeps_those_of_other_topics_from_no_slot(tmp_path: Path, *, is_ours: bool) -> None:
    """[R-34] Nor landing from the last one. The control has no limit for each backfill."""
    config = (PROJECT / "dagster.yaml").read_text()
    for_each = "      - {key: dagster/backfill, value: {applyLimitPerUniqueValue: true}, limit: 1}\n"
    assert for_each in config
    (tmp_path / "dagster.yaml").write_text(config if is_ours else config.replace(for_each, ""))
    with open_instance(tmp_path) as instance:

        def queue(topic: str, **tags: str) -> DagsterRun:
            land = dg.OpDefinition(lambda _: None, name="land", pool=topic)
            job = dg.GraphDefinition(topic, node_defs=[land]).to_job()
            plan = snapshot_from_execution_plan(create_execution_plan(job), job.get_job_snapshot_id())
            return queue_run(instance, tags=tags, job_snapshot=job.get_job_snapshot(), execution_plan_snapshot=plan)

        first, *_ = [queue("large", **{BACKFILL_TAG: "large"}) for _ in range(5)]
        others = [queue(topic, **{BACKFILL_TAG: topic}) for topic in "bcd"]
        landing = queue("all")
        for _ in range(2):  # the first time it makes the pools
            chosen = QueuedRunCoordinatorDaemon(1)._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None)
    expected = [first, *(others[:2] if is_ours else []), landing]
    assert [run.run_id for run in chosen] == [run.run_id for run in expected]


ASKED = {LOCATION_TAG: ""}
QUEUE = "QUEUED_RUN_COORDINATOR"


@pytest.fixture
def filled(world: World) -> World:
    """A topic with planned ranges, over which Dagster's daemon watches."""
    world.fill(250)
    world.hear_daemon("SENSOR", QUEUE)
    return world


def start(world: World, run: DagsterRun) -> None:
    for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
        world.instance.report_dagster_event(dg.DagsterEvent(kind.value, run.job_name), run.run_id)


def fill_slots(world: World) -> tuple[list[DagsterRun], DagsterRun]:
    """Have runs of others take each slot; return them, and one of the pulse that waits for one."""
    holders = [queue_run(world.instance, "others") for _ in range(4)]
    for run in holders:
        start(world, run)
    return holders, queue_run(world.instance, LAND_PENDING, tags=ASKED)


def since(world: World, run: DagsterRun) -> str:
    record = world.instance.get_run_record_by_id(run.run_id)
    assert record is not None
    return time_text(int((record.start_time or record.update_timestamp.timestamp()) * 1000))


def said(world: World) -> list[str]:
    tick = sensor_says(world)
    found = read_situation(world.topic, world.coverage, world.edges, world.instance)
    finding = check_progress(world.topic, found, world.instance, world.edges.now_ms())
    return [tick, finding.looked_at, world.status()["next_action"]]


def test_a_persons_queued_backfill_does_not_keep_out_what_arrives(filled: World) -> None:
    """[R-31] However long it is; and the pulse's run goes before it in the queue."""
    for _ in range(5):
        queue_run(filled.instance, "__ASSET_JOB", tags={**filled.topic.landing.tags, BACKFILL_TAG: "b"})
    (request,) = ask(filled).run_requests or ()
    assert int(request.tags["dagster/priority"]) > 0


def test_the_first_runs_of_a_topic_take_turns_too(filled: World) -> None:
    """L3: Dagster knows the topic's pool, and its limit, before the first run is queued."""
    assert filled.topic.landing.pool not in filled.instance.event_log_storage.get_concurrency_keys()
    ask(filled)
    assert filled.instance.event_log_storage.get_concurrency_info(filled.topic.landing.pool).slot_count == 1
    assert filled.instance.get_concurrency_config().pool_config.pool_granularity is PoolGranularity.RUN


def test_full_run_slots_are_named_with_who_holds_them_and_since_when(filled: World) -> None:
    """L1: never that there is nothing to do."""
    filled.tick()
    holders, own = fill_slots(filled)
    for text in said(filled):
        assert NOTHING not in text
        assert f"run {own.run_id[:8]} of {own.job_name} is queued since {since(filled, own)}" in text
        assert "4 of 4 run slots are taken by " in text
        assert all(f"run {run.run_id[:8]} of others (started since {since(filled, run)})" in text for run in holders)


def test_a_run_that_lands_nothing_and_a_daemon_that_is_silent_are_named(filled: World) -> None:
    filled.tick()
    own = queue_run(filled.instance, LAND_PENDING, tags=ASKED)
    filled.hear_daemon(QUEUE, ago_seconds=600)
    assert all("Dagster's daemon, which would start it, is silent" in text for text in said(filled))
    start(filled, own)
    filled.with_policy(max_age_seconds=10**6)
    found = read_situation(filled.topic, filled.coverage, filled.edges, filled.instance)
    assert found.block is not None and found.block.why == "nothing done"
    filled.land()
    assert read_situation(filled.topic, filled.coverage, filled.edges, filled.instance).block is None


def test_what_is_derived_says_what_blocks_it_and_since_when(world: World) -> None:
    """L1: decoding and latest in the words of landing; for decoding `status` and the progress check say it too."""
    configure(world)
    world.topic = dataclasses.replace(world.topic, latest=Latest())
    world.create_topic()
    world.hear_daemon("SENSOR", QUEUE)
    world.send(event("2013-01-01", n) for n in range(50))
    world.plan_and_land()
    holders, own = fill_slots(world)
    blocked = (
        f"run {own.run_id[:8]} of {LAND_PENDING} is queued since {since(world, own)}: 4 of 4 run slots are taken by run "
        f"{holders[0].run_id[:8]} of others"
    )

    key = world.topic.check_key(PROGRESS)
    (progress,) = (each for each in build_checks(world.topic) if key in each.check_keys)
    result = progress(dg.build_asset_check_context(instance=world.instance), edges=world.edges)
    advice = world.status()["next_action"]
    landed = time_text(min(each.provenance.landed_at_ms for each in world.coverage.manifests.values()))
    for text in (sensor_says(world), str(result.metadata["looked_at"].value), advice):
        assert f"to be decoded since {landed}: {blocked}" in text
        assert NOTHING not in text
    world.decode()
    assert "to be decoded" not in sensor_says(world), "the control"
    assert f"for an update: {blocked}" in sensor_says(world)


def test_a_tail_that_waits_for_its_age_says_so(world: World) -> None:
    """U18, U22: 0 pending ranges are not nothing."""
    world.create_topic()
    world.hear_daemon("SENSOR", QUEUE)
    world.with_policy(max_age_seconds=3600)
    world.later(0)
    world.send([{"partition": 0, "value": b"v", "timestamp_ms": world.edges.now_ms() - 100_000}] * 40)
    for text in said(world):
        assert "40 records wait for a full range, the oldest for 100 s, cut at 60 min" in text
