"""The pulse of a code location over real parts: what its sensor asks for, and its run in this process."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.definitions import build_defs
from pipeline_defs.landing.attempt import Tools
from pipeline_defs.orchestration.pulse.pulse import build_pulse
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.resources import Edges
from pipeline_defs.topics import LAND_PENDING, Topic
from tests.support.world import World


def location_of(world: World, *others: Topic) -> dg.Definitions:
    """Build the code location of a world's topic and others."""
    topics = [world.topic, *others]
    defs = [build_topic_defs(topic) for topic in topics]
    found = build_defs(world.edges, topics=dg.Definitions.merge(*defs, build_pulse(topics)))
    found.get_repository_def().load_all_definitions()  # as a code location does
    return found


def ask(world: World, *others: Topic) -> dg.SensorExecutionData:
    """Evaluate the sensor, as Dagster's daemon does."""
    (sensor,) = build_pulse([world.topic, *others]).sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.build_sensor_context(instance=world.instance, resources={"edges": world.edges}) as context:
        return sensor.evaluate_tick(context)


def is_asked(world: World, *others: Topic) -> bool:
    return bool(ask(world, *others).run_requests)


def said(world: World, *others: Topic) -> str:
    """Return what the sensor says where it asks for nothing."""
    data = ask(world, *others)
    assert not data.run_requests
    return data.skip_message or ""


def refuse_tools(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have all that is tried of a topic fail: its part of the lake cannot be used."""

    def refuse(self: Edges, topic: Topic, *rest: Any) -> Tools:
        if topic.name == name:
            raise LakeUnavailable("the fault")
        return real(self, topic, *rest)

    real = Edges.tools
    monkeypatch.setattr(Edges, "tools", refuse)


def run_pulse(world: World, *others: Topic) -> dg.ExecuteInProcessResult:
    """Run the job that the sensor asks for, successfully or not."""
    job = location_of(world, *others).resolve_job_def(LAND_PENDING)
    return job.execute_in_process(instance=world.instance, raise_on_error=False)
