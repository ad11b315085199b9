"""Waiting for a process that was started to be ready; one that ends first, or never is, is told with the end of its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import stamina

from ..core.errors import OffsetlakeError
from ..edges.processes import Process

PATIENCE_SECONDS = 300
_LOG_LINES = 20


class NotStarted(OffsetlakeError):
    """A part of a benchmark's cluster that ended, or was silent, before it was ready."""

    kind = "bench_not_started"


class _NotYet(Exception):
    pass


def wait_until_ready(is_ready: Callable[[], bool], process: Process, log: Path) -> None:
    """Return once a process is ready; raise `NotStarted` where it has ended or is not within five minutes."""
    try:
        for attempt in stamina.retry_context(on=_NotYet, timeout=PATIENCE_SECONDS, attempts=None, wait_max=0.3):
            with attempt:
                if not process.is_running():
                    raise NotStarted("\n".join([f"{log.stem} has ended; its log ended with:", *_read_tail(log)]))
                if not is_ready():
                    raise _NotYet
    except _NotYet:
        raise NotStarted(
            "\n".join([f"{log.stem} was not ready within {PATIENCE_SECONDS} s; its log ended with:", *_read_tail(log)])
        ) from None


def _read_tail(log: Path) -> list[str]:
    return log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
