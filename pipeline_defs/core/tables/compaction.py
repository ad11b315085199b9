"""Compaction: which small files of a table become one larger file, and whether that file has their rows.

Pure, and without a clock. Invariant: a compacted file of a raw table has all ranges between its first offset and its last,
each as it is landed, so nothing can land between them any more. `decoded_table` chooses the files of a decoded table.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..log.coverage import Coverage, State
from ..log.manifest import Manifest
from ..offsets import OffsetRange, Stretches, find_misplaced
from .delta import File, Snapshot
from .raw_table import WEIGHT, RangeFiles, offsets_of, ranges_by_file

FOOTER_BYTES = 3_000  # about what a file takes beside its rows, which compaction saves
FILES_AT_ONCE = 2_000  # read by one Spark task
MANY_FILES = 1_000  # that wait in a table for more; above that they are compacted even below the target size
MOST_FILES = 5_000  # of a table; above that the target size grows


class CompactionOutcome(StrEnum):
    """What became of a group of files."""

    COMPACTED = "compacted"
    OVERTAKEN = "overtaken"  # one of them left the table meanwhile: another process compacted it, or a range was replaced
    FAILED = "failed"  # nothing was committed, the table stays as it was


@dataclass(frozen=True, slots=True)
class Group:
    """Files of a table that become one; `key` describes their ranges to a person."""

    files: Sequence[File]
    key: str

    @property
    def rows(self) -> int:
        """Number of rows that the compacted file must have."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Size of the files together."""
        return sum(file.bytes for file in self.files)

    @property
    def weight_bytes(self) -> int:
        """About how many bytes the compacted file would have if it compressed no better."""
        return sum(weight_of(file) for file in self.files)

    def is_in(self, table: Snapshot) -> bool:
        """Return whether a version has these files still, so that their rows may come from the compacted file instead."""
        return all(file.path in table.files for file in self.files)


@dataclass(frozen=True, slots=True)
class RawGroup(Group):
    """Files of a raw table, in offset order, with the revisions of all ranges in them by where they start.

    `empty` are the ranges without rows among these, as landed: no file of the table changes with them.
    """

    offsets: OffsetRange
    revisions: Mapping[int, int]
    empty: Sequence[Manifest] = ()

    def is_in(self, table: Snapshot) -> bool:
        """Return whether a version has these files still, and no other between them: an empty range may have got rows."""
        present = [path for path, file in table.files.items() if offsets_of(file).overlaps(self.offsets)]
        return {*present} == {file.path for file in self.files}


@dataclass(frozen=True, slots=True)
class CompactionVerdict:
    """The outcome of a group, with the compacted file, or with what was violated."""

    group: Group
    outcome: CompactionOutcome
    file: File | None = None
    violations: Sequence[str] = ()


def find_groups(coverage: Coverage, table: Snapshot, target_bytes: int, *, every: bool = False) -> list[RawGroup]:
    """Find what to compact of a raw table: neighbouring files, in offset order, until they weigh `target_bytes`.

    A file that weighs that much by itself stays as it is.
    """
    files, ranges = RangeFiles(table), ranges_by_file(coverage, table)
    whole = [file for path, file in table.files.items() if are_all_of(file, ranges.get(path, ()), coverage)]
    inside = {manifest.offsets for file in whole for manifest in ranges[file.path]}
    walls = [each for each in coverage.states() if each not in inside and not _is_empty(each, coverage, files)]
    chosen = choose_files(_find_neighbours(whole, walls), grown(target_bytes, table), every=every)
    landed = sorted(coverage.manifests.values(), key=lambda manifest: manifest.offsets)
    return [_group(group, landed) for group in chosen]


def may_be_due(coverage: Coverage, table: Snapshot, target_bytes: int) -> bool:
    """Return whether a raw table may have neighbours to compact: ranges that the coverage lacks are taken for landed.

    It is called often, with a coverage of unsettled ranges only; `find_groups` finds the files.
    """
    walls = [offsets for offsets, state in coverage.states().items() if state is not State.LANDED]
    return bool(choose_files(_find_neighbours(table.files.values(), walls), grown(target_bytes, table)))


def are_all_of(file: File, manifests: Sequence[Manifest], coverage: Coverage) -> bool:
    """Return whether ranges are landed and cover all of a file's offsets."""
    is_landed = all(coverage.is_landed(manifest.offsets) for manifest in manifests)
    return is_landed and sum(len(manifest.offsets) for manifest in manifests) == len(offsets_of(file))


