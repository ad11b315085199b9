"""Two hosts or homes, as two teams or two regions have them, each with Dagster's daemon, runs and a home of its own.

Over one Postgres one works, and the other takes over; over one lake, with a database each, both work. Daemons, code servers,
runs, broker and Postgres are real; a host or a home is lost by SIGKILL of all its processes.
"""

import dataclasses
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.landing.planner import Planner
from pipeline_defs.orchestration.home.daemons import find_daemons
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.dead_runs import end_dead_runs
from pipeline_defs.settings import Settings
from pipeline_defs.topics import LAND_PENDING
from tests.support.postgres import Postgres, running_postgres
from tests.support.power import Power
from tests.support.world import World

pytestmark = pytest.mark.scenario

POLICY = Policy(records_per_range=50, max_age_seconds=0)
WAITS, ENDS = "another daemon works on this Postgres database", "another daemon works on this Postgres database now"
UNFINISHED = [each for each in DagsterRunStatus if each.value in {"NOT_STARTED", "QUEUED", "STARTING", "STARTED"}]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def shared(settings: Settings, postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    """One topic whose Dagster history is in Postgres; `dagster` is the home of one host and `other` of the other."""
    folder = tmp_path / "world"
    postgres.make_home(folder / "dagster")
    postgres.make_home(folder / "other")
    with World(settings, folder, policy=POLICY) as made:
        made.create_topic(2)
        yield made


def host(world: World, home: str) -> Power:
    settings = dataclasses.replace(world.settings, dagster_home=world.folder / home)
    return Power(world.folder / f"host-{home}", settings, [world.topic], world.instance)


def log(world: World, home: str) -> str:
    return (world.folder / f"host-{home}" / "daemon.log").read_text()


def works(world: World, home: str) -> bool:
    return bool(find_daemons(world.folder / home))


def is_landed(world: World) -> bool:
    """Return whether all is visible and no run is under way any more."""
    return len(world.rows()) == len(world.sent) and not world.instance.get_runs(RunsFilter(statuses=UNFINISHED))


def send(world: World) -> None:
    for partition in (0, 1):
        world.send_numbered(120, partition)


def assert_nothing_was_asked_twice(world: World) -> None:
    """Each range was landed by one run, no run found anything landed already, and each tick asked on its own."""
    keys = Counter(event.partition for event in world.events(world.topic.asset_key))
    assert set(keys.values()) == {1}, keys
    runs = world.instance.get_runs(RunsFilter(job_name=LAND_PENDING))
    steps = [event.user_message for run in runs for event in world.instance.all_logs(run.run_id)]
    assert not [each for each in steps if "already_landed" in each]
    assert {run.status for run in runs} == {DagsterRunStatus.SUCCESS}


@pytest.mark.timeout(600)
def test_of_two_daemons_over_one_postgres_one_works_and_the_other_takes_over(shared: World) -> None:
    """[R-78] Both run all the while; the one that works is lost with its host, and the other goes on without hands."""
    with host(shared, "dagster") as one:
        shared.wait_until(lambda: works(shared, "dagster"))
        with host(shared, "other") as two:
            shared.wait_until(lambda: WAITS in log(shared, "other"))
            send(shared)
            shared.wait_until(lambda: is_landed(shared))
            assert not works(shared, "other"), "the control: it does nothing as long as the other lives"
            assert one.cut(), "the fault: all of that host is killed"
            send(shared)
            shared.wait_until(lambda: works(shared, "other"))
            shared.wait_until(lambda: is_landed(shared))
            assert two.processes()
    shared.assert_all_landed_once()
    assert_nothing_was_asked_twice(shared)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_daemon_that_was_cut_off_from_postgres_gives_way_to_the_one_that_took_over(shared: World, postgres: Postgres) -> None:
    """[R-78] Its connection is lost while it stands still: it ends when it wakes up, instead of ticking beside the other."""
    with host(shared, "dagster") as one, host(shared, "other") as two:
        shared.wait_until(lambda: works(shared, "dagster") != works(shared, "other"))
        first, second = ("dagster", "other") if works(shared, "dagster") else ("other", "dagster")
        frozen = one if first == "dagster" else two
        shared.wait_until(lambda: WAITS in log(shared, second))
        os.kill(frozen.daemon_pid, signal.SIGSTOP)
        postgres.query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
        )
        shared.wait_until(lambda: works(shared, second))
        os.kill(frozen.daemon_pid, signal.SIGCONT)
        shared.wait_until(lambda: ENDS in log(shared, first))
        shared.wait_until(lambda: frozen.has_ended)
        send(shared)
        shared.wait_until(lambda: is_landed(shared))
    shared.assert_all_landed_once()


