"""The part of the Delta log that Offsetlake writes: what a table has at a version, and what may be committed onto it.

Delta's own words: a commit is the JSON lines of one version, a line is an action, a snapshot is all commits up to a
version. Invariant: a commit that passes `check` leaves each file in the table once, and no name is used for a second
file. The first writer of version n + 1 decides it, so whatever was read of version n still holds then.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import quote, unquote

from ..errors import BrokenTable, cause_of

EMPTY = -1  # the version of a table that is not there yet
# Every engine can read the table. None knows the last feature, so none can write: appends, OPTIMIZE, DELETE and VACUUM, which
# would double or delete rows, are refused. (VACUUM would delete files that no log names yet.)
PROTOCOL: Mapping[str, Any] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": ["appendOnly", "invariants", "offsetlakeManaged"],
}
_PLAIN = "/="  # as other engines write the folders of partitions
NTZ = "timestamp_ntz"  # a type that needs a reader feature
STATS_COLUMNS = ("generation", "partition", "offset", "event_time")
MEND = (  # of a raw table
    "where no range files were dropped from `data/`, move the table's folder away, and the next run makes it anew; else "
    "restore the folder from a backup"
)
_DIGEST = "sha256"  # in the first line of a commit: digest of the lines that say what the table has
CONFIGURATION = {"delta.enableDeletionVectors": "false", "delta.logRetentionDuration": "interval 7 days"}


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of a table: its path below the table's folder, its size, and what Delta says of it.

    `stats` is Delta's, with `numRecords`, and `minValues`, `maxValues` and `nullCount` by column; `tags` are ours.
    `partition` has the values of the partition columns, which only the log has.
    """

    path: str
    bytes: int
    modified_at_ms: int
    stats: Mapping[str, Any]
    tags: Mapping[str, str] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows, as the commit that added the file says."""
        return int(self.stats["numRecords"])


@dataclass(frozen=True, slots=True)
class Metadata:
    """The table's identity, its columns as Delta writes them, and which of them are partition columns."""

    id: str
    schema: str
    created_at_ms: int
    partition_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at a version: its files by path, and the versions of its app transactions by id.

    `removed` maps the paths that an earlier version had to when they were removed (ms since 1970).
    """

    version: int = EMPTY
    files: Mapping[str, File] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    metadata: Metadata | None = None
    commit_id: str = field(default="", compare=False)  # of the last commit; empty where that is in a checkpoint

    def is_same(self, other: Self) -> bool:
        """Return whether both are the same version of the same table."""
        return (self.version, self.commit_id, self.metadata) == (other.version, other.commit_id, other.metadata)


@dataclass(frozen=True, slots=True)
class Commit:
    """The change that one version makes; `removes` maps paths to when they were removed (ms since 1970).

    `is_compaction` means that the added files have the rows of the removed ones.
    `metadata` is the table's new metadata; none where it stays the same.
    """

    adds: Sequence[File] = ()
    removes: Mapping[str, int] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)
    is_compaction: bool = False
    metadata: Metadata | None = None
    id: str = field(default="", compare=False)


def check(commit: Commit, onto: Snapshot, where: str) -> None:
    """Raise `BrokenTable` where a commit would break a law and so must not be written."""
    added = [file.path for file in commit.adds]
    violations = [f"{path} is added a second time" for path, times in sorted(Counter(added).items()) if times > 1]
    violations += [f"{path} is added, and version {onto.version} has it" for path in added if path in onto.files]
    violations += [f"{path} is added, and an earlier version had it" for path in added if path in onto.removed]
    violations += [f"{path} is removed, and is not there" for path in sorted(commit.removes.keys() - onto.files.keys())]
    violations += [
        f"app transaction {name} goes back from {onto.transactions[name]} to {version}"
        for name, version in commit.transactions.items()
        if "/" in name and version < onto.transactions.get(name, version)  # an offset; sums may become less
    ]
    if commit.is_compaction:
        before = sum(onto.files[path].rows for path in commit.removes if path in onto.files)
        after = sum(file.rows for file in commit.adds)
        violations += [f"{before} rows would become {after} by a compaction"] if before != after else []
    if violations:
        raise BrokenTable(
            f"version {onto.version + 1} of table {where} must not be written: {violations[0]}; nothing was written; "
            "report it as a defect",
            violations,
        )


def apply(commit: Commit, onto: Snapshot) -> Snapshot:
    """Return the snapshot after one more commit."""
    return replay([commit], onto)


def replay(commits: Iterable[Commit], onto: Snapshot | None = None) -> Snapshot:
    """Return the snapshot after commits, in their order."""
    before = onto or Snapshot()
    version, metadata, commit_id = before.version, before.metadata, before.commit_id
    files, transactions, removed = dict(before.files), dict(before.transactions), dict(before.removed)
    for commit in commits:
        version += 1
        metadata, commit_id = commit.metadata or metadata, commit.id
        for path in commit.removes:
            files.pop(path, None)
        files |= {file.path: file for file in commit.adds}
        transactions |= commit.transactions
        removed |= commit.removes
    return Snapshot(version, files, transactions, removed, metadata, commit_id)


def to_json(commit: Commit, commit_id: str, now_ms: int) -> bytes:
    """Encode a commit; one with metadata, as the first is, has the protocol too.

    `commit_id` is unique: a writer whose answer was lost looks for it in the log. The first line has the digest of the lines
    that say what the table has: with one changed bit in a removed path, readers would have its rows twice.
    """
    actions: list[Mapping[str, Any]] = [{"metaData": _metadata(commit.metadata)}] if commit.metadata is not None else []
    # a range that is read again may have other rows: a change of data, even where it has the same
    is_change = not commit.is_compaction
    actions += [
        {"remove": {"path": quote(path, _PLAIN), "deletionTimestamp": removed_ms, "dataChange": is_change}}
        for path, removed_ms in commit.removes.items()
    ]
    actions += [{"add": _add(file, is_change=is_change)} for file in commit.adds]
    actions += [
        {"txn": {"appId": name, "version": version, "lastUpdated": now_ms}}
        for name, version in sorted(commit.transactions.items())
    ]
    lines = b"".join(map(_line, actions))
    protocol = b"" if commit.metadata is None else _line({"protocol": _protocol(commit.metadata)})
    operation = "OPTIMIZE" if commit.is_compaction else "WRITE"
    info = {"timestamp": now_ms, "operation": operation, "operationParameters": {}, "txnId": commit_id}
    return _line({"commitInfo": {**info, _DIGEST: hashlib.sha256(lines).hexdigest()}}) + protocol + lines


def _line(action: Mapping[str, Any]) -> bytes:
    return json.dumps(action, separators=(",", ":")).encode() + b"\n"


def _protocol(metadata: Metadata) -> Mapping[str, Any]:
    if f'"{NTZ}"' not in metadata.schema:
        return PROTOCOL
    feature = "timestampNtz"
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature]} | {
        "writerFeatures": [*PROTOCOL["writerFeatures"], feature]
    }


def _metadata(metadata: Metadata) -> Mapping[str, Any]:
    return {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": metadata.schema,
        "partitionColumns": [*metadata.partition_columns],
        "configuration": {**CONFIGURATION, "delta.dataSkippingStatsColumns": ",".join(_stats_columns(metadata))},
        "createdTime": metadata.created_at_ms,
    }


def _stats_columns(metadata: Metadata) -> list[str]:
    """Return the columns with statistics in each file: delta-rs would take any other one for null in all rows."""
    return [field["name"] for field in json.loads(metadata.schema)["fields"] if field["name"] in STATS_COLUMNS]


def _add(file: File, *, is_change: bool) -> Mapping[str, Any]:
    return {
        "path": quote(file.path, _PLAIN),
        "partitionValues": dict(file.partition),
        "size": file.bytes,
        "modificationTime": file.modified_at_ms,
        "dataChange": is_change,
        "stats": json.dumps(file.stats, separators=(",", ":")),
        "tags": dict(file.tags),
    }


def from_json(data: bytes, where: str, mend: str = MEND) -> Commit:
    """Decode a commit; raise `BrokenTable`, in which `where` names the object and `mend` says what to do."""
    return from_actions(_read_lines(data), where, mend)


def _read_lines(data: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the actions of a commit; raise `ValueError` where it has a digest and they do not match it."""
    lines = data.splitlines(keepends=True)
    actions = list(map(json.loads, lines))
    digest = actions[0].get("commitInfo", {}).get(_DIGEST) if actions else None
    said = b"".join(line for line in lines[1:] if not line.startswith(b'{"protocol"'))
    if digest is not None and digest != hashlib.sha256(said).hexdigest():
        raise ValueError("its lines are not as they were written")
    yield from actions


