"""The raw table of a topic: a Delta table of all that is landed, whose files are the landed ones under a second name.

    tables/raw/<topic>/<g0>-<p0003>-<start20>-<end20>.r<rev>.parquet    a hard link; a copy within an object store
    tables/raw/<topic>/_delta_log/                                      which of them are its files

A run appends what it has landed before it ends, and whatever a run before it has left out. The landed file may be
exchanged or deleted afterwards: the table has its own name for it, which no other file is ever given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count

from .core.coverage import Coverage
from .core.delta import EMPTY, Commit, File, Snapshot
from .core.errors import DamagedFile, LakeUnavailable, OffsetlakeError, unforeseen
from .core.manifest import Manifest, StagedFile
from .core.offsets import OffsetRange
from .core.raw_table import (
    DIGEST,
    SCHEMA,
    file_of,
    files_by_range,
    find_due,
    find_due_by_files,
    find_unwanted,
    name_of,
    number_of,
    revision_of,
)
from .edges import parquet
from .edges.delta_log import CHECKPOINT_EVERY, DeltaLog
from .edges.lake import Lake
from .edges.layout import manifest_path
from .steps import StepWatcher, no_step

VACUUM_AFTER_SECONDS = 7 * 24 * 3600.0  # a reader may stay with a version for so long


class _Replaced(Exception):
    """A range has a later revision since it was read: what was linked may be either's."""


def log_of(topic: str, lake: Lake) -> DeltaLog:
    """Return the log of a topic's raw table."""
    return DeltaLog(lake.store, f"tables/raw/{topic}", SCHEMA)


def append_landed(
    topic: str,
    lake: Lake,
    now_ms: Callable[[], int],
    doubted: Collection[OffsetRange] = (),
    on_step: StepWatcher = no_step,
) -> int:
    """Have the table of a topic name all that is landed; return its version, -1 while there is nothing to name.

    Of `doubted` ranges, which were read again, the table's file is held against its digest: where it is rotten, the landed
    one takes its place under a new name. Any number of processes may append at once: who is second to write a version looks
    again at what is left.
    """
    log = log_of(topic, lake)
    while True:
        table = log.read_head()
        # coverage is read after the table: what that names was landed before
        due = None if doubted else find_due(lake.coverage(topic), table)
        if due is None:
            table = log.read()
            coverage = lake.coverage(topic)
            due = find_due_by_files(coverage, table, _find_rotten(doubted, coverage, table, lake, log))
        if due.is_none(table) or (table.version == EMPTY and not due.adds):
            return table.version
        try:
            standing = files_by_range(table)
            files = [
                file_of(manifest, _link(manifest, standing.get(manifest.offsets), table, lake, log))
                for manifest in due.adds
            ]
        except _Replaced:
            continue
        on_step("link_to_table", topic=topic, files=len(files))
        at_ms = now_ms()
        if log.commit(Commit(files, dict.fromkeys(due.removes, at_ms), due.transactions), table, at_ms):
            version = table.version + 1
            on_step("append", topic=topic, version=version, files=len(files))
            if version and version % CHECKPOINT_EVERY == 0:
                _write_checkpoint(topic, log, on_step)
            return version


def _write_checkpoint(topic: str, log: DeltaLog, on_step: StepWatcher) -> None:
    try:
        log.write_checkpoint()
    except LakeUnavailable as error:
        on_step("checkpoint_failed", topic=topic, reason=str(error))


def try_append(
    topic: str,
    lake: Lake,
    now_ms: Callable[[], int],
    doubted: Collection[OffsetRange] = (),
    on_step: StepWatcher = no_step,
) -> str | None:
    """Append as `append_landed` does; return why that could not be done, and tell it as a step: what is landed is landed."""
    try:
        append_landed(topic, lake, now_ms, doubted, on_step)
    except OffsetlakeError as error:
        failure = error
    except Exception as error:  # noqa: BLE001 (told by its type: landing and planning do not pay for it)
        failure = unforeseen(error, f"the raw table of {topic}")
    else:
        return None
    on_step("append_failed", topic=topic, reason=str(failure))
    return str(failure)


