"""The latest table of a topic: delta-rs' own table, kept by its MERGE; one commit has rows and what they are made of.

    tables/latest/<topic>/     a row per key, `_deleted` where the newest record of it is a tombstone

Its app transactions say the version of the decoded table that went in, and the order. delta-rs does not wait for the disk: we
do after each commit, and notice if a power cut has torn the last one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from math import ceil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...core.errors import BrokenTable, LakeUnavailable, OffsetlakeError, is_panic
from ...core.log.latency import Wait, pack, unpack
from ...core.tables.delta import CONFIGURATION, Snapshot
from ..lake.lake import Lake
from ..store.disk import errno_in, mend
from ..store.store import told_cause, told_line
from .columns_of_table import POSITION, SEQUENCE
from .delta_log import delta_url, said_by_delta

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable, WriterProperties

TREE = "tables/latest"
_FILE = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}\.snappy\.parquet")  # as delta-rs names them
_ORDER = "order"  # app transaction: by which order the winners were found
_COMMIT = "decoded-commit"  # app transaction: which commit of the decoded table that version is, as a number
_TRANSACTIONS = 3  # of each commit of ours but the first
_CHANGES = {"add", "remove", "metaData", "protocol"}  # actions by which a writer changes rows, or how they may be written
_MARK = "offsetlake"  # in the `commitInfo` of a commit of ours: how many app transactions it has
_WAITS = "offsetlake_waits"  # of what a commit brings in, as `core.log.latency.pack` writes them
TOLD_VERSIONS = 256  # versions that are searched for the waits of the last hour
_CONFIGURATION = {
    **CONFIGURATION,
    "delta.dataSkippingNumIndexedCols": "0",  # keys are in no order, and delta-rs cuts a timestamp's maximum short
}
MOST_FILES = 64  # a MERGE that only inserts adds files; from this many on the table is written anew


@dataclass(frozen=True, slots=True)
class Applied:
    """What a version of the table is made of: a version of the decoded table, and an order.

    `waits` are those of the records that it is the first version to have.
    """

    decoded: Snapshot
    order: int
    waits: Sequence[Wait] = ()


@dataclass(frozen=True, slots=True)
class LatestSnapshot:
    """The table as it stands: its schema, its files (below the lake's root) with their bytes, and what it is made of.

    `damage` says what a power cut or a person has broken; then nothing else is known, except the table if its log is readable.
    `changed_by` names the operation of another writer since our newest commit: what its rows are made of is not known then.
    """

    version: int = -1
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    files: Mapping[str, int] = field(default_factory=dict)
    damage: str = ""
    table: Any = field(default=None, repr=False)
    listed: Collection[str] = field(default=(), repr=False)
    changed_by: str = ""

    @property
    def fault(self) -> str:
        """What is broken, or that another writer has changed the table; empty where its rows are ours."""
        return self.damage or (f"another writer has changed it: {self.changed_by}" if self.changed_by else "")

    @property
    def why_unreadable(self) -> str:
        """Why nobody should read the table; empty where anybody may. Its first version, until it is filled, has no order."""
        return self.fault or ("" if self.order is not None else "it is being made")

    def applied(self, table_id: str) -> int | None:
        """Return the version of a decoded table that went in, none if that was another table."""
        return self._transaction(f"decoded/{table_id}")

    def is_of(self, decoded: Snapshot) -> bool:
        """Return whether a snapshot of the decoded table has the commit that went in, as far as that is known.

        A table restored from a backup has other versions under the same numbers.
        """
        known = self._transaction(_COMMIT)
        return not (known and decoded.commit_id) or known == _number(decoded)

    @property
    def order(self) -> int | None:
        """The order by which the winners were found."""
        return self._transaction(_ORDER)

    def _transaction(self, name: str) -> int | None:
        """Return what an app transaction says; delta-rs reads the log for it. Raises `LakeUnavailable` if it cannot."""
        from deltalake.exceptions import DeltaError

        if self.table is None:
            return None
        try:
            version = self.table.transaction_version(name)
        except (DeltaError, OSError) as error:
            raise _unreadable(self.table.table_uri, error, self.table.table_uri) from told_cause(error)
        return None if version is None else int(version)


class LatestTable:
    """The latest table of one topic, to read and to write."""

    def __init__(self, lake: Lake, topic: str) -> None:
        self.lake = lake
        self.folder = f"{TREE}/{topic}"

    def read(self) -> LatestSnapshot | None:
        """Return the table as it is now, none if there is none; its `damage` says what is broken.

        Raises `LakeUnavailable` if it cannot be read now.
        """
        if not self.lake.store.list(self.folder):
            return None
        found = self._open()
        if isinstance(found, str):  # its first files may be written between the look at the folder and the one at the log
            found = self._open()
        listed = self.lake.store.list(self.folder)  # after the log was read: what that names is there
        if not listed:
            return None
        if isinstance(found, str):
            return LatestSnapshot(damage=found)
        table, sizes = found
        files = {f"{self.folder}/{path}": size for path, size in sizes.items()}
        schema = pa.schema(table.schema().to_arrow())
        for path, size in files.items():
            if listed.get(path) != size:
                found = f"has {listed[path]} bytes, expected {size}" if path in listed else "is missing"
                return LatestSnapshot(table.version(), schema, {}, f"its file {path} {found}", table, listed)
        try:
            changed_by = self._read_log(table.version(), listed)
        except BrokenTable as error:
            return LatestSnapshot(damage=str(error))
        return LatestSnapshot(table.version(), schema, files, table=table, listed=listed, changed_by=changed_by)

    def _open(self) -> tuple[DeltaTable, dict[str, int]] | str:
        """Return the table and its files with their sizes, or why its log cannot be read."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(delta_url(self.lake.store, self.folder))
            added = table.get_add_actions()
            return table, dict(zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True))
        except (DeltaError, ValueError, TypeError) as error:
            return f"its log cannot be read: {said_by_delta(error)}"
        except OSError as error:  # of the store or the disk: it does not tell what is there
            raise _unreadable(self.lake.store.url(self.folder), error, self.folder) from told_cause(error)

    def merge(self, snapshot: LatestSnapshot, source: pa.RecordBatchReader, applied: Applied) -> bool:
        """Replace rows by those of `source`, one per key, that come after them; return false if overtaken.

        A row with `_forced` replaces whatever is there, one with `_gone` deletes the key.
        """
        names = [field.name for field in snapshot.schema]
        rows = {f'"{name}"': f's."{name}"' for name in names}

        def write() -> None:
            merger = snapshot.table.merge(
                source,
                predicate="t.key = s.key",
                source_alias="s",
                target_alias="t",
                streamed_exec=True,  # else files are skipped by their least and greatest key, which a struct lacks
                commit_properties=_properties(applied),
                writer_properties=_writer_properties(),
            )
            merger = merger.when_matched_delete("s._gone")
            merger = merger.when_matched_update(rows, predicate=f"s._forced OR {_comes_after(SEQUENCE in names)}")
            merger.when_not_matched_insert(rows, predicate="NOT s._gone").execute()
            if snapshot.table.version() == snapshot.version:  # no row was to change: it has committed nothing
                self._note(snapshot, applied)

        return self._commit(snapshot, write)

    def note(self, snapshot: LatestSnapshot, applied: Applied) -> bool:
        """Record that a version of the decoded table changes no row; return false if overtaken."""
        return self._commit(snapshot, partial(self._note, snapshot, applied))

    def _note(self, snapshot: LatestSnapshot, applied: Applied) -> None:
        schema, properties = snapshot.table.schema(), _properties(applied)
        snapshot.table.create_write_transaction([], mode="append", schema=schema, commit_properties=properties)

    def overwrite(self, snapshot: LatestSnapshot, source: pa.RecordBatchReader, applied: Applied) -> bool:
        """Replace all rows by those of `source`; return false if overtaken. Readers of older versions keep theirs."""
        from deltalake import write_deltalake

        schema_mode = None if snapshot.schema.equals(source.schema) else "overwrite"
        write = partial(write_deltalake, snapshot.table, source, mode="overwrite", schema_mode=schema_mode)
        write = partial(write, commit_properties=_properties(applied), writer_properties=_writer_properties())
        return self._commit(snapshot, write)

    def start(self, schema: pa.Schema, *, anew: bool) -> LatestSnapshot:
        """Return the table, a new empty one if there is none; with `anew` a damaged one is deleted first, and the id changes.

        In a bucket no lock holds others off, and a table that another run has just made anew might be deleted: there a table
        whose log can be read keeps its id, and the commit that comes next, of all rows, is refused if another was faster.
        """
        from deltalake import CommitProperties, DeltaTable

        url = delta_url(self.lake.store, self.folder)
        first = CommitProperties(custom_metadata={_MARK: "0"})
        create = partial(
            DeltaTable.create, url, schema=schema, mode="ignore", configuration=_CONFIGURATION, commit_properties=first
        )
        with self.lake.store.locked(TREE if anew else None):
            there = self.read() if anew else None
            if there is not None and there.damage:  # else another has mended it, and we go on from that
                if self.lake.store.is_remote and there.table is not None:
                    return replace(there, damage="")
                self.lake.store.delete(self.folder)
            self._commit(LatestSnapshot(), create)
        snapshot = self.read()
        if snapshot is None or snapshot.damage:
            raise self._refused(snapshot.damage if snapshot else "it is gone as soon as it was made")
        return snapshot

    def count(self, snapshot: LatestSnapshot | None) -> tuple[int, int]:
        """Count the keys, and the tombstones that are kept beside them; 0 of each if the table is missing or broken."""
        from deltalake import QueryBuilder

        if snapshot is None or snapshot.damage:
            return 0, 0
        sql = "SELECT count(*) FILTER (WHERE NOT _deleted) AS keys, count(*) FILTER (WHERE _deleted) AS dead FROM latest"
        found = pa.table(QueryBuilder().register("latest", snapshot.table).execute(sql).read_all()).to_pylist()[0]
        return int(found["keys"]), int(found["dead"])

    def find_damage(self, snapshot: LatestSnapshot) -> str:
        """Read all rows as a MERGE does; return why that fails, else an empty text."""
        from deltalake import QueryBuilder

        try:
            for _ in QueryBuilder().register("latest", snapshot.table).execute("SELECT * FROM latest"):
                pass
        except BaseException as error:  # for what it reads delta-rs raises a plain `Exception`
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            return f"its rows cannot be read: {told_line(error)}"
        return ""

    def read_waits(self, snapshot: LatestSnapshot | None, since_ms: int) -> list[Wait]:
        """Read the waits of the records that versions since a time (ms since 1970) were the first to have."""
        if snapshot is None or snapshot.damage:
            return []
        commits = takewhile(lambda each: each.get("timestamp", 0) > since_ms, snapshot.table.history(TOLD_VERSIONS))
        try:
            return [wait for each in commits for wait in unpack(json.loads(each.get(_WAITS, "[]")))]
        except (ValueError, TypeError) as error:
            url = self.lake.store.url(self.folder)
            raise BrokenTable(
                f"the log of the table {url} says what are no waits, in `{_WAITS}` of a version of the last hour: {error}; the "
                "rows are not touched; restore its log from a backup, or wait: after an hour nobody reads it any more"
            ) from error

    def find_unnamed(self, older_than_seconds: float) -> list[str]:
        """Find the files that no version of the last `older_than_seconds` has; return the paths below the lake's root."""
        snapshot = self.read()
        if snapshot is None or snapshot.damage:  # the next update makes it anew
            return []
        hours = max(0, ceil(older_than_seconds / 3600))
        names = snapshot.table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        return [f"{self.folder}/{name}" for name in names if _FILE.fullmatch(name)]  # what is not the table's stays

    def _commit(self, snapshot: LatestSnapshot, write: Callable[[], object]) -> bool:
        """Write a version and wait until it is on the disk; return false if another was faster or the answer was lost.

        The writer of the version before may have died before that was on the disk, and only the last entry is ever checked:
        so we wait for that one first.
        """
        from deltalake.exceptions import CommitFailedError, DeltaError

        entry = f"{self.folder}/_delta_log/{snapshot.version:020d}.json"
        try:
            for path in (*snapshot.files, entry):
                if path in snapshot.listed:
                    self.lake.store.make_durable(path)
        except FileNotFoundError as error:
            raise self._refused(f"{error.filename} is gone") from error
        try:
            write()
        except CommitFailedError as error:
            newest = self._open()
            if isinstance(newest, str) or newest[0].version() != snapshot.version:
                return False
            refused = f"{said_by_delta(error)}; where it goes on so, move the folder away, and the table is made anew"
            raise self._refused(refused) from told_cause(error)  # nobody was faster
        except (DeltaError, OSError) as error:
            raise self._refused(said_by_delta(error)) from told_cause(error)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise self._refused(f"delta-rs fails: {told_line(error)}") from told_cause(error)
        return self._keep(snapshot)

    def _keep(self, snapshot: LatestSnapshot) -> bool:
        """Wait until what was written since is on the disk; return false if somebody has moved the folder away."""
        try:
            for path in self.lake.store.list(self.folder):
                if path not in snapshot.listed:
                    self.lake.store.make_durable(path)
        except FileNotFoundError:
            return False
        return True

    def _refused(self, reason: str) -> OffsetlakeError:
        step = mend(errno_in(reason)) or "the next update tries again"
        return LakeUnavailable(
            f"cannot write {self.lake.store.url(self.folder)}: {reason}; what stands stays as it is, nothing is lost; {step}",
            path=self.folder,
        )

    def _read_log(self, version: int, listed: Collection[str]) -> str:
        """Return the operation by which another writer has changed the table since our newest commit; empty where none has.

        Raise `BrokenTable` where the last entry is torn, which delta-rs takes for whole if it is cut at a line; or gone, where
        its checkpoint is there: delta-rs reads that version and never writes another one.
        """
        entries = sorted(path for path in listed if path.startswith(f"{self.folder}/_delta_log/") and path.endswith(".json"))
        if (opened := f"{self.folder}/_delta_log/{version:020d}.json") not in entries:
            raise BrokenTable(f"the last entry of its log, {opened}, is missing")
        for entry in reversed(entries):
            try:
                actions = [json.loads(line) for line in (self.lake.store.get(entry) or b"").splitlines()]
                info = next((each["commitInfo"] for each in actions if "commitInfo" in each), None)
                if info is None or sum("txn" in each for each in actions) < int(info.get(_MARK, 0)):
                    raise ValueError("it is cut off")
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise BrokenTable(f"the last entry of its log, {entry}, is torn: {error}") from error
            if _MARK in info:
                return ""
            if any(_CHANGES & each.keys() for each in actions):
                return str(info.get("operation", "a commit"))
        return "CLEANUP"  # of what we have written to the log


