"""`offsetlake up`, a plain `dagster dev`, the demo, and what the units of deploy/ run, as real processes.

They have the home of the commands, and leave nothing behind. And Dagster's own processes over a home: of two that start at one
moment neither takes the other's answer for its own, and one that was killed blocks nobody.
"""

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError

import dagster as dg
import duckdb
import psutil
import pytest
import yaml
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.system.locks import Holder, own_name, share
from pipeline_defs.adapters.system.processes import Process, free_ports, read_process, spawn_process, stop_process
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.adapters.testbed.broker import read_broker
from pipeline_defs.core.errors import Refused
from pipeline_defs.lab.bench.measurement import count_rows
from pipeline_defs.lab.processes import plain_environment, variables_of
from pipeline_defs.lab.producing import DAYS, POISON
from pipeline_defs.operate.status import find_missing_tick
from pipeline_defs.orchestration.home import clock, dagster_server
from pipeline_defs.orchestration.home.daemons import Listener, find_daemons, is_silent, read_sensors, read_silence, tick_silence
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.dagster_server import DagsterServer, PortTaken, is_led_by
from pipeline_defs.orchestration.home.project import plan_project, write_env, write_project
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER, CODE_SERVER_COMMAND, is_code_server_gone
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from tests.conftest import JARS
from tests.support.dagster_up import Terminal, asset_keys, is_answering, run_ids, terminal
from tests.support.decoded import shown_places
from tests.support.postgres import running_postgres
from tests.support.registry import Answering, serving
from tests.support.world import PATIENCE_SECONDS, World

pytestmark = pytest.mark.scenario
demo_command = importlib.import_module("pipeline_defs.lab.cli.demo")

Refuse = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(world: World, tmp_path: Path) -> Path:
    """Return a project as `init` writes it, with nothing but a pattern that no topic matches yet."""
    folder = tmp_path / "my_lake"
    pattern = f"type: offsetlake.KafkaTopic\nattributes: {{topics: '{world.name}.*', max_age_seconds: 0}}\n"
    write_project({**plan_project(folder, [], None), folder / "my_lake" / "defs" / "all" / "defs.yaml": pattern})
    write_env(folder, read_settings({}, folder).dagster_home)
    (folder / ".offsetlake" / "jars").symlink_to(JARS)
    return folder