def _is_empty(offsets: OffsetRange, coverage: Coverage, files: RangeFiles) -> bool:
    """Return whether a link is a landed range without rows that the table has in no file either."""
    is_landed = coverage.states()[offsets] is State.LANDED
    return is_landed and not coverage.manifests[offsets].rows and files.find(offsets) is None


def _find_neighbours(files: Iterable[File], walls: Iterable[OffsetRange]) -> list[list[File]]:
    """Return files of a raw table by stretch, in offset order: of one Kafka partition, with no wall between them."""
    stretches: list[list[File]] = []
    bounds, before = sorted(walls), None
    for file in sorted(files, key=offsets_of):
        offsets = offsets_of(file)
        here = offsets.place, bisect_left(bounds, offsets)
        if here != before:
            stretches.append([])
        stretches[-1].append(file)
        before = here
    return stretches


def _group(files: Sequence[File], landed: Sequence[Manifest]) -> RawGroup:
    """Return the group of neighbouring files; `landed` are sorted."""
    first, last = offsets_of(files[0]), offsets_of(files[-1])
    offsets = OffsetRange(first.generation, first.partition, first.start, last.end)
    at, behind = (
        bisect_left(landed, (*offsets.place, edge), key=lambda manifest: (*manifest.offsets.place, manifest.offsets.start))
        for edge in (offsets.start, offsets.end)
    )
    revisions = {manifest.offsets.start: manifest.revision for manifest in landed[at:behind]}
    empty = [manifest for manifest in landed[at:behind] if not manifest.rows]
    return RawGroup(files, offsets.key, offsets, revisions, empty)


def grown(target_bytes: int, table: Snapshot) -> int:
    """Return the target size for a table: a large table gets larger files, so that there are not too many."""
    return max(target_bytes, sum(file.bytes for file in table.files.values()) // MOST_FILES)


def choose_files(stretches: Iterable[Sequence[File]], target_bytes: int, *, every: bool = False) -> list[Sequence[File]]:
    """Choose the files of stretches that become one, in their order.

    The last files of a stretch, which together weigh less than the target, wait for more, unless `every` is set. Once more
    than `MANY_FILES` wait, those are compacted that weigh no more than the files after them together: so a row is rewritten
    as often as its file doubles, not each time.
    """
    groups, tails = list[Sequence[File]](), list[Sequence[File]]()
    for stretch in stretches:
        *full, tail = _cut_at(stretch, target_bytes)
        groups += full
        tails.append(tail if every else _lighter(tail))
    if every or sum(len(tail) for tail in tails if len(tail) > 1) > MANY_FILES:
        groups += tails
    return [group for group in groups if len(group) > 1]


def _cut_at(stretch: Sequence[File], target_bytes: int) -> Iterator[Sequence[File]]:
    """Yield groups cut where they weigh enough, at large files, or at `FILES_AT_ONCE`; the last is the rest, maybe empty."""
    group, weight = list[File](), 0
    for file in stretch:
        added = weight_of(file)
        if added >= target_bytes or len(group) >= FILES_AT_ONCE:
            yield group
            group, weight = [], 0
        if added < target_bytes:
            group.append(file)
            weight += added
        if weight >= target_bytes:
            yield group
            group, weight = [], 0
    yield group


def _lighter(tail: Sequence[File]) -> Sequence[File]:
    """Return the last files, of which none weighs more than those after it together."""
    weight = 0
    for number in range(len(tail) - 1, -1, -1):
        added = weight_of(tail[number])
        if weight and added > weight:
            return tail[number + 1 :]
        weight += added
    return tail


def weight_of(file: File) -> int:
    """Return about how many bytes a file adds to a compacted one; a compacted file keeps the weight of its sources."""
    own = max(1, file.bytes - FOOTER_BYTES) if file.rows else 0
    return max(own, int(file.tags.get(WEIGHT, 0)))


def verify_compacted(topic: str, group: RawGroup, rows: int, stretches: Stretches, difference: str | None) -> list[str]:
    """Return every violation of a staged compacted file; where there is none, it may be committed.

    `rows` is the number in its footer, `stretches` are its offsets, `difference` is how its rows differ from its files'.
    """
    where = f"compacted file of {group.offsets.text(topic)}"
    found = sum(end - start for start, end in stretches)
    violations = [f"{where}: {difference}"] if difference else []
    if not group.rows == rows == found:
        violations.append(f"{where}: its files have {group.rows} rows, its footer says {rows}, its offset column has {found}")
    return violations + find_misplaced(where, group.offsets, stretches)
