"""Recovery without hands: a system dies or fails at work, its users' supervisor starts it again, and a clock runs.

Offsetlake runs under `dagster dev`, which plans, lands and starts again by itself. The peers are started again a second
after they have ended, each time as a process and JVM of its own. Invariant: after the fault nothing is done by hand.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import dagster as dg

from ...adapters.system.processes import wait_for
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.home.dagster_server import DagsterServer
from ..bench.location import build_location, mark, write_location
from ..processes import wait_until
from .arena import Arena
from .faults import BIG_RECORD_BYTES, DISK_BYTES, EACH
from .systems import LOOP, OURS, STREAMING, TUTORIAL, System, limit_files

NEVER: Literal["never"] = "never"
NEVER_SECONDS = 300
"""How long a system is given before "never" is said."""
RESTART_SECONDS = 1.0
ENDS_UNTIL_NEVER = 2
"""How often a peer may read the topic to its end, undisturbed, before "never" is said: it has nothing left to do."""
KILLED_AT = {OURS: "stage", STREAMING: "written", LOOP: "written", TUTORIAL: "auto_committed"}
"""The step at which all is read and the system does not know yet that it is done."""
POLL_SECONDS = 0.2
_STOP_AT, _STANDS_AT, _DISK_IS_FULL = "stop_at", "stands_at", "disk_is_full"


def recover_from_kill(arena: Arena, system: System) -> None:
    """Kill the system's process after it has read and before it is done; its supervisor starts it again."""
    arena.produce(EACH)
    step = KILLED_AT[system.name]
    arena.note = f"killed at {step}"
    if system.name == OURS:
        with _dagster(arena, system) as folder:
            (folder / _STOP_AT).write_text(step)
            arena.produce(EACH)
            wait_until((folder / _STANDS_AT).exists, f"a run at step {step}")
            since = time.monotonic()
            os.kill(int((folder / _STANDS_AT).read_text()), signal.SIGKILL)
            arena.fault_proven = True
            arena.seconds_until_whole = _under_dagster(arena, system, since)
    else:
        _start_until_whole(arena, system, time.monotonic())
        with arena.stopped(system, step, each=EACH):
            since = time.monotonic()
        arena.seconds_until_whole = _start_until_whole(arena, system, since)


def recover_from_failed_write(arena: Arena, system: System) -> None:
    """Let the disk be full for one attempt, so that its write fails; then there is room again."""
    arena.produce(1)
    count, size = EACH // 4, BIG_RECORD_BYTES
    if system.name == OURS:
        with _dagster(arena, system) as folder, open_instance(arena.settings.dagster_home) as instance:
            (folder / _DISK_IS_FULL).touch()
            arena.produce(count, value_bytes=size)
            failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE])
            wait_until(lambda: instance.get_runs_count(failed) > 0, "a run that fails")
            since = time.monotonic()
            (folder / _DISK_IS_FULL).unlink()
            arena.fault_proven = True
            arena.seconds_until_whole = _under_dagster(arena, system, since)
    else:
        _start_until_whole(arena, system, time.monotonic())
        arena.produce(count, value_bytes=size)
        arena.fail_in_child(replace(system, disk_bytes=DISK_BYTES))
        since = time.monotonic()
        arena.seconds_until_whole = _start_until_whole(arena, system, since)


def _start_until_whole(arena: Arena, system: System, since: float) -> float | Literal["never"]:
    """Start a peer again and again, as `systemd` does, until its rows are whole or it has nothing left to do."""
    ends = 0
    while ends < ENDS_UNTIL_NEVER and time.monotonic() - since < NEVER_SECONDS:
        time.sleep(RESTART_SECONDS)
        with arena.running(system) as child:
            while not child.connection.poll(POLL_SECONDS):
                if arena.is_whole(system):
                    seconds = time.monotonic() - since
                    child.hear()
                    return round(seconds, 1)
            word, _ = child.hear()
        if arena.is_whole(system):
            return round(time.monotonic() - since, 1)
        ends += word == "finished"
    return NEVER


def _under_dagster(arena: Arena, system: System, since: float) -> float | Literal["never"]:
    left = since + NEVER_SECONDS - time.monotonic()
    return round(time.monotonic() - since, 1) if wait_for(lambda: arena.is_whole(system), left, POLL_SECONDS) else NEVER


@contextmanager
def _dagster(arena: Arena, system: System) -> Iterator[Path]:
    """Run `dagster dev` over the arena's topic; once all rows are there, yield the folder in which faults are asked for."""
    folder = arena.folder / "location"
    workspace = write_location(folder, arena.settings, arena.topic, built_by=f"{__name__}.build_faulty_location")
    with DagsterServer(arena.folder / "server", arena.settings.dagster_home, workspace):
        wait_until(lambda: arena.is_whole(system), "the rows that were there before the fault")
        yield folder


def build_faulty_location(folder: Path) -> dg.Definitions:
    """Build the definitions of a location whose runs meet the faults that its folder asks for."""

    def meet(step: str, **fields: Any) -> None:
        mark(folder, step, **fields)
        if step == "find" and (folder / _DISK_IS_FULL).exists():
            limit_files(DISK_BYTES)
        asked = folder / _STOP_AT
        if asked.exists() and asked.read_text() == step:
            asked.unlink()
            (folder / f".{_STANDS_AT}").write_text(str(os.getpid()))
            (folder / f".{_STANDS_AT}").rename(folder / _STANDS_AT)
            threading.Event().wait()

    return build_location(folder, meet)
