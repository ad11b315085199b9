"""Dagster as the face of the lake: sensor, runs, red runs, events, and a database that may be lost."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import dagster as dg
import pytest

from pipeline_defs.definitions import build_defs
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.runs.projection import RANGE_END, RANGE_START
from pipeline_defs.topics import op_name
from tests.support.pulse import is_asked
from tests.support.world import World


def run_job(world: World, **arguments: Any) -> dg.ExecuteInProcessResult:
    job = build_defs(world.edges, topics=world.definitions).resolve_job_def(world.topic.land_job)
    return job.execute_in_process(instance=world.instance, raise_on_error=False, **arguments)


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    texts = []
    for event in result.all_events:
        if event.is_step_failure and event.step_failure_data.error:
            error = event.step_failure_data.error
            texts.append((error.cause or error).message)
    return "\n".join(texts)


def materializations(world: World) -> dict[str, dg.AssetMaterialization]:
    records = world.instance.fetch_materializations(world.topic.asset_key, limit=1_000).records
    events = [record.asset_materialization for record in reversed(records)]
    return {event.partition: event for event in events if event is not None and event.partition is not None}


def test_the_sensor_plans_and_registers(world: World) -> None:
    """Boundaries in the lake, then keys in Dagster, then a run; once that is done it is quiet. [R-30]"""
    world.create_topic(2)
    world.send_numbered(250, 0)
    world.send_numbered(100, 1)
    assert is_asked(world)
    order = world.instance.get_dynamic_partitions(f"{world.name}__ranges")
    assert sorted(order) == ["0-0-100", "0-100-200", "0-200-250", "1-0-100"]
    world.launch()
    assert not is_asked(world)
    world.assert_all_landed_once()


def test_500_ranges_due_are_500_keys_all_due(world: World) -> None:
    """[R-30] None is dropped by a limit."""
    world.create_topic()
    world.with_policy(records_per_range=1, budget=500)
    world.send_numbered(500)
    tick = world.tick()
    assert tick.registered == 500
    assert len(world.instance.get_dynamic_partitions(f"{world.name}__ranges")) == 500
    assert sorted(tick.due) == [*world.coverage.log.ranges]


def test_one_key_shows_its_facts(world: World) -> None:
    """[R-35] A UI click on one key: rows, bytes, offsets, timestamps, holes, file, digest, rate, run and attempt."""
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    result = run_job(world, partition_key="0-0-100")
    assert result.success
    event = materializations(world)["0-0-100"]
    shown = {name: value.value for name, value in event.metadata.items()}
    assert (shown["rows"], shown["start_offset"], shown["end_offset"], shown["holes"]) == (100, 0, 100, {})
    assert shown["landed_by_run"] == result.run_id
    (manifest,) = world.coverage.manifests.values()
    assert shown["digest"] == manifest.digest
    assert event.tags is not None and event.tags["dagster/data_version"] == manifest.digest
    assert {"bytes", "file", "min_timestamp", "max_timestamp", "seconds", "records_per_second", "attempt"} <= set(shown)
    evaluations = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    assert evaluations == {"tiling": True, "completeness": True, "nothing_lost": True, "time_to_loss": True}


@pytest.mark.parametrize(
    ("key", "words"),
    [("flights", "is not a range: expected <kafka partition>-<start>-<end>"), ("0-5-6", "not in the plan log")],
)
def test_a_key_that_somebody_typed_makes_a_red_run(world: World, key: str, words: str) -> None:
    """[R-11] Dagster lets people add any text as a key: the run says what is wrong, and nothing is written."""
    world.create_topic()
    world.send_numbered(10)
    world.tick()
    world.instance.add_dynamic_partitions(f"{world.name}__ranges", [key])
    result = run_job(world, partition_key=key)
    assert not result.success
    assert words in failure_text(result)
    assert world.rows() == []


def test_a_selection_from_last_to_first_makes_a_red_run(world: World) -> None:
    """[R-11] Dagster calls a range run from a later to an earlier key a success with no partitions; here it is red."""
    world.create_topic()
    world.send_numbered(200)
    world.tick()
    result = run_job(world, tags={RANGE_START: "0-100-200", RANGE_END: "0-0-100"})
    assert not result.success
    assert "selects no range" in failure_text(result)


def test_a_broker_that_is_down_makes_a_red_run_and_loses_nothing(world: World) -> None:
    """[R-20] One clear error; the ranges stay planned and land when the broker is back."""
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    there = world.edges.settings
    world.edges.settings = dataclasses.replace(there, bootstrap_servers="127.0.0.1:1")
    world.edges.kafka_timeout_seconds = 2
    result = run_job(world, partition_key="0-0-100")
    assert not result.success
    assert "Kafka broker at 127.0.0.1:1 does not answer" in failure_text(result)
    log = world.instance.all_logs(result.run_id)
    texts = [entry.user_message for entry in log if entry.level == logging.ERROR]
    told = next(text for text in texts if text.startswith("broker_unavailable: the Kafka broker at 127.0.0.1:1 "))
    assert told.endswith("offsetlake explain broker_unavailable")
    failed = f'Execution of step "{op_name(world.topic.asset_key)}" failed.'
    assert texts.index(told) < texts.index(failed), "U21: said before the stack trace, below which the UI shows it"
    assert world.rows() == []
    world.edges.settings = there
    world.launch()
    world.assert_all_landed_once()


def test_a_failed_range_is_asked_for_again_later(world: World) -> None:
    """[R-15] A red run, then back-off: not at once, then with the next attempt number; the rest is not held up."""
    world.create_topic(2)
    world.send_numbered(100, 0)
    world.send_numbered(100, 1)
    world.tick()
    world.delete_records(0, 40)
    (launched,) = world.try_launch()
    assert not launched.succeeded
    assert "40 offsets [0, 40) are gone" in launched.reason
    assert world.materialized() == {"1-0-100"}
    assert world.tick().due == (), "the back-off holds it"
    later = world.edges.now_ms() + 11_000
    world.edges.now_ms = lambda: later
    assert [o.key for o in world.tick().due] == ["0-0-100"]


def test_a_lost_dagster_database_is_rebuilt_from_the_lake(world: World) -> None:
    """Total loss; keys and materialisations come back, proof is green, the next tick goes on without a gap.

    [R-34]
    """
    world.create_topic()
    world.send_numbered(250)
    world.tick()
    world.launch()
    before = {key: event.metadata["digest"].value for key, event in materializations(world).items()}
    assert len(before) == 3
    world.lose_dagster()
    assert world.materialized() == set()  # the control: it is really gone

    rebuilt = rebuild_topic(world.topic, world.edges, world.instance)
    assert (rebuilt.keys, rebuilt.events) == (3, 3)
    after = {key: event.metadata["digest"].value for key, event in materializations(world).items()}
    assert after == before
    world.assert_proven()
    world.send_numbered(60)
    tick = world.tick()
    assert [o.key for o in tick.due] == ["0-250-300", "0-300-310"]
    world.launch()
    world.assert_all_landed_once()


def test_a_tick_alone_heals_a_lost_database(world: World) -> None:
    """[R-34] Even without the command, a tick registers what the log has and reports what the lake has landed."""
    world.create_topic()
    world.send_numbered(250)
    world.plan()
    world.land()
    assert world.materialized() == set()
    tick = world.tick()
    assert tick.due == ()
    assert world.materialized() == {"0-0-100", "0-100-200", "0-200-250"}


def test_a_redo_changes_no_data_version(world: World) -> None:
    """[R-21] Materialising landed ranges again is a success with equal data versions: nothing downstream goes stale."""
    world.create_topic()
    world.send_numbered(200)
    world.tick()
    world.launch()
    before = {key: event.tags for key, event in materializations(world).items()}
    world.launch(world.coverage.log.ranges, redo=True)
    after = materializations(world)
    assert {key: event.tags for key, event in after.items()} == before
    assert {event.metadata["outcome"].value for event in after.values()} == {"unchanged"}


def lags(world: World) -> list[tuple[Any, Any]]:
    """Are lag and end offset as the Kafka topic's asset was told them, oldest first."""
    records = world.instance.fetch_observations(world.topic.source_key, limit=100).records
    told = [record.asset_observation.metadata for record in reversed(records) if record.asset_observation]
    return [(each["lag"].value, each["end_offset"].value) for each in told]


def test_lag_is_told_where_it_changes_and_an_idle_topic_is_silent(world: World) -> None:
    """[R-56] The plot of lag gets a point a minute at most, its last one is true, and then there is no noise."""
    world.create_topic()
    world.send_numbered(250)
    world.tick()
    assert lags(world) == [(250, 250)]
    world.launch()
    world.tick()
    assert lags(world) == [(250, 250)], "less than a minute ago"
    began = world.edges.now_ms()
    for minutes in (2, 13, 24):
        world.edges.now_ms = lambda minutes=minutes: began + minutes * 60_000
        world.tick()
    assert lags(world) == [(250, 250), (0, 250)]
