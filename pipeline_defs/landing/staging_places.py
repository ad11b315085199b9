"""Staging places: where Spark writes, and how files get from there into the lake: on this machine, or in the object store.

Invariant: nothing here is visible to a reader, and nothing becomes so. `RemoteStaging` never copies a whole object to this
machine. `staging_of` chooses the place; callers need not know which one it is.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar

from ..adapters.lake import parquet
from ..adapters.lake.footer import canonicalize
from ..adapters.lake.lake import Lake
from ..adapters.spark.engine import Engine
from ..adapters.spark.spark_files import Digest, read_digests
from ..adapters.store.remote_file import File, RemoteFile
from ..adapters.system.locks import scratch
from ..core.errors import DamagedFile, LakeUnavailable, Refused, StagedFileGone
from ..core.log.manifest import Manifest, StagedFile
from ..core.offsets import OffsetRange
from .landed_files import LandedFile, landed_files

WATCH_SECONDS = 0.05
LIST_SECONDS = 3.0
TELL_SECONDS = 3.0  # at least between two reports of a scan's progress
Name = TypeVar("Name")
Landed = Mapping[OffsetRange, LandedFile]


@dataclass
class LocalStaging:
    """The staging folder of one attempt: on this machine, or on a file system that a cluster shares.

    It is in the lake where that is a folder, else outside it. `RemoteStaging` has the same methods.
    """

    attempt: str
    lake: Lake
    _made: list[Path] = field(default_factory=list)

    @cached_property
    def root(self) -> Path:
        """The folder of the attempt; callers name those below it."""
        folder = self.lake.store.attempt_folder(self.attempt)
        if folder is not None:
            return folder
        self._made.append(Path(tempfile.mkdtemp(dir=scratch())))
        return self._made[0]

    def url(self, folder: PurePath) -> str:
        """Return the form of a folder that Spark is given."""
        return str(folder)

    def watched(self, folder: PurePath, on_files: Callable[[int], None] = lambda files: None) -> AbstractContextManager[None]:
        """Watch a folder while Spark writes to it; `on_files` is given the number of files now and then.

        Each file is flushed to disk once its task is done, while Spark goes on: only a head start, since `bring` makes files
        durable before they are committed.
        """

        def find() -> set[Path]:
            with suppress(OSError):  # whoever needs the folder reports it
                return {*Path(folder).glob("*.parquet")}
            return set()

        return _watched(find, _write_back, on_files, WATCH_SECONDS)

    def finish(self, folder: PurePath) -> None:
        """Do what needs Spark once it has written a folder: here nothing."""

    def files(self, folder: PurePath) -> Iterable[File]:
        """List the files below a finished folder."""
        return parquet.files_of(Path(folder))

    def read_part(self, file: File) -> parquet.PartFile | None:
        """Read the footer of a file; none where it has no rows. Raise `DamagedFile` for one that is torn or was changed."""
        with told_if_gone(str(file)), parquet.told_if_damaged(f"staged file {file}", parquet.STAGED):
            return parquet.read_part(file)

    def settle(self, part: parquet.PartFile, name: str) -> StagedFile:
        """Return a staged file as a manifest names it; `name` must be unique within the attempt.

        Its footer is made canonical, so that equal rows are equal bytes.
        """
        assert isinstance(part.path, Path)
        path = self.lake.store.path_of(part.path) or f"staging/{self.attempt}/{name}.parquet"
        explained = self.lake.store.explained("write", path)
        with told_if_gone(path), explained, parquet.told_if_damaged(f"staged file {path}", parquet.STAGED):
            canonicalize(part.path)
            return parquet.staged_file(part, path)

    def bring(self, part: parquet.PartFile | None, file: StagedFile | None) -> None:
        """Upload a staged file to the lake where it is not there yet, and make it durable."""
        if part is None or file is None:
            return
        with told_if_gone(file.path):
            assert isinstance(part.path, Path)
            if self.lake.store.path_of(part.path) is None:
                self.lake.store.upload(part.path, file.path)
            self.lake.store.make_durable(file.path)

    @contextmanager
    def opened(self, paths: Sequence[str]) -> Iterator[list[File]]:
        """Give files of the lake as this machine's Spark can read them, while open: local copies of objects."""
        with ExitStack() as opened:
            yield [opened.enter_context(self.lake.store.local_copy(path)) for path in paths]

    def digests(self, files: Sequence[File]) -> list[str]:
        """Return the sha256 of opened files, in hex."""
        return [parquet.digest(file) for file in files]

    def landed(self, manifests: Iterable[Manifest]) -> AbstractContextManager[Landed]:
        """Give the files of landed ranges as this machine's Spark can read them, while open."""
        return landed_files(manifests, self.lake)

    def with_digests(self, landed: Landed) -> Landed:
        """Return landed files with their present digests, where reading these is not this machine's task: here unchanged."""
        return landed

    def close(self) -> None:
        """Delete what is left of it outside the lake; the nightly sweep deletes the rest."""
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def staging_here(attempt: str, lake: Lake) -> Iterator[LocalStaging]:
    """Give a staging folder on this machine, for files written without Spark; delete it in the end."""
    staging = LocalStaging(attempt, lake)
    try:
        yield staging
    finally:
        lake.store.discard(f"staging/{attempt}")
        staging.close()


