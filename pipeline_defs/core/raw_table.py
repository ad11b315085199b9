"""What the raw table of a topic owes: which landed ranges it does not have yet, and up to where it has all of them.

Its app transactions say how far it is, each counting upwards:

    g0/p3        the offset of Kafka partition 3, generation 0, up to which all is settled: who needs a prefix reads up to there
    g0/p3/end    the end of the last range of it that the table has; beyond the offset above where there is a gap
    settled      revision + 1, summed over all ranges that the table has or that have no rows
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .coverage import Coverage, State
from .delta import File, Snapshot
from .manifest import Manifest
from .offsets import OffsetRange, parse_key


def _struct(columns: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return {"type": "struct", "fields": fields}


SETTLED = "settled"
# the columns of a landed file, as Delta writes them; a test holds the two together
_HEADER = [("key", "string"), ("value", "binary")]
_COLUMNS: list[tuple[str, Any]] = [
    ("topic", "string"),
    ("generation", "integer"),
    ("partition", "integer"),
    ("offset", "long"),
    ("timestamp", "timestamp"),
    ("timestamp_type", "integer"),
    ("key", "binary"),
    ("value", "binary"),
    ("headers", {"type": "array", "elementType": _struct(_HEADER), "containsNull": True}),
]
SCHEMA = json.dumps(_struct(_COLUMNS), separators=(",", ":"))
_NAME = re.compile(r"g(\d+)-p(\d+)-(\d{20})-(\d{20})\.r(\d+)(?:\.(?P<number>\d+))?\.parquet", re.ASCII)
KEY, REVISION, DIGEST = "range", "revision", "sha256"  # tags of a file


@dataclass(frozen=True, slots=True)
class Due:
    """The change that a table owes: ranges to add, with their manifests, paths to remove, and its app transactions then."""

    adds: Sequence[Manifest]
    removes: Sequence[str]
    transactions: Mapping[str, int]

    def is_none(self, table: Snapshot) -> bool:
        """Return whether the table owes nothing."""
        return not self.adds and not self.removes and self.transactions == table.transactions


def find_due(coverage: Coverage, head: Snapshot) -> Due | None:
    """Return what a table owes, from its app transactions alone; none where these do not say it, and its files must be read.

    They say it where nothing beyond a gap is in the table: then it has what is landed below its frontier, and not what is
    landed beyond. That the sum comes out says that nothing else is landed, and nothing replaced.
    """
    reached = head.transactions
    if any(reached.get(f"{name}/end", version) > version for name, version in reached.items()):
        return None
    manifests = coverage.manifests
    new = [
        manifests[offsets]
        for offsets in sorted(manifests)
        if coverage.is_landed(offsets) and offsets.start >= reached.get(_place(offsets), 0)
    ]
    settled = reached.get(SETTLED, 0) + _weight(new)
    if settled != _weight(manifests.values()):
        return None
    return _due(coverage, head, [manifest for manifest in new if manifest.file is not None], [], settled)


def find_due_by_files(coverage: Coverage, table: Snapshot, rotten: Collection[OffsetRange] = ()) -> Due:
    """Return what a table owes, from its files; the file of a range that is `rotten` gives way to one of another name.

    A range that is landed no more, since somebody has deleted its file, stays in the table.
    """
    standing = files_by_range(table)
    adds, removes = list[Manifest](), list[str]()
    settled = 0
    for offsets, manifest in sorted(coverage.manifests.items()):
        file = standing.get(offsets)
        is_due = coverage.is_landed(offsets) and (
            file is None or revision_of(file) < manifest.revision or offsets in rotten
        )
        if is_due and manifest.file is not None:
            adds.append(manifest)
        if is_due and file is not None:
            removes.append(file.path)
        if is_due:
            settled += manifest.revision + 1
        elif file is not None:
            settled += revision_of(file) + 1
    return _due(coverage, table, adds, removes, settled)


def files_by_range(table: Snapshot) -> dict[OffsetRange, File]:
    """Return the file of each range that a table has."""
    return {parse_key(file.tags[KEY]): file for file in table.files.values()}


def revision_of(file: File) -> int:
    """Return the revision of the range whose rows a file has."""
    return int(file.tags[REVISION])


def name_of(manifest: Manifest, number: int = 0) -> str:
    """Return the name of a range's file in the table; the next number names a copy that takes the place of a rotten one."""
    offsets = manifest.offsets
    name = f"g{offsets.generation}-p{offsets.partition:04d}-{offsets.stem}.r{manifest.revision:03d}"
    return f"{name}.{number}.parquet" if number else f"{name}.parquet"


