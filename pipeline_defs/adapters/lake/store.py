"""The only write primitive: put-if-absent, on a local disk or an object store, through obstore.

Invariant: an object that a name leads to is whole, durable and never changed, but by `exchange`. Three
answers exist, never two: committed, conflict, and unknown (`OutcomeUnknown`), which reading back settles or nobody does.
"""

from __future__ import annotations

import errno
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
import stamina
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from ...core.errors import LakeUnavailable, OutcomeUnknown, Refused, first_line
from ..system.locks import hold
from ..system.panics import is_panic
from .disk import UNSURE, Disk, errno_in, mend

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion
    from obstore.fsspec import FsspecStore

# S3 copies onto a free name only as a multipart upload that is completed if the name is free
COPY_IF_ABSENT = {"copy_if_not_exists": "multipart"}
PUT_TRIES = 6  # at a name that is said to be taken while nothing is there: some two seconds
LOGIN_OF_A_MACHINE = "/latest/api/token"  # what Amazon's machines are asked where no variable has a login
NO_LOGIN = (
    "no login was found, and this machine has no role: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and "
    "AWS_ENDPOINT_URL where the store is not Amazon's"
)
_LOGIN = re.compile(r"(?<=://)[^/\s]*@")  # of an endpoint or a proxy, in what a store's client says of a request
LOOKUPS = 16  # of names, at once
EXCHANGE_TRIES = 5  # each lost one is another attempt's success, and its bytes are ours or a later revision's


class _Contended(OutcomeUnknown):
    """A name was taken a moment ago and nothing is there: asked again, it may say more."""

    kind = OutcomeUnknown.kind


class Answer(StrEnum):
    """How a put-if-absent ended; the third answer is `OutcomeUnknown`."""

    COMMITTED = "committed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Entry:
    """An object or a folder with all in it: its size in bytes, and when anything of it was last written."""

    bytes: int
    changed_at_ms: int


