"""Peak memory of a process, as the operating system counts it: resident bytes, reset before each run.

On Linux the kernel keeps the peak; elsewhere `ps` shows the present, which is the best there is.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

_RESET_PEAK = "5"  # proc(5), /proc/pid/clear_refs


def reset_peak(pid: int) -> None:
    """Makes the peak of a process start again from what it holds now, where the system can do that."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK, "ascii")


def read_peak_bytes(pid: int) -> int:
    """Reads the peak of a process's resident bytes; 0 where there is no such process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace")
    except FileNotFoundError:
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        return int(shown.strip() or 0) * 1024
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields.get("VmHWM", "0 kB").split()[0]) * 1024
