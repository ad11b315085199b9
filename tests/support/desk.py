"""A person's desk: a project with some topics, its Dagster up on loopback, and pages of it in a browser.

Code server, webserver and daemon are processes of their own, as in a deployment, so the daemon may begin later.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import stamina
import yaml

from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.lab.processes import plain_environment, variables_of
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.settings import PROJECT, Settings

START_SECONDS = 120
STOP_SECONDS = 20
MODULE = "desk_definitions"
DEFINITIONS = "from pipeline_defs.definitions import defs as defs\n"
TREE = ("dagster.yaml", "docs", "pipeline_defs", "pyproject.toml")


class Desk:
    """Runs Dagster over a project with one `defs.yaml` per topic while the context is open."""

    def __init__(self, folder: Path, settings: Settings, topics: Mapping[str, Mapping[str, object]]) -> None:
        self.folder = folder
        self.settings = settings
        self.port, self._code_port = free_ports(2)
        self._processes = ExitStack()
        self._write_project(topics)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        open_instance(self.settings.dagster_home).dispose()
        code = ("api", "grpc", "--module-name", MODULE, "--location-name", "offsetlake")
        self._spawn("dagster", *code, "--host", "127.0.0.1", "--port", str(self._code_port))
        self._await("dagster", lambda: socket.create_connection(("127.0.0.1", self._code_port), 1).close())
        self._spawn("dagster_webserver", "-h", "127.0.0.1", "-p", str(self.port), "-w", "workspace.yaml")
        self._await("dagster_webserver", lambda: socket.create_connection(("127.0.0.1", self.port), 1).close())
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def start_daemon(self) -> None:
        """Starts what ticks sensors, launches queued runs and works on backfills."""
        self._spawn("dagster._daemon", "run", "-w", "workspace.yaml")

    def _write_project(self, topics: Mapping[str, Mapping[str, object]]) -> None:
        """Writes what a person has: a folder per topic; the code is the project's own."""
        self.folder.mkdir()
        for name in TREE:
            (self.folder / name).symlink_to(PROJECT / name)
        for topic, attributes in topics.items():
            folder = self.folder / "assets" / topic
            folder.mkdir(parents=True)
            document = {"type": "offsetlake.KafkaTopic", "attributes": {"topic": topic, **attributes}}
            (folder / "defs.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        (self.folder / "assets" / "__init__.py").touch()
        (self.folder / f"{MODULE}.py").write_text(DEFINITIONS)
        server = {"host": "127.0.0.1", "port": self._code_port, "location_name": "offsetlake"}
        (self.folder / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [{"grpc_server": server}]}))

    def _spawn(self, module: str, *arguments: str) -> None:
        """Starts one of Dagster's processes in the project; it and all it has started end with the desk."""
        ours = plain_environment()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with self._log(module).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.folder,
                env=ours | variables_of(self.settings) | {"PATH": path, "PYTHONPATH": str(self.folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.callback(_stop, process)

    def _log(self, module: str) -> Path:
        return self.folder / f"{module}.log"

    def _await(self, module: str, ask: Callable[[], None]) -> None:
        try:
            for attempt in stamina.retry_context(on=OSError, timeout=START_SECONDS, attempts=None, wait_max=0.3):
                with attempt:
                    ask()
        except OSError as error:
            raise AssertionError(f"{module} does not answer: {self._log(module).read_text()[-2000:]}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stops a process and its whole group; what does not end in time is killed."""
    with process:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_SECONDS)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
