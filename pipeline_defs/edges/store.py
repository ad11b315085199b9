"""The only write primitive: put-if-absent, on a local disk or an object store, through obstore.

Invariant: an object that a name leads to is whole, durable and never changed, but by `exchange` and swapping.py. Three
answers exist, never two: committed, conflict, and unknown (`OutcomeUnknown`), which reading back settles or nobody does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.fsspec import FsspecStore
from obstore.store import LocalStore, ObjectStore, from_url

from ..core.errors import LakeUnavailable, OutcomeUnknown
from .locks import hold

if TYPE_CHECKING:
    from obstore import UpdateVersion


class Answer(StrEnum):
    """Says how a put-if-absent ended; the third answer is `OutcomeUnknown`."""

    COMMITTED = "committed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Entry:
    """Is an object or a folder with all in it: its size in bytes, and when anything of it was last written."""

    bytes: int
    changed_at_ms: int


class Store:
    """Holds the objects of a lake below one root, a local folder or a URL that obstore knows (s3, gs, az)."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        scheme = urlsplit(root).scheme
        self.local_root = Path(root.removeprefix("file://")).absolute() if scheme in {"", "file"} else None
        self._objects: ObjectStore | None = None

    @property
    def objects(self) -> ObjectStore:
        """Is the obstore behind this lake, opened at first use; a local root is created then."""
        if self._objects is None:
            with self.explained("open", ""):
                if self.local_root is not None:
                    self._objects = LocalStore(self.local_root, mkdir=True)
                else:
                    self._objects = from_url(self.root)
        return self._objects

    def url(self, path: str) -> str:
        """Is the address of an object that Spark, DuckDB or a person can open."""
        return f"{self.local_root or self.root}/{path}"

    def filesystem(self) -> FsspecStore:
        """Is an object store as an fsspec file system, for readers that want one."""
        scheme: Any = urlsplit(self.root).scheme  # one that obstore knows, or opening the store had failed
        filesystem: FsspecStore = FsspecStore(scheme)
        return filesystem

    def get(self, path: str) -> bytes | None:
        """Reads an object; none where there is no such object."""
        with self.explained("read", path):
            try:
                return bytes(obstore.get(self.objects, path).bytes())
            except (NotFoundError, FileNotFoundError):
                return None

    def exists(self, path: str) -> bool:
        """Says whether there is such an object."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Reads the size of an object in bytes; none where there is no such object."""
        with self.explained("read", path):
            try:
                return obstore.head(self.objects, path)["size"]
            except (NotFoundError, FileNotFoundError):
                return None

    def list(self, prefix: str) -> dict[str, int]:
        """Lists the objects below a folder, sorted by path, with their sizes in bytes."""
        with self.explained("list", prefix):
            found = {meta["path"]: meta["size"] for page in obstore.list(self.objects, prefix) for meta in page}
        return dict(sorted(found.items()))

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Lists the names of the folders directly below a folder, sorted."""
        with self.explained("list", prefix):
            found = obstore.list_with_delimiter(self.objects, prefix)["common_prefixes"]
        return tuple(sorted(path.rsplit("/", 1)[-1] for path in found))

    def entries(self, prefix: str) -> dict[str, Entry]:
        """Reads of all that lies directly below a folder how large it is and when anything in it was last written."""
        with self.explained("list", prefix):
            found: dict[str, Entry] = {}
            for path, size, changed_at_ms in self._walk(prefix):
                name = path.removeprefix(f"{prefix}/").split("/")[0]
                before = found.get(name, Entry(0, 0))
                found[name] = Entry(before.bytes + size, max(before.changed_at_ms, changed_at_ms))
        return found

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, int]]:
        """Yields path, size and time of all that is below a folder; on a local disk of folders too, which may be empty."""
        if self.local_root is None:
            for page in obstore.list(self.objects, prefix):
                yield from (
                    (meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000)) for meta in page
                )
            return
        for path in _below(self.local_root / prefix):
            with suppress(FileNotFoundError):  # its attempt has swept it
                found = path.stat()
                size = 0 if path.is_dir() else found.st_size
                yield path.relative_to(self.local_root).as_posix(), size, found.st_mtime_ns // 1_000_000

    def put_new(self, path: str, data: bytes, scratch: str) -> Answer:
        """Creates the object if it is absent; `scratch` is a name of the caller's own that no reader looks at."""
        with self.explained("write", path):
            try:
                if self.local_root is None:
                    obstore.put(self.objects, path, data, mode="create")
                else:
                    self._put_new_local(path, data, scratch)
                return Answer.COMMITTED
            except AlreadyExistsError:
                return Answer.COMMITTED if self.get(path) == data else Answer.CONFLICT
            except BaseError as error:
                return self._settle(path, data, error)

    def publish(
        self, staged: str, final: str, *, guard: str | None = None, is_due: Callable[[], bool] = lambda: True
    ) -> Answer:
        """Gives a staged object its final name if that is free, and it is due, asked as by `exchange`; the staged one stays."""
        with self.explained("publish", final):
            try:
                if self.local_root is None:
                    obstore.put(self.objects, final, obstore.get(self.objects, staged).bytes(), mode="create")
                    return Answer.COMMITTED
                if (self.local_root / final).exists():
                    return Answer.CONFLICT
                with self.locked(guard):
                    if not is_due():
                        return Answer.CONFLICT
                    self._link(staged, final)
            except AlreadyExistsError:
                return Answer.CONFLICT
            except NotFoundError as error:
                raise FileNotFoundError(staged) from error
            return Answer.COMMITTED

    def exchange(self, staged: str, final: str, *, guard: str, is_due: Callable[[], bool]) -> None:
        """Puts a staged object in the place of a published one, in one step, and takes the staged name away.

        The only change that an object ever sees. `is_due` is asked where no stale caller can come in between: under a
        lock of the object `guard`, which ends with the process that holds it, or, on an object store, before a put that
        holds only for the version that was there.
        """
        with self.explained("exchange", final):
            if self.local_root is None:
                self._exchange_remote(staged, final, is_due)
                return
            with self.locked(guard):
                if not is_due():
                    return
                _fsync(self.local_root / staged)
                (self.local_root / staged).replace(self.local_root / final)
                _fsync((self.local_root / final).parent)

    def _exchange_remote(self, staged: str, final: str, is_due: Callable[[], bool]) -> None:
        try:
            found = obstore.head(self.objects, final)
            if not is_due():
                return
            data = obstore.get(self.objects, staged).bytes()
            seen: UpdateVersion = {"e_tag": found["e_tag"]}
            if found["version"] is not None:
                seen["version"] = found["version"]
            obstore.put(self.objects, final, data, mode=seen)
            obstore.delete(self.objects, staged)
        except PreconditionError:
            return  # another attempt has exchanged it
        except NotFoundError as error:
            raise FileNotFoundError(staged) from error

    def locked(self, guard: str | None) -> AbstractContextManager[None]:
        """Holds the lock of an object of a local lake, which ends with the process; where there is none, nothing is held."""
        return hold(self.local_root / guard) if self.local_root is not None and guard else nullcontext()

    def upload(self, local: Path, path: str) -> None:
        """Brings a file of this machine to a name of the attempt's own in the lake."""
        with self.explained("write", path):
            obstore.put(self.objects, path, local)

    def make_durable(self, path: str) -> None:
        """Brings what Spark staged, and the names that lead to it, to the disk; an object store's writes already are."""
        if self.local_root is not None:
            with self.explained("write", path):
                _fsync(self.local_root / path)
                self._sync_folders((self.local_root / path).parent)

    def delete_folder(self, prefix: str) -> None:
        """Deletes what an attempt staged, or one object; never what a manifest refers to and is not published yet.

        What another sweeper has deleted is as good.
        """
        with self.explained("delete", prefix):
            if self.local_root is None:
                paths = list(self.list(prefix))
                if paths or self.exists(prefix):
                    obstore.delete(self.objects, paths or prefix)
                return
            for path in [*_below(self.local_root / prefix), self.local_root / prefix]:
                with suppress(FileNotFoundError):
                    path.rmdir() if path.is_dir() else path.unlink()

    def check_writable(self, scratch: str) -> None:
        """Proves that the lake can be written by writing; raises `LakeUnavailable` where not."""
        with self.explained("write", scratch):
            obstore.put(self.objects, scratch, b"offsetlake")
            obstore.delete(self.objects, scratch)

    def _put_new_local(self, path: str, data: bytes, scratch: str) -> None:
        """Writes under a scratch name first: what stands under the final name is whole and durable from its first moment."""
        obstore.put(self.objects, scratch, data)
        try:
            self._link(scratch, path)
        finally:
            obstore.delete(self.objects, scratch)

    def _link(self, source: str, target: str) -> None:
        """Makes `source` durable, then gives it a second name that must be free, then makes the name durable."""
        assert self.local_root is not None
        _fsync(self.local_root / source)
        folder = (self.local_root / target).parent
        is_new = not folder.is_dir()
        obstore.copy(self.objects, source, target, overwrite=False)
        if is_new:
            self._sync_folders(folder)
        else:
            _fsync(folder)

    def _sync_folders(self, folder: Path) -> None:
        """Makes the names in a folder durable, and its own, up to the lake's root."""
        for each in (folder, *folder.parents):
            _fsync(each)
            if each == self.local_root:
                break

    def _settle(self, path: str, data: bytes, error: BaseError) -> Answer:
        found = self.get(path)
        if found is None:
            raise OutcomeUnknown(
                f"writing {self.url(path)} ended without an answer and reading it back finds nothing yet: {error}; "
                "nothing is lost; the next attempt settles it"
            ) from error
        return Answer.COMMITTED if found == data else Answer.CONFLICT

    @contextmanager
    def explained(self, verb: str, path: str) -> Iterator[None]:
        """Turns what the store answers into one clear `LakeUnavailable`; what is not there stays `FileNotFoundError`."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise LakeUnavailable(
                f"cannot {verb} {self.url(path)}: {reason}; nothing is lost; check that OFFSETLAKE_LAKE names a place "
                "that exists and that this user may write",
                path=path,
            ) from error


def _below(folder: Path) -> Iterator[Path]:
    """Yields files and folders below a folder, what is in a folder before it; what goes away meanwhile is passed over."""
    for at, folders, files in os.walk(folder, topdown=False):
        yield from (Path(at, name) for name in (*files, *folders))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
