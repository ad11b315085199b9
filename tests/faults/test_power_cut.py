"""The power cut: every process of Dagster dies by SIGKILL under load; it is started again, and nobody types a command.

And a landing run that is told to end: Dagster's Terminate, and SIGTERM of its process, in the middle of its work (U9).
Daemon, code server, runs and JVMs are real, the broker lives on. Ground truth is what the producer had acknowledged. Which
moment a cut takes is drawn from a seed; `HUNT=20` tries twenty more. The control is the same without a cut.
"""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from pipeline_defs.adapters.spark.spark_server import read_server
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.settings import Settings
from pipeline_defs.tables.deleting import sweep_orphans
from pipeline_defs.topics import LAND_PENDING
from tests.support.power import UNDER_WAY, Power
from tests.support.world import PATIENCE_SECONDS, World, own_spark

pytestmark = pytest.mark.scenario

COMPLETE_SECONDS = 180.0  # after the last record, on a machine whose cores are free; else as much longer as it is busy
POLICY = Policy(records_per_range=400, max_age_seconds=3)
SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4 + int(os.environ.get("HUNT", "0")))]

Moment = Callable[[Power], list[DagsterRun]]
STARTED, STARTING = DagsterRunStatus.STARTED, DagsterRunStatus.STARTING
MOMENTS: dict[str, Moment] = {
    "started, before its step": lambda power: power.runs_before_their_step(STARTED),
    "starting": lambda power: power.runs_before_their_step(STARTING),
    "under way": lambda power: power.runs_before_their_step(*UNDER_WAY),
}


RECORDS = 900
ENDED = {DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE}


@contextmanager
def two_topics(settings: Settings, folder: Path) -> Iterator[tuple[list[World], Power]]:
    """Give two topics of one lake, and a Dagster that runs, with a warm Spark of their own: it loses its power as well."""
    with own_spark(settings, folder) as own, World(own, folder, policy=POLICY) as one:
        worlds = [one, one.beside(f"{one.name}b")]
        for world in worlds:
            world.topic = dataclasses.replace(world.topic, policy=POLICY)
            world.create_topic(2)
        with Power(folder / "power", one.settings, [world.topic for world in worlds], one.instance) as power:
            yield worlds, power


@pytest.fixture(scope="module")
def running(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[World], Power]]:
    with two_topics(settings, tmp_path_factory.mktemp("running") / "world") as found:
        yield found


@contextmanager
def load(worlds: list[World], chance: random.Random) -> Iterator[None]:
    """Produce to all topics while the context is open, and then a last record to each Kafka partition."""
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.2):
            for world in worlds:
                world.send_numbered(chance.randint(1, 60), partition=chance.randint(0, 1))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    for world in worlds:
        for partition in (0, 1):
            world.send_numbered(1, partition)


def cut_power(power: Power, moment: Moment) -> list[DagsterRun]:
    """Cut the power at a moment and return the runs that it caught; the processes of those that had one were killed."""
    caught: list[DagsterRun] = []
    killed: set[int] = set()

    def is_now() -> bool:
        caught[:] = moment(power)
        return bool(caught)

    def is_cut() -> bool:
        found = power.cut_while(is_now) if is_now() else None
        killed.update(found or ())
        return found is not None

    World.wait_until(is_cut, every_seconds=0.1)
    pids = {power.pid_of(run) for run in caught if run.status is STARTED}
    assert pids <= killed, "the process of each started run was alive when it was killed"
    return caught


def allowed_seconds() -> float:
    """Return the stated time, as much longer as others keep the cores busy."""
    return COMPLETE_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def has_ended(world: World, runs: list[DagsterRun]) -> bool:
    return all(world.run(run.run_id).status in {*ENDED, DagsterRunStatus.SUCCESS} for run in runs)


def is_complete(worlds: list[World]) -> bool:
    """Return whether every acknowledged record is visible; a doubled one is an error at any time."""
    for world in worlds:
        places = [row[:2] for row in world.rows()]
        if len(places) != len(set(places)):
            pytest.fail(f"rows of {world.name} are doubled")
        if len(places) < len(world.sent):
            return False
    return True


def run_through(worlds: list[World], power: Power, seed: int, moments: list[str]) -> None:
    chance, one = random.Random(seed), worlds[0]
    with load(worlds, chance):
        for name in moments:
            runs = cut_power(power, MOMENTS[name])
            assert not has_ended(one, runs), "they hold what they held when the power went"
            power.start()
            one.wait_until(lambda runs=runs: has_ended(one, runs))  # type: ignore[misc]
        if not moments:
            one.wait_until(lambda: all(world.rows() for world in worlds))
    one.wait_until(lambda: is_complete(worlds), allowed_seconds(), 0.5)
    for world in worlds:
        assert world.rows() == sorted(world.sent.values(), key=lambda row: row[:2]), "0 missing, 0 doubled, 0 changed"


