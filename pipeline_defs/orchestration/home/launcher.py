"""Dagster's own run launcher, that also knows whether the process of a run lives; dagster.yaml names it.

Life is a lock in the Dagster home (`run_locks.py`). Invariant: what cannot be seen from this home counts as alive.
Imports no Spark: daemon, web server and code server load it.
"""

import os
import threading
import time
from typing import ClassVar

from dagster import DagsterRun
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, WorkerStatus

from ...adapters.system.locks import read_owner, share
from .run_locks import launch_path, lock_path
from .waking_launcher import WakingRunLauncher

# until a run's process has loaded the definitions and holds the lock itself: longer than `start_timeout_seconds`
HANDOVER_SECONDS = 240.0


class LockingRunLauncher(WakingRunLauncher):
    """A launcher that holds a lock until the run's own process has had time to, and answers whether that process lives."""

    _shares: ClassVar[dict[str, tuple[int, float]]] = {}  # by run id: descriptor, and until when
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run under a lock, which tells if this process dies before the run's own has begun."""
        run_id = context.dagster_run.run_id
        descriptor = share(launch_path(self._instance.root_directory, run_id))
        with self._guard:
            self._shares[run_id] = (descriptor, float("inf"))
        try:
            super().launch_run(context)
        finally:
            with self._guard:
                self._shares[run_id] = (descriptor, time.monotonic() + HANDOVER_SECONDS)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: run monitoring is to ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Return NOT_FOUND for a run whose process is proven gone, RUNNING for any other.

        | lock of its process | of its launcher | run |
        |---|---|---|
        | held, or not | | RUNNING, or NOT_FOUND |
        | missing | held | RUNNING: its process has yet to begin |
        | missing | not held | NOT_FOUND where it has not started, else RUNNING: its process has another home |
        | missing | missing | launched from another home, or by something else: RUNNING |
        """
        self._release()
        lock = lock_path(self._instance.root_directory, run.run_id)
        has_begun = lock.exists()
        try:
            owner = read_owner(lock if has_begun else launch_path(self._instance.root_directory, run.run_id))
        except FileNotFoundError:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "nothing in this Dagster home shows its process")
        record = self._instance.get_run_record_by_id(run.run_id)
        is_elsewhere = not has_begun and record is not None and record.start_time is not None
        if owner is None or is_elsewhere:
            self.wake_after_a_while(run.run_id)
            return CheckRunHealthResult(WorkerStatus.RUNNING, "it uses another Dagster home" if is_elsewhere else None)
        gone = owner or "its launcher"
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"{gone} is gone; what it left undone is asked for again")

    def _release(self) -> None:
        """Release the locks of runs whose own process has had its time to begin."""
        with self._guard:
            for run_id, (descriptor, until) in list(self._shares.items()):
                if until < time.monotonic():
                    os.close(descriptor)
                    del self._shares[run_id]