def _unreadable(url: str, error: Exception, path: str) -> LakeUnavailable:
    return LakeUnavailable(
        f"cannot read the table {url}: {said_by_delta(error)}; nothing was written, the table stays as it is; the next look "
        "tries again",
        path=path,
    )


def _number(decoded: Snapshot) -> int:
    """Return a number for the commit of a version, as app transactions hold only numbers; 0 if none is known."""
    return zlib.crc32(decoded.commit_id.encode())


def _properties(applied: Applied) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    decoded = applied.decoded
    assert decoded.metadata is not None
    said = {f"decoded/{decoded.metadata.id}": decoded.version, _COMMIT: _number(decoded), _ORDER: applied.order}
    return CommitProperties(
        app_transactions=[Transaction(name, version) for name, version in said.items()],
        max_commit_retries=0,  # else delta-rs commits onto what another writer has added meanwhile
        custom_metadata={_MARK: str(_TRANSACTIONS), _WAITS: json.dumps(pack(applied.waits))},
    )


def _writer_properties() -> WriterProperties:
    """Return how files are written: keys and places hardly repeat, and no file could be skipped by their bounds."""
    from deltalake import ColumnProperties, WriterProperties

    plain = ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
    return WriterProperties(compression="SNAPPY", default_column_properties=plain)


def _comes_after(has_sequence: bool) -> str:  # noqa: FBT001
    """Return the condition under which a source row comes after the one in the table."""
    *greater, last = POSITION
    after = f's."{last}" > t."{last}"'
    for name in reversed(greater):
        after = f's."{name}" > t."{name}" OR (s."{name}" = t."{name}" AND ({after}))'
    if not has_sequence:
        return f"({after})"
    ours, theirs = f's."{SEQUENCE}"', f't."{SEQUENCE}"'
    first = f"({ours} IS NOT NULL AND ({theirs} IS NULL OR {ours} > {theirs}))"
    same = f"({ours} = {theirs} OR ({ours} IS NULL AND {theirs} IS NULL))"
    return f"({first} OR ({same} AND ({after})))"
