"""Dagster's own processes over a home, and its own tools over the project.

Two Dagsters started at one moment may want one port: neither takes the other's answer for its own. Two daemons of one home
would do each tick twice: who starts a second one is told, and one that was killed blocks nobody.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from pipeline_defs.adapters.system.processes import Process, read_process, spawn_process
from pipeline_defs.core.errors import Refused
from pipeline_defs.lab.environment import plain_environment
from pipeline_defs.operate.status import find_missing_tick
from pipeline_defs.orchestration.home import dagster_server
from pipeline_defs.orchestration.home.daemons import DaemonProcess, Listener, find_daemons, is_silent, read_silence
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.dagster_server import DagsterServer, PortTaken
from pipeline_defs.settings import PROJECT
from tests.support.registry import Answering, serving
from tests.support.world import PATIENCE_SECONDS, World

pytestmark = pytest.mark.scenario


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, beside which is a workspace without a code location."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((PROJECT / "dagster.yaml").read_text())
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    return home


def server_of(home: Path, port: int | None = None) -> DagsterServer:
    return DagsterServer(home.parent / "up", home, home.parent / "workspace.yaml", project=home.parent, port=port)


class Foreign(Answering):
    """Answers as the webserver of a Dagster with another home."""

    def do_POST(self) -> None:  # noqa: N802 (as http.server names it)
        self.told()
        info = 'local_artifact_storage: {config: {base_dir: "/another"}}'
        self.answer(200, json.dumps({"data": {"instance": {"info": info}}}).encode())


@contextmanager
def taken_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have another take the preferred port after it was seen to be free and before Dagster listens at it."""
    port = dagster_server._free_port(0)
    others: list[int] = []

    def start(command: list[str], **given: Any) -> Process:
        if not others:
            others.append(opened.enter_context(serving(Foreign, port=port)))
        return spawn_process(command, **given)

    monkeypatch.setattr(dagster_server, "PREFERRED_PORT", port)
    monkeypatch.setattr(dagster_server, "spawn_process", start)
    with ExitStack() as opened:
        yield port


def test_a_port_that_another_took_a_moment_before_is_left_to_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_of(home)
    before = dict(os.environ), Path.cwd()
    with taken_as_it_starts(monkeypatch) as port, server:
        assert server.port != port
        assert server._answers_for_home()
        assert (dict(os.environ), Path.cwd()) == before, "whoever starts a Dagster goes on in its own environment"
    assert not server.is_running()


def test_a_port_that_a_person_named_is_not_exchanged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_as_it_starts(monkeypatch) as port:
        server = server_of(home, port)
        with pytest.raises(PortTaken, match=f"another program took http://127.0.0.1:{port}"), server:
            pass
    assert not server.is_running()


def test_of_two_that_start_at_one_moment_one_is_refused(home: Path) -> None:
    """Before it has stopped what the other one has begun, or its Spark; a state that a power cut tore stops nobody."""
    first = server_of(home)
    (home.parent / "up").mkdir()
    (home.parent / "up" / "dagster.json").write_text('{"pid": 1')
    first.check_alone()
    with pytest.raises(Refused, match=r"another process starts or stops Dagster of .* just now; nothing was started"):
        server_of(home).check_alone()
    first.check_alone()
    del first
    server_of(home).check_alone()


def test_a_code_server_that_does_not_come_back_ends_all_of_dagster(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster gives one up that is killed as it starts, however often it is asked: `up` begins anew. It is said once."""
    server, asked, is_gone = server_of(home), list[str](), True
    monkeypatch.setattr(server, "_ask", asked.append)
    monkeypatch.setattr(dagster_server, "is_code_server_gone", lambda _: is_gone)
    dagster = spawn_process(["/bin/sleep", "600"], log=home.parent / "log")
    monkeypatch.setattr(server, "_process", dagster)
    said = [server.revive_code_server() for _ in range(dagster_server.MOST_LOOKS_WITHOUT - 1)]
    assert [*filter(None, said)] == ["Dagster's code server was killed; it is started again"] and len(asked) == 11
    assert server.is_running(), "the control"
    assert server.revive_code_server() == "Dagster's code server does not come back, so all of Dagster is ended"
    assert not server.is_running()
    is_gone = False
    assert not server.revive_code_server()


def test_a_log_that_has_become_long_is_begun_anew_and_what_is_written_meanwhile_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of(home)
    server.trim_log()
    server.log.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(dagster_server, "LOG_BYTES", 10)
    with server.log.open("ab", buffering=0) as log:  # as Dagster's processes have it
        log.write(b"short")
        server.trim_log()
        assert server.log.read_bytes() == b"short", "the control"
        log.write(b" and now long")
        server.trim_log()
        log.write(b"new")
    assert server.log.read_bytes() == b"new"
    assert server.log.with_name("dagster.log.1").read_bytes() == b"short and now long"


# ---- daemons


@contextmanager
def daemon(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run Dagster's daemon as `dagster dev` does, in a process group of its own, until it is known."""
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(home.parent / "workspace.yaml")]
    environment = {**os.environ, "DAGSTER_HOME": str(home)}
    with (
        (home.parent / "daemon.log").open("ab") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, process_group=0) as process,
    ):
        try:
            World.wait_until(lambda: process.poll() is not None or process.pid in {each.pid for each in find_daemons(home)})
            assert process.poll() is None, (home.parent / "daemon.log").read_text()
            yield process
        finally:
            process.kill()


