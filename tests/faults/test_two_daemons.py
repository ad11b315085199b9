"""Two hosts, each with Dagster's daemon and a home of its own, over one Postgres: one works, the other takes over.

Daemons, code servers, runs, broker and Postgres are real; a host is lost by SIGKILL of all its processes.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterRunStatus, RunsFilter
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.core.log.planning import Policy
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
def world(settings: Settings, postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    """One topic whose Dagster history is in Postgres; `dagster` is the home of one host and `other` of the other."""
    folder = tmp_path / "world"
    postgres.make_home(folder / "dagster")
    postgres.make_home(folder / "other")
    with World(settings, folder, f"t{uuid.uuid4().hex[:8]}", POLICY) as made:
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
    events = world.instance.fetch_materializations(world.topic.asset_key, limit=1_000).records
    keys = Counter(event.partition_key for event in events)
    assert set(keys.values()) == {1}, keys
    runs = world.instance.get_runs(RunsFilter(job_name=LAND_PENDING))
    steps = [event.user_message for run in runs for event in world.instance.all_logs(run.run_id)]
    assert not [each for each in steps if "already_landed" in each]
    assert {run.status for run in runs} == {DagsterRunStatus.SUCCESS}


@pytest.mark.timeout(600)
def test_of_two_daemons_over_one_postgres_one_works_and_the_other_takes_over(world: World) -> None:
    """[R-78] Both run all the while; the one that works is lost with its host, and the other goes on without hands."""
    with host(world, "dagster") as one:
        world.wait_until(lambda: works(world, "dagster"))
        with host(world, "other") as two:
            world.wait_until(lambda: WAITS in log(world, "other"))
            send(world)
            world.wait_until(lambda: is_landed(world))
            assert not works(world, "other"), "the control: it does nothing as long as the other lives"
            assert one.cut(), "the fault: all of that host is killed"
            send(world)
            world.wait_until(lambda: works(world, "other"))
            world.wait_until(lambda: is_landed(world))
            assert two.processes()
    world.assert_all_landed_once()
    assert_nothing_was_asked_twice(world)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_daemon_that_was_cut_off_from_postgres_gives_way_to_the_one_that_took_over(world: World, postgres: Postgres) -> None:
    """[R-78] Its connection is lost while it stands still: it ends when it wakes up, instead of ticking beside the other."""
    with host(world, "dagster") as one, host(world, "other") as two:
        world.wait_until(lambda: works(world, "dagster") != works(world, "other"))
        first, second = ("dagster", "other") if works(world, "dagster") else ("other", "dagster")
        frozen = one if first == "dagster" else two
        world.wait_until(lambda: WAITS in log(world, second))
        os.kill(frozen.daemon_pid, signal.SIGSTOP)
        postgres.query(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
        )
        world.wait_until(lambda: works(world, second))
        os.kill(frozen.daemon_pid, signal.SIGCONT)
        world.wait_until(lambda: ENDS in log(world, first))
        world.wait_until(lambda: frozen.has_ended)
        send(world)
        world.wait_until(lambda: is_landed(world))
    world.assert_all_landed_once()


@pytest.mark.timeout(300)
def test_a_run_that_is_being_created_is_not_called_abandoned_by_a_database_of_another_time_zone(world: World) -> None:
    """[R-26] Postgres writes a time without a zone in the session's: `options` in deploy/dagster.yaml makes it UTC."""
    run = create_run_for_test(world.instance, job_name="land")
    assert end_dead_runs(world.instance, world.edges.now_ms()) == []
    assert end_dead_runs(world.instance, world.edges.now_ms() + 60_000) == [run.run_id], "the control"


@pytest.mark.timeout(300)
def test_no_daemon_works_on_a_database_of_another_time_zone(world: World, postgres: Postgres, tmp_path: Path) -> None:
    """[R-78] Without `options` the fault above is there, and the daemon ends with one clear error."""
    home = postgres.make_home(tmp_path / "wrong", without_options=True)
    with open_instance(home) as instance:
        run = create_run_for_test(instance, job_name="land")
        assert end_dead_runs(instance, world.edges.now_ms()) == [run.run_id], "the fault: it was created just now"
    settings = dataclasses.replace(world.settings, dagster_home=home)
    with Power(world.folder / "host-wrong", settings, [world.topic], world.instance) as power:
        world.wait_until(lambda: power.has_ended)
    assert "time zone America/Los_Angeles of Dagster's Postgres database, expected UTC" in log(world, "wrong")
    assert not find_daemons(home)
