"""Processes that outlive whoever started them: known by pid and start time, so a recycled pid is never taken for one.

Starts them in a session of their own and stops them from any process. Knows nothing of what they run.
Invariant: a signal goes only to a process whose start time is the one recorded.
"""

import json
import logging
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_POLL_SECONDS = 0.05
_KILL_SECONDS = 10
LEAST_FILES = 512  # with 256 Spark's JVM does not start
OPEN_FILES = 10_240  # enough for thousands of topics; macOS allows no more, whatever its limit says


@dataclass(frozen=True, slots=True)
class Process:
    """One process, for ever: `pid` comes back after its end, `pid` with `started` does not.

    `started` is the system's own text (boot id and clock ticks on Linux, the start time that `ps` prints elsewhere),
    only ever compared for equality.
    """

    pid: int
    started: str

    def is_running(self) -> bool:
        """Return whether this very process runs; a zombie does not, and is reaped here if it is our child."""
        seen = _observe(self.pid)
        if seen is None or seen.process != self:
            return False
        if seen.has_ended:
            _reap(self.pid)
        return not seen.has_ended


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the system shows for a pid; `has_ended` is a zombie, `is_stopped` is one that stands still (SIGSTOP)."""

    process: Process
    has_ended: bool
    is_stopped: bool


def end_this_process() -> NoReturn:
    """End this process at once, as a kill does, with exit code 1: an orderly end may wait for whoever started it."""
    logging.shutdown()
    os._exit(1)


def read_process(pid: int) -> Process | None:
    """Return the process that has `pid` now, None when there is none; a zombie counts until its parent reaps it."""
    seen = _observe(pid)
    return seen.process if seen else None


def is_stopped(pid: int) -> bool:
    """Return whether a process stands still (SIGSTOP); one that does not run does not."""
    seen = _observe(pid)
    return seen is not None and seen.is_stopped


def spawn_process(command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> Process:
    """Start `command` in its own session, its output appended to `log`, with the signals' usual meaning.

    A child of a shell's background job would otherwise inherit that SIGINT is ignored, and one of the same session
    would get the terminal's Ctrl-C.
    """
    devnull = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    with log.open("ab") as output:  # here: an error of the spawn's own would name the program instead
        pid = os.posix_spawn(
            command[0],
            list(command),
            os.environ if environment is None else environment,
            file_actions=[devnull, *((os.POSIX_SPAWN_DUP2, output.fileno(), each) for each in (1, 2))],
            setsid=True,
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
            setsigmask=[],
        )
    process = read_process(pid)  # our child and not reaped yet: the pid is its own even if it has ended
    if process is None:
        raise ProcessLookupError(f"process {pid} was reaped by somebody else before its start time was read")
    return process


def stop_process(process: Process, timeout_seconds: float) -> bool:
    """Stop `process` and say whether it ran: SIGTERM, SIGKILL after `timeout_seconds`; return when it is gone.

    With 0 seconds it is killed at once, as if its machine lost power.
    """
    if not process.is_running():
        return False
    gently = [(signal.SIGTERM, timeout_seconds)] if timeout_seconds else []
    for signal_number, patience_seconds in (*gently, (signal.SIGKILL, _KILL_SECONDS)):
        try:
            os.kill(process.pid, signal_number)
        except ProcessLookupError:
            return True
        if wait_for(lambda: not process.is_running(), patience_seconds, _POLL_SECONDS):
            return True
    raise TimeoutError(f"process {process.pid} still runs {_KILL_SECONDS} seconds after SIGKILL")


def wait_for(is_so: Callable[[], bool], seconds: float, poll_seconds: float) -> bool:
    """Wait at most so long until something is so, and return whether it is; ask once at least."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_seconds)
    return True


@contextmanager
def paused(pids: Iterable[int]) -> Iterator[None]:
    """Stop processes by SIGSTOP while the context is open: connections stay, and nobody answers."""
    with ExitStack() as going_on:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            going_on.callback(os.kill, pid, signal.SIGCONT)
        yield


def raise_open_files() -> None:
    """Let this process, and what it starts, open `OPEN_FILES` files, or as many as it may: shells begin with 256 to 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def too_few_files() -> str:
    """Return what to do where no limit can be raised to the open files that Spark's JVM needs to start; else nothing."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY or hard >= LEAST_FILES:
        return ""
    return f"a process may open {hard} files, expected {LEAST_FILES} or more: raise it (`ulimit -Hn`, LimitNOFILE of systemd)"


def last_lines(log: Path, count: int = 20) -> list[str]:
    """Return the last lines of a process's log; nothing if there is none."""
    return log.read_text("utf-8", errors="replace").splitlines()[-count:] if log.exists() else []


def end_group(leader: int) -> None:
    """End what is left of the process group that a child of this process led: what it has started outlives it."""
    with suppress(ProcessLookupError, PermissionError):  # nobody is left; the latter where all of them are zombies, on macOS
        os.killpg(leader, signal.SIGKILL)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # not our child: its parent reaps it
        os.waitpid(pid, os.WNOHANG)


def _observe(pid: int) -> _Seen | None:
    return _observe_in_proc(pid) if Path("/proc/self/stat").exists() else _observe_with_ps(pid)


def _observe_in_proc(pid: int) -> _Seen | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    # a zombie whose other threads are still ending holds its ports and files until they are gone
    has_ended = state in "ZX" and int(fields[16]) <= 1
    return _Seen(Process(pid, f"{boot_id}:{fields[18]}"), has_ended, is_stopped=state == "T")


def _observe_with_ps(pid: int) -> _Seen | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    state, _, started = shown.stdout.strip().partition(" ")
    process = Process(pid, started.strip())
    return _Seen(process, has_ended=state.startswith("Z"), is_stopped=state.startswith("T")) if started else None


def placed(state: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the document of a process's state as its file has it: with where that is, for `read_placed`."""
    return {**state, "file": str(file.absolute())}


def read_placed(file: Path) -> dict[str, Any] | None:
    """Read what `placed` gave, without the place; none where it was copied with its folder: its process is of the other one.

    Where nothing is any more at the place that it names, it was moved. Raises what reading a file or JSON does.
    """
    state: dict[str, Any] = json.loads(file.read_text("utf-8"))
    written = Path(state.pop("file", file))
    try:
        is_copied = written.exists() and not written.samefile(file)
    except OSError:  # it is in a folder that we may not enter: of somebody else
        is_copied = True
    return None if is_copied else state


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on now, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
