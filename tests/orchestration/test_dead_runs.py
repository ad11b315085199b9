"""Dead runs: after SIGKILL of whoever was at work, the run ends and its slot is free; a run that may live is left alone.

And what such runs have tried is not forgotten for what else was tried since. The processes are real and killed by SIGKILL;
Dagster's instance and its monitoring are real. What a whole power cut does is in `tests/faults/test_power_cut.py`.
"""

import errno
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import dagster as dg
import pytest
import yaml
from dagster import DagsterRun, DagsterRunStatus, RunRecord
from dagster._core.errors import DagsterExecutionInterruptedError, DagsterUserCodeUnreachableError
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import filter_runs_to_should_retry
from dagster._daemon.monitoring.run_monitoring import monitor_started_run

from pipeline_defs.adapters.system.locks import own_name, share, share_for_life
from pipeline_defs.adapters.system.processes import is_stopped, read_process
from pipeline_defs.adapters.system.project_folder import PROJECT, STARTED_BY_US
from pipeline_defs.core.errors import Refused
from pipeline_defs.core.landing.dispatch import BACKOFF_LAST_SECONDS, choose_due
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.lab.drills.children import FORKS
from pipeline_defs.orchestration.home import run_locks, waking_launcher
from pipeline_defs.orchestration.home.daemons import FOLDER
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.dead_runs import UNLAUNCHED_SECONDS, end_dead_runs
from pipeline_defs.orchestration.home.launcher import HANDOVER_SECONDS
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER, hold_run, launch_path, list_locked, lock_path
from pipeline_defs.orchestration.runs.projection import is_redo_of_person, read_reason
from pipeline_defs.orchestration.runs.tries import ALL, MOST_STOPS, UPDATE, read_tries, trying, trying_all
from pipeline_defs.topics import Topic
from tests.support.pulse import queue_run
from tests.support.world import World

LATER_MS = 2**42  # by any clock of ours
STATUSES = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
LAUNCHED = {GRPC_INFO_TAG: "{}"}


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text((PROJECT / "dagster.yaml").read_text())
    with open_instance(home) as opened:
        yield opened


def create_run(instance: dg.DagsterInstance, status: DagsterRunStatus, **tags: str) -> DagsterRun:
    return cast("DagsterRun", create_run_for_test(instance, job_name="land", status=status, tags=tags))


def make_run(instance: dg.DagsterInstance, status: DagsterRunStatus, **tags: str) -> DagsterRun:
    """Make a run as Dagster does: STARTED and CANCELING ones have an event of their start."""
    run = create_run(instance, DagsterRunStatus.STARTING, **LAUNCHED, **tags)
    if status in {DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING}:
        start = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "land")
        instance.report_dagster_event(start, run.run_id)
    if status is DagsterRunStatus.CANCELING:
        instance.report_run_canceling(run)
    return seen(instance, run)


def seen(instance: dg.DagsterInstance, run: DagsterRun) -> DagsterRun:
    return record_of(instance, run).dagster_run


def status(instance: dg.DagsterInstance, run: DagsterRun) -> DagsterRunStatus:
    return seen(instance, run).status


def record_of(instance: dg.DagsterInstance, run: DagsterRun) -> RunRecord:
    record = instance.get_run_record_by_id(run.run_id)
    assert record is not None
    return record


def monitor(instance: dg.DagsterInstance, run: DagsterRun) -> None:
    monitor_started_run(instance, cast("Any", None), record_of(instance, run), logging.getLogger("monitor"))


def _hold(home: str, run_id: str, holds: Event) -> None:
    hold_run(home, run_id)
    holds.set()
    signal.pause()


@contextmanager
def worker(instance: dg.DagsterInstance, run: DagsterRun, target: Callable[[str, str, Event], None] = _hold) -> Iterator[int]:
    """Run a process that holds the run's lock while the context is open; after it, it has died by SIGKILL."""
    holds = FORKS.Event()
    process = FORKS.Process(target=target, args=(instance.root_directory, run.run_id, holds), daemon=True)
    process.start()
    assert holds.wait(120) and process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


def _launch(home: str, run_id: str, launched: Event) -> None:
    """Launch a run as the daemon does, but for the process of the run, and live on."""
    dg.DefaultRunLauncher.launch_run = lambda self, context: None  # type: ignore[method-assign]
    with open_instance(Path(home)) as instance:
        run = instance.get_run_by_id(run_id)
        instance.run_launcher.launch_run(cast("Any", SimpleNamespace(dagster_run=run, workspace=None)))
        launched.set()
        signal.pause()


