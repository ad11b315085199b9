"""Housekeeping: one job and one schedule of each kind for all topics, of which none pays for another."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster_shared.error import DagsterError

from pipeline_defs.core.errors import TopicsFailed, UnknownTopic
from pipeline_defs.definitions import build_defs
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.orchestration.upkeep import housekeeping
from pipeline_defs.orchestration.upkeep.housekeeping import AUDIT, COMPACT, RETIRE, build_housekeeping
from pipeline_defs.resources import Edges
from pipeline_defs.topics import TOPIC_TAG, Topic
from tests.support.world import World


@pytest.fixture
def other(world: World) -> World:
    return world.beside()


def definitions_of(*worlds: World) -> dg.Definitions:
    topics = [each.topic for each in worlds]
    defs = dg.Definitions.merge(*map(build_topic_defs, topics), build_housekeeping(topics))
    return build_defs(worlds[0].edges, topics=defs)


def requests_of(job: str, *worlds: World) -> list[dg.RunRequest]:
    schedule = definitions_of(*worlds).resolve_schedule_def(f"{job}_schedule")
    world = worlds[0]
    at, resources = datetime(2026, 11, 26, 3, tzinfo=UTC), {"edges": world.edges}
    with dg.build_schedule_context(world.instance, at, resources=resources) as context:
        return list(schedule.evaluate_tick(context).run_requests or [])


def run(job: str, *worlds: World, topics: list[str] | None = None, fails: bool = False) -> dg.ExecuteInProcessResult:
    config = {"ops": {job.partition("_")[0]: {"config": {"topics": topics or []}}}}
    found = definitions_of(*worlds).resolve_job_def(job)
    return found.execute_in_process(run_config=config, instance=worlds[0].instance, raise_on_error=not fails)


def keep_one_key(*worlds: World) -> None:
    """Land three ranges of each, of which Dagster is to show one."""
    for each in worlds:
        each.topic = dataclasses.replace(each.topic, max_keys=1)
        each.create_topic()
        each.send_numbered(300)
        each.tick()
        each.land()


def keys_of(world: World) -> list[str]:
    return list(world.instance.get_dynamic_partitions(f"{world.name}__ranges"))


def break_lake(world: World) -> None:
    """What is in the plan log of a topic is no step."""
    (world.lake_folder / "plan" / world.name / "what.json").write_text("{}")
    world.edges.forget_lake()


def test_a_broken_topic_stops_no_other(world: World, other: World) -> None:
    """Neither where it is looked what is due, nor where that is done; and it is named."""
    keep_one_key(world, other)
    break_lake(world)
    assert len(requests_of(RETIRE, world, other)) == 1
    result = run(RETIRE, world, other, fails=True)
    (failure,) = (event for event in result.all_events if event.is_step_failure)
    assert f"{world.name}: what is no step lies in the plan log" in str(failure.step_failure_data.error)
    assert len(keys_of(world)) == 3 and len(keys_of(other)) == 1
    with pytest.raises(DagsterError) as caught:
        requests_of(RETIRE, world, other)
    assert isinstance(caught.value.__cause__, TopicsFailed)
    assert "1 of 2 topics cannot be looked at" in str(caught.value.__cause__)


def test_a_person_chooses_topics_and_is_told_of_one_that_is_not_there(
    world: World, other: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of one topic is let go before the next: a hundred long histories would not fit."""
    keep_one_key(world, other)
    assert run(RETIRE, world, other, topics=[other.name]).success
    assert (len(keys_of(world)), len(keys_of(other))) == (3, 1)
    with pytest.raises(UnknownTopic, match="no topic of this code location is nope; nothing was done"):
        run(RETIRE, world, other, topics=["nope", world.name])
    assert len(keys_of(world)) == 3

    lakes = []
    retire = housekeeping._RETIREMENT.do

    def watch(topic: Topic, context: dg.OpExecutionContext, edges: Edges, *rest: object) -> None:
        lakes.append(edges.lake)
        retire(topic, context, edges, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(housekeeping, "_RETIREMENT", dataclasses.replace(housekeeping._RETIREMENT, do=watch))
    assert run(RETIRE, world, other).success and len(keys_of(world)) == 1
    assert len(lakes) == 2 and lakes[0] is not lakes[1]


def test_a_run_begins_no_further_topic_after_its_time(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    chore = dataclasses.replace(housekeeping._COMPACTION, do=lambda topic, *_: done.append(topic.name), longest_seconds=0.0)
    monkeypatch.setattr(housekeeping, "_COMPACTION", chore)
    assert run(COMPACT, world, other).success and done == []
    monkeypatch.setattr(housekeeping, "_COMPACTION", dataclasses.replace(chore, longest_seconds=None))
    assert run(COMPACT, world, other).success and sorted(done) == sorted([world.name, other.name]), "the control"


def test_who_looks_for_too_long_has_the_job_look(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster gives a schedule a minute."""
    assert requests_of(COMPACT, world, other) == []
    monkeypatch.setattr(housekeeping, "LOOKING_SECONDS", 0.0)
    assert len(requests_of(COMPACT, world, other)) == 1


def test_each_topic_is_audited_in_a_run_of_its_own(world: World, other: World) -> None:
    for each in (world, other):
        each.create_topic()
    requests = requests_of(AUDIT, world, other)
    assert [request.tags[TOPIC_TAG] for request in requests] == [world.name, other.name]
    chosen = set(requests[1].asset_check_keys or ())
    assert {key.name for key in chosen} >= {"tiling", "replay", "nothing_lost", "progress", "coverage_map"}
    job = definitions_of(world, other).resolve_job_def(AUDIT).get_subset(asset_check_selection=chosen)
    result = job.execute_in_process(instance=world.instance)
    assert {each.asset_check_key for each in result.get_asset_check_evaluations()} == chosen
    assert {key.asset_key.path[-1] for key in chosen} == {other.name}
