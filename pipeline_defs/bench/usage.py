"""What processes used, as the operating system counts it: peak resident bytes since a reset, and CPU seconds.

Linux keeps both; elsewhere `ps` shows present memory, which is the best there is, and CPU time is not known. CPU
seconds tell a busy machine from a slow system: they hardly change with what else runs.
"""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs
# fields of proc(5), /proc/pid/stat, counted behind the name: 4, 14 and 15, 16 and 17
_PARENT, _OWN_TICKS, _ENDED_TICKS = 1, slice(11, 13), slice(13, 15)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds of one process: its own, and those of the children that it has waited for, with all that ended below them."""

    pid: int
    parent: int
    command: str
    own_seconds: float
    ended_seconds: float


def reset_peak(pid: int) -> None:
    """Makes the peak of a process start again from what it holds now, where the system can do that."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, "ascii")


def read_peak_bytes(pid: int) -> int:
    """Reads the peak of a process's resident bytes; 0 where there is no such process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8", errors="replace")
    except FileNotFoundError:
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        return int(shown.strip() or 0) * 1024
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields.get("VmHWM", "0 kB").split()[0]) * 1024


def read_cpu_seconds(pid: int) -> float:
    """Read the CPU seconds a process has used, its ended threads included; 0 where that is not to be had."""
    found = _read_usage(pid)
    return found.own_seconds if found else 0.0


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
    children: dict[int, list[ProcessUsage]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        usage = _read_usage(int(folder.name))
        if usage is not None:
            children.setdefault(usage.parent, []).append(usage)
    found = [each for siblings in children.values() for each in siblings if each.pid == root]
    for usage in found:  # which grows meanwhile
        found += children.get(usage.pid, [])
    return found


def _read_usage(pid: int) -> ProcessUsage | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        command = Path(f"/proc/{pid}/cmdline").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    own, ended = (sum(map(int, fields[ticks])) / os.sysconf("SC_CLK_TCK") for ticks in (_OWN_TICKS, _ENDED_TICKS))
    return ProcessUsage(pid, int(fields[_PARENT]), command.replace("\0", " ").strip(), own, ended)


def read_processor() -> str:
    """Read what the system calls its processors; what Python knows of them where it does not say."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()
