"""Lanes: runs of the pulse side by side, each with its own topics; what fails again and again has a lane of its own."""

from __future__ import annotations

import dataclasses
from itertools import count
from typing import Any

import dagster as dg
import pytest

from pipeline_defs.adapters.spark.spark import Spark
from pipeline_defs.core.decode.decoders import Decode
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.landing.dispatch import APART, lane_of
from pipeline_defs.orchestration.pulse.pulse import LOCATION_TAG
from pipeline_defs.resources import Edges
from pipeline_defs.topics import LAND_PENDING, LANE_TAG
from tests.support.pulse import ask, refuse_tools, run_job, said
from tests.support.queued import queue_run
from tests.support.world import World


@pytest.fixture
def other(world: World) -> World:
    """A topic of another of two lanes, of the same lake and Dagster instance; both have something to land."""
    names = (f"{world.name}-{number}" for number in count())
    name = next(each for each in names if lane_of(each, 2, 0) != lane_of(world.name, 2, 0))
    world.settings = world.edges.settings = dataclasses.replace(world.settings, lanes=2)
    other = world.beside(name)
    for each in (world, other):
        each.fill(100)
        each.plan()
    return other


def lane(world: World) -> str:
    return lane_of(world.name, 2, 0)


def asked_lanes(world: World, other: World) -> list[str | None]:
    return sorted(str(each.tags.get(LANE_TAG)) for each in ask(world, other.topic).run_requests or ())


def run_lane(world: World, other: World, lane: str) -> dg.ExecuteInProcessResult:
    return run_job(world, LAND_PENDING, other.topic, tags={LANE_TAG: lane})


def slow_down(monkeypatch: pytest.MonkeyPatch, world: World, *names: str) -> None:
    """Have each job that reads one of these topics take as long as a slow broker takes."""
    real = Spark.stage

    def stage(self: Spark, scan: Any, *rest: Any) -> Any:
        world.later(90_000 if {*names} & {*scan.topics} else 0)
        return real(self, scan, *rest)

    monkeypatch.setattr(Spark, "stage", stage)


def test_each_lane_has_a_run_of_its_own_and_lands_its_topics_alone(world: World, other: World) -> None:
    """[R-97] One that is at work keeps its own lane from asking, and one that a person launched all of them."""
    assert asked_lanes(world, other) == ["0", "1"]
    run = queue_run(world.instance, LAND_PENDING, tags={LOCATION_TAG: "", LANE_TAG: lane(world)})
    assert asked_lanes(world, other) == [lane(other)]
    world.instance.delete_run(run.run_id)
    run = queue_run(world.instance, LAND_PENDING)
    assert asked_lanes(world, other) == []
    world.instance.delete_run(run.run_id)
    assert run_lane(world, other, lane(other)).success
    other.assert_all_landed_once()
    assert len(world.pending) == 1, "the other lane's"
    assert asked_lanes(world, other) == [lane(world)]
    world.edges.settings = dataclasses.replace(world.settings, lanes=1)
    assert asked_lanes(world, other) == ["None"], "the control: one lane needs no name"


def test_a_topic_that_fails_is_moved_out_of_the_way(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-97] By itself, to a run of its own, while all that is tried of it fails; once something lands it is back."""
    refuse_tools(monkeypatch, world.name)
    world.later(0)
    for _ in range(2):
        assert lane(world) in asked_lanes(world, other)
        assert not run_lane(world, other, lane(world)).success, "the fault"
        world.later(120_000)
    assert asked_lanes(world, other) == sorted([APART, lane(other)])
    assert run_lane(world, other, lane(world)).success, "its lane has nothing to do with it any more"
    assert not run_lane(world, other, APART).success
    monkeypatch.undo()
    world.later(700_000)
    assert run_lane(world, other, APART).success
    world.assert_all_landed_once()
    world.send_numbered(100)
    assert lane(world) in asked_lanes(world, other)


def test_a_topic_that_is_slow_is_moved_out_of_the_way(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-97] By the time that its job takes: for ten minutes, and it says so; what shared that job goes with it at first."""
    world.later(0)
    slow_down(monkeypatch, world, world.name)
    assert run_lane(world, other, lane(world)).success, "slow is no failure"
    world.assert_all_landed_once()
    world.send_numbered(100)
    assert asked_lanes(world, other) == sorted([APART, lane(other)])
    assert run_lane(world, other, lane(other)).success
    assert run_lane(world, other, lane(world)).success
    assert len(world.pending) == 1, "its lane has nothing to do with it any more"
    assert run_lane(world, other, APART).success
    world.assert_all_landed_once()
    expected = f"slow, so apart for ten minutes, or until a job of its own is quick: raw/{world.name};"
    assert expected in said(world, other.topic)

    monkeypatch.undo()
    world.send_numbered(100)
    world.later(700_000)
    assert asked_lanes(world, other) == [lane(world)]


def test_the_topics_apart_are_read_one_by_one(world: World, other: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-97] Else nobody could say which of them is the slow one; one that is not goes back at once."""
    world.later(0)
    with monkeypatch.context() as slow:
        slow_down(slow, world, world.name, other.name)
        for each in (world, other):
            assert run_lane(world, other, lane(each)).success
            each.send_numbered(100)
    assert asked_lanes(world, other) == [APART], "the fault"
    scans = []
    world.edges.watch_step = lambda step, **fields: scans.append(fields["topic"]) if step == "scan" else None
    assert run_lane(world, other, APART).success
    assert sorted(scans) == sorted([world.name, other.name])
    for each in (world, other):
        each.assert_all_landed_once()
        each.send_numbered(100)
    assert asked_lanes(world, other) == ["0", "1"]


def test_decoding_that_is_slow_is_moved_out_of_the_way(world: World, other: World) -> None:
    """[R-97] As a decoder may be slow that reads quickly."""
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    world.later(0)

    def watch(step: str, **_: Any) -> None:
        world.later(90_000 if step == "read_landed" else 0)

    world.edges.watch_step = watch
    assert run_lane(world, other, lane(world)).success
    world.send_numbered(100)
    assert asked_lanes(world, other) == sorted([APART, lane(other)])


@pytest.mark.parametrize("lanes", [2, 1])
def test_a_topic_whose_decoding_fails_is_landed_all_the_same(
    world: World, other: World, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """[R-97] By the run of whichever lane it is in; one lane is the control."""
    world.settings = world.edges.settings = dataclasses.replace(world.settings, lanes=lanes)
    world.topic = dataclasses.replace(world.topic, decode=Decode())
    world.later(0)

    def refuse(*_: object) -> object:
        raise LakeUnavailable("the fault")

    monkeypatch.setattr(Edges, "decode_tools", refuse)
    lanes_of_runs = set()
    for _ in range(4):
        world.send_numbered(100)
        for request in ask(world, other.topic).run_requests or ():
            if request.job_name == LAND_PENDING:
                lanes_of_runs.add(request.tags.get(LANE_TAG))
                run_job(world, LAND_PENDING, other.topic, tags=dict(request.tags))
        assert not world.pending
        world.later(700_000)
    assert (APART in lanes_of_runs) is (lanes > 1), "the fault moves it"