@pytest.mark.parametrize("launcher_lives", [False, True])
@pytest.mark.parametrize("before", STATUSES)
def test_a_run_whose_process_was_killed_is_ended_and_one_that_lives_is_not(
    instance: dg.DagsterInstance, before: DagsterRunStatus, launcher_lives: bool
) -> None:
    """[R-26] The lock of a daemon that lives says that it has launched the run, and not that the run lives."""
    run = make_run(instance, before)
    with worker(instance, run, _launch) if launcher_lives else nullcontext():
        with worker(instance, run):
            assert end_dead_runs(instance, LATER_MS) == []
            assert status(instance, run) is before
        assert end_dead_runs(instance, LATER_MS) == [run.run_id]
    expected = DagsterRunStatus.CANCELED if before is DagsterRunStatus.CANCELING else DagsterRunStatus.FAILURE
    assert status(instance, run) is expected
    assert launcher_lives or run.run_id not in list_locked(instance.root_directory), "nothing is left to clean"


def test_the_lock_of_a_run_that_somebody_deleted_goes_once_its_process_is_gone(instance: dg.DagsterInstance) -> None:
    """[R-26] A run whose process lives keeps it, whatever Dagster knows of it."""
    run = make_run(instance, DagsterRunStatus.STARTED)
    with worker(instance, run):
        instance.delete_run(run.run_id)
        for _ in range(2):
            assert end_dead_runs(instance, LATER_MS) == []
            assert list_locked(instance.root_directory) == [run.run_id]
    assert end_dead_runs(instance, LATER_MS) == [] and list_locked(instance.root_directory) == []


@pytest.mark.parametrize("by_tick", [True, False])
def test_who_asked_for_a_dead_run_asks_again_and_nobody_else(instance: dg.DagsterInstance, by_tick: bool) -> None:
    """[R-31] What a tick asked for the next tick asks for, and Dagster does not retry it too; a person's run it does."""
    topic, offsets = Topic("orders" if by_tick else "trades", Policy()), OffsetRange(0, 0, 0, 10)
    run = make_run(instance, DagsterRunStatus.STARTED, **({"dagster/max_retries": "0"} if by_tick else {}))
    taken = trying(instance, topic.landing, [offsets.key], run.run_id, lambda: 0)
    taken.__enter__()
    with worker(instance, run):
        pass
    assert end_dead_runs(instance, LATER_MS) == [run.run_id], "the fault"
    retried = [*filter_runs_to_should_retry([seen(instance, run)], instance)]
    assert [each.run_id for each in retried] == ([] if by_tick else [run.run_id])
    assert read_tries(instance, topic.landing).tried[offsets].attempts == 1


def test_dagsters_own_monitoring_ends_a_started_run_whose_process_was_killed(instance: dg.DagsterInstance) -> None:
    """[R-26] Where nobody ticks, too; the control is the same run a moment before the kill."""
    run = make_run(instance, DagsterRunStatus.STARTED)
    with worker(instance, run):
        monitor(instance, run)
        assert status(instance, run) is DagsterRunStatus.STARTED
    monitor(instance, run)
    assert status(instance, run) is DagsterRunStatus.FAILURE


def test_a_new_container_over_the_home_does_not_take_its_own_process_for_the_old_one(instance: dg.DagsterInstance) -> None:
    """[R-26] Host and process id come back with a container; the lock of the process before does not."""
    run = make_run(instance, DagsterRunStatus.STARTED)
    with worker(instance, run):
        pass
    lock = lock_path(instance.root_directory, run.run_id)
    lock.write_text(f"process {os.getpid()} on {os.uname().nodename}")
    assert end_dead_runs(instance, LATER_MS) == [run.run_id]


@pytest.mark.parametrize(
    ("before", "is_launched_here"), [*((each, False) for each in STATUSES), (DagsterRunStatus.STARTED, True)]
)
def test_runs_of_other_homes_are_left(instance: dg.DagsterInstance, before: DagsterRunStatus, is_launched_here: bool) -> None:
    """[R-26] Nothing here shows their process; of a code server with a home of its own only the launcher's name is here."""
    run = make_run(instance, before)
    if is_launched_here:
        os.close(share(launch_path(instance.root_directory, run.run_id)))
    assert end_dead_runs(instance, LATER_MS) == []
    if before is DagsterRunStatus.STARTED:
        monitor(instance, run)
    assert status(instance, run) is before
    instance.delete_run(run.run_id)


