"""The Delta log of a table in the lake: versions are read, and the next one is put if absent.

    tables/<kind>/<topic>/_delta_log/<version20>.json                  what the version changes, see `core.tables.delta`
    tables/<kind>/<topic>/_delta_log/<version20>.checkpoint.parquet    all that the table has then, by delta-rs

The log is the lock, as the plan log is: put-if-absent of version n + 1 decides, and the second writer looks again.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...core.errors import BrokenTable, DamagedFile, LakeUnavailable, Refused, first_line
from ...core.tables import delta
from ...core.tables.delta import EMPTY, MEND, Commit, Metadata, Snapshot
from ...core.tables.raw_table import SCHEMA
from ..lake.parquet import read_rows
from ..store.store import Answer, Store, hide_login, told_cause

CHECKPOINT_EVERY = 100  # versions; a reader opens that many commits at most
CHECKPOINT_SECONDS = 60.0  # after which a process that writes one is ended: an object store may be silent
_VERSION = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)", re.ASCII)
_TREE_SIGNS = re.compile(r"^[\s↳]+|\x1b\[[0-9;]*m")  # drawn before a cause, and its colour codes
_NO_PATH = re.compile(r"[\[\]^|\\%\x00-\x1f]")
_JSON, _CHECKPOINT = "json", "checkpoint.parquet"
_WRITER = Path(__file__).with_name("delta_checkpoint.py")


class DeltaLog:
    """The log of the table in one folder of a store; `schema` is what its first version says, as Delta writes it.

    `mend` is what errors tell people to do about a log that cannot be read.
    """

    def __init__(
        self, store: Store, folder: str, schema: str, partition_columns: tuple[str, ...] = (), mend: str = MEND
    ) -> None:
        self.folder = folder
        self._hint = f"{folder}/_delta_log/_last_checkpoint"
        self._store = store
        self._schema = schema
        self._partition_columns = partition_columns
        self._mend = mend

    def read(self, known: Snapshot | None = None) -> Snapshot:
        """Return the newest snapshot with its files; after a `known` one that was read before, read only what is newer."""
        base, newest = self._find()
        snapshot = known if known is not None and self._has(known, newest) else Snapshot()
        if base > snapshot.version:
            snapshot = self._read_base(base)
            if snapshot.version == EMPTY and not self._store.exists(self._path(0, _JSON)):
                raise self._irreplaceable(base)
        newer = (self._read(version) for version in range(snapshot.version + 1, newest + 1))
        return self._with_commit(delta.replay(newer, snapshot))

    def read_version(self, version: int) -> Snapshot | None:
        """Return the snapshot of a version, none if commits that it needs are cleaned up."""
        found = self._replay(version, version + 1)
        return None if found is None else self._with_commit(found)

    def _with_commit(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the id of its last commit, if that is still there: a checkpoint does not have the id."""
        if snapshot.commit_id or snapshot.version == EMPTY:
            return snapshot
        return replace(snapshot, commit_id=self._read_id(snapshot.version) or "")

    def _has(self, known: Snapshot, newest: int) -> bool:
        """Return whether a snapshot is of this very table: its folder may have been moved away and made anew."""
        return EMPTY < known.version <= newest and bool(known.commit_id) and self._is_last(known)

    def read_head(self) -> Snapshot:
        """Return the newest snapshot without its files: each commit repeats all app transactions, so one object is enough.

        A commit that repeats none, a foreign writer's or a torn one, does not tell what the table has: the snapshot has none.
        """
        base, newest = self._find()
        if newest == EMPTY:
            return Snapshot()
        # an idle table's commits are cleaned up
        if newest == base and not self._store.exists(self._path(newest, _JSON)):
            return delta.without_files(self.read())
        head = delta.apply(self._read(newest), Snapshot(newest - 1))
        return delta.without_files(head if head.transactions else replace(self.read(), transactions={}))

    def commit(self, commit: Commit, onto: Snapshot, now_ms: int, schema: str | None = None) -> bool:
        """Write the version that follows a snapshot; return false if somebody else has written it: look again.

        `schema` is the table's from then on; without one the present one stays. Raises `BrokenTable` if the commit
        would break a law, as far as the snapshot tells, and `LakeUnavailable` if a file that it adds, which was made durable,
        is not there any more; then nothing is written.
        """
        if onto.commit_id and not self._is_last(onto):
            return False
        delta.check(commit, onto, self._store.url(self.folder))
        for file in commit.adds:
            path = f"{self.folder}/{file.path}"
            if self._store.size(path) != file.bytes:
                raise LakeUnavailable(
                    f"cannot add {self._store.url(path)} to its table: it is not there any more, or has not {file.bytes:,} "
                    "bytes: somebody deletes files of the lake, or a disk lost it; the table stays as it was, nothing is "
                    "lost; the next run makes it again",
                    path=path,
                )
        commit_id = str(uuid.uuid4())
        said = replace(commit, id=commit_id, transactions={**onto.transactions, **commit.transactions})
        if onto.version == EMPTY:
            said = replace(said, metadata=Metadata(commit_id, schema or self._schema, now_ms, self._partition_columns))
        elif schema is not None:
            assert onto.metadata is not None, "a head does not say the schema: it was to be read whole"
            if schema != onto.metadata.schema:
                said = replace(said, metadata=replace(onto.metadata, schema=schema))
        data = delta.to_json(said, commit_id, now_ms)
        path = self._path(onto.version + 1, _JSON)
        answer = self._store.put_new(path, data, f"staging/table-{commit_id}")
        if answer is Answer.COMMITTED and onto.commit_id and not self._is_last(onto) and self._is_moved(onto):
            self._store.delete(path)  # nobody could read this one without those before
            return False
        return answer is Answer.COMMITTED

    def _is_last(self, onto: Snapshot) -> bool:
        """Return whether the log still has the very commit of a snapshot: the folder may have been moved away meanwhile."""
        return self._read_id(onto.version) == onto.commit_id

    def _is_moved(self, onto: Snapshot) -> bool:
        """Return whether the folder was moved away: commits no longer give the snapshot, nor is there a checkpoint since."""
        has_checkpoint = self._newest_checkpoint() > onto.version
        return not has_checkpoint and self._replay(onto.version, onto.version + 1) is None

    def find_damage(self) -> str | None:
        """Return what is wrong with the checkpoints and what mends it: other readers fail at it, ours takes the commits."""
        newest = self._newest_checkpoint()
        if self._has_wrong_hint():
            damaged = f"{self._store.url(self._hint)} names no checkpoint that is there"
        elif newest != EMPTY and not self._is_right(newest):
            damaged = f"{self._store.url(self._path(newest, _CHECKPOINT))} is not what was written"
        else:
            return None
        return f"{damaged}; some readers cannot open the table; the nightly job `sweep_staging` writes it anew"

    def _has_wrong_hint(self) -> bool:
        return self._store.exists(self._hint) and (self._read_hint(), _CHECKPOINT) not in self._list(None)

    def write_checkpoint(self) -> None:
        """Have delta-rs write what the table has now into one file; once that is on the disk and right, delete old commits.

        Raises `LakeUnavailable` if that fails; readers then open more commits, and nothing else is wrong.
        """
        try:
            if self._has_wrong_hint():  # after a power cut: delta-rs trusts it for ever
                self._store.delete(self._hint)
            while (newest := self._newest_checkpoint()) != EMPTY and not self._is_right(newest):
                self._delete_checkpoint(newest)
            version = self._create_checkpoint()
            self._store.make_durable(self._path(version, _CHECKPOINT))  # for which delta-rs does not wait
            if not self._is_right(version):
                self._delete_checkpoint(version)
                raise OSError(f"version {version} of it is not what the commits say, and was deleted")
            self._run("delete")
        except (OSError, subprocess.TimeoutExpired, BrokenTable, Refused) as error:
            raise LakeUnavailable(
                f"cannot write a checkpoint of table {self._store.url(self.folder)}: {said_by_delta(error)}; nothing is lost, "
                f"and reading it takes longer; it is tried again {CHECKPOINT_EVERY} versions later",
                path=self.folder,
            ) from told_cause(error)

    def _create_checkpoint(self) -> int:
        """Write a checkpoint and return its version; if that fails and the one before is not needed, delete that and retry."""
        try:
            return int(self._run("create"))
        except OSError:
            newest = self._newest_checkpoint()
            if newest == EMPTY:
                raise
            self._delete_checkpoint(newest)
            return int(self._run("create"))

    def _run(self, what: str) -> str:
        command = [sys.executable, "-P", str(_WRITER), what, delta_url(self._store, self.folder)]
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=CHECKPOINT_SECONDS
        )
        if ended.returncode:
            raise OSError(ended.stderr or f"its process ended with {ended.returncode}")
        return ended.stdout

    def _is_right(self, version: int) -> bool:
        """Return whether a checkpoint says what the commits before it say, as far as they are there."""
        try:
            found = self._read_checkpoint(version)
        except (DamagedFile, BrokenTable):  # a power cut has torn it
            return False
        whole = self._replay(version, version)
        return whole is None or (
            found.files == whole.files
            and found.transactions == whole.transactions
            and found.metadata == whole.metadata
            and found.removed.items() <= whole.removed.items()  # delta-rs leaves out what was removed long ago
        )

    def _replay(self, version: int, below: int) -> Snapshot | None:
        """Return a version's snapshot by a checkpoint of a version < `below` and the commits since; none if any is gone."""
        versions = self._list(None)
        before = self._read_base(_newest((each for each in versions if each[0] < below), (_CHECKPOINT,)))
        needed = range(before.version + 1, version + 1)
        if not {*needed} <= {number for number, kind in versions if kind == _JSON}:
            return None
        return delta.replay((self._read(number) for number in needed), before)

    def _delete_checkpoint(self, version: int) -> None:
        """Delete a checkpoint that commits can replace; raise `BrokenTable` if they are gone: it may be all there is."""
        if self._replay(version, version) is None:
            raise self._irreplaceable(version)
        for path in (self._hint, self._path(version, _CHECKPOINT)):
            self._store.delete(path)

    def _irreplaceable(self, version: int) -> BrokenTable:
        url = self._store.url(self._path(version, _CHECKPOINT))
        return BrokenTable(f"{url} cannot be used, and the commits before it are cleaned up; nothing was written; {self._mend}")

    def _read(self, version: int) -> Commit:
        commit = self._find_commit(version)
        if commit is None:
            url = self._store.url(self._path(version, _JSON))
            raise BrokenTable(f"{url} is not there, and a later version is; nothing was written; {self._mend}")
        return commit

    def _find_commit(self, version: int) -> Commit | None:
        path = self._path(version, _JSON)
        data = self._store.get(path)
        return None if data is None else delta.from_json(data, self._store.url(path), self._mend)

    def _read_id(self, version: int) -> str | None:
        commit = self._find_commit(version)
        return None if commit is None else commit.id

    def _read_base(self, newest: int) -> Snapshot:
        """Return the snapshot of the newest checkpoint that is whole: for a torn one, earlier commits are still there."""
        if newest == EMPTY:
            return Snapshot()
        try:
            return self._read_checkpoint(newest)
        except (DamagedFile, BrokenTable):
            return self._read_base(_newest((each for each in self._list(None) if each[0] < newest), (_CHECKPOINT,)))

    def _read_checkpoint(self, version: int) -> Snapshot:
        path = self._path(version, _CHECKPOINT)
        actions = read_rows(self._store.get(path) or b"", self._store.url(path), ("add", "remove", "txn", "metaData"))
        return delta.apply(delta.from_actions(actions, self._store.url(path), self._mend), Snapshot(version - 1))

    def _find(self) -> tuple[int, int]:
        """Return the version of the newest checkpoint, and the newest version of all; -1 if there is none."""
        folder, said = f"{self.folder}/_delta_log", self._read_hint()
        versions = self._list(f"{folder}/{said:020d}" if said != EMPTY else None)
        if _newest(versions, (_CHECKPOINT,)) < said:  # it names one that is not there, so it is not trusted
            versions = self._list(None)
        base, newest = _newest(versions, (_CHECKPOINT,)), _newest(versions, (_JSON, _CHECKPOINT))
        if base == EMPTY and newest != EMPTY and (0, _JSON) not in versions:
            raise BrokenTable(
                f"the log {self._store.url(folder)}/ begins with version {min(versions)[0]}, expected 0: the ones before were "
                f"moved away or deleted; nothing was written; {self._mend}"
            )
        return base, newest

    def _list(self, after: str | None) -> list[tuple[int, str]]:
        listed = self._store.list(f"{self.folder}/_delta_log", after)
        found = (_VERSION.fullmatch(path.rsplit("/", 1)[-1]) for path in listed)
        return [(int(each[1]), each[2]) for each in found if each is not None]

    def _newest_checkpoint(self) -> int:
        return _newest(self._list(None), (_CHECKPOINT,))

    def _read_hint(self) -> int:
        """Return the version below which nothing need be listed: that of the last checkpoint, if the hint can be read."""
        try:
            return int(json.loads(self._store.get(self._hint) or b"")["version"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return EMPTY

    def _path(self, version: int, kind: str) -> str:
        return f"{self.folder}/_delta_log/{version:020d}.{kind}"


def delta_url(store: Store, folder: str) -> str:
    """Return a table's folder as a URL for delta-rs; raise `Refused` for one that would make it end the process."""
    url = store.url(folder)
    if found := _NO_PATH.search(url):
        raise Refused(
            f"the table {url} cannot be opened by delta-rs, whose paths have none of []^|\\% and no control characters, found "
            f"{found[0]!r}; nothing was written; move the lake to a path without"
        )
    return url


def said_by_delta(error: Exception) -> str:
    """Return delta-rs' message without rows that it may show; for an error of a store, with its causes on the next lines."""
    first = first_line(error).partition("Preview of invalid data")[0]
    if "Generic " not in first:
        return first
    return hide_login(": ".join(_TREE_SIGNS.sub("", line) for line in str(error).splitlines()))


def _newest(versions: Iterable[tuple[int, str]], kinds: tuple[str, ...]) -> int:
    return max((version for version, kind in versions if kind in kinds), default=EMPTY)


def raw_table_log(topic: str, store: Store) -> DeltaLog:
    """Return the log of a topic's raw table."""
    return DeltaLog(store, f"tables/raw/{topic}", SCHEMA)