def has_heartbeat(instance: dg.DagsterInstance) -> bool:
    return not is_silent(read_silence(instance, "SENSOR", time.time()))


def test_a_daemon_that_hangs_is_ended_by_who_has_started_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was not heard yet may be about to start: it is left in peace."""
    monkeypatch.setattr("pipeline_defs.orchestration.home.daemons.HUNG_AFTER_SECONDS", 0.0)
    server = server_of(home)
    with daemon(home) as process:
        monkeypatch.setattr(server, "_process", read_process(process.pid))
        assert [server.end_hung(None) for _ in range(3)] == [[]] * 3
        assert server.end_hung(0.0) == [], "it is heard"
        process.send_signal(signal.SIGSTOP)
        with open_instance(home) as instance:
            told = find_missing_tick(instance, now_ms=2**52)
        assert told.startswith(f"wait for Dagster's daemon, process {process.pid} on "), "what `status` says"
        assert server.end_hung(1_000.0) == [], "from now on it is listened to"
        assert [each.pid for each in server.end_hung(1_000.0)] == [process.pid]
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    with open_instance(home) as instance:
        assert find_missing_tick(instance, now_ms=2**52) == "start Dagster (`offsetlake up`)", "the control"


def test_a_daemon_that_starts_is_not_taken_for_the_one_whose_heartbeat_is_there_still() -> None:
    listener, new = Listener(), DaemonProcess(2, "here")
    assert listener.find_hung([new], 15.0, now=0.0) == [], "a heartbeat of the one before"
    assert [listener.find_hung([new], 91.0 + now, now) for now in (76.0, 300.0, 900.0)] == [[]] * 3
    assert listener.find_hung([new], 1.0, now=901.0) == [], "its own"
    assert [listener.find_hung([new], 100.0 + now, now) for now in (1_000.0, 1_181.0)] == [[], [new]], "the control"


def test_a_second_daemon_is_refused_while_the_first_lives_and_no_moment_longer(home: Path) -> None:
    """After a power cut the heartbeat is as fresh as before, and `up` must start at once all the same.

    It tells its own from one that was started beside it later.
    """
    server = server_of(home)
    assert find_daemons(home) == [], "the control"
    with open_instance(home) as instance:
        instance.run_launcher  # noqa: B018 -- loaded, as by any command: that makes nobody a daemon
        assert find_daemons(home) == []
        with daemon(home) as process:
            with daemon(home) as other:
                leader = read_process(process.pid)
                assert leader is not None
                found = find_daemons(home)
                assert {each.pid for each in found} == {process.pid, other.pid}
                assert [each.pid for each in found if not each.is_in_group(leader.pid)] == [other.pid]
            World.wait_until(lambda: has_heartbeat(instance))
            with pytest.raises(Refused, match=f"runs already, process {process.pid} on .*nothing was started"), server:
                pass
            assert process.poll() is None, "it is somebody's"
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
        assert has_heartbeat(instance), "the fault: a heartbeat that looks alive"
    assert server.find_others() == []
    assert list((home / "daemon_locks").iterdir()) == []


# ---- tools


def run(tool: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a tool of Dagster's over the project; `dg` and workspace.yaml find the same definitions under the same name."""
    command = [Path(sys.executable).with_name(tool), *arguments]
    own = {"OFFSETLAKE_HOME": str(home), "DAGSTER_HOME": str(home), "VIRTUAL_ENV": sys.prefix}
    return subprocess.run(command, cwd=PROJECT, env=plain_environment() | own, capture_output=True, text=True, check=False)


def test_dg_lists_the_definitions(tmp_path: Path) -> None:
    listed = run("dg", "list", "defs", "--json", home=tmp_path)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    keys = {asset["asset_key"] for asset in found["assets"]}
    assert {"raw/flights", "kafka/flights"} <= keys
    assert {sensor["name"] for sensor in found["sensors"]} >= {"land_pending"}
    assert {job["name"] for job in found["jobs"]} >= {"land_flights", "audit", "compact_tables"}


def test_workspace_yaml_loads_the_same_location(tmp_path: Path) -> None:
    """One location name, or sensor state would split in two between `dg dev` and `dagster dev -w workspace.yaml`."""
    validated = run("dagster", "definitions", "validate", "-w", "workspace.yaml", home=tmp_path)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    assert "offsetlake" in validated.stdout + validated.stderr
    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]
    assert location["python_module"]["location_name"] == "offsetlake"
    assert 'code_location_name = "offsetlake"' in (PROJECT / "pyproject.toml").read_text()