def number_of(name: str) -> int:
    """Return which copy of its range's revision a file is; 0 for the first."""
    found = _NAME.fullmatch(name)
    return int(found["number"] or 0) if found else 0


def find_unwanted(names: Iterable[str], coverage: Coverage, table: Snapshot) -> list[str]:
    """Return which names are of files that no version will name any more: of an earlier revision, or copy, than stands.

    A file that is not named yet is wanted, and what is no name of ours is nobody's to delete.
    """
    standing = files_by_range(table)
    unwanted = []
    for name in sorted(set(names) - table.files.keys()):
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        generation, partition, start, end, revision = (int(each) for each in found.groups()[:5])
        offsets = OffsetRange(generation, partition, start, end)
        manifest, file = coverage.manifests.get(offsets), standing.get(offsets)
        is_older = manifest is not None and revision < manifest.revision
        is_copied = file is not None and (revision, number_of(name)) < (revision_of(file), number_of(file.path))
        if is_older or is_copied:
            unwanted.append(name)
    return unwanted


def file_of(manifest: Manifest, path: str) -> File:
    """Return what the Delta log says of a range's file; where each row lies, so that readers pass over files."""
    staged, offsets = manifest.file, manifest.offsets
    if staged is None:
        raise ValueError(f"range {offsets.text(manifest.topic)} has no file")
    stats: dict[str, Any] = {"numRecords": staged.rows}
    if staged.rows:
        place = {"generation": offsets.generation, "partition": offsets.partition}
        stats["minValues"] = {**place, "offset": staged.min_offset}
        stats["maxValues"] = {**place, "offset": staged.max_offset}
        stats["nullCount"] = {"generation": 0, "partition": 0, "offset": 0}
    tags = {KEY: offsets.key, REVISION: str(manifest.revision), DIGEST: staged.sha256}
    return File(path, staged.bytes, manifest.provenance.landed_at_ms, stats, tags)


def violations(coverage: Coverage, table: Snapshot) -> list[str]:
    """Name every landed range that a table does not have as it is landed, each of which the next run puts right."""
    topic, due = coverage.log.topic, find_due_by_files(coverage, table)
    found = [f"range {manifest.offsets.text(topic)}: landed, and not in the table" for manifest in due.adds]
    for offsets, file in sorted(files_by_range(table).items()):
        manifest = coverage.manifests.get(offsets)
        where = f"range {offsets.text(topic)}"
        if manifest is None:
            found.append(f"{where}: in the table, and it has no manifest")
        elif manifest.revision == revision_of(file) and manifest.digest != file.tags[DIGEST]:
            found.append(f"{where}: the table has sha256 {file.tags[DIGEST]}, its manifest {manifest.digest}")
    return found


def _due(coverage: Coverage, table: Snapshot, adds: Sequence[Manifest], removes: Sequence[str], settled: int) -> Due:
    transactions = dict(table.transactions)
    for generation in {link.offsets.generation for link in coverage.log.links}:
        for partition, end in coverage.frontier(generation, _claimed(coverage)).items():
            _raise_to(transactions, f"g{generation}/p{partition}", end)
    for manifest in adds:
        _raise_to(transactions, f"{_place(manifest.offsets)}/end", manifest.offsets.end)
    _raise_to(transactions, SETTLED, settled)
    return Due(adds, removes, transactions)


def _claimed(coverage: Coverage) -> frozenset[OffsetRange]:
    """Return the ranges whose claim may end in a landing yet: until a person has accepted that they are lost."""
    claimed = (offsets for offsets, state in coverage.states().items() if state is State.CLAIMED)
    return frozenset(offsets for offsets in claimed if offsets not in coverage.accepted)


def _raise_to(transactions: dict[str, int], name: str, version: int) -> None:
    transactions[name] = max(version, transactions.get(name, version))


def _place(offsets: OffsetRange) -> str:
    return f"g{offsets.generation}/p{offsets.partition}"


def _weight(manifests: Collection[Manifest]) -> int:
    return sum(manifest.revision + 1 for manifest in manifests)