@pytest.fixture
def environment(world: World) -> Mapping[str, str]:
    """Return what a shell has in which nobody has exported anything of ours but where Kafka is."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"PATH": path, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}
    return plain_environment() | own | {"OFFSETLAKE_BOOTSTRAP_SERVERS": world.adapters.bootstrap_servers()}


@pytest.fixture
def refuse(project: Path, environment: Mapping[str, str]) -> Refuse:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = ["offsetlake", "up", *options]
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)

    return run


def run_by_command(project: Path) -> str:
    @dg.asset
    def anything() -> None:
        """Anything."""

    with dg.DagsterInstance.from_config(str(read_settings({}, project).dagster_home)) as instance:
        return dg.materialize([anything], instance=instance).run_id


def test_up_serves_the_home_of_the_commands_lands_what_is_created_meanwhile_and_leaves_nothing(
    project: Path, environment: Mapping[str, str], refuse: Refuse, world: World
) -> None:
    """U1, U13, L6: also where `.env` is missing, as in a clone; a second one is refused, for it would plan and land twice.

    A code server, or a daemon, that is killed is started again; what is left when all that started it is killed, the next
    `up` ends. [R-98] A topic that is created meanwhile is landed and shown, and nobody restarts anything.
    """
    run_id = run_by_command(project)
    (project / ".env").unlink()
    with terminal(["offsetlake", "up"], cwd=project, env=environment) as first:
        first.wait_for("Ctrl-C ends it")
        assert run_id in run_ids(first.url)
        again = refuse()
        assert again.returncode == 2 and f"Dagster runs already at {first.url}" in again.stderr, again.stderr
        assert "starting Dagster" not in again.stdout, "what is refused does not start"
        (project / "my_lake" / "defs" / "wrong").mkdir()
        (project / "my_lake" / "defs" / "wrong" / "defs.yaml").write_text("type: [\n")
        first.wait_for("defs/wrong/defs.yaml")
        left = read_leader(project)
        for pid in (first.process.pid, left):
            os.kill(pid, signal.SIGKILL)
        first.process.wait()
        os.killpg(left, 0)  # the fault: the others of its group live on
    shutil.rmtree(project / "my_lake" / "defs" / "wrong")
    (port,) = free_ports(1)  # of its own: a test beside this one has 3000 as soon as it is let go
    with terminal(["offsetlake", "up", "--port", str(port)], cwd=project, env=environment) as up:
        up.wait_for("Ctrl-C ends it")
        with pytest.raises(ProcessLookupError):
            os.killpg(left, 0)
        home = read_settings({}, project).dagster_home
        (daemon,) = find_daemons(home)
        os.kill(daemon.pid, signal.SIGKILL)
        up.wait_for("Dagster has ended; it is started again")
        up.wait_until(lambda: {each.pid for each in find_daemons(home)} - {daemon.pid} and is_answering(up.url))
        leader = read_leader(project)
        assert not is_code_server_gone(home), "the control"
        for each in psutil.Process(leader).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # one that has just ended
                if each.cmdline()[3:5] == CODE_SERVER_COMMAND:
                    each.kill()  # as the system does where memory is short; of no topic there is anything yet
        up.wait_for("Dagster's code server was killed; it is started again")
        up.wait_until(lambda: not is_code_server_gone(home))
        world.create_topic(2)
        world.send_numbered(100)
        up.wait_for(f"rows: {world.name} 100")
        up.wait_until(lambda: [*world.topic.asset_key.path] in asset_keys(up.url))
        assert count_rows(project / ".offsetlake" / "lake" / "data" / world.name) == 100
        assert up.end(signal.SIGTERM) == 0, up.text
        assert up.lines[-1] == "everything is stopped; what is landed stays landed"
        with pytest.raises(ProcessLookupError):
            os.killpg(leader, 0)
        assert not is_answering(up.url)
    assert "DAGSTER_HOME" in (project / ".env").read_text()


def read_leader(project: Path) -> int:
    """Return the process that leads the group of all that `up` has started."""
    return int(json.loads((project / ".offsetlake" / "up" / "dagster.json").read_text())["pid"])


def test_a_plain_dagster_dev_serves_the_home_of_the_commands(project: Path, environment: Mapping[str, str]) -> None:
    run_id = run_by_command(project)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with terminal(["dagster", "dev", "-h", "127.0.0.1", "-p", str(port)], cwd=project, env=environment) as dagster:
        dagster.wait_until(lambda: is_answering(url))
        assert run_id in run_ids(url), dagster.text
        assert list(project.glob(".tmp_dagster_home_*")) == []


def test_definitions_that_do_not_load_are_told_and_nothing_stays(project: Path, refuse: Refuse) -> None:
    """Dagster would serve an empty project, and nothing would land without a word."""
    (project / "my_lake" / "definitions.py").write_text("raise RuntimeError('mine')\n")
    done = refuse()
    assert done.returncode == 1
    assert "do not load, so nothing would land" in done.stderr and "mine" in done.stderr, done.stderr
    assert not (project / ".offsetlake" / "up" / "dagster.json").exists()


def test_a_port_that_is_taken_is_refused(refuse: Refuse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = refuse("--port", str(port))
    assert refused.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken; nothing was started" in refused.stderr, refused.stderr


UNITS = PROJECT / "deploy" / "systemd"


@contextmanager
def unit(name: str, replaced: Mapping[str, str], project: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run what a unit runs, in a process group of its own, while the context is open."""
    found = re.search(r"^ExecStart=(.*)$", (UNITS / f"offsetlake-{name}.service").read_text(), re.MULTILINE)
    assert found is not None
    command = found[1]
    for there, here in replaced.items():
        command = command.replace(there, here)
    with (project.parent / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command.split(), cwd=project, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield
            assert process.poll() is None, (project.parent / f"{name}.log").read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_the_units_run_lands_a_topic(world: World, tmp_path: Path) -> None:
    project, (code, web) = tmp_path / "my_lake", free_ports(2)
    with running_postgres() as postgres:
        postgres.make_home(world.settings.dagster_home)
        world.fill(150, 150)
        write_project(plan_project(project, [world.name], None))
        settled = project / "my_lake" / "defs" / world.name / "defs.yaml"
        settled.write_text(f"{settled.read_text()}  max_age_seconds: 1\n")
        (tmp_path / "workspace.yaml").write_text((PROJECT / "deploy" / "workspace.yaml").read_text().replace("4000", str(code)))
        environment = {**os.environ, **variables_of(world.settings), "OFFSETLAKE_ENGINE": "in-process"}
        replaced = {
            "/opt/offsetlake/.venv/bin": str(Path(sys.executable).parent),
            "/srv/offsetlake/workspace.yaml": str(tmp_path / "workspace.yaml"),
            "4000": str(code),
            "3000": str(web),
        }
        with (
            unit("code", replaced, project, environment),
            unit("daemon", replaced, project, environment),
            unit("webserver", replaced, project, environment),
        ):
            world.wait_until(lambda: len(world.rows()) == len(world.sent))
            world.wait_until(lambda: is_answering(f"http://127.0.0.1:{web}"))
        world.assert_all_landed_once()


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
    monkeypatch.setattr(server, "_ask", lambda query, _: asked.append(query))
    monkeypatch.setattr(dagster_server, "is_code_server_gone", lambda _: is_gone)
    dagster = spawn_process(["/bin/sleep", "600"], log=home.parent / "log")
    monkeypatch.setattr(server, "_process", dagster)
    said = [server.revive_code_server() for _ in range(40)]
    assert [*filter(None, said)] == ["Dagster's code server was killed; it is started again"] and len(asked) == 2
    assert server.is_running(), "the control"
    monkeypatch.setattr(dagster_server, "MOST_SECONDS_WITHOUT", 0.0)
    assert server.revive_code_server() == "Dagster's code server does not come back, so all of Dagster is ended"
    assert not server.is_running()
    is_gone = False
    assert not server.revive_code_server()


def test_a_newest_code_server_that_was_killed_is_missed_though_an_older_one_has_a_run(home: Path) -> None:
    """After a reload the older one holds the lock too, until its last run has ended."""
    path, child = home / CODE_SERVER, spawn_process(["/bin/sleep", "600"], log=home.parent / "log")
    older = share(path, own_name())
    newest = share(path, Holder(child.pid, socket.gethostname()).text)
    assert not is_code_server_gone(home), "the control"
    stop_process(child, 0)
    os.close(newest)
    assert is_code_server_gone(home)
    os.close(older)
    assert is_code_server_gone(home)


def test_a_webserver_that_answers_no_more_ends_all_of_dagster(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, say: `up` begins anew, once no run is at work, for which it is not needed: no crash takes rows for it.

    One that answers with an error is the control; and where nobody has asked for long, nobody knows since when it is silent.
    """
    server, fault = server_of(home), Mock(side_effect=HTTPError("", 500, "", Message(), None))
    monkeypatch.setattr(server, "_ask", fault)
    said: list[str] = []
    now, is_idle = 1000, Mock(return_value=False)
    monkeypatch.setattr(dagster_server, "time", Mock(monotonic=lambda: now))
    monkeypatch.setattr(server, "_process", spawn_process(["/bin/sleep", "600"], log=home.parent / "log"))
    server.end_deaf(said.append, is_idle)
    assert not said and server.is_running() and fault.called
    fault.side_effect = TimeoutError

    def pass_minutes(minutes: int) -> None:
        nonlocal now
        for _ in range(minutes):
            now += 60
            server.end_deaf(said.append, is_idle)

    pass_minutes(8)
    assert len(said) == 8 and all("does not answer; landing does not need it" in each for each in said)
    now += 600  # in which `up` is stopped itself
    is_idle.return_value = True
    server.end_deaf(said.append, is_idle)
    assert server.is_running()
    pass_minutes(5)
    assert server.is_running()
    now += 1
    server.end_deaf(said.append, is_idle)
    assert "has not answered for minutes" in said.pop() and not server.is_running()


def test_a_long_log_is_begun_anew_and_what_is_written_meanwhile_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert [server.end_hung(None, None) for _ in range(3)] == [[]] * 3
        assert server.end_hung(0.0, None) == [], "it is heard"
        process.send_signal(signal.SIGSTOP)
        with open_instance(home) as instance:
            told = find_missing_tick(instance, now_ms=2**52)
        assert told.startswith(f"wait for Dagster's daemon, process {process.pid} on "), "what `status` says"
        assert server.end_hung(1_000.0, None) == [], "from now on it is listened to"
        (said,) = server.end_hung(1_000.0, None)
        assert said.startswith(f"Dagster's daemon, process {process.pid} on ") and "it was ended" in said
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    with open_instance(home) as instance:
        assert find_missing_tick(instance, now_ms=2**52) == "start Dagster (`offsetlake up`)", "the control"


def test_a_code_server_that_ticks_no_more_is_ended_by_who_has_started_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be stopped, or wait for something that never comes, and holds its lock all the while; its daemon is heard."""
    monkeypatch.setattr("pipeline_defs.orchestration.home.daemons.HUNG_AFTER_SECONDS", 0.0)
    server = server_of(home)
    share_and_wait = (
        "import sys, signal; from pathlib import Path; from pipeline_defs.adapters.system.locks import share_for_life; "
        "share_for_life(Path(sys.argv[1])); print('.', flush=True); signal.pause()"
    )
    command = [sys.executable, "-c", share_and_wait, str(home / CODE_SERVER)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None and process.stdout.read(1)
        monkeypatch.setattr(server, "_process", read_process(process.pid))
        assert [server.end_hung(0.0, None) for _ in range(3)] == [[]] * 3, "none has ticked yet"
        assert server.end_hung(0.0, 0.0) == [] and server.end_hung(0.0, 1_000.0) == []
        (said,) = server.end_hung(0.0, 1_000.0)
        assert said.startswith(f"Dagster's code server, process {process.pid} on ")
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_ticks_are_missed_only_where_a_sensor_is_switched_on(home: Path) -> None:
    with open_instance(home) as instance:
        assert tick_silence(read_sensors(instance), 5_000.0) == 0.0
        repository = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1), "r")
        for status, ticked in ((InstigatorStatus.DECLARED_IN_CODE, 4_000.0), (InstigatorStatus.STOPPED, 4_900.0)):
            origin, data = RemoteInstigatorOrigin(repository, status.value), SensorInstigatorData(last_tick_timestamp=ticked)
            instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, status, data))
        assert tick_silence(read_sensors(instance), 5_000.0) == 1_000.0
        assert tick_silence(read_sensors(instance), 500.0) == -3_500.0, "one whose clock was set back is no silent one"


