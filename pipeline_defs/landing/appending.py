"""The raw table of a topic: a Delta table of all that is landed, whose files are the landed ones under a second name.

    tables/raw/<topic>/<g0>-<p0003>-<start20>-<end20>.r<rev>.parquet     a hard link; a copy within an object store
    tables/raw/<topic>/<g0>-<p0003>-<start20>-<end20>.c-<id>.parquet     several ranges in one file (compaction.py)
    tables/raw/<topic>/_delta_log/                                       which of them are its files

A run appends what it has landed before it reports that, and whatever an earlier run left out. The landed file may be
exchanged or deleted afterwards: the table has its own name for it, which is never given to another file.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from ..adapters.lake import parquet
from ..adapters.lake.lake import Lake
from ..adapters.lake.layout import manifest_path
from ..adapters.tables.delta_log import CHECKPOINT_EVERY, DeltaLog, raw_table_log
from ..core.advice import command, counted
from ..core.errors import BrokenTable, DamagedFile, LakeUnavailable, OffsetlakeError, TableFileGone, as_ours
from ..core.log.coverage import Coverage
from ..core.log.manifest import Manifest, StagedFile
from ..core.offsets import OffsetRange, subtract_intervals
from ..core.steps import StepWatcher, no_step
from ..core.tables import raw_table
from ..core.tables.compaction import RawGroup
from ..core.tables.delta import EMPTY, MEND, Commit, File, Snapshot
from ..core.tables.raw_table import COLUMNS, SCHEMA, Due, RangeFiles
from .landed_files import find_differing, has_bytes_of, table_file
from .staging_places import Staging, staging_here, told_if_gone


class _LookAgain(Exception):
    """What is due has changed: a range has a later revision, so the linked file may be of either, or a file cannot be cut."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Ranges that were read again: the landed file replaces the table's where that is rotten or has other rows.

    Rows that only the table has, for example after a manifest was deleted, stay unless a person `replaces` them.
    """

    ranges: Collection[OffsetRange] = ()
    replaces: bool = False


NO_DOUBTS = Doubts()


def append_landed(
    topic: str, lake: Lake, now_ms: Callable[[], int], doubts: Doubts = NO_DOUBTS, on_step: StepWatcher = no_step
) -> int:
    """Add all landed ranges that a topic's table lacks; return its version, -1 while no table exists.

    Any number of processes may append at once: whoever loses the race for a version looks again at what is left. Raise
    `DamagedFile`, after appending the rest, where a compacted file cannot be cut of which a range was replaced. Raise
    `TableFileGone` where the table lacks dropped ranges, and `BrokenTable` where it has ranges that the plan log has not;
    then nothing is appended.
    """
    log, uncut = raw_table_log(topic, lake.store), dict[str, str]()
    while True:
        table = log.read_head()
        coverage = lake.recent(topic)  # read after the table, so it has all that the table names
        due = None if doubts.ranges or uncut else raw_table.find_due(coverage, table)
        if due is None:
            table = log.read()
            coverage = lake.coverage(topic)
            if lost := _why_lost(coverage, table, lake.store.url(log.folder)):
                if log.read_head().version != table.version:  # others have committed between the two reads
                    continue
                raise lost
            due = raw_table.find_due_by_files(coverage, table, _find_wrong(doubts, coverage, table, lake, log), uncut)
        if due.is_none(table) or (table.version == EMPTY and not due.adds):
            if uncut:
                raise _not_cut(uncut, coverage, lake.store.url(log.folder))
            return table.version
        try:
            files = _make_files(due, table, lake, log, now_ms(), uncut)
        except _LookAgain:
            continue
        on_step("link_to_table", topic=topic, files=len(files))
        at_ms = now_ms()
        commit = Commit(files, dict.fromkeys(due.removes, at_ms), due.transactions)
        if log.commit(commit, table, at_ms, SCHEMA if raw_table.lacks_columns(table) else None):
            on_step("append", topic=topic, version=table.version + 1, files=len(files))
            write_checkpoint_if_due(topic, log, table.version + 1, on_step)
            if not uncut:
                return table.version + 1


def _make_files(due: Due, table: Snapshot, lake: Lake, log: DeltaLog, at_ms: int, uncut: dict[str, str]) -> list[File]:
    """Make the files that a commit adds; record in `uncut` by path why a compacted file cannot be cut."""
    before = RangeFiles(table)
    files = [
        raw_table.file_of(manifest, _link(manifest, before.find(manifest.offsets), table, lake, log)) for manifest in due.adds
    ]
    for path, ranges in due.cuts.items():
        try:
            files += _cut(table.files[path], ranges, lake, log, at_ms)
        except DamagedFile as error:
            uncut[path] = str(error)
    if uncut.keys() & due.cuts.keys():
        raise _LookAgain
    return files


def write_checkpoint_if_due(topic: str, log: DeltaLog, version: int, on_step: StepWatcher) -> None:
    """Write the checkpoint that is due at every `CHECKPOINT_EVERY`th version; failing to is reported, and does no harm."""
    if not version or version % CHECKPOINT_EVERY:
        return
    try:
        log.write_checkpoint()
    except LakeUnavailable as error:
        on_step("checkpoint_failed", topic=topic, reason=str(error))


def try_append(
    topic: str, lake: Lake, now_ms: Callable[[], int], doubts: Doubts = NO_DOUBTS, on_step: StepWatcher = no_step
) -> str | None:
    """Append as `append_landed` does; a failure is reported as a step and its reason returned: what is landed is landed."""
    try:
        append_landed(topic, lake, now_ms, doubts, on_step)
    except Exception as error:  # noqa: BLE001 (told by its type: landing and planning must not fail by it)
        reason = str(as_ours(error, f"the raw table of {topic}"))
        on_step("append_failed", topic=topic, reason=reason)
        return reason
    return None


def _find_wrong(doubts: Doubts, coverage: Coverage, table: Snapshot, lake: Lake, log: DeltaLog) -> set[OffsetRange]:
    """Return the ranges whose landed file, which is intact, is to replace the table's."""
    wrong, by_path = set[OffsetRange](), defaultdict[str, list[Manifest]](list)
    files, in_file = RangeFiles(table), raw_table.ranges_by_file(coverage, table)
    for offsets in doubts.ranges:
        manifest, file = coverage.manifests.get(offsets), files.find(offsets)
        if manifest is not None and file is not None:
            by_path[file.path].append(manifest)
    for path, manifests in by_path.items():
        file = table.files[path]
        try:
            found = find_differing(file, manifests, in_file.get(path, ()), log.folder, lake)
            wrong |= {offsets for offsets, alone in found.items() if not alone or doubts.replaces}
        except DamagedFile:
            if not raw_table.is_compacted(file):  # a damaged compacted file cannot be cut
                wrong |= {each.offsets for each in manifests if _is_whole(each, lake)}
    return wrong


