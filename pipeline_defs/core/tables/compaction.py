"""Compaction: which small files of a table become one larger file, and whether that has their rows.

Pure, and without a clock. Invariant: a compacted file of a raw table has all ranges between its first offset and its last,
each as it is landed: nothing can land between them any more. Which files of a decoded table become one says `decoded_table`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from ..log.coverage import Coverage, State
from ..offsets import OffsetRange, Place, find_backward
from .delta import File, Snapshot
from .raw_table import WEIGHT, RangeFiles, offsets_of, revision_in

FOOTER_BYTES = 3_000  # about what a file takes beside its rows: many small ones become less than their sum
FILES_AT_ONCE = 2_000  # read by one Spark task
MANY_FILES = 1_000  # that wait in a table for more; above that they are compacted though they weigh little
MOST_FILES = 5_000  # of a table; above that files become larger than they are asked to be


M = TypeVar("M", bound="File | _Member")


class CompactionOutcome(StrEnum):
    """What became of a group of files."""

    COMPACTED = "compacted"
    OVERTAKEN = "overtaken"  # one of them left the table meanwhile: somebody else compacted it, or a range was replaced
    FAILED = "failed"  # nothing was committed, the table stays as it was


@dataclass(frozen=True, slots=True)
class Group:
    """Files of a table that become one; `key` says to a person what is in them."""

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
        """About how many bytes the compacted file would have, did it compress no better."""
        return sum(weight_of(file) for file in self.files)


@dataclass(frozen=True, slots=True)
class RawGroup(Group):
    """Files of a raw table, in offset order, with the revisions of all ranges in them by where they start."""

    offsets: OffsetRange
    revisions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CompactionVerdict:
    """What became of a group, with the compacted file, or with what was violated."""

    group: Group
    outcome: CompactionOutcome
    file: File | None = None
    violations: Sequence[str] = ()


def find_groups(coverage: Coverage, table: Snapshot, target_bytes: int, *, every: bool = False) -> list[RawGroup]:
    """Find what to compact of a raw table: neighbours from the left, until they weigh `target_bytes`.

    A file that weighs so much stays as it is.
    """
    target_bytes = _grown(target_bytes, table)
    cut = [[*_cut_at(stretch, target_bytes)] for stretch in _stretches(coverage, table)]
    chosen = _with_tails(cut, lambda group: len(_files(group)), every=every)
    return [_group(_trimmed(group)) for group in chosen if len(_files(group)) > 1]


def may_be_due(coverage: Coverage, table: Snapshot, target_bytes: int) -> bool:
    """Return whether files of a raw table may be neighbours to compact: all is taken for landed that a coverage does not have.

    It is asked often, and of what is not settled alone; `find_groups` says which they are.
    """
    walls = sorted(offsets for offsets, state in coverage.states().items() if state is not State.LANDED)
    stretches: list[list[File]] = []
    before: OffsetRange | None = None
    for file in sorted(table.files.values(), key=offsets_of):
        offsets = offsets_of(file)
        at = bisect_left(walls, before) if before is not None else 0
        is_next = before is not None and before.place == offsets.place and not (at < len(walls) and walls[at] < offsets)
        if not is_next:
            stretches.append([])
        stretches[-1].append(file)
        before = offsets
    return bool(choose_files(stretches, table, target_bytes))


def choose_files(
    stretches: Iterable[Sequence[File]], table: Snapshot, target_bytes: int, *, every: bool = False
) -> list[Sequence[File]]:
    """Choose which files of some stretches become one, in their order; those that weigh `target_bytes` are left out."""
    target_bytes = _grown(target_bytes, table)
    small = ([file for file in files if weight_of(file) < target_bytes] for files in stretches)
    chosen = _with_tails([[*_cut_at(files, target_bytes)] for files in small], len, every=every)
    return [group for group in chosen if len(group) > 1]


def _grown(target_bytes: int, table: Snapshot) -> int:
    """Return the target of a table: a large one has larger files than are asked for, lest it have too many."""
    return max(target_bytes, sum(file.bytes for file in table.files.values()) // MOST_FILES)


def _with_tails(cut: Iterable[Sequence[Sequence[M]]], count: Callable[[Sequence[M]], int], *, every: bool) -> list[Sequence[M]]:
    """Return the groups of all stretches that are due, of each of which the last one weighs less than the target.

    These tails wait for more, unless `every` is set. Of more than a thousand such files those are compacted that weigh less
    than the ones behind them together: so each row is written again as often as its file has doubled, not each time.
    """
    groups, tails = list[Sequence[M]](), list[Sequence[M]]()
    for *full, tail in cut:
        groups += full
        tails.append(tail if every else _lighter(tail))
    if every or sum(count(tail) for tail in tails if count(tail) > 1) > MANY_FILES:
        groups += tails
    return groups


def _cut_at(stretch: Sequence[M], target_bytes: int) -> Iterator[Sequence[M]]:
    """Yield groups that weigh enough, or that large files or many enclose; the last one is what is left, if anything."""
    group, weight = list[M](), 0
    for member in stretch:
        added = weight_of(member)
        if added >= target_bytes or len(group) >= FILES_AT_ONCE:
            yield group
            group, weight = [], 0
        if added < target_bytes:
            group.append(member)
            weight += added
        if weight >= target_bytes:
            yield group
            group, weight = [], 0
    yield group


def _lighter(tail: Sequence[M]) -> Sequence[M]:
    """Return the last members, of which none weighs more than those behind it together."""
    weight = 0
    for number in range(len(tail) - 1, -1, -1):
        added = weight_of(tail[number])
        if weight and added > weight:
            return tail[number + 1 :]
        weight += added
    return tail


@dataclass(frozen=True, slots=True)
class _Member:
    """A file of a stretch, or a landed range without rows, which has none; and the revisions of its ranges."""

    offsets: OffsetRange
    file: File | None
    revisions: Mapping[int, int]


def _stretches(coverage: Coverage, table: Snapshot) -> Iterator[list[_Member]]:
    """Yield what is contiguous in a Kafka partition, landed, and in the table as it is landed."""
    files = RangeFiles(table)
    by_place: dict[Place, list[OffsetRange]] = defaultdict(list)
    for offsets in coverage.states():
        by_place[offsets.place].append(offsets)
    for _, links in sorted(by_place.items()):
        stretch = list[_Member]()
        for file, ranges in _by_file(links, files):
            member = _member(file, ranges, coverage)
            if member is None and stretch:
                yield stretch
                stretch = []
            if member is not None:
                stretch.append(member)
        if stretch:
            yield stretch


def _by_file(links: Sequence[OffsetRange], files: RangeFiles) -> Iterator[tuple[File | None, list[OffsetRange]]]:
    """Yield the links of a Kafka partition by the file that has them; each alone that no file has."""
    held: tuple[File | None, list[OffsetRange]] | None = None
    for offsets in sorted(links):
        file = files.find(offsets)
        if held is not None and file is not None and held[0] is file:
            held[1].append(offsets)
            continue
        if held is not None:
            yield held
        held = file, [offsets]
    if held is not None:
        yield held


def _member(file: File | None, ranges: Sequence[OffsetRange], coverage: Coverage) -> _Member | None:
    """Return a file with just these ranges, all as they are landed, or a range without rows; none for anything else."""
    manifests = [coverage.manifests[each] for each in ranges if coverage.states()[each] is State.LANDED]
    if len(manifests) != len(ranges):
        return None
    first, last = ranges[0], ranges[-1]
    offsets = OffsetRange(first.generation, first.partition, first.start, last.end)
    if file is None:
        is_settled = not any(each.rows for each in manifests)
    else:
        is_settled = offsets == offsets_of(file) and all(revision_in(file, m.offsets) == m.revision for m in manifests)
    revisions = {each.offsets.start: each.revision for each in manifests}
    return _Member(offsets, file, revisions) if is_settled else None


def _trimmed(group: Sequence[_Member]) -> Sequence[_Member]:
    """Return a group from its first file to its last."""
    at = [number for number, each in enumerate(group) if each.file is not None]
    return group[at[0] : at[-1] + 1] if at else []


def _group(members: Sequence[_Member]) -> RawGroup:
    first, last = members[0].offsets, members[-1].offsets
    revisions = {start: revision for each in members for start, revision in each.revisions.items()}
    offsets = OffsetRange(first.generation, first.partition, first.start, last.end)
    return RawGroup(_files(members), offsets.key, offsets, revisions)


def _files(group: Sequence[_Member]) -> list[File]:
    return [each.file for each in group if each.file is not None]


def weight_of(member: File | _Member) -> int:
    """Return about how many bytes a file adds to a compacted one: that it was compacted makes it no lighter."""
    file = member.file if isinstance(member, _Member) else member
    if file is None:
        return 0
    own = max(1, file.bytes - FOOTER_BYTES) if file.rows else 0
    return max(own, int(file.tags.get(WEIGHT, 0)))


def verify_compacted(
    topic: str, group: RawGroup, rows: int, runs: Sequence[tuple[int, int]], difference: str | None
) -> list[str]:
    """Return every law that a staged compacted file breaks; none means it may be committed.

    `rows` is what its footer says, `runs` are the contiguous half-open runs of its offsets in file order, `difference` is
    what differs from its files, row by row.
    """
    where = f"compacted file of {group.offsets.text(topic)}"
    found = sum(end - start for start, end in runs)
    violations = [f"{where}: {difference}"] if difference else []
    if not group.rows == rows == found:
        violations.append(f"{where}: its files have {group.rows} rows, its footer says {rows}, its offset column has {found}")
    violations += [
        f"{where}: offset {start} follows {end - 1}: offsets are not strictly increasing" for end, start in find_backward(runs)
    ]
    if runs and not (group.offsets.start <= runs[0][0] and runs[-1][1] <= group.offsets.end):
        violations.append(f"{where}: found offsets {runs[0][0]} to {runs[-1][1] - 1}, outside of it")
    return violations