def test_what_dagster_has_of_a_time_ahead_is_brought_back_as_a_daemon_starts(home: Path) -> None:
    """[R-31] Sensors and schedules would wait until then, in the next daemon too."""
    repository = RemoteRepositoryOrigin(GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1), "r")
    sensor, schedule = (RemoteInstigatorOrigin(repository, name) for name in ("sensor", "schedule"))
    day, now = 86_400.0, 1_000_000.0
    with open_instance(home) as instance:
        for origin, kind, data in (
            (sensor, InstigatorType.SENSOR, SensorInstigatorData(last_tick_timestamp=now + day, last_tick_start_timestamp=now)),
            (schedule, InstigatorType.SCHEDULE, ScheduleInstigatorData("0 3 * * *", now - day, now + day)),
        ):
            instance.add_instigator_state(InstigatorState(origin, kind, InstigatorStatus.RUNNING, data))
        for at in (now - day, now + day):
            origin_id, selector_id = schedule.get_id(), schedule.get_selector().get_id()
            tick = TickData(origin_id, "schedule", InstigatorType.SCHEDULE, TickStatus.SKIPPED, at, selector_id=selector_id)
            instance.create_tick(tick)

        def times() -> list[float | None]:
            ticked, iterated = (
                each.instigator_data for each in sorted(instance.all_instigator_state(), key=lambda each: each.name)
            )
            assert isinstance(ticked, ScheduleInstigatorData) and isinstance(iterated, SensorInstigatorData)
            ticks = [each.timestamp for each in instance.get_ticks(origin_id, selector_id)]
            told = [iterated.last_tick_timestamp, iterated.last_tick_start_timestamp]
            return [*told, ticked.start_timestamp, ticked.last_iteration_timestamp, *sorted(ticks)]

        ahead = [now + day, now, now - day, now + day, now - day, now + day]
        assert times() == ahead, "the fault"
        clock.wake(instance, now + day)
        assert times() == ahead, "the control"
        clock.wake(instance, now)
        assert times() == [now, now, now - day, now, now - day, now]


