"""A Dagster webserver and daemon of our own, for the demo: started in one process group, stopped by it.

What an earlier demo left running after a kill -9 is stopped first. Invariant: nothing it started outlives it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from dagster_graphql import DagsterGraphQLClient

from ..core.errors import Unavailable
from ..edges.processes import Process, spawn_process
from ..launching import open_instance
from ..settings import PROJECT

START_SECONDS = 120
STOP_SECONDS = 30
RUN_SECONDS = 600
PREFERRED_PORT = 3000
_POLL_SECONDS = 0.25


class DagsterUnavailable(Unavailable):
    """Says that Dagster did not come up."""

    kind = "dagster_unavailable"


class DagsterServer:
    """Runs `dagster dev` on loopback while the context is open; `folder` keeps its log and its process id."""

    def __init__(self, folder: Path, dagster_home: Path, workspace: Path = PROJECT / "workspace.yaml") -> None:
        self._workspace = workspace
        self._folder = folder
        self._home = dagster_home
        self._state = folder / "dagster.json"
        self._process: Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Is the UI's address."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> DagsterServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stop_leftover()
        with open_instance(self._home):
            pass
        self.port = _free_port()
        os.environ["DAGSTER_HOME"] = str(self._home)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        command = [
            sys.executable,
            "-m",
            "dagster",
            "dev",
            "-w",
            str(self._workspace),
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
        ]
        os.chdir(PROJECT)
        self._process = spawn_process(command, log=self._folder / "dagster.log")
        self._state.write_text(json.dumps({"pid": self._process.pid, "started": self._process.started}))
        self._await_answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            _stop_group(self._process)
        self._state.unlink(missing_ok=True)

    def is_running(self) -> bool:
        """Says whether Dagster is still up."""
        return self._process is not None and self._process.is_running()

    def run_job(self, job: str) -> tuple[str, bool]:
        """Runs a job and waits for its end; returns the run's id and whether it succeeded."""
        client = DagsterGraphQLClient("127.0.0.1", port_number=self.port)
        run_id = client.submit_job_execution(job, repository_location_name="offsetlake")
        deadline = time.monotonic() + RUN_SECONDS
        with open_instance(self._home) as instance:
            while time.monotonic() < deadline:
                run = instance.get_run_by_id(run_id)
                if run is not None and run.is_finished:
                    return run_id, run.is_success
                time.sleep(_POLL_SECONDS)
        raise DagsterUnavailable(f"run {run_id} of {job} did not end within {RUN_SECONDS} s; its log is at {self.url}")

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.is_running():
            try:
                with urllib.request.urlopen(f"{self.url}/server_info", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(_POLL_SECONDS)
        raise DagsterUnavailable(f"Dagster did not come up at {self.url}; its log is {self._folder / 'dagster.log'}")

    def _stop_leftover(self) -> None:
        if self._state.exists():
            left = json.loads(self._state.read_text())
            process = Process(left["pid"], left["started"])
            if process.is_running():
                _stop_group(process)


def _stop_group(process: Process) -> None:
    """Stops a process and all it started: it leads its own process group."""
    for number, patience_seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        try:
            os.killpg(process.pid, number)
            deadline = time.monotonic() + patience_seconds
            while time.monotonic() < deadline:
                process.is_running()  # reaps our own child, which would keep the group alive as a zombie
                os.killpg(process.pid, 0)
                time.sleep(_POLL_SECONDS)
        except ProcessLookupError:
            return


def _free_port() -> int:
    for port in (PREFERRED_PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DagsterUnavailable("no port is free on 127.0.0.1")
