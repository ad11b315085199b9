"""Locks of a local lake: held on a file or folder that is there anyway, ended with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import LakeUnavailable

WAIT_SECONDS = 30.0  # it is held for a few writes of names; longer only by a process that is stopped
POLL_SECONDS = 0.01


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Holds the lock of a file or folder, if there is one; raises `LakeUnavailable` where another does not let go of it."""
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        while not _is_taken(descriptor):
            if time.monotonic() > deadline:
                raise LakeUnavailable(
                    f"another process holds the lock of {path} and does not go on: it may be stopped; nothing is lost, and "
                    "what was committed is published by the next run; end that process (`lslocks` names it)",
                    path=str(path),
                )
            time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
