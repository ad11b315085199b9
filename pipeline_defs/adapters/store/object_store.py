"""A lake in an object store that obstore knows: names are given by copies in it, exchanged by conditional writes.

A lake at a folder or a file:// URL has a disk's store, any other this. Invariant: an acknowledged write is
durable. No byte of a publish comes here; those of an exchange do.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError
from obstore.store import ObjectStore, from_url

from ...core.errors import BadSetting, LakeUnavailable
from ..system.locks import scratch
from .disk_store import DiskStore
from .store import Answer, Store, version_of

if TYPE_CHECKING:
    from obstore import Bytes, ObjectMeta, PutResult, UpdateVersion
    from obstore.fsspec import FsspecStore

S3 = ("s3", "s3a")
# on S3 only a multipart upload can copy if absent: it is completed only if the name is free
COPY_IF_ABSENT = {"copy_if_not_exists": "multipart"}
LOOKUPS = 16  # names that are looked up at once
EXCHANGE_TRIES = 5  # each lost one is another attempt's success, and its bytes are ours or a later revision's


class RemoteStore(Store):
    """The objects of a lake below a URL (s3, gs, az)."""

    is_remote = True

    @property
    def objects(self) -> ObjectStore:
        if self._objects is None:
            with self.explained("open"):
                config: Any = COPY_IF_ABSENT if urlsplit(self.root).scheme in S3 else {}
                self._objects = from_url(self.root, **config)
        return self._objects

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    @property
    def hadoop_root(self) -> str:
        return hadoop_url(self.root)

    def filesystem(self) -> FsspecStore | None:
        from obstore.fsspec import FsspecStore

        scheme: Any = urlsplit(self.root).scheme  # one that obstore knows, or opening the store had failed
        filesystem: FsspecStore = FsspecStore(scheme)
        return filesystem

    def find(self, paths: Sequence[str]) -> dict[str, str]:
        with self.explained("read", *paths), ThreadPoolExecutor(LOOKUPS) as pool:
            found = zip(paths, pool.map(self._head, paths), strict=True)
            return {path: version_of(meta) for path, meta in found if meta is not None}

    def find_in_row(self, paths: Sequence[str]) -> dict[str, str]:
        folders: dict[str, set[str]] = defaultdict(set)
        for path in paths:
            folders[path.rpartition("/")[0]].add(path)
        found: dict[str, str] = {}
        for folder, wanted in folders.items():
            before, last = min(wanted)[:-1], max(wanted)
            with self.explained("list", folder):
                for page in obstore.list(self.objects, folder, offset=before):
                    found |= {meta["path"]: version_of(meta) for meta in page if meta["path"] in wanted}
                    if page and page[-1]["path"] > last:
                        break
        return found

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, int]]:
        for page in obstore.list(self.objects, prefix):
            yield from ((meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000)) for meta in page)

    def _create(self, path: str, data: bytes, scratch: str) -> None:  # noqa: ARG002 (a put is whole or nothing)
        obstore.put(self.objects, path, data, mode="create")

    def publish(
        self, staged: str, final: str, *, guard: str | None = None, is_due: Callable[[], bool] = lambda: True
    ) -> Answer:
        del guard, is_due  # a name is free or it is not, and nobody holds a lock
        with self.explained("publish", final, staged):
            try:
                self._copy(staged, final)
            except AlreadyExistsError:
                return Answer.CONFLICT
            return Answer.COMMITTED

    def _copy(self, staged: str, final: str) -> None:
        """Copy to a free name within an object store, so that no byte comes here."""
        try:
            obstore.copy(self.objects, staged, final, overwrite=False)
        except NotFoundError as error:
            raise FileNotFoundError(staged) from error

    def exchange(self, staged: str, final: str, *, guard: str, is_due: Callable[[], bool]) -> None:
        del guard
        with self.explained("exchange", final, staged):
            try:
                data = obstore.get(self.objects, staged).bytes()
            except NotFoundError as error:
                raise FileNotFoundError(staged) from error
            for _ in range(EXCHANGE_TRIES):
                seen = self._version(final)
                if not is_due():
                    return
                with suppress(AlreadyExistsError, PreconditionError, NotFoundError):  # somebody else was there: look again
                    if seen is None:  # by name, not from memory: it fails once a given-up name's staged object is deleted
                        self._copy(staged, final)
                    elif not self._put_if_due(final, data, seen, is_due):
                        return
                    obstore.delete(self.objects, staged)
                    return
        raise LakeUnavailable(
            f"cannot exchange {self.url(final)}: others have changed it {EXCHANGE_TRIES} times meanwhile; nothing is lost; the "
            "next run does it",
            path=final,
        )

    def _put_if_due(self, path: str, data: Bytes, seen: UpdateVersion, is_due: Callable[[], bool]) -> bool:
        """Replace the version of an object that was seen; undo that and return false if it is no longer due.

        S3's e_tag is a digest: while this process stood still, others may have exchanged the object and then its bytes back.
        """
        before = obstore.get(self.objects, path).bytes()
        ours = obstore.put(self.objects, path, data, mode=seen)
        if is_due():
            return True
        obstore.put(self.objects, path, before, mode=_version_in(ours))
        return False

    def _version(self, path: str) -> UpdateVersion | None:
        found = self._head(path)
        return None if found is None else _version_in(found)

    def linked_at_ms(self, path: str) -> int | None:
        with self.explained("read", path):
            found = self._head(path)
            return None if found is None else int(found["last_modified"].timestamp() * 1000)

    def is_same(self, path: str, other: str) -> bool:
        return self.size(path) == self.size(other)

    def delete(self, prefix: str) -> None:
        with self.explained("delete", prefix):
            paths = [meta["path"] for meta in self._list(prefix)]
            if paths or self.exists(prefix):
                obstore.delete(self.objects, paths or prefix)

    @contextmanager
    def local_folder(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=scratch(), prefix=f"{name}-") as folder:
            yield Path(folder)

    @contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        data = self.get(path)
        if data is None:
            raise FileNotFoundError(path)
        with _written(data, self.url(path)) as copy:
            yield copy

    def make_durable(self, path: str) -> None:
        pass

    def _make_root(self) -> None:
        pass


def _version_in(found: ObjectMeta | PutResult) -> UpdateVersion:
    return {"e_tag": found["e_tag"]} if found["version"] is None else {"e_tag": found["e_tag"], "version": found["version"]}


@contextmanager
def _written(data: bytes, url: str) -> Iterator[Path]:
    """Yield a temporary file with an object's bytes; raise `LakeUnavailable` if it cannot be written."""
    with ExitStack() as opened:
        try:
            copy = opened.enter_context(tempfile.NamedTemporaryFile(suffix=".parquet", dir=scratch()))
            copy.write(data)
            copy.flush()
        except OSError as error:
            raise LakeUnavailable(
                f"{url} cannot be read: its copy of {len(data):,} bytes cannot be written to {tempfile.gettempdir()}: "
                f"{(error.strerror or type(error).__name__).lower()}; nothing is lost; make room there, or have TMPDIR name "
                "another folder"
            ) from error
        yield Path(copy.name)


def hadoop_url(root: str) -> str:
    """Return the URL under which Hadoop's file systems, and so Spark's executors, know a lake; raise `BadSetting` if none.

    | lake | Spark |
    |---|---|
    | `s3://bucket/lake` | `s3a://bucket/lake` |
    | `gs://bucket/lake`, `abfss://container@account.dfs.core.windows.net/lake` | the same |
    | `az://container/lake` | refused: Spark needs the account too |
    """
    scheme = urlsplit(root).scheme
    if scheme in S3:
        return f"s3a://{root.partition('://')[2]}"
    if scheme in {"gs", "abfs", "abfss"}:
        return root
    raise BadSetting(
        f"OFFSETLAKE_LAKE is {root}, which the executors of OFFSETLAKE_SPARK_REMOTE do not know, expected such as s3://, "
        "gs:// or abfss://container@account.dfs.core.windows.net/lake; nothing was read or written; write it so"
    )


def open_store(root: str) -> Store:
    """Return the store of a lake's root: a local folder, or a URL that obstore knows (s3, gs, az)."""
    return DiskStore(root) if urlsplit(root).scheme in {"", "file"} else RemoteStore(root)
