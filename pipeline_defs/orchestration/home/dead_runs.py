"""Dead runs: runs whose process is gone are ended, so that their slots are freed and their ranges asked for again.

Dagster's monitoring asks about STARTED runs only; each tick, and each command, looks at the others through the same launcher.
Invariant: a run that may live elsewhere is left alone.
"""

from pathlib import Path

import dagster as dg
from dagster import DagsterRunStatus, RunRecord, RunsFilter
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

from ...adapters.system.locks import hold
from .launcher import LockingRunLauncher
from .run_locks import FOLDER, forget_run, list_locked

UNLAUNCHED_SECONDS = 15.0  # a run that lives is submitted within moments of its creation, and launched of its dequeueing
UNDER_WAY = [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


def end_dead_runs(instance: dg.DagsterInstance, now_ms: int) -> list[str]:
    """End the runs whose process is gone and return their ids; a cancelled one ends as such, any other as failed."""
    launcher = instance.run_launcher
    if not isinstance(launcher, LockingRunLauncher):
        return []  # its runs leave no locks here
    dead = []
    with hold(Path(instance.root_directory) / FOLDER):  # several ticks at once would each end it, and tell of it
        for record in instance.get_run_records(RunsFilter(statuses=UNDER_WAY)):
            run = record.dagster_run
            reason = _never_launched(record, instance, now_ms)
            if reason is None:
                health = launcher.check_run_worker_health(run)
                reason = health.msg if health.status is WorkerStatus.NOT_FOUND else None
            now = instance.get_run_by_id(run.run_id)
            if reason is None or now is None or now.status is not run.status:
                continue
            is_cancelled = run.status is DagsterRunStatus.CANCELING
            (instance.report_run_canceled if is_cancelled else instance.report_run_failed)(run, reason)
            dead.append(run.run_id)
        for run_id in list_locked(instance.root_directory):
            left = instance.get_run_by_id(run_id)
            if left is None or left.is_finished:  # also of a deleted run
                forget_run(instance.root_directory, run_id)
    return dead


def _never_launched(record: RunRecord, instance: dg.DagsterInstance, now_ms: int) -> str | None:
    """Return why a run counts as never launched, its daemon killed after creating or dequeueing it; none where it does not."""
    run = record.dagster_run
    if run.status not in {DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING} or GRPC_INFO_TAG in run.tags:
        return None
    if run.run_id in list_locked(instance.root_directory):
        return None
    # a run of 200 ranges gets 200 events before it is submitted, which may take a minute
    events = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    sign_of_life = max([record.update_timestamp.timestamp(), *(event.timestamp for event in events)])
    seconds = now_ms / 1000 - sign_of_life
    if seconds < UNLAUNCHED_SECONDS:
        return None
    return f"nothing has launched it for {seconds:.0f} s: who meant to is gone; what it was for is asked for again"