def test_a_run_whose_launcher_was_killed_before_a_process_took_over_is_ended(instance: dg.DagsterInstance) -> None:
    """[R-26] While the launcher lives it is left alone."""
    run = make_run(instance, DagsterRunStatus.STARTING)
    held = share(launch_path(instance.root_directory, run.run_id))
    assert end_dead_runs(instance, LATER_MS) == []
    os.close(held)
    assert end_dead_runs(instance, LATER_MS) == [run.run_id]


@pytest.mark.parametrize(
    ("before", "is_being_created"),
    [(DagsterRunStatus.NOT_STARTED, False), (DagsterRunStatus.STARTING, False), (DagsterRunStatus.NOT_STARTED, True)],
)
def test_a_run_that_nobody_has_launched_is_ended_after_a_while(
    instance: dg.DagsterInstance, before: DagsterRunStatus, is_being_created: bool
) -> None:
    """[R-26] A daemon died before it launched it; who creates one of 200 ranges says so of each, which takes longer."""
    run = create_run(instance, before)
    since = record_of(instance, run).update_timestamp.timestamp()
    if is_being_created:
        since += UNLAUNCHED_SECONDS + 10
        planned = dg.DagsterEvent(dg.DagsterEventType.ENGINE_EVENT.value, "land", event_specific_data=EngineEventData({}))
        instance.report_dagster_event(planned, run.run_id, timestamp=since)
    assert end_dead_runs(instance, int((since + UNLAUNCHED_SECONDS) * 1000) - 1_000) == []
    assert end_dead_runs(instance, int((since + UNLAUNCHED_SECONDS) * 1000) + 1_000) == [run.run_id]
    assert status(instance, run) is DagsterRunStatus.FAILURE


def test_two_ticks_at_once_end_a_run_once(instance: dg.DagsterInstance) -> None:
    """[R-26] Each end is told to those who wait for failures."""
    run = make_run(instance, DagsterRunStatus.STARTED)
    with worker(instance, run):
        pass
    with ThreadPoolExecutor(4) as pool:
        ended = [*pool.map(lambda _: end_dead_runs(instance, LATER_MS), range(4))]
    assert sorted(ended) == [[], [], [], [run.run_id]]


def test_a_queued_run_goes_on(instance: dg.DagsterInstance) -> None:
    """[R-26] It has no process, and needs none."""
    run = queue_run(instance)
    assert end_dead_runs(instance, LATER_MS) == []
    assert status(instance, run) is DagsterRunStatus.QUEUED
    instance.delete_run(run.run_id)


def test_the_launcher_holds_the_lock_until_the_run_can(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-26] From before Dagster asks its code server on; and no longer, once the run has started, than a process of it."""
    launcher = instance.run_launcher
    seen_while: list[WorkerStatus] = []
    look = lambda self, context: seen_while.append(self.check_run_worker_health(context.dagster_run).status)  # noqa: E731
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", look)
    run = make_run(instance, DagsterRunStatus.STARTING)
    launcher.launch_run(cast("Any", SimpleNamespace(dagster_run=run, workspace=None)))
    assert seen_while == [WorkerStatus.RUNNING]
    assert launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING, "its process has yet to begin"
    with worker(instance, run):
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "land"), run.run_id)
        assert launcher.check_run_worker_health(seen(instance, run)).status is WorkerStatus.RUNNING
    assert launcher.check_run_worker_health(seen(instance, run)).status is WorkerStatus.NOT_FOUND


@pytest.mark.parametrize("how", ["terminated", "looked at for long", "looked at"])
def test_a_stopped_run_is_woken_after_a_while(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """[R-26] The code server that tells it to end would wait for it, and its lock on Dagster's database holds up others."""
    monkeypatch.setattr(waking_launcher, "STOPPED_SECONDS", 0.0 if how == "looked at for long" else 600.0)
    asked = Mock(return_value=True)
    monkeypatch.setattr(dg.DefaultRunLauncher, "terminate", asked)
    run = make_run(instance, DagsterRunStatus.STARTED)
    with worker(instance, run) as pid:
        os.kill(pid, signal.SIGSTOP)
        World.wait_until(lambda: is_stopped(pid))
        if how == "terminated":
            assert instance.run_launcher.terminate(run.run_id)
        else:
            assert run.run_id not in end_dead_runs(instance, LATER_MS)
        if how == "looked at":
            assert is_stopped(pid), "the control"
        else:
            World.wait_until(lambda: not is_stopped(pid))
        assert asked.called is (how == "terminated")
    assert instance.run_launcher.terminate(run.run_id)
    assert asked.call_count == (how == "terminated"), "nobody is asked for one that is gone"
    assert status(instance, run) is DagsterRunStatus.CANCELED


