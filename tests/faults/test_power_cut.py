"""The power cut: every process of Dagster dies by SIGKILL under load; it is started again, and nobody types a command.

Daemon, code server, runs and JVMs are real, the broker lives on. Ground truth is what the producer had acknowledged. Which
moment a cut takes is drawn from a seed; `HUNT=20` tries twenty more. The control is the same without a cut.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import stamina
from dagster import DagsterRun, DagsterRunStatus

from pipeline_defs.core.log.planning import Policy
from pipeline_defs.settings import Settings
from tests.support.power import UNDER_WAY, Power
from tests.support.world import World, own_spark

COMPLETE_SECONDS = 180.0  # after the last record, on a machine whose cores are free
PATIENCE_SECONDS = 300.0  # on one that has not
POLICY = Policy(records_per_range=400, max_age_seconds=3)
SEEDS = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4 + int(os.environ.get("HUNT", "0")))]

Moment = Callable[[Power], list[DagsterRun]]
STARTED, STARTING = DagsterRunStatus.STARTED, DagsterRunStatus.STARTING
MOMENTS: dict[str, Moment] = {
    "started, before its step": lambda power: power.runs_before_their_step(STARTED),
    "starting": lambda power: power.runs_before_their_step(STARTING),
    "under way": lambda power: power.runs_before_their_step(*UNDER_WAY),
}


@contextmanager
def two_topics(settings: Settings, folder: Path) -> Iterator[list[World]]:
    """Give two topics of one lake and one Dagster home, with a warm Spark of their own: it loses its power as well."""
    with (
        own_spark(settings, folder) as own,
        World(own, folder, f"t{uuid.uuid4().hex[:8]}", POLICY) as one,
        World(own, folder, f"t{uuid.uuid4().hex[:8]}", POLICY) as two,
    ):
        for world in (one, two):
            world.create_topic(2)
        two._instance = one.instance
        yield [one, two]
        two._instance = None


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


def wait(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS, every_seconds: float = 0.1) -> float:
    """Wait until a condition holds, looking often; return for how many seconds."""
    started = time.monotonic()
    for attempt in stamina.retry_context(on=AssertionError, timeout=seconds, attempts=None, wait_max=every_seconds):
        with attempt:
            assert condition()
    return time.monotonic() - started


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

    wait(is_cut)
    pids = {power.pid_of(run) for run in caught if run.status is STARTED}
    assert pids <= killed, "the process of each started run was alive when it was killed"
    return caught


def allowed_seconds() -> float:
    """Return the stated time, as much longer as others keep the cores busy."""
    return COMPLETE_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def has_ended(world: World, runs: list[DagsterRun]) -> bool:
    found = [world.instance.get_run_by_id(run.run_id) for run in runs]
    return all(run is not None and run.is_finished for run in found)


def is_complete(worlds: list[World]) -> bool:
    """Return whether every acknowledged record is visible; a doubled one is an error at any time."""
    for world in worlds:
        places = [row[:2] for row in world.rows()]
        if len(places) != len(set(places)):
            pytest.fail(f"rows of {world.name} are doubled")
        if len(places) < len(world.sent):
            return False
    return True


def run_through(settings: Settings, folder: Path, seed: int, moments: list[str]) -> None:
    chance = random.Random(seed)
    with two_topics(settings, folder) as worlds:
        one = worlds[0]
        with Power(folder / "power", one.settings, [world.topic for world in worlds], one.instance) as power:
            with load(worlds, chance):
                for name in moments:
                    runs = cut_power(power, MOMENTS[name])
                    assert not has_ended(one, runs), "they hold what they held when the power went"
                    power.start()
                    seconds = wait(lambda runs=runs: has_ended(one, runs))  # type: ignore[misc]
                    print(f"\nseed {seed}: cut while {len(runs)} runs were {name}; ended {seconds:.1f} s after the restart")
                if not moments:
                    wait(lambda: all(world.rows() for world in worlds))
            seconds = wait(lambda: is_complete(worlds), allowed_seconds(), 0.5)
            records = sum(len(world.sent) for world in worlds)
        print(f"seed {seed}: {records} records, complete {seconds:.1f} s after the last")
        for world in worlds:
            assert world.rows() == sorted(world.sent.values(), key=lambda row: row[:2]), "0 missing, 0 doubled, 0 changed"


@pytest.mark.timeout(900)
def test_after_a_power_cut_everything_lands_without_hands(settings: Settings, tmp_path: Path) -> None:
    """[R-26] L1: a run was STARTED and its step had not begun; four such runs held everything up for two hours."""
    run_through(settings, tmp_path / "world", 0, ["started, before its step"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_after_three_power_cuts_in_a_row_everything_lands_without_hands(settings: Settings, tmp_path: Path, seed: int) -> None:
    """[R-26] L1: three moments of a seed, under load all the while."""
    moments = random.Random(seed).choices(list(MOMENTS), k=3)
    run_through(settings, tmp_path / "world", seed, moments)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_without_a_cut_the_same_lands_by_itself(settings: Settings, tmp_path: Path) -> None:
    """The control."""
    run_through(settings, tmp_path / "world", 0, [])
