"""The Delta log of a table in the lake: versions are read, and one is written where nobody else has written it.

    tables/<kind>/<topic>/_delta_log/<version20>.json    what the version changes, see `core.delta`

The log is the lock, as the plan log is: put-if-absent of version n + 1 decides, and who comes second looks again.
"""

from __future__ import annotations

import uuid

from ..core.delta import EMPTY, Commit, Snapshot, apply, check, from_json, replay, to_json, without_files
from ..core.errors import BrokenTable
from .store import Answer, Store

_DIGITS = 20


class DeltaLog:
    """The log of the table in one folder of a store; `schema` is what its first version says, as Delta writes it."""

    def __init__(self, store: Store, folder: str, schema: str) -> None:
        self.folder = folder
        self._store = store
        self._schema = schema

    def read(self) -> Snapshot:
        """Return the newest snapshot, files and all."""
        return replay(self._read(version) for version in range(self._find_newest() + 1))

    def read_head(self) -> Snapshot:
        """Return the newest snapshot without its files: each commit repeats all app transactions, so one object says it."""
        newest = self._find_newest()
        if newest == EMPTY:
            return Snapshot()
        return without_files(apply(self._read(newest), Snapshot(newest - 1)))

    def commit(self, commit: Commit, onto: Snapshot, now_ms: int) -> bool:
        """Write the version that follows a snapshot; false where somebody else has written it: look again.

        Raise `BrokenTable` where it would break a law, as far as the snapshot says; then nothing is written. Each file
        that is added is there, durable, before.
        """
        check(commit, onto, self._store.url(self.folder))
        said = Commit(commit.adds, commit.removes, {**onto.transactions, **commit.transactions})
        commit_id = str(uuid.uuid4())
        data = to_json(said, onto.version, commit_id, now_ms, self._schema)
        return self._store.put_new(self._path(onto.version + 1), data, f"staging/table-{commit_id}") is Answer.COMMITTED

    def _read(self, version: int) -> Commit:
        path = self._path(version)
        data = self._store.get(path)
        if data is None:
            raise BrokenTable(
                f"{self._store.url(path)} is not there, and a later version is; nothing was written; the rows are in the "
                f"landed files: move {self._store.url(self.folder)} away, and the next run makes the table anew"
            )
        return from_json(data, self._store.url(path))

    def _find_newest(self) -> int:
        names = (path.rsplit("/", 1)[-1] for path in self._store.list(f"{self.folder}/_delta_log"))
        versions = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return max((int(each) for each in versions if len(each) == _DIGITS and each.isdecimal()), default=EMPTY)

    def _path(self, version: int) -> str:
        return f"{self.folder}/_delta_log/{version:0{_DIGITS}d}.json"
