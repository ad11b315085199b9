"""Waiting for a process that was started to be ready; one that ends first, or never is, is told with the end of its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...adapters.system.processes import Process, wait_for
from ...core.errors import OffsetlakeError

PATIENCE_SECONDS = 300
_LOG_LINES = 20
_POLL_SECONDS = 0.3


class NotStarted(OffsetlakeError):
    """A part of a benchmark's cluster that ended, or was silent, before it was ready."""

    kind = "bench_not_started"


def wait_until_ready(is_ready: Callable[[], bool], process: Process, log: Path) -> None:
    """Return once a process is ready; raise `NotStarted` where it has ended or is not within five minutes."""
    if not wait_for(lambda: not process.is_running() or is_ready(), PATIENCE_SECONDS, _POLL_SECONDS):
        raise _not_started(f"{log.stem} was not ready within {PATIENCE_SECONDS} s", log)
    if not process.is_running():
        raise _not_started(f"{log.stem} has ended", log)


def _not_started(what: str, log: Path) -> NotStarted:
    tail = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return NotStarted("\n".join([f"{what}; its log ended with:", *tail]))
