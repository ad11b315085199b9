"""What processes used, as the operating system counts it: peak resident bytes since a reset, and CPU seconds.

Linux keeps the peak; elsewhere present memory is the best there is. CPU seconds tell a busy machine from a slow system: they
hardly change with what else runs.
"""

import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from .rounds import Taken

_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds of one process: its own, and those of the children that it has waited for, with all that ended below them."""

    pid: int
    parent: int
    command: str
    own_seconds: float
    ended_seconds: float


def take(act: Callable[[], None], jvm_pid: int) -> Taken:
    """Do something in this process and in a JVM, and measure what it takes."""
    pids = (os.getpid(), jvm_pid)
    for pid in pids:
        reset_peak(pid)
    before = tree_seconds(*pids)
    seconds = timed(act)
    return Taken(seconds, tree_seconds(*pids) - before, *map(read_peak_bytes, pids))


def timed(act: Callable[[], object]) -> float:
    """Measure how many seconds something takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def reset_peak(pid: int) -> None:
    """Make the peak of a process start again from what it holds now, where the system can do that."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, "ascii")


def read_peak_bytes(pid: int) -> int:
    """Read the peak of a process's resident bytes; 0 where there is no such process."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text("utf-8", errors="replace"))
        return int(found[1]) * 1024 if found else 0
    with suppress(psutil.NoSuchProcess):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def tree_seconds(*roots: int) -> float:
    """Read the CPU seconds that processes and all below them have used, each once, those that have ended included."""
    found = {each.pid: each for root in roots for each in read_tree(root)}
    return sum(each.own_seconds + each.ended_seconds for each in found.values())


def read_tree(root: int) -> list[ProcessUsage]:
    """Read the usage of a process and of all below it; parents come before their children.

    The sum of both kinds of seconds over the tree loses no process that ends below it between two looks: what such a process
    used is in its parent's `ended_seconds` then. One that ends during a look may be counted twice or never, so a look counts
    only where those right before and after it saw the same processes.
    """
    while True:
        looks = [_read_below(root) for _ in range(3)]
        if len({frozenset(each.pid for each in found) for found in looks}) == 1:
            return looks[1]


def _read_below(root: int) -> list[ProcessUsage]:
    found: list[ProcessUsage] = []
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(root)
        for process in [top, *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                found.append(_read_usage(process))
    return found


def _read_usage(process: psutil.Process) -> ProcessUsage:
    times, command = process.cpu_times(), list[str]()
    with suppress(psutil.ZombieProcess, psutil.AccessDenied):  # one that has ended still has its times
        command = process.cmdline()
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return ProcessUsage(process.pid, process.ppid(), " ".join(command), times.user + times.system, ended)


def read_processor() -> str:
    """Read what the system calls its processors; what Python knows of them where it does not say."""
    with suppress(FileNotFoundError):
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8", errors="replace"))
        if found:
            return found[1].strip()
    return platform.processor()
