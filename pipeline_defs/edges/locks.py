"""Locks on files: of a local lake, and of the runs of a Dagster home. A lock ends with the process that holds it.

Invariant: nobody has to clean a lock up; a file that nobody holds means nothing but that.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.errors import LakeUnavailable

WAIT_SECONDS = 30.0  # it is held for a few writes of names; longer only by a process that is stopped
POLL_SECONDS = 0.01
_for_life: dict[Path, int] = {}  # of this process: the descriptor by file


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder, if there is one; raise `LakeUnavailable` where another does not let go of it."""
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


def share(path: Path, owner: str = "") -> int:
    """Take a share of a file's lock and return its descriptor; closing that, or the end of the process, gives it back.

    The file is made where it is missing, and keeps the name of its last owner. File and name are on the disk before this
    returns: after a power cut they tell what the run's own records cannot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only for somebody who looks, which takes no time
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # it was removed between the two lines above
    if owner:
        os.pwrite(descriptor, owner.encode(), 0)
    os.fsync(descriptor)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return descriptor


def share_for_life(path: Path) -> None:
    """Hold a share of a file's lock until the end of this process, which it names as its owner; once, however often asked."""
    if path not in _for_life:
        _for_life[path] = share(path, own_name())


def own_name() -> str:
    """Return this process in words, as the owner of a lock."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def read_owner(path: Path) -> str | None:
    """Read who held a file last, where nobody holds a share of it now; raise `FileNotFoundError` where there is no file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1_000).decode() if _is_taken(descriptor) else None
    finally:
        os.close(descriptor)


def read_holder(path: Path) -> str | None:
    """Read who holds a share of a file now; none where nobody does, or there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _is_taken(descriptor) else os.read(descriptor, 1_000).decode()
    finally:
        os.close(descriptor)


def remove_unheld(path: Path) -> None:
    """Remove a file where nobody holds a share of it; whoever opens it meanwhile makes it again.

    What another user has made in a folder of theirs stays: it says nothing of any run that is under way.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        if _is_taken(descriptor):
            with suppress(FileNotFoundError, PermissionError):
                path.unlink()
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
