"""Housekeeping: one job and one schedule of each kind for all topics, of which none pays for another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import dagster as dg
import pytest
from dagster_shared.error import DagsterError

from pipeline_defs.core.errors import LakeUnavailable, TopicsFailed, UnknownTopic
from pipeline_defs.orchestration.upkeep import housekeeping
from pipeline_defs.orchestration.upkeep.housekeeping import AUDIT, COMPACT, RETIRE
from pipeline_defs.resources import Edges
from pipeline_defs.topics import TOPIC_TAG, Topic
from tests.support.pulse import location_of, reasons, requests_of, run_job
from tests.support.world import World


@pytest.fixture
def other(world: World) -> World:
    return world.beside()


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


def break_lake(world: World) -> None:
    """What is in the plan log of a topic is no step."""
    (world.lake_folder / "plan" / world.name / "what.json").write_text("{}")
    world.edges.forget_lake()


def test_a_broken_topic_stops_no_other(world: World, other: World) -> None:
    """Neither where it is looked what is due, nor where that is done; and it is named."""
    keep_one_key(world, other)
    break_lake(world)
    assert len(requests_of(world, RETIRE, other.topic)) == 1
    result = run(RETIRE, world, other, fails=True)
    assert f"{world.name}: what is no step lies in the plan log" in reasons(result)
    assert len(world.keys) == 3 and len(other.keys) == 1
    with pytest.raises(DagsterError) as caught:
        requests_of(world, RETIRE, other.topic)
    assert isinstance(caught.value.__cause__, TopicsFailed)
    assert "1 of 2 topics cannot be looked at" in str(caught.value.__cause__)


def test_a_person_chooses_topics_and_is_told_of_one_that_is_not_there(
    world: World, other: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of one topic is let go before the next: a hundred long histories would not fit."""
    keep_one_key(world, other)
    assert run(RETIRE, world, other, topics=[other.name]).success
    assert (len(world.keys), len(other.keys)) == (3, 1)
    with pytest.raises(UnknownTopic, match="no topic of this code location is nope; nothing was done"):
        run(RETIRE, world, other, topics=["nope", world.name])
    assert len(world.keys) == 3

    lakes = []
    retire = housekeeping._RETIREMENT.do

    def watch(topic: Topic, context: dg.OpExecutionContext, edges: Edges, *rest: object) -> None:
        lakes.append(edges.lake)
        retire(topic, context, edges, *rest)  # type: ignore[arg-type]

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

    def refuse(*_: object) -> bool:
        raise LakeUnavailable("it cannot be looked at")

    assert requests_of(world, COMPACT, other.topic) == []
    monkeypatch.setattr(housekeeping, "LOOKING_SECONDS", 0.0)
    assert len(requests_of(world, COMPACT, other.topic)) == 1
    monkeypatch.setattr(housekeeping, "_COMPACTION", dataclasses.replace(housekeeping._COMPACTION, is_due=refuse))
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