def _is_whole(manifest: Manifest, lake: Lake) -> bool:
    """Return whether the landed file of a range is intact; a range without rows needs none."""
    own = lake.own_path(manifest)
    with suppress(DamagedFile):
        return manifest.file is None or (own is not None and has_bytes_of(manifest, own, lake))
    return False


def _link(manifest: Manifest, present: File | None, table: Snapshot, lake: Lake, log: DeltaLog) -> str:
    """Link a landed file under a name that no file of the table ever had; return it, below the table's folder.

    `present` is the file that the table has of the range now.
    """
    own, file = lake.own_path(manifest), manifest.file
    if own is None or file is None or lake.store.size(own) != file.bytes:
        raise _gone(manifest, lake, table, log)
    is_copy = present is not None and raw_table.revision_in(present, manifest.offsets) == manifest.revision
    for number in count(raw_table.number_of(present.path) + 1 if present is not None and is_copy else 0):
        name = raw_table.name_of(manifest, number)
        path = f"{log.folder}/{name}"
        if name in table.removed or not _is_free_or_same(own, path, file, lake):
            continue
        guard = manifest_path(manifest.topic, manifest.offsets, 0)
        try:
            lake.store.publish(own, path, guard=guard, is_due=lambda: not lake.is_replaced(manifest))
        except FileNotFoundError:
            raise _gone(manifest, lake, table, log) from None
        if lake.is_replaced(manifest):  # asked after the copy: a later revision's manifest comes before its file
            raise _LookAgain
        return name
    raise AssertionError("names never end")