@dataclass
class RemoteStaging:
    """A prefix in the lake's own object store, which executors write to; `read_digests` has them read what they wrote.

    Objects stay as written, since changing a footer would mean writing the object again: a digest is that of the object as is.
    """

    attempt: str
    lake: Lake
    read_digests: Callable[[Sequence[str]], Mapping[str, Digest]]
    _digests: dict[str, Digest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._url = self.lake.store.hadoop_root

    @property
    def root(self) -> PurePosixPath:
        """The prefix of the attempt."""
        return PurePosixPath("staging") / self.attempt

    def url(self, folder: PurePath) -> str:
        """Return the URL of a folder for Hadoop."""
        return f"{self._url}/{folder}"

    def watched(self, folder: PurePath, on_files: Callable[[int], None] = lambda files: None) -> AbstractContextManager[None]:
        """Count the objects of a folder."""

        def find() -> set[str]:
            with suppress(LakeUnavailable):  # whoever needs the folder reports it
                return set(self._list(folder))
            return set()

        return _watched(find, lambda path: None, on_files, LIST_SECONDS)

    def finish(self, folder: PurePath) -> None:
        """Have the digests read where the files are."""
        self._digests |= self._read_digests([self.url(folder)] if self._list(folder) else [])

    def files(self, folder: PurePath) -> Iterable[File]:
        """List the objects of a folder."""
        return [self._file(path, size) for path, size in self._list(folder).items()]

    def read_part(self, file: File) -> parquet.PartFile | None:
        """Read the footer by ranged reads; raise `DamagedFile` where a digest was read of another size, or none was."""
        assert isinstance(file, RemoteFile)
        known = self._digests.get(file.path)
        if known is None or known.bytes != file.bytes:
            found = f"{known.bytes} bytes" if known else "nothing"
            raise DamagedFile(
                f"{file} has {file.bytes} bytes, and Spark has read {found} there: it was changed meanwhile; nothing "
                "became visible; the next run reads its range again"
            )
        with told_if_gone(str(file)), parquet.told_if_damaged(f"staged object {file}", parquet.STAGED):
            return parquet.read_part(file)

    def settle(self, part: parquet.PartFile, name: str) -> StagedFile:  # noqa: ARG002 (it has its name already)
        """Return the object in its place, with the digest that executors have read."""
        assert isinstance(part.path, RemoteFile)
        known = self._digests[part.path.path]
        return parquet.staged_as(part, part.path.path, known.bytes, known.sha256)

    def bring(self, part: parquet.PartFile | None, file: StagedFile | None) -> None:
        """Do nothing: the object is in the lake, and durable."""

    @contextmanager
    def opened(self, paths: Sequence[str]) -> Iterator[list[File]]:
        """Give the objects themselves."""
        sizes = [self.lake.store.size(path) for path in paths]
        if None in sizes:
            raise FileNotFoundError(paths[sizes.index(None)])
        yield [self._file(path, size) for path, size in zip(paths, sizes, strict=True) if size is not None]

    def digests(self, files: Sequence[File]) -> list[str]:
        """Have executors read them."""
        found = self._read_digests([str(file) for file in files])
        return [found[file.path].sha256 for file in files if isinstance(file, RemoteFile)]

    @contextmanager
    def landed(self, manifests: Iterable[Manifest]) -> Iterator[Landed]:
        """Give the objects themselves; raise `Refused` for a range that only a compacted file has."""
        files = {}
        for manifest in manifests:
            path = self.lake.own_path(manifest)
            size = None if path is None else self.lake.store.size(path)
            if path is None:
                raise Refused(
                    f"range {manifest.offsets.text(manifest.topic)} is in a compacted file only, and OFFSETLAKE_SPARK_REMOTE "
                    "reads no part of one; nothing was decoded; unset it for this command, so that a Spark of this machine "
                    "does it"
                )
            if size is None:
                raise FileNotFoundError(path)
            files[manifest.offsets] = LandedFile(self._file(path, size), is_cut=False)
        yield files

    def with_digests(self, landed: Landed) -> Landed:
        """Have the digests read where the files are."""
        found = self.digests([each.path for each in landed.values()])
        return {offsets: replace(each, sha256=sha256) for (offsets, each), sha256 in zip(landed.items(), found, strict=True)}

    def close(self) -> None:
        """Do nothing: the lake sweeps what is left."""

    def _read_digests(self, urls: Sequence[str]) -> dict[str, Digest]:
        found = self.read_digests(urls) if urls else {}
        return {url.removeprefix(f"{self._url}/"): digest for url, digest in found.items()}

    def _list(self, folder: PurePath) -> dict[str, int]:
        """List the Parquet files directly below a folder, where tasks commit them, with their sizes."""
        found = self.lake.store.list(str(folder))
        return {
            path: size for path, size in found.items() if path.endswith(".parquet") and PurePosixPath(path).parent == folder
        }

    def _file(self, path: str, size: int) -> RemoteFile:
        return RemoteFile(self.lake.store, path, size, self.url(PurePosixPath(path)))


Staging = LocalStaging | RemoteStaging


@contextmanager
def _watched(
    find: Callable[[], set[Name]], begin: Callable[[Name], None], on_files: Callable[[int], None], seconds: float
) -> Iterator[None]:
    ended = threading.Event()

    def watch() -> None:
        begun: set[Name] = set()
        told, count = time.monotonic(), -1
        while not ended.wait(seconds):
            if time.monotonic() - told >= TELL_SECONDS and len(begun) != count:
                told, count = time.monotonic(), len(begun)
                on_files(count)
            for each in find() - begun:
                begun.add(each)
                begin(each)

    watcher = threading.Thread(target=watch, name="offsetlake-write-back")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _write_back(path: Path) -> None:
    with suppress(OSError), path.open("rb") as file:  # made durable again before a commit, which reports errors
        os.fsync(file.fileno())


@contextmanager
def told_if_gone(what: str) -> Iterator[None]:
    """Raise `StagedFileGone` where a staged file is not found inside the context."""
    try:
        yield
    except FileNotFoundError as error:
        raise StagedFileGone(
            f"staged file {what} is gone before it was committed: a sweep, or somebody, deleted it while its attempt was at "
            "work; nothing of its range became visible; the next run reads the range again"
        ) from error


def staging_of(engine: Engine, lake: Lake) -> Callable[[str, Lake], Staging]:
    """Return the function that opens an attempt's staging place: a remote one where both Spark and the lake are remote."""
    is_apart = engine.is_remote and lake.store.is_remote
    return partial(RemoteStaging, read_digests=partial(read_digests, engine)) if is_apart else LocalStaging
