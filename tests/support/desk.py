"""A person's desk: a project with some topics, its Dagster up on loopback, and pages of it; and a topic of very many ranges.

Code server, webserver and daemon are processes of their own, as in a deployment, so the daemon may begin later. Very many
ranges are planned by the real planner and then written at once, not one by one: each is one record on the broker, one manifest
and one tiny Parquet file in the lake, one key and one materialisation in Dagster's database, as landing would have left them.
"""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import timeit
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Self

import stamina
import yaml

from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.lab.bench.costs.history import write_landed
from pipeline_defs.lab.processes import plain_environment, variables_of
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.pulse.ticking import landed_event
from pipeline_defs.orchestration.runs.projection import register_keys
from pipeline_defs.settings import Settings
from tests.support.world import World

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
        """Start what ticks sensors, launches queued runs and works on backfills."""
        self._spawn("dagster._daemon", "run", "-w", "workspace.yaml")

    def _write_project(self, topics: Mapping[str, Mapping[str, object]]) -> None:
        """Write what a person has: a folder per topic; the code is the project's own."""
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
        """Start one of Dagster's processes in the project; it and all it has started end with the desk."""
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
    """Stop a process and its whole group; what does not end in time is killed."""
    with process:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_SECONDS)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


PARTITIONS = 4
STEPS_OF = 10_000  # what one planning step may add
REPEATS = 3


def fill(world: World, ranges: int) -> None:
    """Produce, plan and write as landed so many ranges of one record; then give Dagster their keys and events."""
    world.create_topic(PARTITIONS)
    world.with_policy(records_per_range=1, budget=min(ranges, STEPS_OF))
    for partition in range(PARTITIONS):
        world.operations.send(world.name, ({"partition": partition, "value": b"v"} for _ in range(ranges // PARTITIONS)))
    for step in world.plan():
        write_landed(world.lake_folder, world.name, step)
    planned = [*world.coverage.log.ranges]
    assert len(planned) == ranges
    register_keys(world.instance, world.topic, world.coverage)
    _write_events(world, planned)


def _write_events(world: World, ranges: list[OffsetRange]) -> None:
    """Report the first range as ever, and the others by copies of its rows in Dagster's own database."""
    coverage, first = world.coverage, ranges[0]
    world.instance.report_runless_asset_event(landed_event(world.topic, first, coverage, world.adapters))
    (index,) = world.settings.dagster_home.rglob("index.db")
    with closing(sqlite3.connect(index)) as database, database:
        columns = "run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition"
        find = f"SELECT id, {columns} FROM event_logs WHERE partition = ? ORDER BY id DESC"
        number, run_id, event, *middle, _ = database.execute(find, (first.key,)).fetchone()
        tags = database.execute(
            "SELECT asset_key, key, value, event_timestamp FROM asset_event_tags WHERE event_id = ?", (number,)
        ).fetchall()
        (last,) = database.execute("SELECT max(id) FROM event_logs").fetchone()
        copies = list(enumerate(ranges[1:], start=last + 1))
        database.executemany(
            f"INSERT INTO event_logs (id, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            ((at, run_id, event.replace(f'"{first.key}"', f'"{offsets.key}"'), *middle, offsets.key) for at, offsets in copies),
        )
        database.executemany(
            "INSERT INTO asset_event_tags (event_id, asset_key, key, value, event_timestamp) VALUES (?, ?, ?, ?, ?)",
            ((at, *tag) for at, _ in copies for tag in tags),
        )
    assert world.materialized() == {offsets.key for offsets in ranges}


def measure_beside(act: Callable[[], object], control: Callable[[], object]) -> tuple[float, float]:
    """Return the medians in seconds of what is measured and of its control, taken in turns after one each that warms up."""
    act()
    control()
    times = [(timeit.timeit(act, number=1), timeit.timeit(control, number=1)) for _ in range(REPEATS)]
    return median(each for each, _ in times), median(each for _, each in times)
