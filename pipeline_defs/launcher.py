"""Dagster's own run launcher, that also knows whether the process of a run lives; dagster.yaml names it.

Life is a lock in the Dagster home (`run_locks.py`). Invariant: what cannot be seen from this home counts as alive.
Imports no Spark: daemon, web server and code server load it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar

from dagster import DagsterRun, DagsterRunStatus
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus

from .edges.locks import read_owner, share
from .run_locks import lock_path

# from the start of a run's process until it has loaded the definitions and holds the lock itself: longer than Dagster waits
# for it (`start_timeout_seconds`), so that no process that is slow to load is taken for a dead one
HANDOVER_SECONDS = 120.0


class LockingRunLauncher(DefaultRunLauncher):
    """A launcher that holds a run's lock until the run's own process does, and answers whether anyone holds it."""

    _shares: ClassVar[dict[str, tuple[int, float]]] = {}  # by run id: descriptor, and until when
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run; should this process die before the run's own has begun, the lock tells."""
        run_id = context.dagster_run.run_id
        self._release(None)
        descriptor = share(lock_path(self._instance.root_directory, run_id))
        with self._guard:
            self._shares[run_id] = (descriptor, float("inf"))
        try:
            super().launch_run(context)
        finally:
            with self._guard:
                if run_id in self._shares:
                    self._shares[run_id] = (descriptor, time.monotonic() + HANDOVER_SECONDS)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: run monitoring is to ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Return NOT_FOUND for a run whose process is proven gone, RUNNING for any other.

        | lock file | held | last owner | run |
        |---|---|---|---|
        | missing | | | launched from another home, or by something else: RUNNING |
        | there | yes | | RUNNING |
        | there | no | its process | NOT_FOUND |
        | there | no | only the launcher | NOT_FOUND where it has not started, else RUNNING: its process has another home |
        """
        self._release(None if run.status is DagsterRunStatus.STARTING else run.run_id)
        try:
            owner = read_owner(lock_path(self._instance.root_directory, run.run_id))
        except FileNotFoundError:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "nothing in this Dagster home shows its process")
        if owner is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        record = self._instance.get_run_record_by_id(run.run_id)
        if not owner and record is not None and record.start_time is not None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its process uses another Dagster home")
        gone = f"{owner or 'its launcher'} is gone; what it left undone is asked for again"
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, gone)

    def _release(self, run_id: str | None) -> None:
        """Give back what this process holds of one run, and of any run whose own process has had its time to begin."""
        with self._guard:
            for each, (descriptor, until) in list(self._shares.items()):
                if each == run_id or until < time.monotonic():
                    os.close(descriptor)
                    del self._shares[each]