@pytest.mark.parametrize(("set_by", "ends"), [((0, 7_200, 0), True), ((0, -7_200), True), ((0, -50, 7_200, 7_150), False)])
def test_a_daemon_whose_clock_is_set_back_ends(set_by: tuple[float, ...], ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-31] It would wait in memory: after a jump forth and back as well; small steps, the control, it waits out."""
    seconds, ended = iter(set_by), []

    def wall() -> float:
        if (ahead := next(seconds, None)) is None:
            raise EOFError
        return 1_000.0 + ahead

    monkeypatch.setattr(clock, "LOOKS_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=wall, monotonic=lambda: 5.0, sleep=time.sleep))
    monkeypatch.setattr(clock, "end_this_process", lambda: ended.append("ended"))
    with nullcontext() if ends else pytest.raises(EOFError):
        clock.end_if_set_back()
    assert ended == (["ended"] if ends else [])


def test_a_daemon_that_starts_is_not_taken_for_the_one_whose_heartbeat_is_there_still() -> None:
    listener, new = Listener(), Holder(2, "here")
    assert listener.find_hung([new], 15.0, now=0.0) == [], "a heartbeat of the one before"
    assert [listener.find_hung([new], 91.0 + now, now) for now in (76.0, 300.0, 900.0)] == [[]] * 3
    assert listener.find_hung([new], 1.0, now=901.0) == [], "its own"
    assert [listener.find_hung([new], 100.0 + now, now) for now in (1_000.0, 1_181.0)] == [[], [new]], "the control"


def test_the_silence_of_nobody_is_held_against_nobody() -> None:
    """While Dagster's history is locked nobody's heartbeat can be read; a daemon that waits is looked at only afterwards."""
    listener, ours = Listener(), Holder(2, "here")
    assert [listener.find_hung([ours], 1.0, now) for now in (0.0, 10.0)] == [[], []]
    assert [listener.find_hung([], None, now) for now in (11.0, 300.0)] == [[], []], "locked, and it does not stand still"
    assert listener.find_hung([ours], 290.0, 301.0) == [], "it has had no time to say anything"
    assert listener.find_hung([ours], 480.0, 491.0) == [ours], "the control"


def test_a_second_daemon_is_refused_while_the_first_lives_and_no_moment_longer(home: Path) -> None:
    """After a power cut the heartbeat is as fresh as before; it tells its own from one that was started beside it later."""
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
                assert [each.pid for each in found if not is_led_by(leader, each)] == [other.pid]
            World.wait_until(lambda: has_heartbeat(instance))
            with pytest.raises(Refused, match=f"runs already, process {process.pid} on .*nothing was started"), server:
                pass
            assert process.poll() is None, "it is somebody's"
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
        assert has_heartbeat(instance), "the fault: a heartbeat that looks alive"
    assert server.find_others() == []
    assert list((home / "daemon_locks").iterdir()) == []


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


@pytest.fixture
def demo_home(tmp_path: Path) -> Path:
    (tmp_path / "jars").symlink_to(JARS)
    return tmp_path


def run_demo(demo_home: Path, days: int) -> AbstractContextManager[Terminal]:
    command = [str(Path(sys.executable).with_name("offsetlake")), "demo", "--days", str(days)]
    environment = plain_environment() | {"OFFSETLAKE_HOME": str(demo_home), "PYTHONUNBUFFERED": "1"}
    return terminal(command, cwd=PROJECT, env=environment)


@pytest.mark.parametrize("before", [None, "a person's", "a demo's that was killed"])
def test_the_demo_stops_its_own_broker_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    broker, stopped = SimpleNamespace(bootstrap_servers="127.0.0.1:1", pid=7), list[Path]()
    monkeypatch.setattr(demo_command, "read_broker", lambda _: broker if before else None)
    monkeypatch.setattr(demo_command, "start_broker", lambda *_, **__: broker)
    monkeypatch.setattr(demo_command, "resolve_jars", lambda *_: [])
    monkeypatch.setattr(demo_command, "stop_broker", stopped.append)
    adapters = Adapters(read_settings({"OFFSETLAKE_HOME": str(tmp_path)}, tmp_path))
    if before == "a demo's that was killed":
        (tmp_path / "demo").mkdir()
        (tmp_path / "demo" / "broker.pid").write_text("7")
    with demo_command._broker(adapters):
        assert not stopped
    assert stopped == ([] if before == "a person's" else [adapters.settings.broker])


@pytest.mark.parametrize(("days", "flights"), [(1, 842), pytest.param(DAYS, 336_776, marks=pytest.mark.long)])
def test_the_demo_survives_a_kill_and_lands_every_flight(demo_home: Path, days: int, flights: int) -> None:
    """[R-18] Started again it finds what is left running, and every check is green; then Ctrl-C stops every process."""
    records = flights + len(POISON)
    with run_demo(demo_home, days) as killed:
        killed.wait_for("Dagster is at")
        lake = Lake(str(demo_home / "lake"))
        killed.wait_until(lambda: bool(lake.read_manifests("flights")))
        assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    left = json.loads((demo_home / "demo" / "dagster.json").read_text())
    assert Process(left["pid"], left["started"]).is_running(), "the fault: Dagster is left behind"

    with run_demo(demo_home, days) as demo:
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
        assert len(shown_places(Lake(f"{demo_home}/lake"), "flights")) == flights
        files = f"read_parquet('{demo_home}/lake/data/**/*.parquet')"
        rows = f'SELECT count(*), count(DISTINCT ("partition", "offset")) FROM {files}'
        assert duckdb.sql(rows).fetchall() == [(records, records)]

        broker = read_broker(demo_home / "broker")
        dagster = json.loads((demo_home / "demo" / "dagster.json").read_text())
        assert broker is not None
        assert demo.end(signal.SIGINT) == 0
    assert read_broker(demo_home / "broker") is None
    assert not Process(dagster["pid"], dagster["started"]).is_running()
    with pytest.raises(ProcessLookupError):
        os.killpg(dagster["pid"], 0)
