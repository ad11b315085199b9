"""Compaction of a raw table: read, write, verify, commit; small files become few larger ones, the rows stay what they are.

`data/` is never touched. The commit decides: before it no version names the new file, after it each row is in that alone. Who
dies before it leaves a file that the vacuum deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .attempt import Attempt, Tools
from .core.command_lines import command
from .core.compaction import CompactionOutcome, CompactionVerdict, Group, find_groups, verify_compacted
from .core.delta import Commit, File
from .core.errors import DamagedFile, OffsetlakeError
from .core.raw_table import DIGEST
from .edges import parquet
from .edges.delta_log import DeltaLog, raw_table_log
from .edges.lake import Lake
from .raw_table import add_to_folder, append_landed, write_checkpoint_if_due
from .staging_places import LocalStaging

COMPACTION_THREADS = 2  # files that are written at once; each is one Spark task


@dataclass(frozen=True, slots=True)
class _Run:
    topic: str
    tools: Tools
    log: DeltaLog
    staging: LocalStaging


def plan_compaction(topic: str, lake: Lake, target_bytes: int, *, every: bool = False) -> list[Group]:
    """Plan what to compact of a topic's raw table now; write nothing."""
    table = raw_table_log(topic, lake.store).read()
    return find_groups(lake.coverage(topic), table, target_bytes, every=every)


def compact(
    topic: str, attempt: Attempt, tools: Tools, target_bytes: int, *, every: bool = False
) -> Iterator[CompactionVerdict]:
    """Compact what is due of a topic; yield one verdict per group. One that fails leaves the others compacted.

    What is landed and not in the table yet is appended first. Raise `Refused` where Spark reads no files of this machine, and
    in the end what that append could not cut.
    """
    lake = tools.lake
    tools.files.check()
    damaged: DamagedFile | None = None
    try:
        append_landed(topic, lake, tools.now_ms, on_step=tools.on_step)
    except DamagedFile as error:
        damaged = error
    groups = plan_compaction(topic, lake, target_bytes, every=every)
    tools.on_step("compaction_planned", topic=topic, groups=len(groups), files=sum(len(each.files) for each in groups))
    if groups:
        run = _Run(topic, tools, raw_table_log(topic, lake.store), LocalStaging(attempt.id, lake))
        try:
            with ThreadPoolExecutor(COMPACTION_THREADS) as pool:
                yield from pool.map(lambda group: _compact_or_fail(run, group), groups)
        finally:
            run.staging.close()
        lake.store.delete_folder(f"staging/{attempt.id}")
    if damaged is not None:
        raise damaged


def _compact_or_fail(run: _Run, group: Group) -> CompactionVerdict:
    try:
        return _compact(run, group)
    except FileNotFoundError:  # somebody takes it away while it is read
        reason = _why_gone(run, group)
    except OffsetlakeError as error:
        reason = str(error)
    return CompactionVerdict(group, CompactionOutcome.FAILED, violations=(reason,))


def _why_gone(run: _Run, group: Group) -> str:
    store = run.tools.lake.store
    paths = (f"{run.log.folder}/{file.path}" for file in group.files)
    gone = [store.url(path) for path in paths if not store.exists(path)]
    return (
        f"{run.topic}: {', '.join(gone[:3]) or 'a staged file'} is not there; nothing was compacted with it; "
        f"`{command('audit', run.topic)}` says what is to be done"
    )


def _compact(run: _Run, group: Group) -> CompactionVerdict:
    """Write, verify and commit one compacted file, or say why not."""
    tools, key = run.tools, group.offsets.key
    folder: Path = run.staging.root / f"compacted-{key}"
    with ExitStack() as opened:
        paths = {
            file.path: opened.enter_context(tools.lake.local_copy(f"{run.log.folder}/{file.path}"))
            for file in group.files
        }
        if changed := _changed(run, group, paths):
            return CompactionVerdict(group, CompactionOutcome.FAILED, violations=changed)
        tools.on_step("compaction_read", key=key, files=len(paths))
        tools.files.merge(group.offsets.text(run.topic), [*paths.values()], group.offsets.generation, str(folder))
        tools.on_step("compaction_staged", key=key)
        staged, violations = _verify(run, group, [*paths.values()], folder)
    if staged is None or violations:
        return CompactionVerdict(group, CompactionOutcome.FAILED, violations=violations)
    tools.on_step("compaction_verified", key=key, rows=group.rows)
    (file,) = add_to_folder(
        run.staging, staged, group.offsets, group.revisions, run.log, tools.now_ms(), group.weight_bytes
    )
    tools.on_step("compaction_named", key=key, path=file.path)
    if not _commit(run, group, file):
        tools.lake.store.delete_folder(f"{run.log.folder}/{file.path}")
        return CompactionVerdict(group, CompactionOutcome.OVERTAKEN)
    return CompactionVerdict(group, CompactionOutcome.COMPACTED, file)


def _commit(run: _Run, group: Group, file: File) -> bool:
    """Put a file in the place of others in the table; false where one of them is not there any more."""
    at_ms = run.tools.now_ms()
    removes = {each.path: at_ms for each in group.files}
    while True:
        table = run.log.read()
        if not removes.keys() <= table.files.keys():
            return False
        if run.log.commit(Commit([file], removes, is_compaction=True), table, at_ms):
            run.tools.on_step("compaction_committed", key=group.offsets.key, version=table.version + 1)
            write_checkpoint_if_due(run.topic, run.log, table.version + 1, run.tools.on_step)
            return True


def _changed(run: _Run, group: Group, paths: Mapping[str, Path]) -> list[str]:
    """Name the files that have not the digest that the log says."""
    found = {file.path: parquet.digest(paths[file.path]) for file in group.files}
    return [
        f"{run.topic}: the table's file {run.tools.lake.store.url(run.log.folder)}/{file.path} has sha256 {found[file.path]}, "
        f"expected {file.tags[DIGEST]}; nothing was compacted with it; `{command('audit', run.topic)}` says what is to be done"
        for file in group.files
        if found[file.path] != file.tags[DIGEST]
    ]


def _verify(run: _Run, group: Group, originals: Sequence[Path], folder: Path) -> tuple[Path | None, list[str]]:
    """Hold what was staged against the files it is made of; return it, and every law that it breaks."""
    parts = list(parquet.read_parts(folder))
    if len(parts) != 1:
        where = group.offsets.text(run.topic)
        return None, [f"Spark wrote {len(parts)} files of {where}, expected one; nothing became visible"]
    staged = Path(str(parts[0].path))
    difference = parquet.differing_from_all(originals, staged)
    return staged, verify_compacted(run.topic, group, parts[0].rows, parquet.read_runs(staged), difference)
