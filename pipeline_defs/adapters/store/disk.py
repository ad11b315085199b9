"""A local lake's folder: names are given and exchanged in one step, and are on the disk before the call returns.

Errors are Python's own, so that their `errno` says what happened. Invariant: no path leads out of the folder.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

# errors of a network file system that may have done what was asked for; after any other error it has not
UNSURE = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.ENOTCONN}
_FULL = {errno.ENOSPC, errno.EDQUOT}
TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}
REFUSALS = {*_FULL, errno.EROFS, errno.EFBIG, *TOO_MANY_OPEN}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def errno_in(text: str) -> int | None:
    """Return the errno in another program's message, which obstore writes as a number and Java as text."""
    found = _OS_ERROR.search(text)
    return int(found[1]) if found else next((each for each in REFUSALS if os.strerror(each) in text), None)


def mend(number: int | None, disk: str = "that disk") -> str | None:
    """Return what to do about a disk or a system that lets no file be written; none for any other error."""
    if number in _FULL:
        return f"make room on {disk}, and the next run goes on (`offsetlake sweep --apply` deletes what dead attempts left)"
    if number == errno.EFBIG:
        return "raise the limit on a file's size (`ulimit -f`), and the next run goes on"
    if number in TOO_MANY_OPEN:
        return "raise the limit on open files (`ulimit -n`) to 4,096 and restart `offsetlake up`, and the next run goes on"
    return f"mount {disk} writable, and the next run goes on" if number == errno.EROFS else None


class Disk:
    """Files below one folder, by their paths relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._durable: set[Path] = set()  # folders whose own names are known to be on the disk

    def write(self, path: str, data: bytes) -> None:
        """Write a new file whose bytes are on the disk when the call returns; its name may not be.

        Raises `FileExistsError` if it exists: another name may lead to the same file, which opening it would empty.
        """
        self._make_folder(path)
        with (self.root / path).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def link(self, source: str, target: str) -> None:
        """Make `source` durable, then give it a second name, durable too; raise `FileExistsError` if that is taken."""
        _fsync(self.root / source)
        self._make_folder(target)
        os.link(self.root / source, self.root / target)
        self._sync_name(target)

    def rename(self, source: str, target: str) -> None:
        """Make `source` durable, then move it to `target` in one step, over any file there; the name is durable too."""
        _fsync(self.root / source)
        self._make_folder(target)
        (self.root / source).replace(self.root / target)
        self._sync_name(target)

    def make_durable(self, path: str) -> None:
        """Make a file and the names that lead to it durable."""
        _fsync(self.root / path)
        self._sync_name(path)

    def delete(self, path: str) -> None:
        """Delete a file, a link, or a folder with all in it; what is already gone is no error, what a link leads to stays."""
        top = self.root / path
        for each in [*(() if top.is_symlink() else self.walk(path)), top]:
            with suppress(FileNotFoundError):
                each.rmdir() if each.is_dir() and not each.is_symlink() else each.unlink()

    def walk(self, path: str) -> Iterator[Path]:
        """Yield files and folders below a folder, each folder after what is in it; skip what is deleted meanwhile."""
        for at, folders, files in os.walk(self.root / path, topdown=False):
            yield from (Path(at, name) for name in (*files, *folders))

    def versions(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the version of each file that exists: size in bytes, a space, then inode and time of the last write."""
        found, root = {}, os.fspath(self.root)
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                each = os.stat(f"{root}/{path}")  # noqa: PTH116 (a tick asks for many)
                found[path] = f"{each.st_size} {each.st_ino:x}-{each.st_mtime_ns:x}"
        return found

    def _make_folder(self, path: str) -> None:
        folder = (self.root / path).parent
        if not folder.is_dir():
            self._durable.discard(folder)
            folder.mkdir(parents=True, exist_ok=True)

    def _sync_name(self, path: str) -> None:
        """Make the name of a file durable, and the first time also those of the folders above it.

        The name of a folder that is there may not be on the disk yet: whoever made it may be about to see to that.
        """
        folder = (self.root / path).parent
        if folder in self._durable:
            _fsync(folder)
            return
        for each in (folder, *folder.parents):
            _fsync(each)
            if each == self.root:
                break
        self._durable.add(folder)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
