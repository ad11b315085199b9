"""Processes that a measurement or a drill starts: the environment they get, and waiting for what they are to do.

What does not come is an error, since the figures would mean nothing.
"""

import os
from collections.abc import Callable
from pathlib import Path

from ..adapters.system.processes import Process, last_lines, wait_for
from ..core.errors import OffsetlakeError
from ..settings import Settings

OURS = ("OFFSETLAKE_", "DAGSTER_")
PATIENCE_SECONDS = 300
POLL_SECONDS = 0.1


def plain_environment(*others: str) -> dict[str, str]:
    """Return this process's environment without our variables and Dagster's, and without those of other prefixes."""
    return {name: value for name, value in os.environ.items() if not name.startswith((*OURS, *others))}


def variables_of(settings: Settings) -> dict[str, str]:
    """Return the variables of a machine's settings; all of them, so that its commands share one warm Spark."""
    return {
        "DAGSTER_HOME": str(settings.dagster_home),
        "OFFSETLAKE_HOME": str(settings.home),
        "OFFSETLAKE_LAKE": settings.lake,
        "OFFSETLAKE_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
        "OFFSETLAKE_SPARK_MASTER": settings.spark_master,
        "OFFSETLAKE_SPARK_DRIVER_MEMORY": settings.spark_driver_memory,
    }


class NotMeasured(OffsetlakeError):
    """Something that a benchmark or a drill needs did not happen, or not as it should."""


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition; raise `NotMeasured` where it does not come about."""
    if not wait_for(is_so, PATIENCE_SECONDS, POLL_SECONDS):
        raise NotMeasured(f"{what} did not come within {PATIENCE_SECONDS} s; nothing was measured")


def wait_until_ready(is_ready: Callable[[], bool], process: Process, log: Path) -> None:
    """Return once a process is ready; raise `NotMeasured`, with the end of its log, where it has ended or never is."""
    is_over = wait_for(lambda: not process.is_running() or is_ready(), PATIENCE_SECONDS, POLL_SECONDS)
    is_running = process.is_running()
    if not (is_over and is_running):
        what = f"was not ready within {PATIENCE_SECONDS} s" if is_running else "has ended"
        raise NotMeasured("\n".join([f"{log.stem} {what}; its log ended with:", *last_lines(log)]))