def _serve(home: str, _run_id: str, serves: Event) -> None:
    share_for_life(Path(home) / CODE_SERVER)
    serves.set()
    signal.pause()


@pytest.mark.parametrize("is_stuck", [True, False])
def test_a_stuck_code_server_is_ended(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, is_stuck: bool) -> None:
    """[R-31] It ticks, and holds its lock; the control is one that was slow, and answers what it answers at once."""
    late = DagsterUserCodeUnreachableError("timed out")
    client = Mock(can_cancel_execution=Mock(side_effect=late if is_stuck else None))
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", Mock(side_effect=late))
    monkeypatch.setattr(dg.DefaultRunLauncher, "_get_grpc_client_for_termination", lambda *_: client)
    monkeypatch.setenv(STARTED_BY_US, "1")
    run = make_run(instance, DagsterRunStatus.STARTING)
    with worker(instance, run, _serve) as pid:
        process = read_process(pid)
        assert process is not None
        with pytest.raises(DagsterUserCodeUnreachableError):
            instance.run_launcher.launch_run(cast("Any", SimpleNamespace(dagster_run=run, workspace=None)))
        if is_stuck:
            World.wait_until(lambda: not process.is_running())
        assert process.is_running() is not is_stuck and client.can_cancel_execution.called
    assert "did not start it in time; what it was for is asked for again" in read_reason(instance, run.run_id)


@pytest.mark.parametrize("folder", [PROJECT, PROJECT / "pipeline_defs"])
def test_no_run_that_is_slow_to_load_is_called_dead_before_dagster_gives_it_up(folder: Path) -> None:
    """[R-26] Definitions that took 25 s to load made their run dead after 20."""
    config = yaml.safe_load((folder / "dagster.yaml").read_text())
    assert config["run_monitoring"]["start_timeout_seconds"] < HANDOVER_SECONDS


