"""A real Dagster daemon with a code location of one world's topic; only its wait between two looks at backfills is short."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline_defs.lab.bench.location import read_marks, write_location
from pipeline_defs.settings import PROJECT
from tests.support.world import PATIENCE_SECONDS, World

LOOKS_EVERY_SECONDS = 1  # Dagster's own is 30


class Daemon:
    """Is the daemon while it runs; `marks` are the steps that its processes have passed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def marks(self) -> list[Mapping[str, Any]]:
        return read_marks(self._folder)


@contextmanager
def running_daemon(world: World) -> Iterator[Daemon]:
    """Runs the daemon while the context is open, once it says that it is there."""
    folder = world.folder / "location"
    workspace = write_location(folder, world.settings, world.topic)
    command = [sys.executable, __file__, "run", "-w", str(workspace)]
    env = {**os.environ, "DAGSTER_HOME": str(world.settings.dagster_home), "PYTHONPATH": str(PROJECT)}
    with (world.folder / "daemon.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=PROJECT)
        try:
            world.wait_until(lambda: "BACKFILL" in world.instance.get_daemon_heartbeats())
            yield Daemon(folder)
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) is not None


if __name__ == "__main__":
    from dagster._daemon import controller
    from dagster._daemon.cli import cli

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = LOOKS_EVERY_SECONDS
    cli()