def from_actions(actions: Iterable[Mapping[str, Any]], where: str, mend: str = MEND) -> Commit:
    """Return the commit of these actions; those of a checkpoint are one that makes the table from nothing."""
    adds, removes, transactions, metadata = list[File](), dict[str, int](), dict[str, int](), None
    commit_id, is_empty = "", True
    try:
        for action in actions:
            kinds = {kind: said for kind, said in action.items() if said is not None}  # a checkpoint has a null for all others
            if "add" in kinds:
                adds.append(_read_add(kinds["add"]))
            elif "remove" in kinds:
                removes[unquote(kinds["remove"]["path"])] = int(kinds["remove"]["deletionTimestamp"])
            elif "txn" in kinds:
                transactions[kinds["txn"]["appId"]] = int(kinds["txn"]["version"])
            elif "metaData" in kinds:
                said = kinds["metaData"]
                columns = tuple(said["partitionColumns"])
                metadata = Metadata(said["id"], said["schemaString"], int(said["createdTime"]), columns)
            elif "commitInfo" in kinds:
                commit_id = str(kinds["commitInfo"].get("txnId", ""))
            is_empty = False
        if is_empty:
            raise ValueError("nothing is in it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenTable(
            f"{where} is no commit of a Delta log: {cause_of(error)}; it was cut short or changed; nothing was written; {mend}"
        ) from error
    return Commit(adds, removes, transactions, metadata=metadata, id=commit_id)


def _read_add(add: Mapping[str, Any]) -> File:
    stats = json.loads(add["stats"])
    if not isinstance(stats["numRecords"], int):
        raise TypeError("numRecords is no number")
    tags, partition = (dict(add.get(name) or {}) for name in ("tags", "partitionValues"))
    return File(unquote(add["path"]), add["size"], add["modificationTime"], stats, tags, partition)


def without_files(snapshot: Snapshot) -> Snapshot:
    """Return the head of a table: its version and app transactions."""
    return replace(snapshot, files={}, removed={})
