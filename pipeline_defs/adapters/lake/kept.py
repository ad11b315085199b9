"""Documents that were read of the lake and are kept, so that they are read once.

Invariant: what is kept is what was last seen to be there. Objects never change, but somebody may delete one, and another one be
written in its place; it may be as large.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Documents of one kind by their paths, each until another object is seen there, or none.

    They are kept by folder, which is the first two names of a path: a tree and a topic.
    """

    def __init__(self, read: Callable[[str], T]) -> None:
        self._read = read
        self._seen: dict[str, Mapping[str, str]] = {}
        self._kept: dict[str, dict[str, tuple[str, T]]] = defaultdict(dict)
        self.reads = 0  # as long as it stays, each document is the one that it was

    def see(self, folder: str, seen: Mapping[str, str]) -> None:
        """Forget what is not as it was seen now: path and version of each object that matters, as `Store.versions`."""
        self._seen[folder] = seen
        kept = self._kept[folder]
        for path in [each for each, (version, _) in list(kept.items()) if version != seen.get(each)]:
            kept.pop(path, None)

    def get(self, path: str) -> T:
        """Return a document, read now where it is not kept."""
        folder = _folder(path)
        found = self._kept[folder].get(path)
        if found is None:
            self.reads += 1
            found = self._seen.get(folder, {}).get(path, "?"), self._read(path)
            self._kept[folder][path] = found
        return found[1]

    def read_seen(self, folder: str, seen: Mapping[str, str]) -> list[T]:
        """Return the documents that were seen now in a folder, in that order; those anew that are not as they were before."""
        self.see(folder, seen)
        return [self.get(path) for path in seen]

    def read_anew(self, path: str) -> T:
        """Return a document as it is now."""
        self._kept[_folder(path)].pop(path, None)
        return self.get(path)


def _folder(path: str) -> str:
    tree, topic, _ = path.split("/", 2)
    return f"{tree}/{topic}"