def test_a_lock_that_another_user_has_made_hurts_nobody(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-18] After `sudo offsetlake land` say: its file may be read, and neither written nor removed."""
    run = make_run(instance, DagsterRunStatus.STARTED)
    hold_run(instance.root_directory, run.run_id)
    run_locks.release_run(run.run_id)
    path, opened = lock_path(instance.root_directory, run.run_id), os.open

    def open_as_another(name: Any, flags: int, *rest: Any, **more: Any) -> int:
        if Path(name) == path and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, "not yours", str(name))
        return opened(name, flags, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", open_as_another)
        patched.setattr(Path, "unlink", Mock(side_effect=PermissionError(errno.EACCES, "not yours")))
        assert run.run_id in end_dead_runs(instance, LATER_MS)
    assert path.exists(), "the fault"
    end_dead_runs(instance, LATER_MS)
    assert not path.exists(), "the control: who may remove it does"


def test_a_run_does_not_stand_for_its_code_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-26] A run's process has the code server's arguments, and lives on for a while where that one is killed."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["dagster", *run_locks.CODE_SERVER_COMMAND])
    run = multiprocessing.get_context("spawn").Process(target=run_locks.hold_own_lock)
    run.start()
    run.join()
    assert run.exitcode == 0 and not (tmp_path / CODE_SERVER).exists()
    run_locks.hold_own_lock()
    assert (tmp_path / CODE_SERVER).exists(), "the control"


def test_the_launcher_is_thin_and_loads_no_spark() -> None:
    """Daemon, web server and code server load it."""
    module = "pipeline_defs.orchestration.home.launcher"
    lines = (Path(PROJECT) / f"{module.replace('.', '/')}.py").read_text().splitlines()
    assert len(lines) < 80
    probe = f"import sys, {module}; assert not [m for m in sys.modules if m.startswith('pyspark')]"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


TOPIC = Topic("orders", Policy())
RANGES = [OffsetRange(0, 0, at, at + 1) for at in range(30)]
NOW_MS = 10**12


@pytest.fixture
def fresh() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def attempt(instance: dg.DagsterInstance, ranges: list[OffsetRange], done: set[OffsetRange], now_ms: int) -> str:
    """Have a run try ranges and do some of them; return its id."""
    run = create_run(instance, DagsterRunStatus.STARTED)
    keys = [offsets.key for offsets in ranges]
    with trying(instance, TOPIC.landing, keys, run.run_id, lambda: now_ms) as well:
        well.update(offsets.key for offsets in done)
    return run.run_id


def test_ranges_that_fail_one_by_one_each_count_their_own_failures(fresh: dg.DagsterInstance) -> None:
    """[R-33] P12: however many others have failed in between; then all are stalled, and back off for long."""
    for number in range(1, 8):
        for offsets in RANGES:
            attempt(fresh, [offsets], set(), NOW_MS + number)
        seen = read_tries(fresh, TOPIC.landing).tried
        assert {each.attempts for each in seen.values()} == {number}
        assert set(seen) == set(RANGES)
    assert all(each.is_stalled and each.first_failed_ms == NOW_MS + 1 for each in seen.values())
    soonest = NOW_MS + (BACKOFF_LAST_SECONDS - 10) * 1000
    assert choose_due(RANGES, (), seen, soonest) == [], "the back-off has grown to its end"


def test_a_success_ends_what_is_counted_of_that_range_alone(fresh: dg.DagsterInstance) -> None:
    """[R-33] The control: failures before it are over."""
    first, second, *_ = RANGES
    attempt(fresh, [first, second], set(), NOW_MS)
    attempt(fresh, [first, second], {first}, NOW_MS)
    assert {offsets: each.attempts for offsets, each in read_tries(fresh, TOPIC.landing).tried.items()} == {second: 2}
    last = attempt(fresh, [first, second], set(), NOW_MS)
    found = read_tries(fresh, TOPIC.landing).tried
    assert (found[first].attempts, found[second].attempts, found[first].failed_run) == (1, 3, last)


@pytest.mark.parametrize("ends", [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED, None])
def test_a_run_that_is_killed_has_failed_at_what_it_was_at(fresh: dg.DagsterInstance, ends: DagsterRunStatus | None) -> None:
    """[R-33] It holds its ranges while it lives, counts as failed once it has ended, or where nobody knows it any more."""
    run = create_run(fresh, DagsterRunStatus.STARTED)
    killed = trying(fresh, TOPIC.landing, [RANGES[0].key], run.run_id, lambda: NOW_MS)
    killed.__enter__()
    assert read_tries(fresh, TOPIC.landing).in_progress == {RANGES[0]: f"run {run.run_id[:8]} (STARTED)"}
    assert read_tries(fresh, TOPIC.landing).tried == {}
    if ends is None:
        fresh.delete_run(run.run_id)
    elif ends is DagsterRunStatus.FAILURE:
        fresh.report_run_failed(run)
    else:
        fresh.report_run_canceled(run)
    assert read_tries(fresh, TOPIC.landing).in_progress == {}
    found = read_tries(fresh, TOPIC.landing).tried[RANGES[0]]
    assert (found.attempts, found.fatal) == (1, 1)
    attempt(fresh, RANGES[:1], set(), NOW_MS)
    found = read_tries(fresh, TOPIC.landing).tried[RANGES[0]]
    assert (found.attempts, found.cut_off, found.fatal) == (2, 0, 1), "the next run adds to it, in a word"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_run_that_ended_with_all_of_dagster_lengthens_no_back_off(tmp_path: Path, *, is_restarted: bool) -> None:
    """[R-33] The plug was pulled seven times: ten seconds later all goes on. A run that is killed alone does: the control."""
    now_ms = int(time.time() * 1000)
    with open_instance(tmp_path) as opened:
        descriptor = share(tmp_path / FOLDER / "daemon", own_name())
        os.utime(tmp_path / FOLDER / "daemon", (now_ms / 1000 + (3600 if is_restarted else -3600),) * 2)
        killed = []  # one that is collected would end with a word
        for _ in range(7):
            run = create_run(opened, DagsterRunStatus.STARTED)
            killed.append(trying(opened, TOPIC.landing, [RANGES[0].key, ALL], run.run_id, lambda: now_ms))
            killed[-1].__enter__()
            opened.report_run_failed(run)
        tries = read_tries(opened, TOPIC.landing)
        assert tries.of(ALL).attempts == tries.tried[RANGES[0]].attempts == 7
        assert tries.choose_due(RANGES[:1], tries.of(ALL).last_ended_ms + 10_000) == (RANGES[:1] if is_restarted else [])
        os.close(descriptor)


@pytest.mark.parametrize(
    ("error", "seconds", "expected", "fatal"),
    [
        (DagsterExecutionInterruptedError(), 119, (0, 0), 1),
        (KeyboardInterrupt(), 0, (0, 0), 1),
        (GeneratorExit(), 0, (0, 0), 1),
        (DagsterExecutionInterruptedError(), -3600, (1, 1), 3),
        (DagsterExecutionInterruptedError(), 120, (1, 1), 3),
        (RuntimeError(), 0, (1, 1), 3),
        (Refused("no"), 0, (1, 0), 0),
    ],
)
def test_what_a_run_was_at_when_it_was_stopped_soon_was_not_tried(
    fresh: dg.DagsterInstance, error: BaseException, seconds: int, expected: tuple[int, int], fatal: int
) -> None:
    """[R-33] Ctrl-C of `up`, or a person's Cancel. The controls: one that was long at it, and may hang; errors."""
    attempt(fresh, RANGES[2:3], set(), NOW_MS)
    run = create_run(fresh, DagsterRunStatus.STARTED)

    def stop() -> None:
        moments = iter([NOW_MS, NOW_MS + seconds * 1000])
        with trying(fresh, TOPIC.landing, [each.key for each in RANGES[:3]], run.run_id, lambda: next(moments)) as done:
            done.add(RANGES[0].key)
            raise error

    with pytest.raises(type(error)):
        stop()
    found = read_tries(fresh, TOPIC.landing)
    counts = [(found.of(each.key).attempts, found.of(each.key).fatal) for each in RANGES[:3]]
    assert counts == [(0, 0), expected, (1 + expected[0], expected[1])]
    assert not any(found.is_in_progress(each.key) for each in RANGES)
    assert (RANGES[1] in found.choose_due(RANGES[:3], NOW_MS + seconds * 1000 + 1)) == (expected == (0, 0))
    for _ in range(MOST_STOPS):  # what is tried may be why the run is stopped: it is evicted for its memory, say
        with pytest.raises(type(error)):
            stop()
    assert read_tries(fresh, TOPIC.landing).of(RANGES[1].key).fatal == fatal