@pytest.mark.timeout(300)
def test_a_run_that_is_being_created_is_not_called_abandoned_by_a_database_of_another_time_zone(shared: World) -> None:
    """[R-26] Postgres writes a time without a zone in the session's: `options` in deploy/dagster.yaml makes it UTC."""
    run = create_run_for_test(shared.instance, job_name="land")
    assert end_dead_runs(shared.instance, shared.adapters.now_ms()) == []
    assert end_dead_runs(shared.instance, shared.adapters.now_ms() + 60_000) == [run.run_id], "the control"


@pytest.mark.timeout(300)
def test_no_daemon_works_on_a_database_of_another_time_zone(shared: World, postgres: Postgres) -> None:
    """[R-78] Without `options` the fault above is there, and the daemon ends with one clear error."""
    home = postgres.make_home(shared.folder / "wrong", without_options=True)
    with open_instance(home) as instance:
        run = create_run_for_test(instance, job_name="land")
        assert end_dead_runs(instance, shared.adapters.now_ms()) == [run.run_id], "the fault: it was created just now"
    with host(shared, "wrong") as power:
        shared.wait_until(lambda: power.has_ended)
    assert "time zone America/Los_Angeles of Dagster's Postgres database, expected UTC" in log(shared, "wrong")
    assert not find_daemons(home)


LOOKS = 2  # of sensors that find something to plan, while a person plans beside both


@pytest.fixture
def homes(world: World) -> Iterator[list[tuple[dg.DagsterInstance, Power]]]:
    """Two homes of one topic, each with what it shows and its Dagster, whose power can be cut."""
    world.create_topic(2)
    world.with_policy(records_per_range=50, max_age_seconds=0)
    with ExitStack() as opened:
        instances = [(opened.enter_context(open_instance(world.folder / name)), name) for name in ("one", "two")]
        yield [(instance, opened.enter_context(host(world, name))) for instance, name in instances]


@pytest.mark.timeout(900)
def test_two_homes_land_each_row_once_and_each_shows_it(world: World, homes: list[tuple[dg.DagsterInstance, Power]]) -> None:
    """[R-10] Sensors and runs of both plan and land at once, a person plans as well, and one home dies and comes back."""
    (one, power), (two, _) = homes

    def is_landed() -> bool:
        return len(world.rows()) == len(world.sent) and not world.pending

    def shows_all(home: dg.DagsterInstance) -> bool:
        keys = {offsets.key for offsets in world.coverage.log.ranges}
        return home.get_materialized_partitions(world.topic.asset_key) == keys

    def planned_by_sensors() -> int:
        return sum(step.planner.startswith("sensor") for step in world.coverage.log.steps)

    def send_and_plan() -> None:
        """Go on until sensors have planned as well; what one has sent another may plan."""
        wanted = planned_by_sensors() + LOOKS

        def go_on() -> bool:
            with Kafka(world.adapters.bootstrap_servers(world.topic)) as kafka:
                now_ms, lake = world.adapters.now_ms(), world.adapters.lake
                Planner(world.name, Policy(), lake, kafka, lambda: now_ms, "a person").commit(through_end=True)
            for partition in (0, 1):
                world.send_numbered(2, partition)
            return planned_by_sensors() >= wanted

        world.wait_until(go_on)

    send_and_plan()
    world.wait_until(lambda: is_landed() and shows_all(one) and shows_all(two))
    assert power.cut(), "the fault: all of one home is killed"
    send_and_plan()
    world.wait_until(lambda: is_landed() and shows_all(two))
    assert not shows_all(one), "the control"
    power.start()
    send_and_plan()
    world.wait_until(lambda: is_landed() and shows_all(one) and shows_all(two))
    assert any(step.planner == "a person" for step in world.coverage.log.steps), "the control"
    assert world.coverage.log.generation == 0
    world.assert_all_landed_once()
