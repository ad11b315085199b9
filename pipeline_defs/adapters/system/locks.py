"""Locks on files: of a local lake, of what is started once, of the runs of a Dagster home, of temporary files of a process.

A lock ends with its process.

Invariant: nobody has to clean a lock up; a file that nobody holds means nothing but that.
"""

import atexit
import fcntl
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ...core.errors import LakeUnavailable, Unavailable
from .processes import wait_for

WAIT_SECONDS = 30.0  # it is held for a few writes of names; longer only by a process that is stopped
POLL_SECONDS = 0.01
LOOK_SECONDS = 0.02  # a process that only looks holds a lock for less
START_POLL_SECONDS = 0.1
T = TypeVar("T")
START_LOCK = ".lock"
SCRATCH = "offsetlake-scratch-"
_NAME = re.compile(r"process (\d+) on (.*)", re.DOTALL)
_scratch: dict[int, Path] = {}  # by process id: a fork has a folder of its own
_for_life: dict[Path, int] = {}  # of this process: the descriptor by file


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder, if there is one; raise `LakeUnavailable` if another does not let go of it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        if not wait_for(lambda: _is_taken(descriptor), WAIT_SECONDS, POLL_SECONDS):
            raise LakeUnavailable(
                f"another process holds the lock of {path} and does not go on: it may be stopped; nothing is lost, and "
                "what was committed is published by the next run; end that process (`lslocks` names it)",
                path=str(path),
            )
        yield
    finally:
        os.close(descriptor)  # and with it the lock


@contextmanager
def hold_start(
    folder: Path, find: Callable[[], T | None], wait_seconds: float, unavailable: type[Unavailable]
) -> Iterator[T | None]:
    """Hold the start lock of a folder, to start what is not there; yield instead what `find` finds, once it does.

    Of two that start at once, one gets what the other has started. The holder may be stopped although what it started is
    there: so `find` is asked while the lock is waited for. Raises `unavailable` after `wait_seconds`.
    """
    path = folder / START_LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    found: T | None = None

    def is_over() -> bool:
        nonlocal found
        found = find()
        return found is not None or _is_taken(descriptor)

    try:
        if not wait_for(is_over, wait_seconds, START_POLL_SECONDS):
            holder = os.pread(descriptor, 1_000, 0).decode(errors="replace") or "another process"
            raise unavailable(
                f"{holder} has begun to start what is missing in {folder} and does not go on: for {wait_seconds:g} s it "
                f"has held the lock {path}; nothing was started; it may be stopped: continue it (`kill -CONT`) or end it, "
                "and ask again"
            )
        found = find() if found is None else found  # it may be there since it was asked for, and before the lock was ours
        if found is None:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, own_name().encode(), 0)
        yield found
    finally:
        os.close(descriptor)


@contextmanager
def try_start_lock(folder: Path) -> Iterator[bool]:
    """Take the start lock of a folder if nobody holds it, without waiting; yield whether it was taken."""
    descriptor = os.open(folder / START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _is_taken(descriptor)
    finally:
        os.close(descriptor)


def share(path: Path, owner: str = "") -> int:
    """Take a share of a file's lock and return its descriptor; closing that, or the end of the process, gives it back.

    The file is made if it is missing, and keeps the name of its last owner. File and name are on the disk before this
    returns: after a power cut they tell what the run's own records cannot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while (descriptor := _share_of(path, os.O_RDWR | os.O_CREAT)) is None:
        pass
    if owner:
        os.ftruncate(descriptor, os.pwrite(descriptor, owner.encode(), 0))
    os.fsync(descriptor)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return descriptor


def _share_of(path: Path, flags: int) -> int | None:
    """Take a share of what is there; return none if another process removed it between opening and locking."""
    descriptor = os.open(path, flags, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only for a process that looks, which takes no time
    if os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)
    return None


def share_for_life(path: Path) -> None:
    """Hold a share of a file's lock until the end of this process, which it names as its owner; once, however often asked."""
    if path not in _for_life:
        _for_life[path] = share(path, own_name())


def own_name() -> str:
    """Return this process in words, as the owner of a lock."""
    return Holder(os.getpid(), socket.gethostname()).text


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock: its pid, and the host or container whose pid that is."""

    pid: int
    host: str

    @property
    def text(self) -> str:
        """The process in words."""
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether the pid is one of this host's."""
        return self.host == socket.gethostname()


def find_holder(path: Path) -> Holder | None:
    """Find the process that holds a share of a file now, by the name in it; none if nobody does, or it names no process."""
    found = _NAME.fullmatch(read_holder(path) or "")
    return Holder(int(found[1]), found[2]) if found else None


def read_owner(path: Path) -> str | None:
    """Read who held a file last; none if somebody holds a share now. Raises `FileNotFoundError` if there is no file."""
    name, is_held = _read_name(path)
    return None if is_held else name


def read_holder(path: Path) -> str | None:
    """Read who holds a share of a file now; none if nobody does, or there is no file."""
    with suppress(FileNotFoundError):
        name, is_held = _read_name(path)
        return name if is_held else None
    return None


def _read_name(path: Path) -> tuple[str, bool]:
    """Read the name in a file, and whether somebody holds a share of it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        is_held = not wait_for(lambda: _is_taken(descriptor), LOOK_SECONDS, POLL_SECONDS)
        return os.read(descriptor, 1_000).decode(), is_held
    finally:
        os.close(descriptor)


def remove_unheld(path: Path) -> None:
    """Remove a file, or a folder with all in it, if nobody holds a share of it; whoever opens a file makes it again.

    What another user has made in a folder of theirs stays: it says nothing of any run that is under way.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if _is_taken(descriptor):
            with suppress(FileNotFoundError, PermissionError):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    finally:
        os.close(descriptor)


def scratch() -> Path:
    """Return a folder for temporary files of this process, and delete those of processes that were killed.

    A process deletes its own at its end; one that is killed does not, so the next one does: a folder that nobody holds is
    nobody's.
    """
    found = _scratch.get(os.getpid())
    if found is not None and found.is_dir():
        return found
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        remove_unheld(left)
    while (folder := _make_scratch()) is None:  # another process took it for one that nobody holds
        pass
    _scratch[os.getpid()] = folder
    atexit.register(_remove_own, folder, os.getpid())
    return folder


def _make_scratch() -> Path | None:
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
    with suppress(FileNotFoundError):
        return folder if _share_of(folder, os.O_RDONLY) is not None else None
    return None


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
