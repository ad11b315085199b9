"""Compare-and-swap of one derived object: a staged one takes its place only where it is still the version that was seen.

For what is derived and kept up to date, never for what is landed. Invariant: of those who saw one version, one swaps; a
reader sees the old object or the new one, whole. The lock ends with the process that holds it: there is none to clean by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

from .locks import hold
from .store import Store

if TYPE_CHECKING:
    from obstore import UpdateVersion


@dataclass(frozen=True, slots=True)
class Seen:
    """Is a version of an object, as it was before it was read: its inode on a disk, its ETag on an object store."""

    token: tuple[int | str | None, ...]


@contextmanager
def see(store: Store, path: str) -> Iterator[Seen | None]:
    """Looks at an object before it is read, for `swap`; none where there is none yet.

    What is read inside the context is that version or a later one, and then the swap is refused. On a disk the version is
    held open so long: its inode cannot be given to another file, so no other version is ever taken for it.
    """
    if store.local_root is None:
        yield _head(store, path)
        return
    with store.explained("read", path):
        try:
            descriptor = os.open(store.local_root / path, os.O_RDONLY)
        except FileNotFoundError:
            descriptor = -1
    if descriptor == -1:
        yield None
        return
    try:
        found = os.fstat(descriptor)
        yield Seen((found.st_dev, found.st_ino))
    finally:
        os.close(descriptor)


def read_versions(store: Store, prefix: str) -> dict[str, str]:
    """Lists the objects below a folder, sorted by path, each with what tells its version from others, for a cache."""
    with store.explained("list", prefix):
        found = {meta["path"]: str(meta["e_tag"]) for page in obstore.list(store.objects, prefix) for meta in page}
    return dict(sorted(found.items()))


def swap(store: Store, staged: str, final: str, seen: Seen | None) -> bool:
    """Puts a staged object in the place of a final one in one step, and takes the staged name away; durable when it returns.

    Returns false, and has changed nothing, where the final object is not the version `seen` any more: begin again from what
    is there now. Raises `FileNotFoundError` where nothing is staged.
    """
    with store.explained("swap", final):
        return (
            _swap_remote(store, staged, final, seen) if store.local_root is None else _swap(store, staged, final, seen)
        )


def _swap(store: Store, staged: str, final: str, seen: Seen | None) -> bool:
    assert store.local_root is not None
    store.make_durable(staged)
    target = store.local_root / final
    target.parent.mkdir(parents=True, exist_ok=True)
    with hold(target.parent):
        if _stat(target) != seen:
            return False
        (store.local_root / staged).replace(target)
    store.make_durable(final)
    return True


def _stat(path: Path) -> Seen | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return Seen((found.st_dev, found.st_ino))


def _swap_remote(store: Store, staged: str, final: str, seen: Seen | None) -> bool:
    try:
        data = bytes(obstore.get(store.objects, staged).bytes())
    except NotFoundError as error:
        raise FileNotFoundError(staged) from error
    try:
        obstore.put(store.objects, final, data, mode="create" if seen is None else _version(seen))
    except (AlreadyExistsError, PreconditionError, NotFoundError):
        if store.get(final) != data:  # else it was ours, and the answer had been lost
            return False
    obstore.delete(store.objects, staged)
    return True


def _head(store: Store, path: str) -> Seen | None:
    with store.explained("read", path):
        try:
            found = obstore.head(store.objects, path)
        except (NotFoundError, FileNotFoundError):
            return None
    return Seen((found["e_tag"], found["version"]))


def _version(seen: Seen) -> UpdateVersion:
    e_tag, version = (None if each is None else str(each) for each in seen.token)
    return {"e_tag": e_tag} if version is None else {"e_tag": e_tag, "version": version}
