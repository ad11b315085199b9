"""Dagster's own run launcher, that knows whether the process of a run lives, and goes on where one stands still.

Life is a lock in the Dagster home (`run_locks.py`). A code server waits for a process that it has told to end to take the word,
and starts and ends no run meanwhile: for ever, where that one was killed. Invariants: what cannot be seen from this home counts
as alive; whoever is woken, or ended, loses nothing: what a run left undone is asked for again.
Imports no Spark: daemon, web server and code server load it.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from dagster import DagsterRun
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._grpc.types import CanCancelExecutionRequest

from ...adapters.system.locks import Holder, find_holder, read_owner, share
from ...adapters.system.processes import is_stopped
from ...settings import STARTED_BY_US
from .run_locks import find_code_server, launch_path, lock_path

if TYPE_CHECKING:
    from dagster._grpc.client import DagsterGrpcClient

# until a run's process has loaded the definitions and holds the lock itself: longer than `start_timeout_seconds`
HANDOVER_SECONDS = 120.0
PROBE_SECONDS = 30  # for what a code server answers at once, unless it waits for a run
STOPPED_SECONDS = 300.0  # that a run's process may stand still


class LockingRunLauncher(DefaultRunLauncher):
    """A launcher that holds a lock until the run's own process has had time to, and answers whether that process lives.

    It wakes runs that stand still, and ends a code server that starts none any more.
    """

    _shares: ClassVar[dict[str, tuple[int, float]]] = {}  # by run id: descriptor, and until when
    _guard: ClassVar[threading.Lock] = threading.Lock()
    _stopped: ClassVar[dict[Holder, float]] = {}  # processes of runs that stand still, and since when

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run; where the code server does not answer in time the run has failed.

        Should this process die before the run's own has begun, the lock tells.
        """
        run_id = context.dagster_run.run_id
        descriptor = share(launch_path(self._instance.root_directory, run_id))
        with self._guard:
            self._shares[run_id] = (descriptor, float("inf"))
        try:
            super().launch_run(context)
        except DagsterUserCodeUnreachableError:
            said = "Dagster's code server did not start it in time; what it was for is asked for again"
            self._instance.report_run_failed(context.dagster_run, said)
            self._end_stuck_code_server(run_id)
            raise
        finally:
            with self._guard:
                self._shares[run_id] = (descriptor, time.monotonic() + HANDOVER_SECONDS)

    def _end_stuck_code_server(self, run_id: str) -> None:
        """End a code server that starts and ends no run any more, though it ticks; `offsetlake up` starts another."""
        server = find_code_server(self._instance.root_directory)
        client: DagsterGrpcClient | None = self._get_grpc_client_for_termination(run_id)  # type: ignore[no-untyped-call]
        if server is None or not server.is_here or client is None or STARTED_BY_US not in os.environ:
            return
        try:
            client.can_cancel_execution(CanCancelExecutionRequest(run_id=run_id), timeout=PROBE_SECONDS)
        except DagsterUserCodeUnreachableError:
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGKILL)

    def terminate(self, run_id: str) -> bool:
        """Terminate a run. One that stands still is woken for it; of one whose process is gone no code server is asked."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if self.check_run_worker_health(run).status is WorkerStatus.NOT_FOUND:
            self._instance.report_run_canceling(run)
            self._instance.report_run_canceled(run)
            return True
        self._wake(run_id, 0.0)
        return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: run monitoring is to ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Return NOT_FOUND for a run whose process is proven gone, RUNNING for any other; one that stands still goes on.

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
            self._wake(run.run_id, STOPPED_SECONDS)  # it may hold up all others
            return CheckRunHealthResult(WorkerStatus.RUNNING, "it uses another Dagster home" if is_elsewhere else None)
        gone = owner or "its launcher"
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"{gone} is gone; what it left undone is asked for again")

    def _wake(self, run_id: str, after_seconds: float) -> None:
        """Have a run of this host go on that was seen to stand still for so long."""
        process = find_holder(lock_path(self._instance.root_directory, run_id))
        if process is None or not process.is_here:
            return
        if not is_stopped(process.pid):
            self._stopped.pop(process, None)
            return
        since = self._stopped.setdefault(process, time.monotonic())
        if time.monotonic() - since >= after_seconds:
            os.kill(process.pid, signal.SIGCONT)

    def _release(self) -> None:
        """Give back what this process holds of any run whose own process has had its time to begin."""
        with self._guard:
            for run_id, (descriptor, until) in list(self._shares.items()):
                if until < time.monotonic():
                    os.close(descriptor)
                    del self._shares[run_id]