def _find_rotten(
    doubted: Collection[OffsetRange], coverage: Coverage, table: Snapshot, lake: Lake, log: DeltaLog
) -> set[OffsetRange]:
    """Return the ranges whose file in the table is not as it was added, while the landed one is."""
    rotten = set[OffsetRange]()
    for offsets, file in files_by_range(table).items():
        manifest = coverage.manifests.get(offsets)
        if offsets not in doubted or manifest is None or file.tags[DIGEST] != manifest.digest:
            continue
        own = lake.own_path(manifest)
        is_rotten = _digest(f"{log.folder}/{file.path}", lake) != manifest.digest
        if is_rotten and own is not None and _digest(own, lake) == manifest.digest:
            rotten.add(offsets)
    return rotten


def _digest(path: str, lake: Lake) -> str | None:
    """Return the digest of a file of the lake; none where it is not there, or cannot be read."""
    try:
        with lake.local_copy(path) as copy:
            return parquet.digest(copy)
    except (FileNotFoundError, DamagedFile):
        return None


def _link(manifest: Manifest, standing: File | None, table: Snapshot, lake: Lake, log: DeltaLog) -> str:
    """Give a landed file a name in the table that no file there had before; return that, below the table's folder.

    `standing` is the file that the table has of the range.
    """
    own, file = lake.own_path(manifest), manifest.file
    if own is None or file is None or lake.store.size(own) != file.bytes:
        raise _not_there(manifest, lake, log)
    is_copy = standing is not None and revision_of(standing) == manifest.revision
    for number in count(number_of(standing.path) + 1 if standing is not None and is_copy else 0):
        name = name_of(manifest, number)
        path = f"{log.folder}/{name}"
        if name in table.removed or not _is_free_or_same(own, path, file, lake):
            continue
        guard = manifest_path(manifest.topic, manifest.offsets, 0)
        try:
            lake.store.publish(own, path, guard=guard, is_due=lambda: not lake.is_replaced(manifest))
        except FileNotFoundError:
            raise _not_there(manifest, lake, log) from None
        if lake.is_replaced(manifest):  # asked after the copy: a later revision is there before its file is
            raise _Replaced
        if lake.store.size(path) != file.bytes:
            raise _not_there(manifest, lake, log)
        return name
    raise AssertionError("names never end")


def _is_free_or_same(own: str, path: str, file: StagedFile, lake: Lake) -> bool:
    """Return whether a name is free, or another run has given it to the same file: not to one that rotted since."""
    size = lake.store.size(path)
    return size is None or (size == file.bytes and lake.store.is_same(own, path))


def find_unnamed(topic: str, lake: Lake, now_ms: int, older_than_seconds: float = VACUUM_AFTER_SECONDS) -> list[str]:
    """Find the files of a raw table that no version of the last week names, and no later one will; return their paths.

    A link that was made just now is not old, whatever the age of the file that it leads to.
    """
    log, found = log_of(topic, lake), []
    table, coverage = log.read(), lake.coverage(topic)
    names = (path.removeprefix(f"{log.folder}/") for path in lake.store.list(log.folder))
    for name in find_unwanted(names, coverage, table):
        path = f"{log.folder}/{name}"
        left_ms = table.removed[name] if name in table.removed else lake.store.linked_at_ms(path)
        if left_ms is not None and now_ms - left_ms > older_than_seconds * 1000:
            found.append(path)
    return found


def is_vacuum_due(lake: Lake, now_ms: int) -> bool:
    """Return whether `vacuum` finds something to delete, or something to tell: a table that cannot be read."""
    try:
        return any(find_unnamed(topic, lake, now_ms) for topic in lake.store.folders("tables/raw"))
    except OffsetlakeError:  # the run says which, and goes on with the others
        return True


def vacuum(lake: Lake, now_ms: int) -> tuple[list[str], list[OffsetlakeError]]:
    """Delete what `find_unnamed` finds of all raw tables; return the paths, and what ended one table and no other.

    Any number of processes may do so at once.
    """
    deleted, errors = list[str](), list[OffsetlakeError]()
    for topic in lake.store.folders("tables/raw"):
        try:
            for path in find_unnamed(topic, lake, now_ms):
                lake.store.delete_folder(path)
                deleted.append(path)
        except OffsetlakeError as error:
            errors.append(error)
    return deleted, errors


def _not_there(manifest: Manifest, lake: Lake, log: DeltaLog) -> LakeUnavailable:
    return LakeUnavailable(
        f"cannot add range {manifest.offsets.text(manifest.topic)} to the table {lake.store.url(log.folder)}: its landed "
        "file is gone, or not as large as its manifest says; the table stays as it was; `offsetlake audit` names the file",
        path=log.folder,
    )
