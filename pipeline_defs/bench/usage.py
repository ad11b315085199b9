"""What a process used, as the operating system counts it: peak resident bytes since a reset, and CPU seconds.

Linux keeps both; elsewhere `ps` shows present memory, which is the best there is, and CPU time is not known. CPU
seconds tell a busy machine from a slow system: they hardly change with what else runs.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs
_USER_TICKS, _SYSTEM_TICKS = 11, 12  # fields 14 and 15 of proc(5), /proc/pid/stat, counted behind the name


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
    """Reads the CPU seconds a process has used, its ended threads included; 0 where that is not to be had."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK")
