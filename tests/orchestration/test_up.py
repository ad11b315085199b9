"""`offsetlake up`, a plain `dagster dev`, and what the units of deploy/ run, as real processes.

They have the home of the commands, and leave nothing behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import psutil
import pytest

from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.lab.bench.measurement import count_rows
from pipeline_defs.lab.environment import plain_environment, variables_of
from pipeline_defs.orchestration.home.daemons import find_daemons
from pipeline_defs.orchestration.home.project import plan_project, write_env, write_project
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER_COMMAND, is_code_server_gone
from pipeline_defs.settings import PROJECT, read_settings
from tests.conftest import JARS
from tests.support.dagster_up import asset_keys, is_answering, run_ids, terminal
from tests.support.postgres import running_postgres
from tests.support.world import World

pytestmark = pytest.mark.scenario

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
    return plain_environment() | own | {"OFFSETLAKE_BOOTSTRAP_SERVERS": world.edges.bootstrap_servers()}


@pytest.fixture
def refuse(project: Path, environment: Mapping[str, str]) -> Refuse:
    """Run `offsetlake up` where it does not stay, to its end."""

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


# ---- what the systemd units of deploy/ run: code server, daemon and web server, with Dagster on Postgres


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
