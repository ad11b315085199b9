"""Dagster's own run launcher, for processes that stand still as well: a stopped run, or a code server that waits for one.

When Dagster's code server tells a run's process to end, it waits until that has taken the message, and starts and ends no run
meanwhile: for ever, if the process was killed. Invariant: a process that is woken or ended loses nothing, as what a run left
undone is asked for again.
"""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._grpc.types import CanCancelExecutionRequest

from ...adapters.system.locks import Holder, find_holder
from ...adapters.system.processes import is_stopped
from ...adapters.system.project_folder import STARTED_BY_US
from .run_locks import find_code_server, lock_path

if TYPE_CHECKING:
    from dagster._grpc.client import DagsterGrpcClient

PROBE_SECONDS = 30  # for what a code server answers at once, unless it waits for a run
STOPPED_SECONDS = 300.0  # that a run's process may stand still


class WakingRunLauncher(DefaultRunLauncher):
    """A launcher that wakes runs which stand still, and ends a code server that starts none any more."""

    _stopped: ClassVar[dict[Holder, float]] = {}  # processes of runs that stand still, and since when

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run; report it as failed where the code server does not answer in time."""
        try:
            super().launch_run(context)
        except DagsterUserCodeUnreachableError:
            said = "Dagster's code server did not start it in time; what it was for is asked for again"
            self._instance.report_run_failed(context.dagster_run, said)
            self._end_stuck_code_server(context.dagster_run.run_id)
            raise

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
        """Terminate a run; wake it first where it stands still, and ask no code server where the run's process is gone."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if self.check_run_worker_health(run).status is WorkerStatus.NOT_FOUND:
            self._instance.report_run_canceling(run)
            self._instance.report_run_canceled(run)
            return True
        self._wake(run_id, 0.0)
        return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]

    def wake_after_a_while(self, run_id: str) -> None:
        """Wake a run of this host that was seen to stand still for `STOPPED_SECONDS`: it may hold up all others."""
        self._wake(run_id, STOPPED_SECONDS)

    def _wake(self, run_id: str, after_seconds: float) -> None:
        process = find_holder(lock_path(self._instance.root_directory, run_id))
        if process is None or not process.is_here:
            return
        if not is_stopped(process.pid):
            self._stopped.pop(process, None)
            return
        since = self._stopped.setdefault(process, time.monotonic())
        if time.monotonic() - since >= after_seconds:
            os.kill(process.pid, signal.SIGCONT)