def _cut(file: File, ranges: Sequence[OffsetRange], lake: Lake, log: DeltaLog, now_ms: int) -> list[File]:
    """Write the rows of a compacted file, except for those of some changed ranges, to new files of the table.

    Raise `DamagedFile` where it is not what the log says.
    """
    whole, revisions = raw_table.offsets_of(file), raw_table.revisions_of(file)
    left = [
        OffsetRange(whole.generation, whole.partition, start, end)
        for start, end in subtract_intervals([(whole.start, whole.end)], ((each.start, each.end) for each in ranges))
    ]
    made = list[File]()
    with (
        staging_here(f"table-{uuid.uuid4()}", lake) as staging,
        lake.store.explained("write", f"{log.folder}/{file.path}"),
        table_file(file, log.folder, lake) as copy,
    ):
        staging.root.mkdir(parents=True, exist_ok=True)
        for offsets, rows in parquet.read_ranges(copy, left):
            parquet.write(rows, path := staging.root / f"{offsets.key}.parquet")
            part = staging.read_part(path)
            if part is not None:
                own = {start: each for start, each in revisions.items() if start in offsets}
                made.append(add_to_folder(staging, part, RawGroup((), offsets.key, offsets, own), log, now_ms))
    return made


def add_to_folder(staging: Staging, part: parquet.PartFile, group: RawGroup, log: DeltaLog, now_ms: int) -> File:
    """Give a staged file a unique name in a raw table's folder, durably; return its entry for the log.

    The group has its offsets, and the revisions of its ranges.
    """
    staged, path = place_in_folder(staging, part, log, lambda file_id: raw_table.compacted_name(group.offsets, file_id))
    file = raw_table.compacted_file(path, group.offsets, staged, group.revisions, now_ms, group.weight_bytes)
    return replace(file, tags={**file.tags, COLUMNS: str(len(part.schema))})


def place_in_folder(
    staging: Staging, part: parquet.PartFile, log: DeltaLog, to_name: Callable[[str], str]
) -> tuple[StagedFile, str]:
    """Give a staged file a name in a table's folder, durably, made of a unique id; return the staged file and the name."""
    file_id = str(uuid.uuid4())
    staged, path = staging.settle(part, f"compacted-{file_id}"), to_name(file_id)
    staging.bring(part, staged)
    with told_if_gone(staged.path):
        staging.lake.store.publish(staged.path, f"{log.folder}/{path}")
    return staged, path


def _is_free_or_same(own: str, path: str, file: StagedFile, lake: Lake) -> bool:
    """Return whether a name is free, or already given to this very file, by another run, and not to one that rotted since."""
    size = lake.store.size(path)
    return size is None or (size == file.bytes and lake.store.is_same(own, path))


def _not_cut(uncut: Mapping[str, str], coverage: Coverage, url: str) -> DamagedFile:
    return DamagedFile(
        f"{len(uncut)} files of the table {url} cannot be cut, though ranges of them were replaced: they are not what its log "
        f"says; they stay as they are, all else is in the table, and the replaced ranges are in `data/`; "
        f"{raw_table.how_to_mend(coverage, url)}; `{command('audit', coverage.log.topic)}` names all that is amiss",
        [*uncut.values()],
    )


def _why_lost(coverage: Coverage, table: Snapshot, url: str) -> OffsetlakeError | None:
    """Return why a table cannot have all that is landed: it, or the plan log, was restored from an older backup."""
    files = RangeFiles(table)
    if clashes := raw_table.find_clashes(coverage, files):
        return BrokenTable(
            f"the table {url} has ranges that no plan step has, as where a backup has an older plan log: {clashes[0]}; nothing "
            f"was added to it; {MEND}",
            clashes,
        )
    if lacking := raw_table.find_lacking(coverage, files):
        return TableFileGone(
            f"the table {url} does not have {counted(len(lacking), 'range')} whose files were dropped: {lacking[0]}; nothing "
            "was added to it; restore its folder from a backup that has them"
        )
    return None


def _gone(manifest: Manifest, lake: Lake, table: Snapshot, log: DeltaLog) -> Exception:
    """Return the error for a missing landed file; it may have been replaced, or appended and dropped, meanwhile."""
    if lake.newest(manifest) != manifest or log.read_head().version != table.version:
        return _LookAgain()
    return LakeUnavailable(
        f"cannot add range {manifest.offsets.text(manifest.topic)} to the table {lake.store.url(log.folder)}: its landed "
        "file is gone, or not as large as its manifest says; the table stays as it was; `offsetlake audit` names the file",
        path=log.folder,
    )
