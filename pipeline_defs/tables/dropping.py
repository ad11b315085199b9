"""Dropping range files: what a compacted file of the raw table has leaves `data/`, and is read in the table from then on.

The next manifest of the range says so, by the put-if-absent that a replace needs too, so one of both is first; then the file
goes, and its name is never used again. Invariant: no row is deleted that stands nowhere else.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from ..adapters.lake.lake import Lake
from ..adapters.tables.delta_log import raw_table_log
from ..core.log.manifest import Manifest
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step
from ..core.tables.compaction import are_all_of
from ..core.tables.delta import File
from ..core.tables.raw_table import is_compacted, ranges_by_file
from ..landing.standing import why_not_as_landed


@dataclass(frozen=True, slots=True)
class Droppable:
    """A compacted file of the table, and its ranges with rows that have files in `data/`."""

    file: File
    manifests: Sequence[Manifest]

    @property
    def bytes(self) -> int:
        """Size of the range files."""
        return sum(manifest.file.bytes for manifest in self.manifests if manifest.file)

    def without(self, kept: Collection[OffsetRange]) -> Self:
        """Return it without the range files that are to stay."""
        return replace(self, manifests=[each for each in self.manifests if each.offsets not in kept])


@dataclass(frozen=True, slots=True)
class DropVerdict:
    """What became of one range file, and why where it stays."""

    offsets: OffsetRange
    reason: str | None = None


def plan_dropping(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[Droppable]:
    """Plan which range files to drop now, by compacted file; write nothing.

    The file was compacted and all ranges of it landed so long ago; they stand as it has them, and none has a second file, as
    a crash under `at_least_once` leaves them.
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
    """Drop what was planned; yield what became of each range file. Whoever dies at it is followed by any.

    Before, the compacted file has the digest that the table's log says, and each range's rows. A dry run looks as well, and
    writes nothing.
    """
    for plan in plans:
        reason = why_not_as_landed(plan.file, plan.manifests, raw_table_log(topic, lake.store).folder, lake)
        for manifest in plan.manifests:
            yield DropVerdict(manifest.offsets, reason or (None if dry_run else _drop(manifest, lake, now_ms, on_step)))


def _drop(manifest: Manifest, lake: Lake, now_ms: int, on_step: StepWatcher) -> str | None:
    """Drop one range file; return why it stays."""
    key = manifest.offsets.key
    standing = manifest if manifest.is_dropped else lake.commit_manifest(manifest.dropped(now_ms))
    if not standing.is_dropped:
        return "it was replaced meanwhile"
    on_step("drop_marked", key=key)
    lake.delete_given_up(standing)
    on_step("range_file_dropped", key=key)
    return None
