"""Deletion in a lake: files of tables by the vacuum, range files that a table has, and what dead attempts left in staging.

Any number of processes may delete at once. A drop is decided by the range's next manifest, by the put-if-absent that a
replace needs too, so one of the two is first; then the file is deleted, and its name never used again. Invariants: nothing is
deleted of a table that misses a file; no row is deleted that is nowhere else; a sweep touches only `staging/`, once no run
can still use it, and never an unpublished file that a manifest names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Self

from ..adapters.lake.lake import Lake
from ..adapters.store.store import Entry
from ..adapters.tables.decodings import decoded_table_log
from ..adapters.tables.delta_log import DeltaLog, raw_table_log
from ..adapters.tables.latest_table import TREE as LATEST
from ..adapters.tables.latest_table import LatestTable
from ..core.advice import command
from ..core.errors import DamagedFile, OffsetlakeError, TableFileGone
from ..core.log.manifest import Manifest
from ..core.log.settling import LONGEST_RUN_SECONDS
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step
from ..core.tables import decoded_table, raw_table
from ..core.tables.compaction import are_all_of
from ..core.tables.decoded_table import TREE as DECODED
from ..core.tables.delta import File
from ..core.tables.raw_table import is_compacted, ranges_by_file
from ..landing.landed_files import why_not_as_landed

VACUUM_AFTER_SECONDS = 7 * 24 * 3600.0  # how long a reader may use a version
SWEEP_AFTER_SECONDS = LONGEST_RUN_SECONDS


def find_unnamed(topic: str, lake: Lake, now_ms: int, older_than_seconds: float = VACUUM_AFTER_SECONDS) -> list[str]:
    """Find the files of a raw table that no version of the last week names, and no later one will; return their paths.

    Raise `DamagedFile` where a file that the table names is missing, and `TableFileGone` where it names none with the rows of
    a dropped range: then any file may be the only one with some rows.
    """
    log = raw_table_log(topic, lake.store)
    table, coverage = log.read(), lake.coverage(topic)
    if lacking := raw_table.find_lacking(coverage, raw_table.RangeFiles(table)):
        raise TableFileGone(
            f"the table {lake.store.url(log.folder)} does not have what was dropped: {lacking[0]}; a file in its folder may be "
            "all that is left of it, so nothing of the table was deleted; restore its log from a backup that has it"
        )
    names = _names(log, lake)
    mend = raw_table.how_to_mend(coverage, lake.store.url(log.folder))
    _refuse_gone(log, table.files, names, lake, f"{mend}; `{command('audit', topic)}` names all that is amiss")
    left = {name: table.removed.get(name) for name in raw_table.find_unwanted(names, coverage, table)}
    return _find_old(log, left, lake, now_ms, older_than_seconds)


def _find_undecoded(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[str]:
    """Find the files of a decoded table, and their documents, as `find_unnamed` does."""
    log = decoded_table_log(topic, lake)
    table = log.read()
    names = _names(log, lake)
    _refuse_gone(log, table.files, names, lake, "the check `decoded_completeness` says how the file is made again")
    documents = [decoded_table.document_path(path) for path, file in table.files.items() if decoded_table.is_packed(file)]
    _refuse_gone(log, documents, names, lake, "move the table's folder away, and all ranges are decoded again")
    unwanted = decoded_table.find_unwanted(names, table)
    left = {name: table.removed.get(decoded_table.owner_of(name) or "") for name in unwanted}
    old = {path.removeprefix(f"{log.folder}/"): path for path in _find_old(log, left, lake, now_ms, older_than_seconds)}
    # a file and its document go together: one may look old while a run is about to name both
    young = {decoded_table.owner_of(name) for name in unwanted if name not in old}
    return [path for name, path in old.items() if decoded_table.owner_of(name) not in young]


def _find_unnamed_of_latest(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[str]:  # noqa: ARG001
    """Find the files of a latest table as `find_unnamed` does; delta-rs does so, by its own clock."""
    return LatestTable(lake, topic).find_unnamed(older_than_seconds)


def may_have_leftovers(lake: Lake, now_ms: int) -> bool:
    """Return whether `vacuum` or a sweep may have something to delete, to mend or to report; read no history of a topic."""
    latest_ms = now_ms - SWEEP_AFTER_SECONDS * 1000
    if any(entry.changed_at_ms < latest_ms for entry in lake.store.entries("staging").values()):
        return True
    try:
        return (
            any(_may_have_unnamed(topic, lake, now_ms) for topic in lake.store.folders("tables/raw"))
            or any(_find_undecoded(topic, lake, now_ms, VACUUM_AFTER_SECONDS) for topic in lake.store.folders(DECODED))
            or any(_find_unnamed_of_latest(topic, lake, now_ms, VACUUM_AFTER_SECONDS) for topic in lake.store.folders(LATEST))
            or any(log.find_damage() for log in _find_logs(lake))
        )
    except OffsetlakeError:
        return True  # the job tells it


def _may_have_unnamed(topic: str, lake: Lake, now_ms: int) -> bool:
    """Return whether a raw table misses a file, or its folder has an old one that its log does not name."""
    log = raw_table_log(topic, lake.store)
    table, names = log.read(), _names(log, lake)
    unnamed = (name for name in names - table.files.keys() if name.endswith(".parquet") and not name.startswith("_"))
    left = {name: table.removed.get(name) for name in unnamed}
    return not table.files.keys() <= names or bool(_find_old(log, left, lake, now_ms, VACUUM_AFTER_SECONDS))


def vacuum(
    lake: Lake, now_ms: int, older_than_seconds: float = VACUUM_AFTER_SECONDS, on_step: StepWatcher = no_step
) -> tuple[list[str], list[OffsetlakeError]]:
    """Delete old files of all tables, and mend checkpoints; return the paths, and the errors, each of one table alone."""
    deleted, errors = list[str](), list[OffsetlakeError]()
    for log in _find_logs(lake):
        try:
            if log.find_damage():
                log.write_checkpoint()
        except OffsetlakeError as error:
            errors.append(error)
    for found in _find_all(lake, now_ms, older_than_seconds):
        if isinstance(found, OffsetlakeError):
            errors.append(found)
            continue
        refused = list[OffsetlakeError]()
        for path in found:
            on_step("vacuum", path=path)
            try:
                lake.store.delete(path)
                deleted.append(path)
            except OffsetlakeError as error:
                refused.append(error)
        errors += refused[:1]  # of a table without permission all are alike
    return deleted, errors


def _find_all(lake: Lake, now_ms: int, older_than_seconds: float) -> Iterator[list[str] | OffsetlakeError]:
    for tree, find in (("tables/raw", find_unnamed), (DECODED, _find_undecoded), (LATEST, _find_unnamed_of_latest)):
        for topic in lake.store.folders(tree):
            try:
                yield find(topic, lake, now_ms, older_than_seconds)
            except OffsetlakeError as error:
                yield error


def _find_logs(lake: Lake) -> Iterator[DeltaLog]:
    yield from (raw_table_log(topic, lake.store) for topic in lake.store.folders("tables/raw"))
    yield from (decoded_table_log(topic, lake) for topic in lake.store.folders(DECODED))


def _names(log: DeltaLog, lake: Lake) -> set[str]:
    return {path.removeprefix(f"{log.folder}/") for path in lake.store.list(log.folder)}


def _refuse_gone(log: DeltaLog, wanted: Iterable[str], names: set[str], lake: Lake, mend: str) -> None:
    if gone := sorted(set(wanted) - names):
        raise DamagedFile(
            f"the table's file {lake.store.url(log.folder)}/{gone[0]} is not there; nothing of the table was deleted; {mend}"
        )


def _find_old(log: DeltaLog, left: Mapping[str, int | None], lake: Lake, now_ms: int, older_than_seconds: float) -> list[str]:
    """Return the paths of old files: since a version removed them, at the time in `left`, or else since they were linked."""
    found = list[str]()
    clock_ms = lake.store.clock_ms() if None in left.values() else 0
    for name, removed_ms in left.items():
        path, at_ms, left_ms = f"{log.folder}/{name}", now_ms, removed_ms
        if removed_ms is None:  # the file system dates it, by a clock of its own
            at_ms, left_ms = clock_ms, lake.store.linked_at_ms(path)
        if left_ms is not None and at_ms - left_ms > older_than_seconds * 1000:
            found.append(path)
    return found


@dataclass(frozen=True, slots=True)
class Droppable:
    """A compacted file of the table, and its ranges with rows that have files in `data/`."""

    file: File
    manifests: Sequence[Manifest]

    @property
    def bytes(self) -> int:
        """The size of the range files."""
        return sum(manifest.file.bytes for manifest in self.manifests if manifest.file)

    def without(self, kept: Collection[OffsetRange]) -> Self:
        """Return a copy without the range files that are to stay."""
        return replace(self, manifests=[each for each in self.manifests if each.offsets not in kept])


@dataclass(frozen=True, slots=True)
class DropVerdict:
    """The outcome of one range file: dropped, or the reason why it stays."""

    offsets: OffsetRange
    reason: str | None = None


def plan_dropping(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[Droppable]:
    """Plan which range files to drop now, by compacted file; write nothing.

    The compacted file and all of its ranges are at least `older_than_seconds` old; it has them as they are landed, and none
    has a second file, as a crash under `at_least_once` leaves.
    """
    table, latest_ms = raw_table_log(topic, lake.store).read(), now_ms - older_than_seconds * 1000
    coverage = lake.coverage(topic)
    doubled, ranges = set(coverage.doubles.values()), ranges_by_file(coverage, table)
    found = []
    for path, file in sorted(table.files.items()):
        manifests = ranges.get(path, [])
        is_whole = is_compacted(file) and are_all_of(file, manifests, coverage)
        is_old = all(at_ms <= latest_ms for at_ms in (file.modified_at_ms, *(m.provenance.landed_at_ms for m in manifests)))
        if is_whole and is_old and doubled.isdisjoint(manifest.offsets for manifest in manifests):
            here = [each for each in manifests if each.rows and each.offsets in coverage.published]
            found += [Droppable(file, here)] if here else []
    return found


def drop_range_files(
    topic: str, lake: Lake, plans: Sequence[Droppable], now_ms: int, on_step: StepWatcher = no_step, *, dry_run: bool = False
) -> Iterator[DropVerdict]:
    """Drop what was planned; yield a verdict of each range file. After a crash any process can continue.

    First it checks that the compacted file has the digest that the table's log says, and each range's rows. A dry run checks
    as well, and writes nothing.
    """
    for plan in plans:
        reason = why_not_as_landed(plan.file, plan.manifests, raw_table_log(topic, lake.store).folder, lake)
        for manifest in plan.manifests:
            yield DropVerdict(manifest.offsets, reason or (None if dry_run else _drop(manifest, lake, now_ms, on_step)))


def _drop(manifest: Manifest, lake: Lake, now_ms: int, on_step: StepWatcher) -> str | None:
    """Drop one range file; return why it stays, none where it is dropped."""
    key = manifest.offsets.key
    newest = manifest if manifest.is_dropped else lake.commit_manifest(manifest.dropped(now_ms))
    if not newest.is_dropped:
        return "it was replaced meanwhile"
    on_step("drop_marked", key=key)
    lake.delete_given_up(newest)
    on_step("range_file_dropped", key=key)
    return None


def find_orphans(lake: Lake, now_ms: int, older_than_seconds: float) -> dict[str, Entry]:
    """Find what attempts left that wrote nothing for `older_than_seconds`, by name, unless a manifest needs a file."""
    latest_ms = now_ms - older_than_seconds * 1000
    old = {name: entry for name, entry in lake.store.entries("staging").items() if entry.changed_at_ms < latest_ms}
    needed = _needed(lake, old.keys()) if old else set()
    return {name: entry for name, entry in sorted(old.items()) if name not in needed}


def sweep_orphans(
    lake: Lake,
    now_ms: int,
    older_than_seconds: float = SWEEP_AFTER_SECONDS,
    on_swept: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Entry]:
    """Delete the orphans and return them; any number of processes may; `on_swept` is given how many are done, and of how many.

    An attempt that is alive after all fails to publish, and its ranges are landed again: nothing is lost.
    """
    orphans = find_orphans(lake, now_ms, older_than_seconds)
    for done, orphan in enumerate(orphans, 1):
        lake.store.delete(f"staging/{orphan}")
        on_swept(done, len(orphans))
    return orphans


def _needed(lake: Lake, names: AbstractSet[str]) -> set[str]:
    """Return the attempts with an unpublished file that a manifest of any topic names."""
    needed: set[str] = set()
    for topic in lake.landed_topics():
        for manifest in lake.read_manifests(topic).values():
            name = manifest.file.path.split("/")[1] if manifest.file else ""
            if name in names - needed and not lake.is_published(manifest):
                needed.add(name)
    return needed
