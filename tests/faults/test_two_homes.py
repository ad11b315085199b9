"""Two homes over one lake, as two teams or two regions have them: each with a daemon, a database and runs of its own.

Daemons, code servers, runs and broker are real; a home is lost by SIGKILL of all its processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack

import dagster as dg
import pytest

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.landing.planner import Planner
from pipeline_defs.orchestration.home.dagster_home import open_instance
from tests.support.power import Power
from tests.support.world import World

pytestmark = pytest.mark.scenario

LOOKS = 2  # of sensors that find something to plan, while a person plans beside both


class Home:
    """One of the two: its Dagster, whose power can be cut, and what it shows."""

    def __init__(self, world: World, name: str) -> None:
        folder = world.folder / name
        self.settings = dataclasses.replace(world.settings, dagster_home=folder / "dagster")
        self.instance: dg.DagsterInstance = open_instance(self.settings.dagster_home)
        self.power = Power(folder / "location", self.settings, [world.topic], self.instance)
        self._topic = world.topic

    def shows(self, world: World) -> bool:
        """Return whether it shows all there is as landed."""
        keys = {offsets.key for offsets in world.coverage.log.ranges}
        return self.instance.get_materialized_partitions(self._topic.asset_key) == keys


@pytest.fixture
def homes(world: World) -> Iterator[tuple[Home, Home]]:
    world.create_topic(2)
    world.with_policy(records_per_range=50, max_age_seconds=0)
    with ExitStack() as opened:
        made = Home(world, "one"), Home(world, "two")
        for each in made:
            opened.enter_context(each.instance)
            opened.enter_context(each.power)
        yield made


@pytest.mark.timeout(900)
def test_two_homes_land_each_row_once_and_each_shows_it(world: World, homes: tuple[Home, Home]) -> None:
    """[R-10] Sensors and runs of both plan and land at once, a person plans as well, and one home dies and comes back."""
    one, two = homes

    def is_landed() -> bool:
        return len(world.rows()) == len(world.sent) and not world.pending

    def planned_by_sensors() -> int:
        return sum(step.planner.startswith("sensor") for step in world.coverage.log.steps)

    def send_and_plan() -> None:
        """Go on until sensors have planned as well; what one has sent another may plan."""
        wanted = planned_by_sensors() + LOOKS

        def go_on() -> bool:
            with Kafka(world.edges.bootstrap_servers(world.topic)) as kafka:
                now_ms, lake = world.edges.now_ms(), world.edges.lake
                Planner(world.name, Policy(), lake, kafka, lambda: now_ms, "a person").commit(through_end=True)
            for partition in (0, 1):
                world.send_numbered(2, partition)
            return planned_by_sensors() >= wanted

        world.wait_until(go_on)

    send_and_plan()
    world.wait_until(lambda: is_landed() and one.shows(world) and two.shows(world))
    assert one.power.cut(), "the fault: all of one home is killed"
    send_and_plan()
    world.wait_until(lambda: is_landed() and two.shows(world))
    assert not one.shows(world), "the control"
    one.power.start()
    send_and_plan()
    world.wait_until(lambda: is_landed() and one.shows(world) and two.shows(world))
    assert any(step.planner == "a person" for step in world.coverage.log.steps), "the control"
    assert world.coverage.log.generation == 0
    world.assert_all_landed_once()
