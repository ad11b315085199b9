"""A lake on a disk: names are given by hard links and exchanged by renames, and are durable before a call returns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import LocalStore, MemoryStore, ObjectStore

from ...core.errors import LakeUnavailable
from ..system.locks import hold
from .disk import Disk
from .store import Answer, Store

if TYPE_CHECKING:
    from obstore.fsspec import FsspecStore


class DiskStore(Store):
    """The objects of a lake that is a folder."""

    is_remote = False

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.folder = Path(root.removeprefix("file://")).absolute()
        self.disk = Disk(self.folder)

    @property
    def objects(self) -> ObjectStore:
        if self._objects is None:
            with self.explained("open"):
                if not self.folder.exists():
                    return MemoryStore()
                self._objects = LocalStore(self.folder, mkdir=True)  # or one clear error where it is no folder
        return self._objects

    def url(self, path: str) -> str:
        return f"{self.folder}/{path}"

    @property
    def hadoop_root(self) -> str:
        return str(self.folder)

    def filesystem(self) -> FsspecStore | None:
        return None

    def _cannot_be(self, path: str) -> bool:
        return any(each.is_file() for each in (self.folder / path).parents)

    def find(self, paths: Sequence[str]) -> dict[str, str]:
        with self.explained("read", *paths):
            return self.disk.versions(paths)

    find_in_row = find

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, int]]:
        for path in self.disk.walk(prefix):
            with suppress(FileNotFoundError):  # its attempt has swept it
                found = path.stat()
                size = 0 if path.is_dir() else found.st_size
                yield path.relative_to(self.folder).as_posix(), size, found.st_mtime_ns // 1_000_000

    def put_new(self, path: str, data: bytes, scratch: str) -> Answer:
        self._refuse_outside(scratch, "write")
        return super().put_new(path, data, scratch)

    def _create(self, path: str, data: bytes, scratch: str) -> None:
        try:
            # what stands under the final name is whole and durable from its first moment
            self.disk.write(scratch, data)
            self._link(scratch, path, "write")
        except FileNotFoundError as error:
            raise LakeUnavailable(
                f"cannot write {self.url(path)}: {scratch} was deleted while it was written: a sweep, or somebody, deleted it; "
                "nothing was written there, nothing is lost; the next attempt writes it again",
                path=path,
            ) from error
        finally:
            self.disk.delete(scratch)

    def publish(
        self, staged: str, final: str, *, guard: str | None = None, is_due: Callable[[], bool] = lambda: True
    ) -> Answer:
        with self.explained("publish", final, staged):
            if self.exists(final):
                return Answer.CONFLICT
            try:
                with self.locked(guard):
                    if not is_due():
                        return Answer.CONFLICT
                    self._link(staged, final, "publish")
            except FileExistsError:
                return Answer.CONFLICT
            return Answer.COMMITTED

    def _link(self, source: str, path: str, verb: str) -> None:
        """Give a file a second name; raise `FileExistsError` if a file has that name, `LakeUnavailable` if a folder has."""
        try:
            self.disk.link(source, path)
        except FileExistsError:
            if (self.folder / path).is_dir():
                raise LakeUnavailable(
                    f"cannot {verb} {self.url(path)}: what stands there is no file; nothing is lost; move it away, and the "
                    "next run goes on",
                    path=path,
                ) from None
            raise

    def exchange(self, staged: str, final: str, *, guard: str, is_due: Callable[[], bool]) -> None:
        with self.explained("exchange", final, staged), self.locked(guard):
            if is_due():
                self.disk.rename(staged, final)

    def locked(self, guard: str | None) -> AbstractContextManager[None]:
        unlocked = super().locked(guard)
        return hold(self.folder / guard) if guard else unlocked

    def linked_at_ms(self, path: str) -> int | None:
        with self.explained("read", path):
            try:
                return (self.folder / path).stat().st_ctime_ns // 1_000_000
            except FileNotFoundError:
                return None

    def is_same(self, path: str, other: str) -> bool:
        with self.explained("read", path, other):
            return (self.folder / path).samefile(self.folder / other)

    def delete(self, prefix: str) -> None:
        with self.explained("delete", prefix):
            self.disk.delete(prefix)

    def attempt_folder(self, attempt: str) -> Path | None:
        return self.folder / "staging" / attempt

    def path_of(self, file: Path) -> str | None:
        return file.relative_to(self.folder).as_posix() if file.is_relative_to(self.folder) else None

    @contextmanager
    def local_folder(self, name: str) -> Iterator[Path]:
        staging = self.folder / "staging"
        with ExitStack() as opened:
            with self.explained("write", "staging"):
                staging.mkdir(exist_ok=True)
                folder = opened.enter_context(tempfile.TemporaryDirectory(dir=staging, prefix=f"{name}-"))
            yield Path(folder)

    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        return nullcontext(self.folder / path)

    def make_durable(self, path: str) -> None:
        with self.explained("write", path):
            self.disk.make_durable(path)

    def _make_root(self) -> None:
        if self._objects is None:
            self._objects = LocalStore(self.folder, mkdir=True)
