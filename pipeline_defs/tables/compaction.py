"""Compaction of tables: read, write, verify, commit; small files become few larger ones, the rows stay the same.

The raw table is here, the decoded one in `decoded_compaction`. `data/` is never touched. The commit decides: before it no
version names the new file, after it each row is in that file only. A crash before it leaves a file that the vacuum deletes.
"""

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..adapters.lake import comparing, parquet
from ..adapters.lake.lake import Lake
from ..adapters.store.remote_file import File
from ..adapters.tables.delta_log import DeltaLog, raw_table_log
from ..core.advice import command
from ..core.errors import DamagedFile, as_ours
from ..core.tables.compaction import (
    CompactionOutcome,
    CompactionVerdict,
    Group,
    RawGroup,
    find_groups,
    may_be_due,
    verify_compacted,
)
from ..core.tables.delta import Commit, Snapshot
from ..core.tables.delta import File as TableFile
from ..core.tables.raw_table import DIGEST
from ..landing.appending import add_to_folder, append_landed, write_checkpoint_if_due
from ..landing.attempt import Attempt, Tools
from ..landing.staging_places import Staging

COMPACTION_THREADS = 2  # files that are written at once; each is one Spark task
G = TypeVar("G", bound=Group)


class Compacted(Protocol[G]):
    """What compaction needs of a kind of table."""

    @property
    def topic(self) -> str:
        """Name of the topic."""

    @property
    def log(self) -> DeltaLog:
        """Log of the table."""

    def how_to_mend(self, file: TableFile) -> str:
        """Return what to do about a file that is gone or changed."""

    def find(self, target_bytes: int, *, every: bool) -> list[G]:
        """Find what to compact now; write nothing."""

    def merge(self, group: G, files: Sequence[File], folder: str, tools: Tools) -> None:
        """Have Spark write the files of a group as one, below `folder`."""

    def verify(self, group: G, files: Sequence[File], part: parquet.PartFile) -> list[str]:
        """Return every violation of the file that was written."""

    def add(self, group: G, part: parquet.PartFile, staging: Staging, now_ms: int) -> TableFile:
        """Give the file a name in the table's folder, durably; return its entry for the log."""

    def is_current(self, group: G, version: Snapshot) -> bool:
        """Return whether a version has the rows of a group's ranges still, and in its files alone."""


@dataclass(frozen=True, slots=True)
class RawTable:
    """The raw table of a topic."""

    topic: str
    lake: Lake

    @property
    def log(self) -> DeltaLog:
        """Log of the table."""
        return raw_table_log(self.topic, self.lake.store)

    def how_to_mend(self, file: TableFile) -> str:  # noqa: ARG002 (the audit names it)
        """Return what to do about a file that is gone or changed."""
        return f"`{command('audit', self.topic)}` says what is to be done"

    def find(self, target_bytes: int, *, every: bool) -> list[RawGroup]:
        """Find neighbours in a Kafka partition."""
        return find_groups(self.lake.coverage(self.topic), self.log.read(), target_bytes, every=every)

    def may_be_due(self, target_bytes: int) -> bool:
        """Return whether there may be neighbours to compact, judged by unsettled ranges alone."""
        return may_be_due(self.lake.recent(self.topic), self.log.read(), target_bytes)

    def merge(self, group: RawGroup, files: Sequence[File], folder: str, tools: Tools) -> None:
        """Write the rows in offset order."""
        tools.files.merge(group.offsets.text(self.topic), files, parquet.RAW_SCHEMA, ("offset",), folder)

    def verify(self, group: RawGroup, files: Sequence[File], part: parquet.PartFile) -> list[str]:
        """Compare the rows with those of the group's files, one by one."""
        difference = comparing.differing_from_all(files, part.path)
        return verify_compacted(self.topic, group, part.rows, parquet.read_stretches(part.path), difference)

    def add(self, group: RawGroup, part: parquet.PartFile, staging: Staging, now_ms: int) -> TableFile:
        """Name the file after the offsets between which it has all ranges."""
        return add_to_folder(staging, part, group, self.log, now_ms)

    def is_current(self, group: RawGroup, version: Snapshot) -> bool:
        """Return whether the files are there, no other is between them, and the ranges without rows are as they were."""
        return group.is_in(version) and not any(self.lake.is_replaced(each) for each in group.empty)


@dataclass(frozen=True, slots=True)
class _Work(Generic[G]):
    table: Compacted[G]
    tools: Tools
    staging: Staging


def compact(
    topic: str, attempt: Attempt, tools: Tools, target_bytes: int, *, every: bool = False
) -> Iterator[CompactionVerdict]:
    """Append what is landed to a topic's raw table, then compact what is due, as `compact_table` does.

    Raise in the end the `DamagedFile` of the append, where it could not cut a file.
    """
    damaged: DamagedFile | None = None
    try:
        append_landed(topic, tools.lake, tools.now_ms, on_step=tools.on_step)
    except DamagedFile as error:
        damaged = error
    yield from compact_table(RawTable(topic, tools.lake), attempt, tools, target_bytes, every=every)
    if damaged is not None:
        raise damaged