def test_what_is_tried_for_the_first_time_beside_what_was_tried_before_is_noted(fresh: dg.DagsterInstance) -> None:
    """[R-33] A new topic in the batch of an old one."""
    attempt(fresh, RANGES[:1], set(), NOW_MS)
    duties = [TOPIC.landing, replace(TOPIC, name="new").landing]
    with trying_all(fresh, {duty: [RANGES[0].key] for duty in duties}, "gone", lambda: NOW_MS):
        pass
    assert [read_tries(fresh, duty).tried[RANGES[0]].attempts for duty in duties] == [2, 1]


def test_what_another_run_has_taken_over_is_its_to_tell(fresh: dg.DagsterInstance) -> None:
    """The first of two that are at the same range takes nothing away that the second notes."""
    first, second = (create_run(fresh, DagsterRunStatus.STARTED) for _ in range(2))
    with trying(fresh, TOPIC.landing, [RANGES[0].key], first.run_id, lambda: NOW_MS):
        taken = trying(fresh, TOPIC.landing, [RANGES[0].key], second.run_id, lambda: NOW_MS)
        taken.__enter__()
    assert read_tries(fresh, TOPIC.landing).in_progress == {RANGES[0]: f"run {second.run_id[:8]} (STARTED)"}


@pytest.mark.parametrize("is_done", [False, True])
def test_an_update_is_known_to_have_ended(fresh: dg.DagsterInstance, is_done: bool) -> None:
    """When the last one ended counts for the next, well or not."""
    run = create_run(fresh, DagsterRunStatus.STARTED)
    with trying(fresh, TOPIC.upserting, [UPDATE], run.run_id, lambda: NOW_MS) as well:
        assert read_tries(fresh, TOPIC.upserting).is_in_progress(UPDATE), "the control: a run is at it"
        well.update({UPDATE} if is_done else ())
    found = read_tries(fresh, TOPIC.upserting)
    tried = found.of(UPDATE)
    assert (tried.attempts, tried.last_ended_ms, found.is_in_progress(UPDATE)) == (0 if is_done else 1, NOW_MS, False)


def test_only_a_person_asks_for_a_redo() -> None:
    """U3: a schedule, a sensor and declarative automation read nothing twice; the UI, its Re-execute, and a backfill do."""
    tags = ("sensor_name", "schedule_name", "auto_materialize", "from_automation_condition")
    assert not [tag for tag in tags if is_redo_of_person({f"dagster/{tag}": "x"})]
    assert all(is_redo_of_person({f"dagster/{tag}": "x"}) for tag in ("backfill", "partition", "parent_run_id"))
