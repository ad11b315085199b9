"""`offsetlake up` and a plain `dagster dev`, as real processes: the home of the commands, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.orchestration.home.daemons import find_daemons
from pipeline_defs.orchestration.home.project import plan_project, write_env, write_project
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER, is_code_server_gone
from pipeline_defs.settings import PROJECT, Settings, read_settings
from tests.conftest import JARS
from tests.support.dagster_up import is_answering, run_ids, terminal
from tests.support.environment import plain_environment


@pytest.fixture
def project(settings: Settings, tmp_path: Path) -> Path:
    """Return a project as `init` writes it, of a topic that is not there: nothing is landed."""
    folder = tmp_path / "my_lake"
    write_project(plan_project(folder, ["nowhere"], settings.bootstrap_servers))
    write_env(folder, read_settings({}, folder).dagster_home)
    (folder / ".offsetlake" / "jars").symlink_to(JARS)
    return folder


@pytest.fixture
def environment() -> Mapping[str, str]:
    """Return what a shell has in which nobody has exported anything of ours."""
    clean = plain_environment()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean | {"PATH": path, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}


def run_by_command(project: Path) -> str:
    """Record a run in the home that commands use, and return its id."""

    @dg.asset
    def anything() -> None:
        """Anything."""

    with dg.DagsterInstance.from_config(str(read_settings({}, project).dagster_home)) as instance:
        return dg.materialize([anything], instance=instance).run_id


def kill_code_server(project: Path) -> None:
    """Kill the process that loads the definitions for all others, as the system does where memory is short."""
    home = read_settings({}, project).dagster_home
    assert not is_code_server_gone(home), "the control"
    _, pid, *_ = (home / CODE_SERVER).read_text().split()
    os.kill(int(pid), signal.SIGKILL)


def test_up_serves_the_home_of_the_commands_and_leaves_nothing(project: Path, environment: Mapping[str, str]) -> None:
    """U1, U13, L6: also where `.env` is missing, as in a clone; a second one is refused, for it would plan and land twice.

    A code server, or a daemon, that is killed is started again; what is left when all that started it is killed, the next
    `up` ends.
    """
    run_id = run_by_command(project)
    (project / ".env").unlink()
    with terminal(["offsetlake", "up"], cwd=project, env=environment) as first:
        first.wait_for("Ctrl-C ends it")
        assert run_id in run_ids(first.url)
        again = subprocess.run(["offsetlake", "up"], cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert again.returncode == 2 and f"Dagster runs already at {first.url}" in again.stderr, again.stderr
        assert "starting Dagster" not in again.stdout, "what is refused does not start"
        kill_code_server(project)
        first.wait_for("Dagster's code server was killed; it is started again")
        first.wait_until(lambda: not is_code_server_gone(read_settings({}, project).dagster_home))
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
        up.wait_for("Dagster ended by itself; it is started again")
        up.wait_until(lambda: {each.pid for each in find_daemons(home)} - {daemon.pid} and is_answering(up.url))
        leader = read_leader(project)
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with terminal(["dagster", "dev", "-h", "127.0.0.1", "-p", str(port)], cwd=project, env=environment) as dagster:
        dagster.wait_until(lambda: is_answering(url))
        assert run_id in run_ids(url), dagster.text
        assert list(project.glob(".tmp_dagster_home_*")) == []


def test_definitions_that_do_not_load_are_told_and_nothing_stays(project: Path, environment: Mapping[str, str]) -> None:
    """Dagster would serve an empty project, and nothing would land without a word."""
    code = project / "my_lake" / "definitions.py"
    code.write_text(code.read_text().replace("return build_defs", "raise RuntimeError('mine')\n    return build_defs"))
    done = subprocess.run(["offsetlake", "up"], cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "do not load, so nothing would land" in done.stderr and "mine" in done.stderr, done.stderr
    assert not (project / ".offsetlake" / "up" / "dagster.json").exists()


def test_a_port_that_is_taken_is_refused(project: Path, environment: Mapping[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = subprocess.run(
            ["offsetlake", "up", "--port", port], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
    assert refused.returncode == 2
    assert f"port {port} of 127.0.0.1 is taken; nothing was started" in refused.stderr, refused.stderr