def compact_table(
    table: Compacted[G], attempt: Attempt, tools: Tools, target_bytes: int, *, every: bool = False
) -> Iterator[CompactionVerdict]:
    """Compact what is due of a table; yield one verdict per group. A failing group leaves the others compacted."""
    groups = table.find(target_bytes, every=every)
    tools.on_step("compaction_planned", topic=table.topic, groups=len(groups), files=sum(len(each.files) for each in groups))
    if not groups:
        return
    work = _Work(table, tools, tools.open_staging(attempt.id, tools.lake))
    try:
        with ThreadPoolExecutor(COMPACTION_THREADS) as pool:
            yield from pool.map(lambda group: _compact_or_fail(work, group), groups)
    finally:
        work.staging.close()
    tools.lake.store.discard(f"staging/{attempt.id}", tools.on_step)


def _compact_or_fail(work: _Work[G], group: G) -> CompactionVerdict:
    try:
        return _compact(work, group)
    except FileNotFoundError:  # it was deleted while it was read
        reason = _why_gone(work, group)
    except Exception as error:  # noqa: BLE001 (told by its type: other groups must not fail by it)
        reason = str(as_ours(error, f"compacting {work.table.topic}, {group.key}"))
    return CompactionVerdict(group, CompactionOutcome.FAILED, violations=(reason,))


def _why_gone(work: _Work[G], group: G) -> str:
    store = work.tools.lake.store
    gone = [file for file in group.files if not store.exists(f"{work.table.log.folder}/{file.path}")]
    urls = ", ".join(store.url(f"{work.table.log.folder}/{file.path}") for file in gone[:3])
    text = f"{work.table.topic}: {urls or 'a staged file'} is not there; nothing was compacted with it"
    return f"{text}; {work.table.how_to_mend(gone[0])}" if gone else f"{text}; the next compaction tries it again"


def _compact(work: _Work[G], group: G) -> CompactionVerdict:
    """Write, verify and commit one compacted file; return a verdict that says why where that cannot be."""
    tools, key = work.tools, group.key
    folder = work.staging.root / f"compacted-{uuid.uuid4().hex[:8]}"
    with work.staging.opened([f"{work.table.log.folder}/{file.path}" for file in group.files]) as files:
        if changed := _changed(work, group, files):
            return CompactionVerdict(group, CompactionOutcome.FAILED, violations=changed)
        tools.on_step("compaction_read", key=key, files=len(files))
        work.table.merge(group, files, work.staging.url(folder), tools)
        work.staging.finish(folder)
        tools.on_step("compaction_staged", key=key)
        parts = [part for file in work.staging.files(folder) if (part := work.staging.read_part(file)) is not None]
        if len(parts) != 1:
            text = f"Spark wrote {len(parts)} files of {work.table.topic}, {key}, expected one; nothing became visible"
            return CompactionVerdict(group, CompactionOutcome.FAILED, violations=[text])
        if violations := work.table.verify(group, files, parts[0]):
            return CompactionVerdict(group, CompactionOutcome.FAILED, violations=violations)
    tools.on_step("compaction_verified", key=key, rows=group.rows)
    file = work.table.add(group, parts[0], work.staging, tools.now_ms())
    tools.on_step("compaction_named", key=key, path=file.path)
    if not _commit(work, group, file):
        tools.lake.store.discard(f"{work.table.log.folder}/{file.path}", tools.on_step)
        return CompactionVerdict(group, CompactionOutcome.OVERTAKEN)
    return CompactionVerdict(group, CompactionOutcome.COMPACTED, file)


def _commit(work: _Work[G], group: G, file: TableFile) -> bool:
    """Replace files of the table by one; false where others have changed what the table has in their place."""
    at_ms = work.tools.now_ms()
    removes = {each.path: at_ms for each in group.files}
    while True:
        table = work.table.log.read()
        if not work.table.is_current(group, table):
            return False
        if work.table.log.commit(Commit([file], removes, is_compaction=True), table, at_ms):
            work.tools.on_step("compaction_committed", key=group.key, version=table.version + 1)
            write_checkpoint_if_due(work.table.topic, work.table.log, table.version + 1, work.tools.on_step)
            return True


def _changed(work: _Work[G], group: G, files: Sequence[File]) -> list[str]:
    """Name the files without the digest that the log says."""
    folder = work.tools.lake.store.url(work.table.log.folder)
    return [
        f"{work.table.topic}: the table's file {folder}/{file.path} has sha256 {found}, expected {file.tags[DIGEST]}; nothing "
        f"was compacted with it; {work.table.how_to_mend(file)}"
        for file, found in zip(group.files, work.staging.digests(files), strict=True)
        if found != file.tags[DIGEST]
    ]
