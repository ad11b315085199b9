"""The demo as a person runs it, killed once with SIGKILL on the way: real flights, the real sensor and daemon."""

import importlib
import json
import os
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.system.processes import Process
from pipeline_defs.adapters.testbed.broker import read_broker
from pipeline_defs.lab.flights import DAYS, POISON
from pipeline_defs.lab.processes import plain_environment
from pipeline_defs.resources import Edges
from pipeline_defs.settings import PROJECT, read_settings
from tests.conftest import JARS
from tests.support.dagster_up import Terminal, terminal
from tests.support.decoded import shown_places

pytestmark = pytest.mark.scenario

demo_command = importlib.import_module("pipeline_defs.lab.cli.demo")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "jars").symlink_to(JARS)
    return tmp_path


def run_demo(home: Path, days: int) -> AbstractContextManager[Terminal]:
    command = [str(Path(sys.executable).with_name("offsetlake")), "demo", "--days", str(days)]
    environment = plain_environment() | {"OFFSETLAKE_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    return terminal(command, cwd=PROJECT, env=environment)


@pytest.mark.parametrize("before", [None, "a person's", "a demo's that was killed"])
def test_the_demo_stops_its_own_broker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    broker, stopped = SimpleNamespace(bootstrap_servers="127.0.0.1:1", pid=7), list[Path]()
    monkeypatch.setattr(demo_command, "read_broker", lambda _: broker if before else None)
    monkeypatch.setattr(demo_command, "start_broker", lambda *_, **__: broker)
    monkeypatch.setattr(demo_command, "resolve_jars", lambda *_: [])
    monkeypatch.setattr(demo_command, "stop_broker", stopped.append)
    edges = Edges(read_settings({"OFFSETLAKE_HOME": str(tmp_path)}, tmp_path))
    if before == "a demo's that was killed":
        (tmp_path / "demo").mkdir()
        (tmp_path / "demo" / "broker.pid").write_text("7")
    with demo_command._broker(edges):
        assert not stopped
    assert stopped == ([] if before == "a person's" else [edges.settings.broker])


@pytest.mark.parametrize(("days", "flights"), [(1, 842), pytest.param(DAYS, 336_776, marks=pytest.mark.long)])
def test_the_demo_survives_a_kill_and_lands_every_flight(home: Path, days: int, flights: int) -> None:
    """[R-18] SIGKILL while it lands; started again it finds what is left running, and every check is green.

    Then Ctrl-C stops every process.
    """
    records = flights + len(POISON)
    with run_demo(home, days) as killed:
        killed.wait_for("Dagster is at")
        lake = Lake(str(home / "lake"))
        killed.wait_until(lambda: bool(lake.read_manifests("flights")))
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    left = json.loads((home / "demo" / "dagster.json").read_text())
    assert Process(left["pid"], left["started"]).is_running(), "the fault: Dagster is left behind"

    with run_demo(home, days) as demo:
        demo.wait_for("press Ctrl-C")
        assert not Process(left["pid"], left["started"]).is_running()
        assert f"{records:,}" in demo.text
        assert all(f"check {name}" in demo.text for name in ("tiling", "completeness", "published_digest", "replay"))
        assert "RED" not in demo.text
        assert f"{len(POISON)} records could not be decoded" in demo.text
        tables = {line.partition(":")[0]: line for line in demo.lines if line.startswith(("decoded: ", "latest: ", "days: "))}
        assert tables.keys() == {"decoded", "latest", "days"}, "where each stands, as `status` says it"
        assert f", {flights:,} rows of " in tables["decoded"] and f", {len(POISON)} dead letters" in tables["decoded"]
        assert " wait" not in tables["decoded"] + tables["latest"]
        assert len(shown_places(Lake(f"{home}/lake"), "flights")) == flights
        rows = f'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM read_parquet(\'{home}/lake/data/**/*.parquet\')'
        assert duckdb.sql(rows).fetchall() == [(records, records)]

        broker = read_broker(home / "broker")
        dagster = json.loads((home / "demo" / "dagster.json").read_text())
        assert broker is not None
        assert demo.end(signal.SIGINT) == 0
    assert read_broker(home / "broker") is None
    assert not Process(dagster["pid"], dagster["started"]).is_running()
    with pytest.raises(ProcessLookupError):
        os.killpg(dagster["pid"], 0)
