"""The frontier documents of a lake's topics: found newest first, and deleted once newer ones do all that they did.

frontier/<topic>/<seq20>.<time13>.json     what the steps before that one come to, made at that time (ms since 1970)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ..core.frontier import Frontier
from ..core.latency import WINDOW_MS
from ..core.offsets import OFFSET_DIGITS
from ..core.plan_step import PlanStep
from .kept import Kept
from .store import Store


class Frontiers:
    """Reads and writes the frontier documents of one lake."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._kept = Kept(self._read)

    @property
    def _store(self) -> Store:
        return self._open_store()

    def find(self, topic: str, before_ms: int | None = None) -> Frontier | None:
        """Return the newest document of a topic, or the newest that was made before a time; none where there is none."""
        seen = self._store.versions(f"frontier/{topic}")
        self._kept.see(f"frontier/{topic}", seen)
        for path in reversed(seen):
            found = self._kept.get(path)
            if found is not None and found.topic == topic and (before_ms is None or found.made_at_ms <= before_ms):
                return found
        return None

    def put(self, frontier: Frontier) -> None:
        """Write a document, and delete those that nobody asks for any more: older than one that is an hour old."""
        self._store.put_new(_path(frontier), frontier.to_json(), "staging/frontier")
        older = self.find(frontier.topic, frontier.made_at_ms - WINDOW_MS)
        for path in self._store.versions(f"frontier/{frontier.topic}") if older is not None else ():
            if older is not None and path < _path(older):
                self._store.delete_folder(path)

    def _read(self, path: str) -> Frontier | None:
        data = self._store.get(path)
        return None if data is None else Frontier.from_json(data)


def _path(frontier: Frontier) -> str:
    return f"frontier/{frontier.topic}/{frontier.seq:0{OFFSET_DIGITS}d}.{frontier.made_at_ms:013d}.json"


def digest_of(step: PlanStep) -> str:
    """Return the digest of a step's document; the same step gives the same bytes."""
    return hashlib.sha256(step.to_json()).hexdigest()
