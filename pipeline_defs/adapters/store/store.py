"""The objects of a lake, on a disk or in an object store, and what can be done with them; put-if-absent decides.

Invariant: an object under a name is whole, durable and never changed, except by `exchange`; `upload` is for names that only
one attempt uses. A put has three answers: committed, conflict, unknown (`OutcomeUnknown`), which reading back may settle.
"""

from __future__ import annotations

import errno
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import obstore
import stamina
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import ObjectStore

from ...core.errors import LakeUnavailable, OutcomeUnknown, Refused, is_panic
from ...core.steps import StepWatcher, no_step
from .disk import UNSURE, errno_in, mend

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.fsspec import FsspecStore

PUT_TRIES = 6  # at a name that is reported taken while nothing is there: about two seconds
LOGIN_OF_A_MACHINE = "/latest/api/token"  # where Amazon's machines are asked for a login if no variable has one
NO_LOGIN = (
    "no login was found, and this machine has no role: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and "
    "AWS_ENDPOINT_URL where the store is not Amazon's"
)
_LOGIN = re.compile(r"(?<=://)[^/\s]*@")  # in the address of an endpoint or a proxy, as a store's client quotes it
# what a store says beside its status, which may quote a request
_ANSWER = re.compile(r"(status code: \d{3}[^:\n]*): (.*)", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")


class _Contended(OutcomeUnknown):
    """A name is reported taken while nothing is there: a second try may settle it."""

    kind = OutcomeUnknown.kind


class Answer(StrEnum):
    """How a put-if-absent ended; the third answer is `OutcomeUnknown`."""

    COMMITTED = "committed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Entry:
    """Size in bytes of an object, or of a folder with all in it, and when any of it was last written."""

    bytes: int
    changed_at_ms: int


class Store(ABC):
    """The objects of a lake below one root."""

    is_remote: ClassVar[bool]
    """Whether its objects are not files of this machine."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self._objects: ObjectStore | None = None

    @property
    @abstractmethod
    def objects(self) -> ObjectStore:
        """Obstore behind this lake, opened at first use; an empty one if a local root does not exist: reading creates none."""

    @abstractmethod
    def url(self, path: str) -> str:
        """Return the address of an object that DuckDB or a person can open."""

    @property
    @abstractmethod
    def hadoop_root(self) -> str:
        """The root as Spark knows it."""

    @abstractmethod
    def filesystem(self) -> FsspecStore | None:
        """Return the store as an fsspec file system; none if readers open its files directly."""

    @abstractmethod
    def find(self, paths: Sequence[str]) -> dict[str, str]:
        """Look up objects by their names; return the version of each that exists, as `versions` does.

        On a local disk its text is not the one that `versions` has for the same object.
        """

    @abstractmethod
    def find_in_row(self, paths: Sequence[str]) -> dict[str, str]:
        """Look up objects that lie close together, as `find` does, but by one listing of each folder of an object store."""

    @abstractmethod
    def _walk(self, prefix: str) -> Iterator[tuple[str, int, int]]:
        """Yield path, size and time (ms) of all that is below a folder; on a local disk of folders too: they may be empty."""

    @abstractmethod
    def _create(self, path: str, data: bytes, scratch: str) -> None:
        """Create an object whole; raise `AlreadyExistsError` or `FileExistsError` if it exists."""

    @abstractmethod
    def publish(
        self, staged: str, final: str, *, guard: str | None = None, is_due: Callable[[], bool] = lambda: True
    ) -> Answer:
        """Give a staged object its final name if that is free; on a disk only if `is_due`, as for `exchange`.

        The staged object stays. Raises `FileNotFoundError` if nothing is staged, `LakeUnavailable` if the name is a folder's.
        """

    @abstractmethod
    def exchange(self, staged: str, final: str, *, guard: str, is_due: Callable[[], bool]) -> None:
        """Move a staged object to a final name in one step, whether or not an object is there.

        The only change that an object ever sees. `is_due` is asked where no stale caller can come in between: under a
        lock of the object `guard`, which ends with the process that holds it, or, on an object store, before and after a
        put that is conditional on the version that was there. Raises `FileNotFoundError` if nothing is staged.
        """

    @abstractmethod
    def linked_at_ms(self, path: str) -> int | None:
        """Return when an object got its name, or another one since (ms since 1970); none if there is no such object."""

    @abstractmethod
    def is_same(self, path: str, other: str) -> bool:
        """Return whether two names lead to one file; on an object store, where none do, whether the sizes are equal."""

    @abstractmethod
    def delete(self, prefix: str) -> None:
        """Delete what an attempt staged, or one object; never call it for what an unpublished manifest refers to.

        What is already gone is no error.
        """

    def discard(self, prefix: str, on_step: StepWatcher = no_step) -> None:
        """Delete what nobody needs any more; a failure is only a step `sweep_failed`: the next sweep deletes it."""
        try:
            self.delete(prefix)
        except LakeUnavailable as error:
            on_step("sweep_failed", path=prefix, reason=str(error))

    @abstractmethod
    def local_folder(self, name: str) -> AbstractContextManager[Path]:
        """Yield a temporary folder of this machine, in staging if the lake is local; what a crash leaves of it is swept."""

    @abstractmethod
    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        """Yield a path on this machine to read an object from: its own on a local lake, else that of a temporary copy.

        If there is no such object, this or the read raises `FileNotFoundError`.
        """

    @abstractmethod
    def make_durable(self, path: str) -> None:
        """Make what Spark staged, and the names that lead to it, durable; on an object store they already are."""

    @abstractmethod
    def _make_root(self) -> None:
        """Create the root if it is a folder."""

    def get(self, path: str) -> bytes | None:
        """Read an object; none if there is no such object."""
        with self.explained("read", path):
            try:
                return bytes(obstore.get(self.objects, path).bytes())
            except (NotFoundError, FileNotFoundError):
                return None

    def exists(self, path: str) -> bool:
        """Return whether there is such an object."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Read the size of an object in bytes; none if there is no such object."""
        with self.explained("read", path):
            try:
                found = self._head(path)
            except GenericError:
                if self._cannot_be(path):  # a write there raises
                    return None
                raise
            return None if found is None else found["size"]

    def _head(self, path: str) -> ObjectMeta | None:
        try:
            return obstore.head(self.objects, path)
        except (NotFoundError, FileNotFoundError):
            return None

    def locked(self, guard: str | None) -> AbstractContextManager[None]:
        """Hold an object's lock, which ends with the process; hold nothing if it is missing, or on an object store."""
        if guard:
            self._refuse_outside(guard, "lock")
        return nullcontext()

    def attempt_folder(self, attempt: str) -> Path | None:  # noqa: ARG002 (a disk says more)
        """Return the folder in which an attempt stages; none if that is not on this machine."""
        return None

    def path_of(self, file: Path) -> str | None:  # noqa: ARG002 (a disk says more)
        """Return the path in the lake of a file of this machine; none if it is not in the lake."""
        return None

    def _cannot_be(self, path: str) -> bool:  # noqa: ARG002 (a disk says more)
        """Return whether no object can have a name, as something above it is a file."""
        return False

    def list(self, prefix: str, after: str | None = None) -> dict[str, int]:
        """List the objects below a folder, sorted by path, with their sizes in bytes, without other programs' hidden files.

        With `after`, only those whose path sorts behind it: an object store is asked for no others.
        """
        return {meta["path"]: meta["size"] for meta in self._list(prefix, after) if not _is_hidden(meta["path"])}

    def versions(self, prefix: str) -> dict[str, str]:
        """List the objects below a folder, sorted by path, each with a version that changes if another takes its place."""
        return {meta["path"]: version_of(meta) for meta in self._list(prefix) if not _is_hidden(meta["path"])}

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
        """Read size and last write of each entry directly below a folder, by name."""
        with self.explained("list", prefix):
            found: dict[str, Entry] = {}
            for path, size, changed_at_ms in self._walk(prefix):
                name = path.removeprefix(f"{prefix}/").split("/")[0]
                before = found.get(name, Entry(0, 0))
                found[name] = Entry(before.bytes + size, max(before.changed_at_ms, changed_at_ms))
        return found

    def put_new(self, path: str, data: bytes, scratch: str) -> Answer:
        """Create the object if it is absent; it is written first to a name that begins with `scratch`, where no reader looks.

        Each write has such a name of its own: the final name leads to the same file, which nobody must open for writing again.
        If the object is reported to exist but is not there to be read, another's put is under way or was undone: S3 answers
        so. That says nothing about ours, so the put is tried again for a while.
        """
        with self.explained("write", path):
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
                    f"writing {self.url(path)}: it is said to exist, and nothing is there to be read: {told_line(error)}; "
                    "another writer may be at it; nothing is lost; the next attempt settles it; do not delete anything there",
                    path=path,
                ) from told_cause(error)
        except (GenericError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in UNSURE:
                raise
            found = self.get(path)
            if found is None:
                raise OutcomeUnknown(
                    f"writing {self.url(path)} ended without an answer and reading it back finds nothing yet: "
                    f"{told_line(error)}; nothing is lost; the next attempt settles it",
                    path=path,
                ) from told_cause(error)
        if found != data:
            return Answer.CONFLICT
        with suppress(FileNotFoundError):  # it was there
            self.make_durable(path)  # who gave it the name may have been killed, or refused, before that was on the disk
        return Answer.COMMITTED

    def clock_ms(self) -> int:
        """Return the time (ms since 1970) by the clock of `linked_at_ms`, which need not be this machine's."""
        path = f"staging/clock-{uuid.uuid4()}"
        self.put_new(path, b"", path)  # empty: a full disk takes it, and who makes room there asks first
        try:
            return self.linked_at_ms(path) or 0
        finally:
            self.delete(path)

    def upload(self, local: Path, path: str) -> None:
        """Upload a file of this machine to a name in the lake that only this attempt uses."""
        with self.explained("write", path):
            self._make_root()
            obstore.put(self.objects, path, local)

    def check_writable(self, scratch: str) -> None:
        """Prove that the lake can be written, and that a put to a taken name is refused; else raise `LakeUnavailable`.

        `scratch` is a name that nobody else uses.
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

    @contextmanager
    def explained(self, verb: str, *paths: str) -> Iterator[None]:
        """Turn the store's errors into one clear `LakeUnavailable`; leave `FileNotFoundError` as it is.

        Raises `Refused` for paths that lead out of the lake, before anything is done with them.
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
                f"cannot {verb} {self.url(path)}: {told_line(error)}; nothing is lost; {step}", path=path
            ) from told_cause(error)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise LakeUnavailable(
                f"cannot {verb} {self.url(path)}: the object store's client fails: {told_line(error)}; nothing is lost; "
                "correct or unset the variables that say where the store is, such as AWS_ENDPOINT_URL",
                path=path,
            ) from told_cause(error)

    def _refuse_outside(self, path: str, verb: str) -> None:
        if not path or path.startswith("/") or "\0" in path or {"", ".", ".."} & set(path.split("/")):
            raise Refused(
                f"cannot {verb} {path!r}: it is no path inside the lake {self.root}; nothing was read, written or deleted; a "
                "manifest or a name that says so was not written by Offsetlake",
                path=path,
            )


