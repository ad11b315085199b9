"""Locks of runs: small files in the Dagster home, locked by a run's own process, by its launcher, and by the code server.

The kernel frees a lock when its process ends, however it ends, in whatever container. A process locks its run's file
when it loads our definitions, which is before Dagster says that the run has started. Imports no Spark.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from dagster._serdes import deserialize_value

from ...adapters.system.locks import Holder, find_holder, own_name, read_owner, remove_unheld, share, share_for_life
from ...adapters.system.processes import read_process

FOLDER, LAUNCHED = "run_locks", ".launched"
CODE_SERVER = "code_server"
CODE_SERVER_COMMAND = ["api", "grpc"]  # of `dagster`: the process that loads our definitions for all others
_held: dict[str, int] = {}  # of this process: the descriptor by run id


def lock_path(home: str | Path, run_id: str) -> Path:
    """Return the path of a run's lock file."""
    return Path(home) / FOLDER / run_id


def launch_path(home: str | Path, run_id: str) -> Path:
    """Return the path of the file that a run's launcher locks until the run's own process has had time to begin."""
    return Path(home) / FOLDER / f"{run_id}{LAUNCHED}"


def hold_run(home: str | Path, run_id: str) -> None:
    """Hold the lock of a run that this process executes, until `release_run` or the end of the process."""
    if run_id not in _held:
        _held[run_id] = share(lock_path(home, run_id), own_name())


def release_run(run_id: str) -> None:
    """Give a run's lock back, where this process holds it."""
    if run_id in _held:
        os.close(_held.pop(run_id))


def hold_own_lock() -> None:
    """Hold the lock of Dagster's code server, or of the run that it started this process for; none in any other process.

    It ends with its process, whoever kills it. Each code location calls this, whatever topics it has.
    """
    home = os.environ.get("DAGSTER_HOME")
    if multiprocessing.parent_process() is not None:  # a run's process has its code server's arguments, too
        _hold_launched_run()
    elif home and sys.argv[1:3] == CODE_SERVER_COMMAND:
        share_for_life(Path(home).expanduser() / CODE_SERVER)  # as Dagster does


def _hold_launched_run() -> None:
    """Hold the lock of the run that this process was started for, if it was for one.

    Dagster names the run only in the first argument of the process's function; nothing else does before the run has started.
    """
    process = multiprocessing.current_process()
    target, arguments = getattr(process, "_target", None), getattr(process, "_args", ())
    if getattr(target, "__name__", "") != "start_run_in_subprocess" or not arguments:
        return
    asked = deserialize_value(arguments[0])
    instance_ref, run_id = getattr(asked, "instance_ref", None), getattr(asked, "run_id", None)
    if instance_ref is not None and run_id is not None:
        hold_run(instance_ref.local_artifact_storage.base_dir, run_id)


def is_code_server_gone(home: str | Path) -> bool:
    """Return whether a code server has run in this home, and the newest one does not: nothing ticks, and no run starts.

    Dagster does not restart one that was killed; it logs LOCATION_ERROR each minute. An older one that a reload has replaced
    may still hold the lock, as long as a run is at work in it.
    """
    newest = find_code_server(home)
    if newest is None:
        try:
            return read_owner(Path(home) / CODE_SERVER) is not None
        except FileNotFoundError:
            return False
    process = read_process(newest.pid)
    return newest.is_here and (process is None or not process.is_running())


def find_code_server(home: str | Path) -> Holder | None:
    """Find the process of a home's newest code server; none where none runs."""
    return find_holder(Path(home) / CODE_SERVER)


def list_locked(home: str | Path) -> list[str]:
    """Return the ids of the runs that have a lock file."""
    folder = Path(home) / FOLDER
    return sorted({path.name.removesuffix(LAUNCHED) for path in folder.iterdir()}) if folder.is_dir() else []


def forget_run(home: str | Path, run_id: str) -> None:
    """Remove the lock files of a run that has ended, unless a process still holds them."""
    release_run(run_id)
    remove_unheld(lock_path(home, run_id))
    remove_unheld(launch_path(home, run_id))
