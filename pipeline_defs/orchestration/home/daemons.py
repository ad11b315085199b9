"""Dagster's daemons: heartbeats of an instance's daemons, and locks of the daemons of a home.

A heartbeat comes every 30 seconds and outlives its daemon; a lock ends with the process, however that ends.
`dagster.yaml` names the coordinator that takes the lock. Nothing here starts or stops a daemon. Imports no Spark.
"""

import os
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, cast

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.scheduler.instigation import InstigatorState, SensorInstigatorData

from ...adapters.system.locks import Holder, find_holder, remove_unheld, share_for_life
from .clock import follow_clock

HEARTBEAT_SECONDS = 30.0  # how often Dagster's daemons say that they are there
SILENT_AFTER_SECONDS = 3 * HEARTBEAT_SECONDS
HUNG_AFTER_SECONDS = 180.0  # of silence beyond that

Daemon = Literal["SENSOR", "BACKFILL", "QUEUED_RUN_COORDINATOR"]  # as Dagster names them

FOLDER = "daemon_locks"


def is_daemon() -> bool:
    """Return whether this process is Dagster's daemon."""
    program = Path(sys.argv[0])
    return "run" in sys.argv and (program.stem == "dagster-daemon" or program.parent.name == "_daemon")


class AnnouncedRunCoordinator(QueuedRunCoordinator):
    """Dagster's own run queue; each daemon loads it when it starts, and so takes the lock that shows its home that it runs."""

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Register the instance whose runs are queued; a daemon waits here while another one works on its Postgres."""
        super().register_instance(instance)
        if is_daemon():
            from .leading import await_leadership  # late: a command has no use for SQLAlchemy

            await_leadership(instance)
            share_for_life(Path(instance.root_directory) / FOLDER / f"{socket.gethostname()}-{os.getpid()}")
            follow_clock(instance)


def find_daemons(home: str | Path) -> list[Holder]:
    """Find the daemons of a home that run now; files of those that have ended are removed."""
    return [daemon for _, daemon in _running(home)]


def running_since(home: str | Path) -> float:
    """Return since when the newest daemon of a home runs, in seconds since 1970; 0 where none does.

    A run that began before that, and did not report its own end, was cut off with Dagster, by a power cut say.
    """
    return max((since for since, _ in _running(home)), default=0.0)


def _running(home: str | Path) -> Iterator[tuple[float, Holder]]:
    """Yield each running daemon with its start, in seconds since 1970; lock files of others are removed."""
    folder = Path(home) / FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        remove_unheld(path)
        with suppress(FileNotFoundError):  # it has just ended, and another process removed it
            since = path.stat().st_mtime
            if (daemon := find_holder(path)) is not None:
                yield since, daemon


class Listener:
    """Detector of hung processes: one hangs that was heard before, and then stays silent while this process listens.

    A process that is starting, or that slept with its machine, does not hang.
    """

    def __init__(self) -> None:
        self._seen: dict[Holder, float] = {}  # since when
        self._heard = set[Holder]()
        self._silent_since: float | None = None

    def find_hung(self, running: Collection[Holder], silent_seconds: float | None, now: float) -> list[Holder]:
        """Return which of the running processes hang; `now` is in seconds of a clock that stops while this machine sleeps."""
        self._seen = {each: self._seen.get(each, now) for each in running}
        if silent_seconds is not None and not is_silent(silent_seconds):  # an earlier heartbeat is another process's
            self._heard |= {each for each in running if silent_seconds < now - self._seen[each]}
            self._silent_since = None
        elif not running:  # nobody is silent
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > HUNG_AFTER_SECONDS:
            return [each for each in running if each in self._heard]
        return []


def read_silence(instance: dg.DagsterInstance, daemon: Daemon, now_seconds: float) -> float | None:
    """Read for how many seconds a daemon has said nothing; none where it never has."""
    heartbeat = instance.get_daemon_heartbeats().get(daemon)
    return now_seconds - heartbeat.timestamp if heartbeat else None


def read_sensors(instance: dg.DagsterInstance) -> Sequence[InstigatorState]:
    """Read what Dagster knows of each sensor: whether it is switched on, and when it ticked last."""
    return instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)


def tick_silence(sensors: Iterable[InstigatorState], now_seconds: float) -> float | None:
    """Return for how many seconds no sensor has ticked, 0 where none is switched on; none where none ever has."""
    ticks = [cast("SensorInstigatorData", each.instigator_data) for each in sensors if each.is_running and each.instigator_data]
    newest = max((each.last_tick_timestamp or 0.0 for each in ticks), default=now_seconds)
    return now_seconds - newest if newest else None


def is_silent(silent_seconds: float | None) -> bool:
    """Return whether a daemon that has said nothing for so long counts as gone."""
    return silent_seconds is None or silent_seconds > SILENT_AFTER_SECONDS
