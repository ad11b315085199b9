"""Documents that were read of the lake and are kept, so that they are read once.

Invariant: what is kept is what the last listing shows. Objects never change, but somebody may delete one, and another one be
written in its place; it may be as large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Documents of one kind by their paths, each until a listing shows another object there, or none."""

    def __init__(self, read: Callable[[str], T]) -> None:
        self._read = read
        self._listed: dict[str, str] = {}
        self._kept: dict[str, tuple[str, T]] = {}
        self.reads = 0  # as long as it stays, each document is the one that it was

    def see(self, folder: str, listed: Mapping[str, str]) -> None:
        """Forget what is not as a new listing of a folder shows it: path and version of each object, as `Store.versions`."""
        here = f"{folder}/"
        for path in [each for each in self._listed if each.startswith(here) and each not in listed]:
            del self._listed[path]
        self._listed.update(listed)
        for path in [each for each in self._kept if each.startswith(here)]:
            if self._kept[path][0] != listed.get(path):
                del self._kept[path]

    def get(self, path: str) -> T:
        """Return a document, read now where it is not kept."""
        if path not in self._kept:
            self.reads += 1
            self._kept[path] = self._listed.get(path, "?"), self._read(path)
        return self._kept[path][1]

    def read_anew(self, path: str) -> T:
        """Return a document as it is now."""
        self._kept.pop(path, None)
        return self.get(path)
