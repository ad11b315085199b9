"""Two daemons of one home would do each tick twice: who starts a second one is told, and one that was killed blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.adapters.system.processes import read_process
from pipeline_defs.core.errors import Refused
from pipeline_defs.orchestration.home.daemons import find_daemons, is_silent, read_silence
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.dagster_server import DagsterServer
from pipeline_defs.settings import PROJECT
from tests.support.world import PATIENCE_SECONDS, World


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the project's own dagster.yaml, beside which is a workspace without a code location."""
    home = tmp_path_factory.mktemp("project") / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((PROJECT / "dagster.yaml").read_text())
    (home.parent / "workspace.yaml").write_text("load_from: []\n")
    return home


@contextmanager
def daemon(home: Path, *, group: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run Dagster's daemon as `dagster dev` does, in a process group of its own, until it is known."""
    command = [sys.executable, "-m", "dagster._daemon", "run", "-w", str(home.parent / "workspace.yaml")]
    environment = {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(PROJECT)}
    with (
        (home.parent / "daemon.log").open("ab") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, process_group=group or 0) as process,
    ):
        try:
            World.wait_until(lambda: process.poll() is not None or process.pid in {each.pid for each in find_daemons(home)})
            assert process.poll() is None, (home.parent / "daemon.log").read_text()
            yield process
        finally:
            process.kill()


def has_heartbeat(instance: dg.DagsterInstance) -> bool:
    return not is_silent(read_silence(instance, "SENSOR", time.time()))


def test_a_second_daemon_is_refused_while_the_first_lives_and_no_moment_longer(home: Path) -> None:
    """After a power cut the heartbeat is as fresh as before, and `up` must start at once all the same.

    It tells its own from one that was started beside it later.
    """
    server = DagsterServer(home.parent / "up", home, home.parent / "workspace.yaml", project=home.parent)
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