@pytest.mark.timeout(900)
def test_after_a_power_cut_everything_lands_without_hands(running: tuple[list[World], Power]) -> None:
    """[R-26] L1: a run was STARTED and its step had not begun; four such runs held everything up for two hours."""
    run_through(*running, 0, ["started, before its step"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_after_three_power_cuts_in_a_row_everything_lands_without_hands(settings: Settings, tmp_path: Path, seed: int) -> None:
    """[R-26] L1: three moments of a seed, under load all the while."""
    moments = random.Random(seed).choices(list(MOMENTS), k=3)
    with two_topics(settings, tmp_path / "world") as found:
        run_through(*found, seed, moments)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_without_a_cut_the_same_lands_by_itself(settings: Settings, tmp_path: Path) -> None:
    """The control."""
    with two_topics(settings, tmp_path / "world") as found:
        run_through(*found, 0, [])


def is_idle(world: World) -> bool:
    return not world.instance.get_runs(RunsFilter(statuses=[*UNDER_WAY, DagsterRunStatus.QUEUED]))


def run_in_its_step(world: World) -> DagsterRun | None:
    """Find a run that has begun to read, and has landed nothing yet; one that finds nothing to do ends at once."""
    for run in world.instance.get_runs(RunsFilter(job_name=LAND_PENDING, statuses=[DagsterRunStatus.STARTED])):
        if any(entry.user_message.startswith("step=scan ") for entry in world.instance.all_logs(run.run_id)):
            return run
    return None


@contextmanager
def frozen(settings: Settings) -> Iterator[None]:
    """Have the warm Spark of a home do nothing while the context is open."""
    server = read_server(settings.engine_folder)
    assert server is not None
    os.kill(server.jvm.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if server.jvm.is_running():  # who has waited for a minute ends it
            os.kill(server.jvm.pid, signal.SIGCONT)


@pytest.mark.timeout(900)
def test_a_landing_run_that_is_terminated_ends_cleanly_and_is_made_good(running: tuple[list[World], Power]) -> None:
    """[R-26] U9: nothing half done is seen. The warm Spark is frozen, so that the run is in its work however quick it is."""
    worlds, power = running
    one = worlds[0]
    one.wait_until(lambda: is_idle(one))
    for world, is_terminate in zip(worlds, (True, False), strict=True):
        before = world.rows()
        one.adapters.engine(one.adapters.pyspark()).session({})  # on a slow machine somebody has ended the frozen one
        with frozen(one.settings):
            world.send_numbered(RECORDS)
            one.wait_until(lambda world=world: run_in_its_step(world) is not None)  # type: ignore[misc]
            run = run_in_its_step(world)
            assert run is not None
            pid = power.pid_of(run)
            assert pid is not None
            family = power.family(pid)
            if is_terminate:
                assert one.instance.run_launcher.terminate(run.run_id)
            else:
                os.kill(pid, signal.SIGTERM)
            one.wait_until(lambda family=family: not family & power.processes())  # type: ignore[misc]
            one.wait_until(lambda run=run: one.run(run.run_id).status in ENDED)  # type: ignore[misc]
            if is_terminate:
                assert one.run(run.run_id).status is DagsterRunStatus.CANCELED
            assert world.rows() == before, "the fault: it was in the middle"
    one.wait_until(lambda: is_complete(worlds), every_seconds=0.5)
    one.wait_until(lambda: is_idle(one))
    power.cut()
    sweep_orphans(one.adapters.lake, one.adapters.now_ms(), -60)
    for world in worlds:
        world.assert_all_landed_once()


STARTS_SPARK = """
import signal, sys
from pathlib import Path
from pipeline_defs.adapters.spark.spark_serving import open_here

signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Dagster has it in a run: an exception where it is
open_here({"spark.ui.enabled": "false"}, "test", Path(sys.argv[1]), None)
signal.pause()
"""


def test_who_is_terminated_while_spark_starts_leaves_no_jvm(tmp_path: Path) -> None:
    """[R-26] U9: an in-process one that nobody waits for any more ends too; pyspark's own launch would leave it for ever."""
    starting = subprocess.Popen([sys.executable, "-c", STARTS_SPARK, str(tmp_path)], cwd=PROJECT, stderr=subprocess.DEVNULL)
    own = psutil.Process(starting.pid)
    World.wait_until(lambda: any(child.name() == "java" for child in own.children(recursive=True)))
    begun = own.children(recursive=True)
    starting.terminate()
    assert starting.wait(PATIENCE_SECONDS)
    _, left = psutil.wait_procs(begun, PATIENCE_SECONDS)
    for each in left:
        each.kill()
    assert not left