def version_of(meta: ObjectMeta) -> str:
    """Return the version that tells an object from others of its name: size in bytes, a space, and its tag or time."""
    return f"{meta['size']} {meta['e_tag'] or meta['last_modified'].isoformat()}"


def size_in(version: str) -> int:
    """Return the size in bytes that is in a version of an object, as `version_of` and `find` give it."""
    return int(version.split(" ", 1)[0])


def _is_hidden(path: str) -> bool:
    """Return whether a name is hidden, as file managers, editors and NFS make them in any folder: `.DS_Store`.

    That of a Parquet file is not: a glob may show it.
    """
    return path.rsplit("/", 1)[-1].startswith(".") and not path.endswith(".parquet")


def hide_login(text: str) -> str:
    """Return a message of a store's client without the logins in its addresses, and without a store's answer but its code."""

    def shorten(found: re.Match[str]) -> str:
        code = _CODE.search(found[2])
        return f"{found[1]} ({code[1]})" if code else found[1]

    return _ANSWER.sub(shorten, _LOGIN.sub("", text))


def told_line(error: BaseException) -> str:
    """Return the first line of what `hide_login` leaves of an error's message, or its type where it has no message."""
    return (hide_login(str(error)).splitlines() or [type(error).__name__])[0]


def told_cause(error: BaseException) -> BaseException | None:
    """Return an error that may be shown as the cause of another, as Dagster does; none if it may have a login."""
    return None if _LOGIN.search(str(error)) or _ANSWER.search(str(error)) else error


def _next_step(error: BaseException, need: str) -> str:
    number = error.errno if isinstance(error, OSError) and error.errno else errno_in(str(error))
    if step := mend(number):
        return step
    if LOGIN_OF_A_MACHINE in str(error):
        return NO_LOGIN
    if number in {errno.EACCES, errno.EPERM} or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return f"let this user {need} there, and the next run goes on"
    return (
        "the next run tries it again; where it ends like that once more, check that OFFSETLAKE_LAKE names a place that exists "
        f"and that this user may {need}"
    )
