"""Waiting for what a measurement or a drill needs: what does not come is an error, since its figures would mean nothing."""

from collections.abc import Callable
from pathlib import Path

from ..adapters.system.processes import Process, last_lines, wait_for
from ..core.errors import OffsetlakeError

PATIENCE_SECONDS = 300
POLL_SECONDS = 0.1


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
