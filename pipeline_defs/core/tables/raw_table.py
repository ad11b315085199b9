"""What the raw table of a topic has, and owes: in which of its files a range is, and which landed ranges are in none yet.

A file has the rows of one range, or, compacted, of all ranges between two offsets of a Kafka partition; a range without rows
needs none. Its app transactions, where offsets only grow:

    g0/p3        the offset of Kafka partition 3, generation 0, up to which all is settled: readers of a prefix stop there
    g0/p3/end    the end of the last range of it that the table has; beyond the offset above where there is a gap
    settled      revision + 1, summed over the ranges that it has or that are landed without rows
    columns      how many columns its schema has: where we know more, the next append adds them
"""

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..advice import command
from ..errors import BrokenTable
from ..log.coverage import Coverage, State, how_to_restore
from ..log.document import UNREADABLE, place_text
from ..log.manifest import Manifest, StagedFile
from ..offsets import OffsetRange, parse_key
from ..raw_columns import RAW_COLUMNS, RawType
from .delta import EMPTY, MEND, File, Snapshot


def _struct(columns: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return {"type": "struct", "fields": fields}


SETTLED, COLUMNS = "settled", "columns"
_HEADERS = {"type": "array", "elementType": _struct([("key", "string"), ("value", "binary")]), "containsNull": True}
# the columns of a landed file, as Delta writes them; a test compares the two
SCHEMA = json.dumps(
    _struct([(column.name, _HEADERS if column.type is RawType.HEADERS else column.type) for column in RAW_COLUMNS]),
    separators=(",", ":"),
)
_OF_RANGE = re.compile(r"g(\d+)-p(\d+)-(\d{20})-(\d{20})\.r(\d+)(?:\.(?P<number>\d+))?\.parquet", re.ASCII)
_COMPACTED = re.compile(r"g\d+-p\d+-\d{20}-\d{20}\.c-[\w-]+\.parquet", re.ASCII)
KEY, REVISION, DIGEST = "range", "revision", "sha256"  # tags of a file; COLUMNS, its number of columns, is one too
REVISIONS = "revisions"  # of a compacted file: revisions that are not 0, by the first offset of their range
WEIGHT = "weight"  # of a compacted file: what its source files weighed together, in bytes


class RangeFiles:
    """The files of a table by range: a range is in one of them at most."""

    def __init__(self, table: Snapshot) -> None:
        places: dict[tuple[int, int], list[tuple[int, int, File]]] = defaultdict(list)
        for file in table.files.values():
            offsets = offsets_of(file)
            places[offsets.generation, offsets.partition].append((offsets.start, offsets.end, file))
        self._places = {place: sorted(files, key=lambda each: each[:2]) for place, files in places.items()}

    def find(self, offsets: OffsetRange) -> File | None:
        """Return the file that has a range."""
        files = self._places.get((offsets.generation, offsets.partition), [])
        at = bisect_right(files, offsets.start, key=lambda each: each[0]) - 1
        return files[at][2] if at >= 0 and _has(offsets, *files[at]) else None

    def find_at(self, manifest: Manifest) -> File | None:
        """Return the file that has a range in exactly the revision of a manifest."""
        file = self.find(manifest.offsets)
        return file if file is not None and revision_in(file, manifest.offsets) == manifest.revision else None

    def find_clash(self, offsets: OffsetRange) -> File | None:
        """Return a file that overlaps a range and does not have it."""
        files = self._places.get(offsets.place, [])
        at = bisect_right(files, offsets.start, key=lambda each: each[0])
        for start, end, file in files[max(0, at - 1) : at + 1]:
            if start < offsets.end and offsets.start < end and not _has(offsets, start, end, file):
                return file
        return None

    def overlaps(self) -> Iterator[tuple[File, File]]:
        """Yield pairs of files that overlap, which no two may."""
        for files in self._places.values():
            for (_, end, one), (start, _, other) in pairwise(files):
                if start < end:
                    yield one, other


def _has(offsets: OffsetRange, start: int, end: int, file: File) -> bool:
    """Return whether a file with the rows between two offsets has a range: exactly this one, or, compacted, each within."""
    return (
        start <= offsets.start and offsets.end <= end and (is_compacted(file) or (start, end) == (offsets.start, offsets.end))
    )


@dataclass(frozen=True, slots=True)
class Due:
    """The change that a table owes: manifests of ranges to add, paths to remove, and its app transactions after that.

    `cuts` are compacted files among those to remove, with their ranges that changed: the other ranges stay, in files that are
    cut out of them.
    """

    adds: Sequence[Manifest]
    removes: Sequence[str]
    transactions: Mapping[str, int]
    cuts: Mapping[str, Sequence[OffsetRange]] = field(default_factory=dict)

    def is_none(self, table: Snapshot) -> bool:
        """Return whether the table owes nothing."""
        return not self.adds and not self.removes and self.transactions == table.transactions


def find_due(coverage: Coverage, head: Snapshot) -> Due | None:
    """Return what a table owes, from its app transactions alone; none where these cannot tell, and its files must be read.

    They can tell where the table has nothing beyond a gap: then it has what is landed below its frontier, and nothing beyond.
    An equal sum proves that nothing else was landed, and nothing replaced. They cannot tell where the table lacks columns or a
    new range was dropped already.
    """
    reached, manifests = head.transactions, coverage.manifests
    is_silent = head.version != EMPTY and not reached  # the last commit is not ours, or is torn
    if (
        is_silent
        or lacks_columns(head)
        or any(reached.get(f"{name}/end", version) > version for name, version in reached.items())
    ):
        return None
    new = list[Manifest]()
    for offsets in filter(coverage.is_landed, sorted(manifests)):
        frontier = reached.get(place_text(offsets.place), 0)
        if offsets.start >= frontier:
            new.append(manifests[offsets])
        elif offsets.end > frontier:  # the table has part of it, in another range
            return None
    if any(manifest.is_dropped for manifest in new):
        return None
    settled = reached.get(SETTLED, 0) + sum(manifest.revision + 1 for manifest in new)
    if settled != coverage.weight():
        return None
    return _due(coverage, head, new, [], settled)


def lacks_columns(table: Snapshot) -> bool:
    """Return whether a table was written by an earlier version of Offsetlake, which had fewer columns."""
    return table.version != EMPTY and table.transactions.get(COLUMNS, 0) < len(RAW_COLUMNS)


def has_all_columns(file: File) -> bool:
    """Return whether a file has all columns, as its tag says; an earlier version of Offsetlake wrote fewer."""
    with _reading_tags(file):
        return int(file.tags.get(COLUMNS, 0)) >= len(RAW_COLUMNS)


def find_due_by_files(
    coverage: Coverage, table: Snapshot, rotten: Collection[OffsetRange] = (), uncut: Collection[str] = ()
) -> Due:
    """Return what a table owes, from its files; the file of a range that is `rotten` is replaced by one of another name.

    A range whose landed file somebody deleted stays in the table, and so do all ranges of the files with paths `uncut`,
    unchanged.
    """
    files = RangeFiles(table)
    new, removes, cuts = list[Manifest](), list[str](), dict[str, list[OffsetRange]]()
    settled = 0
    for offsets, manifest in sorted(coverage.manifests.items()):
        file = files.find(offsets)
        is_due = coverage.is_landed(offsets) and (
            file is None or (file.path not in uncut and (revision_in(file, offsets) < manifest.revision or offsets in rotten))
        )
        if is_due:
            new.append(manifest)
        if is_due and file is not None:
            if is_compacted(file):
                cuts.setdefault(file.path, []).append(offsets)
            else:
                removes.append(file.path)
        if is_due:
            settled += manifest.revision + 1
        elif file is not None:
            settled += min(revision_in(file, offsets), manifest.revision) + 1  # the file's is later where its manifest is lost
    return _due(coverage, table, new, [*removes, *cuts], settled, cuts)


def find_lacking(coverage: Coverage, files: RangeFiles) -> list[str]:
    """Name the dropped ranges whose rows, which only the table had, it does not have."""
    dropped = (each for each in coverage.manifests.values() if each.is_dropped and each.rows)
    return [
        f"range {each.offsets.text(each.topic)}: its file was dropped, and it is not in the table"
        for each in dropped
        if files.find_at(each) is None
    ]


def find_clashes(coverage: Coverage, files: RangeFiles) -> list[str]:
    """Name the landed ranges whose offsets the table has in other ranges: these are of a plan log that was lost since."""
    topic = coverage.log.topic
    clashes = ((offsets, files.find_clash(offsets)) for offsets in sorted(coverage.manifests) if coverage.is_landed(offsets))
    return [
        f"range {offsets.text(topic)}: the table has {offsets_of(file).text(topic)} in its place, which no plan step has"
        for offsets, file in clashes
        if file is not None
    ]


def is_as_landed(file: File, manifest: Manifest) -> bool:
    """Return whether, by the table's log, a file has a range in its landed revision, and a range's own file that digest."""
    is_same = is_compacted(file) or file.tags[DIGEST] == manifest.digest
    return is_same and revision_in(file, manifest.offsets) == manifest.revision


def is_compacted(file: File) -> bool:
    """Return whether a file has the rows of all ranges between two offsets."""
    return REVISIONS in file.tags


def offsets_of(file: File) -> OffsetRange:
    """Return the offsets whose rows a file has: of one range, or of several that tile; raise `BrokenTable`."""
    with _reading_tags(file):
        return parse_key(file.tags[KEY])


def revision_in(file: File, offsets: OffsetRange) -> int:
    """Return the revision in which a file has a range; raise `BrokenTable`."""
    if is_compacted(file):
        return revisions_of(file).get(offsets.start, 0)
    with _reading_tags(file):
        return int(file.tags[REVISION])


def revisions_of(file: File) -> Mapping[int, int]:
    """Return the revisions other than 0 of a compacted file's ranges, by their first offsets; raise `BrokenTable`."""
    with _reading_tags(file):
        return {int(start): revision for start, revision in json.loads(file.tags[REVISIONS]).items()}


@contextmanager
def _reading_tags(file: File) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise BrokenTable(
            f"the log of the raw table says of its file {file.path} what no version of Offsetlake writes; nothing was written; "
            f"{MEND}"
        ) from error


def name_of(manifest: Manifest, number: int = 0) -> str:
    """Return the name of a range's file in the table; a higher `number` names the copy that replaces a rotten file."""
    name = f"{stem_of(manifest.offsets)}.r{manifest.revision:03d}"
    return f"{name}.{number}.parquet" if number else f"{name}.parquet"


def compacted_name(offsets: OffsetRange, compaction: str) -> str:
    """Return the name of a compacted file, which no other compaction uses."""
    return f"{stem_of(offsets)}.c-{compaction}.parquet"


def is_compacted_name(path: str) -> bool:
    """Return whether a path ends in the name of a compacted file."""
    return _COMPACTED.fullmatch(path.rpartition("/")[2]) is not None


def stem_of(offsets: OffsetRange) -> str:
    """Return the beginning of the names of a range's files in a table."""
    return f"g{offsets.generation}-p{offsets.partition:04d}-{offsets.stem}"


def number_of(name: str) -> int:
    """Return the number of a file among the copies of its range's revision; 0 for the first."""
    found = _OF_RANGE.fullmatch(name)
    return int(found["number"] or 0) if found else 0


def find_unwanted(names: Iterable[str], coverage: Coverage, table: Snapshot) -> list[str]:
    """Return the names of files that no version will name any more: those of an earlier revision or copy than the newest.

    So are those of a range that is compacted, and of a compaction that was not committed. A range's file that the log does not
    name yet is wanted, and names that are not ours are left alone.
    """
    files = RangeFiles(table)
    unwanted = []
    for name in sorted(set(names) - table.files.keys()):
        found = _OF_RANGE.fullmatch(name)
        if found is None:
            if is_compacted_name(name):
                unwanted.append(name)
            continue
        generation, partition, start, end, revision = (int(each) for each in found.groups()[:5])
        offsets = OffsetRange(generation, partition, start, end)
        manifest, file = coverage.manifests.get(offsets), files.find(offsets)
        is_older = manifest is not None and revision < manifest.revision
        is_copied = file is not None and (revision, number_of(name)) < (
            revision_in(file, offsets) + is_compacted(file),
            number_of(file.path),
        )
        if is_older or is_copied:
            unwanted.append(name)
    return unwanted


def file_of(manifest: Manifest, path: str) -> File:
    """Return the Delta log's entry of a range's file, with statistics by which readers skip files."""
    staged, offsets = manifest.file, manifest.offsets
    if staged is None:
        raise ValueError(f"range {offsets.text(manifest.topic)} has no file")
    tags = {REVISION: str(manifest.revision), COLUMNS: str(len(manifest.schema))}
    return range_file(path, offsets, staged, manifest.provenance.landed_at_ms, tags)


def compacted_file(
    path: str, offsets: OffsetRange, staged: StagedFile, revisions: Mapping[int, int], made_at_ms: int, weight_bytes: int = 0
) -> File:
    """Return the Delta log's entry of a compacted file; `revisions` are those of its ranges, by their first offsets."""
    later = {str(start): revision for start, revision in sorted(revisions.items()) if revision}
    tags = {REVISIONS: json.dumps(later, separators=(",", ":")), WEIGHT: str(weight_bytes)}
    return range_file(path, offsets, staged, made_at_ms, tags)


def range_file(path: str, offsets: OffsetRange, staged: StagedFile, made_at_ms: int, tags: Mapping[str, str]) -> File:
    """Return the Delta log's entry of a file with rows of these offsets."""
    all_tags = {KEY: offsets.key, DIGEST: staged.sha256, **tags}
    return File(path, staged.bytes, made_at_ms, stats_of(staged, [offsets]), all_tags)


def stats_of(staged: StagedFile, ranges: Sequence[OffsetRange]) -> dict[str, Any]:
    """Return Delta's statistics of a file with rows of these ranges: their number, and bounds of their place."""
    stats: dict[str, Any] = {"numRecords": staged.rows}
    if staged.rows:
        generations, partitions = ({getattr(each, name) for each in ranges} for name in ("generation", "partition"))
        for name, chosen, offset in (("minValues", min, staged.min_offset), ("maxValues", max, staged.max_offset)):
            stats[name] = {"generation": chosen(generations), "partition": chosen(partitions), "offset": offset}
        stats["nullCount"] = {"generation": 0, "partition": 0, "offset": 0}
    return stats


def violations(coverage: Coverage, table: Snapshot, in_progress: Collection[OffsetRange] = ()) -> list[str]:
    """Name every landed range that a table does not have as landed, and every file without its ranges' rows.

    A range that is `in_progress` in a run may be missing, since it is about to be appended.
    """
    topic, due, files = coverage.log.topic, find_due_by_files(coverage, table), RangeFiles(table)
    adds = (manifest.offsets for manifest in due.adds if manifest.offsets not in in_progress and not manifest.is_dropped)
    do = f"the next run appends it, or `{command('compact', topic, '--apply')}`"
    found = [f"range {offsets.text(topic)}: landed, and not in the table; {do}" for offsets in adds]
    found += [*find_lacking(coverage, files), *find_clashes(coverage, files)]
    found += [f"offsets are in the table twice: {one.path} and {other.path}" for one, other in files.overlaps()]
    found += [
        f"range {offsets.text(topic)}: the table has revision {revision_in(file, offsets)} of it, its manifest {each.revision}"
        for offsets, each in sorted(coverage.manifests.items())
        if (file := files.find(offsets)) is not None and revision_in(file, offsets) > each.revision
    ]
    ranges = ranges_by_file(coverage, table)
    changing = {*due.cuts, *(file.path for file in map(files.find, coverage.unfinished) if file)}  # cut soon
    for file in sorted(table.files.values(), key=lambda file: file.path):
        offsets = offsets_of(file)
        manifest = coverage.manifests.get(offsets)
        if is_compacted(file):
            rows = sum(each.rows for each in ranges.get(file.path, ()))
            if file.path not in changing and rows != file.rows:
                found.append(f"{offsets.text(topic)}: the table has {file.rows} rows, the manifests {rows}")
        elif manifest is None:
            is_planned = offsets in coverage.log.ranges
            advice = how_to_restore(coverage, offsets) if is_planned else f"no plan step has it either: {MEND}"
            found.append(f"range {offsets.text(topic)}: in the table, and it has no manifest: {advice}")
        elif revision_in(file, offsets) == manifest.revision and not is_as_landed(file, manifest):
            found.append(
                f"range {offsets.text(topic)}: the table has sha256 {file.tags[DIGEST]}, its manifest {manifest.digest}"
            )
    return found


def how_to_mend(coverage: Coverage, url: str) -> str:
    """Return what to do about files of a table that are gone or changed."""
    if coverage.dropped():
        return "restore these files from a backup"
    return f"move {url} away, and the next run makes the table anew"


def ranges_by_file(coverage: Coverage, table: Snapshot) -> dict[str, list[Manifest]]:
    """Return by path the manifests of the ranges that each file of a table has in their newest revision, in offset order."""
    files, found = RangeFiles(table), dict[str, list[Manifest]]()
    for _, manifest in sorted(coverage.manifests.items()):
        file = files.find_at(manifest)
        if file is not None:
            found.setdefault(file.path, []).append(manifest)
    return found


def _due(
    coverage: Coverage,
    table: Snapshot,
    new: Sequence[Manifest],
    removes: Sequence[str],
    settled: int,
    cuts: Mapping[str, Sequence[OffsetRange]] | None = None,
) -> Due:
    transactions = dict(table.transactions)
    for generation in {generation for generation, _ in coverage.ends()}:
        for partition, end in coverage.frontier(generation, _claimed(coverage)).items():
            _raise_to(transactions, place_text((generation, partition)), end)
    for manifest in new:  # those without rows too: their weight is settled
        _raise_to(transactions, f"{place_text(manifest.offsets.place)}/end", manifest.offsets.end)
    _raise_to(transactions, COLUMNS, len(RAW_COLUMNS))
    transactions[SETTLED] = settled  # less than before where somebody has deleted the manifest of a replaced range
    return Due([manifest for manifest in new if manifest.rows], removes, transactions, cuts or {})


def _claimed(coverage: Coverage) -> frozenset[OffsetRange]:
    """Return the claimed ranges that may still land: those whose loss no person has accepted."""
    claimed = (offsets for offsets, state in coverage.states().items() if state is State.CLAIMED)
    return frozenset(offsets for offsets in claimed if offsets not in coverage.accepted)


def _raise_to(transactions: dict[str, int], name: str, version: int) -> None:
    transactions[name] = max(version, transactions.get(name, version))
