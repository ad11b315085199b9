"""A Dagster whose power can be cut: daemon, code server, runs and their JVMs, all killed at once by SIGKILL.

Everything it starts carries a mark in its environment, by which it is found however it was started.
"""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import dagster as dg
import psutil
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from sqlalchemy.exc import OperationalError

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.lab.bench.location import write_location
from pipeline_defs.settings import Settings
from pipeline_defs.topics import Topic
from tests.support.world import World

MARK = "OFFSETLAKE_TESTS_POWER"
UNDER_WAY = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
_PID = re.compile(r"\(pid: (\d+)\)")


def find_processes(name: str, value: str) -> set[int]:
    """Find the processes that were started with a variable of this value; what has ended is not among them."""
    found = psutil.process_iter(["environ"])
    return {each.pid for each in found if (each.info["environ"] or {}).get(name) == value}


class Power:
    """Run Dagster's daemon, which starts all the rest, over some topics of one lake while the context is open."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        topics: Sequence[Topic],
        instance: dg.DagsterInstance,
        *,
        daemon: Sequence[str] = ("-m", "dagster._daemon"),
    ) -> None:
        self._folder, self._instance, self._mark, self._program = folder, instance, uuid.uuid4().hex, daemon
        self._workspace = write_location(folder, settings, *topics)
        self._environment = {
            **os.environ,
            MARK: self._mark,
            "DAGSTER_HOME": str(settings.dagster_home),
            "PYTHONPATH": str(PROJECT),
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def start(self) -> None:
        """Start Dagster as somebody does who comes back after the power: nothing but the one command."""
        command = [sys.executable, *self._program, "run", "-w", str(self._workspace)]
        with (self._folder / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                command, cwd=PROJECT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def cut(self) -> set[int]:
        """Kill every process at once; return their ids when all of them are gone."""
        return self.cut_while(lambda: True) or set()

    @property
    def daemon_pid(self) -> int:
        return self._daemon.pid

    @property
    def has_ended(self) -> bool:
        return self._daemon.poll() is not None

    def processes(self) -> set[int]:
        """Find all that was started, by its mark; what has ended is not among it."""
        return find_processes(MARK, self._mark)

    def family(self, pid: int) -> set[int]:
        """Find a process and all below it: a run has its JVM there."""
        return {pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))}

    def cut_while(self, condition: Callable[[], bool]) -> set[int] | None:
        """Kill every process if the condition holds with all of them stopped; else let them go on and return none."""
        found = self._signal(signal.SIGSTOP)
        try:
            is_met = condition()
        except OperationalError:  # one of them was stopped in the middle of a write, and SQLite waits for it
            is_met = False
        if not is_met:
            self._signal(signal.SIGCONT)
            return None
        self._signal(signal.SIGKILL)
        self._daemon.wait()
        World.wait_until(lambda: not self.processes(), 60, every_seconds=0.1)
        return found

    def _signal(self, number: signal.Signals) -> set[int]:
        """Signal all processes, until no new one appears meanwhile."""
        done: set[int] = set()
        while fresh := self.processes() - done:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            done |= fresh
        return done

    def runs_before_their_step(self, *statuses: DagsterRunStatus) -> list[DagsterRun]:
        """Find runs in these statuses whose step has not begun."""
        runs = self._instance.get_runs(RunsFilter(statuses=list(statuses)))
        return [run for run in runs if not self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_START)]

    def pid_of(self, run: DagsterRun) -> int | None:
        """Read the process of a run, as Dagster has logged it; none where it has not yet."""
        events = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        texts = [event.dagster_event.message or "" for event in events if event.dagster_event is not None]
        found = [_PID.search(text) for text in texts if text.startswith("Started process")]
        return next((int(each[1]) for each in found if each), None)
