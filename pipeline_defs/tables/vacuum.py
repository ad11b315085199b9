"""The vacuum: files of tables go that no version of the last week has, and no later one will.

Any number of processes may do so at once. Invariant: of a table that misses a file of its own nothing is deleted.
"""

from collections.abc import Iterable, Iterator, Mapping

from ..adapters.lake.lake import Lake
from ..adapters.tables.decodings import decoded_table_log
from ..adapters.tables.delta_log import DeltaLog, raw_table_log
from ..adapters.tables.latest_table import TREE as LATEST
from ..adapters.tables.latest_table import LatestTable
from ..core.advice import command
from ..core.errors import DamagedFile, OffsetlakeError, TableFileGone
from ..core.steps import StepWatcher, no_step
from ..core.tables import decoded_table, raw_table
from ..core.tables.decoded_table import TREE as DECODED

VACUUM_AFTER_SECONDS = 7 * 24 * 3600.0  # a reader may stay with a version for so long


def find_unnamed(topic: str, lake: Lake, now_ms: int, older_than_seconds: float = VACUUM_AFTER_SECONDS) -> list[str]:
    """Find the files of a raw table that no version of the last week names, and no later one will; return their paths.

    Raise `DamagedFile` where a file is not there that the table names, and `TableFileGone` where it names none with the rows of
    a dropped range: then none is nobody's.
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
    """Find the same of a decoded table."""
    log = decoded_table_log(topic, lake)
    table = log.read()
    names = _names(log, lake)
    _refuse_gone(log, table.files, names, lake, "the check `decoded_completeness` says how the file is made again")
    documents = [decoded_table.document_path(path) for path, file in table.files.items() if decoded_table.is_packed(file)]
    _refuse_gone(log, documents, names, lake, "move the table's folder away, and all ranges are decoded again")
    unwanted = decoded_table.find_unwanted(names, table)
    left = {name: table.removed.get(decoded_table.owner_of(name) or "") for name in unwanted}
    old = {path.removeprefix(f"{log.folder}/"): path for path in _find_old(log, left, lake, now_ms, older_than_seconds)}
    # a file and its document go together: one of the two may be as old as ever, and a run about to name both
    young = {decoded_table.owner_of(name) for name in unwanted if name not in old}
    return [path for name, path in old.items() if decoded_table.owner_of(name) not in young]


def _find_unnamed_of_latest(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[str]:  # noqa: ARG001
    """Find the same of a latest table, which delta-rs knows, by the clock of its own."""
    return LatestTable(lake, topic).find_unnamed(older_than_seconds)


def is_vacuum_due(lake: Lake, now_ms: int) -> bool:
    """Return whether `vacuum` finds something to delete, or something to tell: a table that cannot be read."""
    return any(isinstance(found, OffsetlakeError) or found for found in _find_all(lake, now_ms, VACUUM_AFTER_SECONDS))


def vacuum(
    lake: Lake, now_ms: int, older_than_seconds: float = VACUUM_AFTER_SECONDS, on_step: StepWatcher = no_step
) -> tuple[list[str], list[OffsetlakeError]]:
    """Delete what is old in all tables; return the paths, and what ended one table and no other."""
    deleted, errors = list[str](), list[OffsetlakeError]()
    for found in _find_all(lake, now_ms, older_than_seconds):
        if isinstance(found, OffsetlakeError):
            errors.append(found)
            continue
        for path in found:
            on_step("vacuum", path=path)
            lake.store.delete_folder(path)
            deleted.append(path)
    return deleted, errors


def _find_all(lake: Lake, now_ms: int, older_than_seconds: float) -> Iterator[list[str] | OffsetlakeError]:
    for tree, find in (("tables/raw", find_unnamed), (DECODED, _find_undecoded), (LATEST, _find_unnamed_of_latest)):
        for topic in lake.store.folders(tree):
            try:
                yield find(topic, lake, now_ms, older_than_seconds)
            except OffsetlakeError as error:
                yield error


def _names(log: DeltaLog, lake: Lake) -> set[str]:
    return {path.removeprefix(f"{log.folder}/") for path in lake.store.list(log.folder)}


def _refuse_gone(log: DeltaLog, wanted: Iterable[str], names: set[str], lake: Lake, mend: str) -> None:
    if gone := sorted(set(wanted) - names):
        raise DamagedFile(
            f"the table's file {lake.store.url(log.folder)}/{gone[0]} is not there; nothing of the table was deleted; {mend}"
        )


def _find_old(log: DeltaLog, left: Mapping[str, int | None], lake: Lake, now_ms: int, older_than_seconds: float) -> list[str]:
    """Return the paths of those that are old: since a version removed them, which `left` tells, or since they were linked."""
    found = list[str]()
    clock_ms = lake.store.clock_ms() if None in left.values() else 0
    for name, removed_ms in left.items():
        path, at_ms, left_ms = f"{log.folder}/{name}", now_ms, removed_ms
        if removed_ms is None:  # the file system dates it, by a clock of its own
            at_ms, left_ms = clock_ms, lake.store.linked_at_ms(path)
        if left_ms is not None and at_ms - left_ms > older_than_seconds * 1000:
            found.append(path)
    return found
