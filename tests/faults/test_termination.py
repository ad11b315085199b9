"""A landing run that is told to end: Dagster's Terminate, and SIGTERM of its process, in the middle of its work (U9).

Daemon, code server, runs and JVMs are real. That the same lands when nobody interferes is the control of the power cut.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import psutil
import pytest
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from pipeline_defs.adapters.spark.spark_server import read_server
from pipeline_defs.landing.sweeping import sweep_orphans
from pipeline_defs.settings import PROJECT, Settings
from pipeline_defs.topics import LAND_PENDING
from tests.faults.test_power_cut import two_topics, wait
from tests.support.power import Power
from tests.support.world import PATIENCE_SECONDS, World

RECORDS = 900
ENDED = {DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE}


def run_in_its_step(world: World) -> DagsterRun | None:
    """Find a run that lands, whose step has begun, and which has landed nothing yet."""
    for run in world.instance.get_runs(RunsFilter(job_name=LAND_PENDING, statuses=[DagsterRunStatus.STARTED])):
        if world.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_START):
            return run
    return None


@pytest.mark.timeout(900)
def test_a_landing_run_that_is_terminated_ends_cleanly_and_is_made_good(settings: Settings, tmp_path: Path) -> None:
    """[R-26] U9: it ends as cancelled or failed; nothing half done is seen; the next tick lands the rest.

    The warm Spark is frozen meanwhile, so that the run is in the middle of its work however quick it is.
    """
    with two_topics(settings, tmp_path / "world") as worlds:
        one, two = worlds
        with Power(tmp_path / "world" / "power", one.settings, [world.topic for world in worlds], one.instance) as power:
            for world, is_terminate in ((one, True), (two, False)):
                one.edges.engine(one.edges.pyspark()).session({})  # on a slow machine somebody has ended the frozen one
                with frozen(one.settings):
                    world.send_numbered(RECORDS)
                    wait(lambda world=world: run_in_its_step(world) is not None)  # type: ignore[misc]
                    run = run_in_its_step(world)
                    assert run is not None
                    pid = power.pid_of(run)
                    assert pid is not None
                    family = power.family(pid)
                    if is_terminate:
                        assert one.instance.run_launcher.terminate(run.run_id)
                    else:
                        os.kill(pid, signal.SIGTERM)
                    wait(lambda family=family: not family & power.processes())  # type: ignore[misc]
                    wait(lambda run=run: status(one, run) in ENDED)  # type: ignore[misc]
                    if is_terminate:
                        assert status(one, run) is DagsterRunStatus.CANCELED
                    assert not world.rows(), "the fault: it was in the middle"
            wait(lambda: all(len(world.rows()) == RECORDS for world in worlds), every_seconds=0.5)
            wait(lambda: not one.instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED])))
        sweep_orphans(one.edges.lake, one.edges.now_ms(), -60)
        for world in worlds:
            world.assert_all_landed_once()


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
    wait(lambda: any(child.name() == "java" for child in own.children(recursive=True)))
    begun = own.children(recursive=True)
    starting.terminate()
    assert starting.wait(PATIENCE_SECONDS)
    _, left = psutil.wait_procs(begun, PATIENCE_SECONDS)
    for each in left:
        each.kill()
    assert not left


def status(world: World, run: DagsterRun) -> DagsterRunStatus:
    found = world.instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status
