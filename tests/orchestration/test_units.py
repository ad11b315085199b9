"""What the systemd units of deploy/ run: code server, daemon and web server land a topic, with Dagster on Postgres."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipeline_defs.adapters.system.processes import free_ports
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.settings import PROJECT, Settings
from tests.support.dagster_up import is_answering
from tests.support.environment import variables_of
from tests.support.postgres import running_postgres
from tests.support.world import World

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
def test_what_the_units_run_lands_a_topic(settings: Settings, tmp_path: Path) -> None:
    project, (code, web) = tmp_path / "my_lake", free_ports(2)
    with running_postgres() as postgres, World(settings, tmp_path / "world", f"t{uuid.uuid4().hex[:8]}") as world:
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