class Store:
    """Holds the objects of a lake below one root, a local folder or a URL that obstore knows (s3, gs, az)."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        scheme = urlsplit(root).scheme
        self.local_root = Path(root.removeprefix("file://")).absolute() if scheme in {"", "file"} else None
        self.disk = Disk(self.local_root) if self.local_root is not None else None
        self._objects: ObjectStore | None = None

    @property
    def objects(self) -> ObjectStore:
        """Obstore behind this lake, opened at first use; an empty one while a local root does not exist: reading makes none."""
        if self._objects is None:
            with self.explained("open"):
                if self.local_root is None:
                    config: Any = COPY_IF_ABSENT if urlsplit(self.root).scheme in {"s3", "s3a"} else {}
                    self._objects = from_url(self.root, **config)
                elif self.local_root.exists():
                    self._objects = LocalStore(self.local_root, mkdir=True)  # or one clear error where it is no folder
                else:
                    return MemoryStore()
        return self._objects

    def url(self, path: str) -> str:
        """Return the address of an object that Spark, DuckDB or a person can open."""
        return f"{self.local_root or self.root}/{path}"

    def filesystem(self) -> FsspecStore:
        """Return an object store as an fsspec file system, for readers that want one."""
        from obstore.fsspec import FsspecStore  # late: a local lake needs none

        scheme: Any = urlsplit(self.root).scheme  # one that obstore knows, or opening the store had failed
        filesystem: FsspecStore = FsspecStore(scheme)
        return filesystem

    def get(self, path: str) -> bytes | None:
        """Read an object; none where there is no such object."""
        with self.explained("read", path):
            try:
                return bytes(obstore.get(self.objects, path).bytes())
            except (NotFoundError, FileNotFoundError):
                return None

    def exists(self, path: str) -> bool:
        """Return whether there is such an object."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Read the size of an object in bytes; none where there is no such object."""
        with self.explained("read", path):
            try:
                return obstore.head(self.objects, path)["size"]
            except (NotFoundError, FileNotFoundError):
                return None
            except GenericError:
                if self._is_below_a_file(path):  # there can be none; who writes there is told
                    return None
                raise

    def _is_below_a_file(self, path: str) -> bool:
        return self.local_root is not None and any(each.is_file() for each in (self.local_root / path).parents)

    def list(self, prefix: str, after: str | None = None) -> dict[str, int]:
        """List the objects below a folder, sorted by path, with their sizes in bytes, without what file managers hide.

        Of those the ones whose path comes `after` another, where one is given: on an object store no others are asked for.
        """
        return {meta["path"]: meta["size"] for meta in self._list(prefix, after) if not _is_hidden(meta["path"])}

    def versions(self, prefix: str) -> dict[str, str]:
        """List the objects below a folder, sorted by path, each with what tells it from another one that stood there before.

        That begins with its size in bytes and a space.
        """
        return {meta["path"]: _version(meta) for meta in self._list(prefix) if not _is_hidden(meta["path"])}

    def find(self, paths: Sequence[str]) -> dict[str, str]:
        """Look up objects by their names; of those that are there return what `versions` says, without any listing.

        On a local disk that is another text than `versions` has for the same object.
        """
        with self.explained("read", *paths):
            if self.disk is not None:
                return self.disk.versions(paths)
            with ThreadPoolExecutor(LOOKUPS) as pool:
                found = zip(paths, pool.map(self._head, paths), strict=True)
                return {path: _version(meta) for path, meta in found if meta is not None}

    def find_in_row(self, paths: Sequence[str]) -> dict[str, str]:
        """Look up objects as `find` does that lie close together, so that an object store is asked once for each folder."""
        if self.disk is not None:
            return self.find(paths)
        folders: dict[str, set[str]] = defaultdict(set)
        for path in paths:
            folders[path.rpartition("/")[0]].add(path)
        found: dict[str, str] = {}
        for folder, wanted in folders.items():
            before, last = min(wanted)[:-1], max(wanted)
            with self.explained("list", folder):
                for page in obstore.list(self.objects, folder, offset=before):
                    found |= {meta["path"]: _version(meta) for meta in page if meta["path"] in wanted}
                    if page and page[-1]["path"] > last:
                        break
        return found

    def _head(self, path: str) -> ObjectMeta | None:
        try:
            return obstore.head(self.objects, path)
        except (NotFoundError, FileNotFoundError):
            return None

    def _list(self, prefix: str, after: str | None = None) -> Sequence[ObjectMeta]:
        with self.explained("list", prefix):
            found = [meta for page in obstore.list(self.objects, prefix, offset=after) for meta in page]
        return sorted(found, key=lambda meta: meta["path"])

    def folders(self, prefix: str) -> tuple[str, ...]:
        """List the names of the folders directly below a folder, sorted."""
        with self.explained("list", prefix):
            found = obstore.list_with_delimiter(self.objects, prefix)["common_prefixes"]
        return tuple(sorted(path.rsplit("/", 1)[-1] for path in found))

    def entries(self, prefix: str) -> dict[str, Entry]:
        """Read of all that lies directly below a folder how large it is and when anything in it was last written."""
        with self.explained("list", prefix):
            found: dict[str, Entry] = {}
            for path, size, changed_at_ms in self._walk(prefix):
                name = path.removeprefix(f"{prefix}/").split("/")[0]
                before = found.get(name, Entry(0, 0))
                found[name] = Entry(before.bytes + size, max(before.changed_at_ms, changed_at_ms))
        return found

    def _walk(self, prefix: str) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and time of all that is below a folder; on a local disk of folders too, which may be empty."""
        if self.disk is None:
            for page in obstore.list(self.objects, prefix):
                yield from (
                    (meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000)) for meta in page
                )
            return
        for path in self.disk.walk(prefix):
            with suppress(FileNotFoundError):  # its attempt has swept it
                found = path.stat()
                size = 0 if path.is_dir() else found.st_size
                yield path.relative_to(self.disk.root).as_posix(), size, found.st_mtime_ns // 1_000_000

    def put_new(self, path: str, data: bytes, scratch: str) -> Answer:
        """Create the object if it is absent; `scratch` begins the names of what is written first, where no reader looks.

        Each write has a name of its own below it: the name that is given leads to the same file, which nobody opens again.
        Where it is said to exist and nothing is there to be read, a put of another's is under way, or was undone: S3 answers
        so. That says nothing about ours, so it is asked again for a while.
        """
        scratches = [scratch] if self.disk is not None else []
        with self.explained("write", path, *scratches):
            for attempt in stamina.retry_context(on=_Contended, attempts=PUT_TRIES, wait_initial=0.05, wait_max=1.0):
                with attempt:
                    return self._put_once(path, data, scratch)
        raise AssertionError("stamina raises after the last attempt")

    def _put_once(self, path: str, data: bytes, scratch: str) -> Answer:
        try:
            self._create(path, data, f"{scratch}.{uuid.uuid4().hex}")
            return Answer.COMMITTED
        except (AlreadyExistsError, FileExistsError) as error:
            found = self.get(path)
            if found is None:
                raise _Contended(
                    f"writing {self.url(path)}: it is said to exist, and nothing is there to be read: {_first_line(error)}; "
                    "another writer may be at it; nothing is lost; the next attempt settles it; do not delete anything there",
                    path=path,
                ) from _cause(error)
        except (GenericError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNSURE:
                raise
            found = self.get(path)
            if found is None:
                raise OutcomeUnknown(
                    f"writing {self.url(path)} ended without an answer and reading it back finds nothing yet: "
                    f"{_first_line(error)}; nothing is lost; the next attempt settles it",
                    path=path,
                ) from _cause(error)
        return Answer.COMMITTED if found == data else Answer.CONFLICT

    def _create(self, path: str, data: bytes, scratch: str) -> None:
        if self.disk is None:
            obstore.put(self.objects, path, data, mode="create")
            return
        try:
            self.disk.write(
                scratch, data
            )  # what stands under the final name is whole and durable from its first moment
            self.disk.link(scratch, path)
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
        """Give a staged object its final name if that is free, and it is due, asked as by `exchange`; the staged one stays.

        Raises `FileNotFoundError` where nothing is staged, and `LakeUnavailable` where what has the name is no file.
        """
        with self.explained("publish", final, staged):
            try:
                if self.disk is None:
                    self._copy(staged, final)
                    return Answer.COMMITTED
                if self.exists(final):
                    return Answer.CONFLICT
                with self.locked(guard):
                    if not is_due():
                        return Answer.CONFLICT
                    self.disk.link(staged, final)
            except (AlreadyExistsError, FileExistsError):
                if self.disk is not None and (self.disk.root / final).is_dir():
                    raise LakeUnavailable(
                        f"cannot publish {self.url(final)}: what stands there is no file; nothing is lost; move it away, and "
                        "the next run publishes the range",
                        path=final,
                    ) from None
                return Answer.CONFLICT
            return Answer.COMMITTED

    def _copy(self, staged: str, final: str) -> None:
        """Copy within an object store, so that no byte comes here, to a name that is free."""
        try:
            obstore.copy(self.objects, staged, final, overwrite=False)
        except NotFoundError as error:
            raise FileNotFoundError(staged) from error

    def linked_at_ms(self, path: str) -> int | None:
        """Return when an object got its name, or a later one (ms since 1970); none where there is no such object."""
        with self.explained("read", path):
            try:
                if self.disk is None:
                    return int(obstore.head(self.objects, path)["last_modified"].timestamp() * 1000)
                return (self.disk.root / path).stat().st_ctime_ns // 1_000_000
            except (NotFoundError, FileNotFoundError):
                return None

    def clock_ms(self) -> int:
        """Return what time it is by the clock that `linked_at_ms` is told by, which need not be this machine's."""
        path = f"staging/clock-{uuid.uuid4()}"
        self.put_new(path, b"now", path)
        try:
            return self.linked_at_ms(path) or 0
        finally:
            self.delete_folder(path)

    def is_same(self, path: str, other: str) -> bool:
        """Return whether two names lead to one file; on an object store, where each has its own, to equal sizes."""
        if self.disk is None:
            return self.size(path) == self.size(other)
        with self.explained("read", path, other):
            return (self.disk.root / path).samefile(self.disk.root / other)

    def exchange(self, staged: str, final: str, *, guard: str, is_due: Callable[[], bool]) -> None:
        """Move a staged object to a final name in one step, whatever object stands there or none.

        The only change that an object ever sees. `is_due` is asked where no stale caller can come in between: under a
        lock of the object `guard`, which ends with the process that holds it, or, on an object store, before a put that
        holds only for the version that was there. Raises `FileNotFoundError` where nothing is staged.
        """
        with self.explained("exchange", final, staged):
            if self.disk is None:
                self._exchange_remote(staged, final, is_due)
                return
            with self.locked(guard):
                if is_due():
                    self.disk.rename(staged, final)

    def _exchange_remote(self, staged: str, final: str, is_due: Callable[[], bool]) -> None:
        try:
            data = obstore.get(self.objects, staged).bytes()
        except NotFoundError as error:
            raise FileNotFoundError(staged) from error
        for _ in range(EXCHANGE_TRIES):
            seen = self._version(final)
            if not is_due():
                return
            with suppress(AlreadyExistsError, PreconditionError):  # somebody else was there: look again
                if seen is None:  # by its name, not from memory: what was staged for a name that is given up goes first
                    self._copy(staged, final)
                else:
                    obstore.put(self.objects, final, data, mode=seen)
                obstore.delete(self.objects, staged)
                return
        raise LakeUnavailable(
            f"cannot exchange {self.url(final)}: others have changed it {EXCHANGE_TRIES} times meanwhile; nothing is lost; the "
            "next run does it",
            path=final,
        )

    def _version(self, path: str) -> UpdateVersion | None:
        try:
            found = obstore.head(self.objects, path)
        except (NotFoundError, FileNotFoundError):
            return None
        return (
            {"e_tag": found["e_tag"]}
            if found["version"] is None
            else {"e_tag": found["e_tag"], "version": found["version"]}
        )

    def locked(self, guard: str | None) -> AbstractContextManager[None]:
        """Hold the lock of an object of a local lake, which ends with the process; where there is none, nothing is held."""
        if guard:
            self._refuse_outside(guard, "lock")
        return hold(self.local_root / guard) if self.local_root is not None and guard else nullcontext()

    def upload(self, local: Path, path: str) -> None:
        """Bring a file of this machine to a name of the attempt's own in the lake."""
        with self.explained("write", path):
            self._make_root()
            obstore.put(self.objects, path, local)

    def make_durable(self, path: str) -> None:
        """Bring what Spark staged, and the names that lead to it, to the disk; an object store's writes already are."""
        if self.disk is not None:
            with self.explained("write", path):
                self.disk.make_durable(path)

    def delete_folder(self, prefix: str) -> None:
        """Delete what an attempt staged, or one object; never what a manifest refers to and is not published yet.

        What another sweeper has deleted is as good.
        """
        with self.explained("delete", prefix):
            if self.disk is not None:
                self.disk.delete(prefix)
                return
            paths = [meta["path"] for meta in self._list(prefix)]
            if paths or self.exists(prefix):
                obstore.delete(self.objects, paths or prefix)

    def check_writable(self, scratch: str) -> None:
        """Prove that the lake can be written, and that a name that is taken is not given away; raise `LakeUnavailable`.

        `scratch` is nobody else's.
        """
        with self.explained("write", scratch):
            self._make_root()
            obstore.put(self.objects, scratch, b"offsetlake")
            try:
                obstore.put(self.objects, scratch, b"offsetlake", mode="create")
            except AlreadyExistsError:
                return
            finally:
                obstore.delete(self.objects, scratch)
        raise LakeUnavailable(
            f"{self.url(scratch)} was written a second time, with `If-None-Match: *`, and expected was that the store refuses "
            "it: of two runs that commit the same range both would believe that they had; nothing was landed; use a store "
            "that knows conditional writes, as S3 does, and look for a proxy before it that drops headers",
            path=scratch,
        )

    def _make_root(self) -> None:
        if self.local_root is not None and self._objects is None:
            self._objects = LocalStore(self.local_root, mkdir=True)

    @contextmanager
    def explained(self, verb: str, *paths: str) -> Iterator[None]:
        """Turn what the store answers into one clear `LakeUnavailable`; what is not there stays `FileNotFoundError`.

        Refuses paths that lead out of the lake before anything is done with them.
        """
        for path in paths:
            self._refuse_outside(path, verb)
        path = paths[0] if paths else ""
        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError, ValueError) as error:
            step = _next_step(error, "read" if verb in {"read", "list"} else "write")
            raise LakeUnavailable(
                f"cannot {verb} {self.url(path)}: {_first_line(error)}; nothing is lost; {step}", path=path
            ) from _cause(error)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise LakeUnavailable(
                f"cannot {verb} {self.url(path)}: the object store's client fails: {_first_line(error)}; nothing is lost; "
                "correct or unset the variables that say where the store is, such as AWS_ENDPOINT_URL",
                path=path,
            ) from _cause(error)

    def _refuse_outside(self, path: str, verb: str) -> None:
        if not path or path.startswith("/") or "\0" in path or {"", ".", ".."} & set(path.split("/")):
            raise Refused(
                f"cannot {verb} {path!r}: it is no path inside the lake {self.root}; nothing was read, written or deleted; a "
                "manifest or a name that says so was not written by Offsetlake",
                path=path,
            )


def _version(meta: ObjectMeta) -> str:
    return f"{meta['size']} {meta['e_tag'] or meta['last_modified'].isoformat()}"


def _is_hidden(path: str) -> bool:
    """Return whether a name is of the kind that file managers, editors and NFS make, in any folder: `.DS_Store`.

    Not so a Parquet file: a glob may show it.
    """
    return path.rsplit("/", 1)[-1].startswith(".") and not path.endswith(".parquet")


def _first_line(error: BaseException) -> str:
    return _LOGIN.sub("", first_line(error))


def _cause(error: BaseException) -> BaseException | None:
    """Return an error that may be told below another, as Dagster tells a cause: none where it has a login."""
    return None if _LOGIN.search(str(error)) else error


def _next_step(error: BaseException, need: str) -> str:
    number = error.errno if isinstance(error, OSError) and error.errno else errno_in(str(error))
    if step := mend(number):
        return step
    if LOGIN_OF_A_MACHINE in str(error):
        return NO_LOGIN
    if number in {errno.EACCES, errno.EPERM} or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return f"let this user {need} there, and the next run goes on"
    return f"check that OFFSETLAKE_LAKE names a place that exists and that this user may {need}"
