"""Children of tests: one that lands and is killed at a step, with its JVM, and commands as a person runs them."""

import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from pipeline_defs.cli.launching import InProcessRuns
from pipeline_defs.definitions import build_defs
from pipeline_defs.lab.drills.children import FORKS, Child, become, end
from pipeline_defs.lab.drills.children import stopped_at as child_stopped_at
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.pulse.pulse import build_pulse
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.pulse.ticking import run_tick
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import IN_PROCESS, Settings
from pipeline_defs.tables.compaction import compact
from pipeline_defs.tables.deleting import drop_range_files, plan_dropping, vacuum
from pipeline_defs.topics import LAND_PENDING, Topic
from tests.support.world import PATIENCE_SECONDS, World

PLACES = ("disk", "bucket")
ALL_SECONDS = -3600.0  # an age that every file has, whatever rounds it
QUICK_JVM = "-XX:TieredStopAtLevel=1"  # a JVM that lives for seconds starts faster so


@dataclass(frozen=True, slots=True)
class Task:
    """One tick, a run of the pulse, a rebuild, landing or deriving through Dagster, or another action by its name."""

    settings: Settings
    topic: Topic
    action: str
    others: tuple[Topic, ...] = ()  # beside the one, of a run of the pulse
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, watch: Callable[..., None]) -> None:
        """Do it once, and tells `watch` each step as it is passed."""
        os.environ.update(self.environment)
        adapters = Adapters(self.settings, watch_step=watch)
        with open_instance(self.settings.dagster_home) as instance:
            match self.action.split():
                case ["tick"]:
                    run_tick(self.topic, instance, adapters)
                    watch("tick_requested")
                case ["pulse"]:
                    self._pulse(instance, adapters)
                case ["rebuild"]:
                    rebuild_topic(self.topic, adapters, instance)
                case ["decode" | "decode_again"]:
                    self._decode(instance, adapters)
                case ["compact"]:
                    tools, attempt = adapters.tools(self.topic, adapters.pyspark()), Attempt("killed", "no-run", "test")
                    list(compact(self.topic.name, attempt, tools, self.topic.policy.target_file_bytes, every=True))
                case ["drop"]:
                    lake, name, now_ms = adapters.lake, self.topic.name, adapters.now_ms()
                    list(drop_range_files(name, lake, plan_dropping(name, lake, now_ms, 0), now_ms, watch))
                case ["vacuum"]:
                    vacuum(adapters.lake, adapters.now_ms(), ALL_SECONDS, watch)
                case ["update"]:
                    assert self._runs(instance, adapters).update_latest(full=False).succeeded
                case ["run", run_id]:
                    work_off(run_id, self.topic, adapters, instance)
                case _:
                    self._land(instance, adapters)

    def _runs(self, instance: dg.DagsterInstance, adapters: Adapters) -> InProcessRuns:
        return InProcessRuns(self.topic, adapters, instance)

    def _land(self, instance: dg.DagsterInstance, adapters: Adapters) -> None:
        coverage, replaces = adapters.lake.coverage(self.topic.name), self.action == "replace"
        ranges = sorted(coverage.manifests) if replaces else coverage.pending()
        how: dict[str, Any] = {"redo": True, "on_change": "replace"} if replaces else {"redo": False}
        list(self._runs(instance, adapters).land(ranges, **how))

    def _pulse(self, instance: dg.DagsterInstance, adapters: Adapters) -> None:
        topics = [self.topic, *self.others]
        defs = dg.Definitions.merge(*(build_topic_defs(each, adapters.settings.lake) for each in topics), build_pulse(topics))
        job = build_defs(adapters, topics=defs).resolve_job_def(LAND_PENDING)
        job.execute_in_process(instance=instance, raise_on_error=False)

    def _decode(self, instance: dg.DagsterInstance, adapters: Adapters) -> None:
        coverage, decoded = adapters.lake.coverage(self.topic.name), adapters.decodings.read_ranges(self.topic.name)
        redo = self.action == "decode_again"
        ranges = sorted(decoded.known) if redo else decoded.find_due(coverage)
        list(self._runs(instance, adapters).decode(ranges, redo=redo))


def work_off(run_id: str, topic: Topic, adapters: Adapters, instance: dg.DagsterInstance) -> bool:
    """Execute a run of the topic's assets that waits, as the worker does that Dagster starts for it."""
    job = build_defs(adapters, topics=build_topic_defs(topic, adapters.settings.lake)).resolve_implicit_global_asset_job_def()
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return execute_run(InMemoryJob(job), run.with_status(DagsterRunStatus.STARTING), instance).success


def everywhere(steps: Iterable[Any], quick: Collection[tuple[str, Any]]) -> list[Any]:
    """Return each step on a disk and in a bucket, as parameters; what is not `quick`, as (place, step), is a long test."""
    assert {step for _, step in quick} <= {*steps}
    return [
        pytest.param(place, step, marks=[] if (place, step) in quick else [pytest.mark.long])
        for place in PLACES
        for step in steps
    ]


@contextmanager
def stopped_at(
    world: World, action: str, step: str, nth: int = 1, *, others: Iterable[Topic] = (), own_jvm: bool = False
) -> Iterator[Child]:
    """Run the task up to the step; inside the context it stands there, after it it has died by SIGKILL or ended.

    With a JVM of its own the kill takes that too. Else it shares the tests' warm Spark, which is there at once, and whose
    scan goes on after the kill, as that of a cluster would.
    """
    settings = replace(world.settings, engine=IN_PROCESS) if own_jvm else world.settings
    stores = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    task = Task(settings, world.topic, action, tuple(others), stores)
    with child_stopped_at(task.run, step, nth, log=world.folder / "children.log") as child:
        yield child


def staged(world: World) -> list[int]:
    """Return the sizes of the Parquet files that the attempts of this lake have staged so far."""
    return [size for path, size in world.adapters.lake.store.list("staging").items() if path.endswith(".parquet")]


class Striker:
    """Strikes once, in the middle of the first scan: when it has staged a first file, and this much.

    `struck_at` is when, once it has, and `at_bytes` how far the scan was.
    """

    def __init__(self, world: World, strike: Callable[[], None], least_bytes: int = 0) -> None:
        self.struck_at, self.at_bytes = 0.0, 0
        self._world, self._strike, self._least_bytes = world, strike, least_bytes
        self._thread = threading.Thread(target=self._watch)

    def on_step(self, step: str, **_: Any) -> None:
        if step == "scan" and not self._thread.ident:
            self._thread.start()
        if step in {"engine_lost", "report"}:
            self.join()

    def join(self) -> None:
        """Wait until it has struck."""
        self._thread.join()

    def _watch(self) -> None:
        World.wait_until(self._is_under_way, every_seconds=0.02)
        self._strike()
        self.struck_at = time.monotonic()

    def _is_under_way(self) -> bool:
        sizes = staged(self._world)
        self.at_bytes = sum(sizes)
        return bool(sizes) and self.at_bytes >= self._least_bytes


def run_module(module: str, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a module to its end as a process of its own, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = FORKS.Process(target=_run, args=(module, arguments, dict(env), out, err), daemon=True)
        process.start()
        try:
            process.join(PATIENCE_SECONDS)
            assert process.exitcode is not None, f"{module} {arguments} does not end"
        finally:
            end(process)
        return subprocess.CompletedProcess([module, *arguments], process.exitcode, out.read_text(), err.read_text())


def _run(module: str, arguments: tuple[str, ...], env: Mapping[str, str], out: Path, err: Path) -> None:
    become(out, err)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
