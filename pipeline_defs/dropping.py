"""Dropping range files: what a compacted file of the raw table has leaves `data/`, and is read in the table from then on.

The mark in `dropped/` comes before the first file goes, and stays. Invariant: no row is deleted that stands nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from .core.coverage import Coverage
from .core.delta import File
from .core.dropped import Dropped
from .core.errors import Refused
from .core.manifest import Manifest
from .core.offsets import OffsetRange
from .core.raw_table import DIGEST, is_compacted, offsets_of, ranges_by_file
from .edges.delta_log import raw_table_log
from .edges.lake import Lake
from .edges.layout import manifest_path, published_path
from .settings import code_version
from .standing import why_changed
from .steps import StepWatcher, no_step


@dataclass(frozen=True, slots=True)
class Droppable:
    """A compacted file of the table, its ranges with rows, and those of them that have files in `data/`."""

    file: File
    ranges: Sequence[Manifest]
    manifests: Sequence[Manifest]

    @property
    def bytes(self) -> int:
        """Size of the range files."""
        return sum(manifest.file.bytes for manifest in self.manifests if manifest.file)

    def without(self, kept: Collection[OffsetRange]) -> Droppable:
        """Return it without the range files that are to stay."""
        return replace(self, manifests=[each for each in self.manifests if each.offsets not in kept])


@dataclass(frozen=True, slots=True)
class DropVerdict:
    """What became of one range file, and why where it stays."""

    offsets: OffsetRange
    reason: str | None = None


def plan_dropping(topic: str, lake: Lake, now_ms: int, older_than_seconds: float) -> list[Droppable]:
    """Plan which range files to drop now, by compacted file; write nothing. Refuse an object store.

    The file was compacted and all ranges of it landed so long ago; they stand as it has them, and none has a second file, as
    a crash under `at_least_once` leaves them.
    """
    if lake.store.local_root is None:
        raise Refused(
            f"range files of topic {topic} cannot be dropped: {lake.store.root} is an object store, where a range that is "
            "replaced in the same moment would be deleted with them; nothing was deleted; keep them, or turn the table off"
        )
    table, latest_ms = raw_table_log(topic, lake.store).read(), now_ms - older_than_seconds * 1000
    coverage = lake.coverage(topic)
    doubled, ranges = set(coverage.doubles.values()), ranges_by_file(coverage, table)
    found = []
    for path, file in sorted(table.files.items()):
        manifests = ranges.get(path, [])
        is_whole = is_compacted(file) and _are_all(file, manifests, coverage)
        is_old = all(
            at_ms <= latest_ms for at_ms in (file.modified_at_ms, *(m.provenance.landed_at_ms for m in manifests))
        )
        if is_whole and is_old and doubled.isdisjoint(manifest.offsets for manifest in manifests):
            with_rows = [manifest for manifest in manifests if manifest.rows]
            here = [manifest for manifest in with_rows if manifest.offsets in coverage.published]
            found += [Droppable(file, with_rows, here)] if here else []
    return found


def _are_all(file: File, manifests: Sequence[Manifest], coverage: Coverage) -> bool:
    """Return whether ranges are all that are planned between a file's offsets, and landed."""
    is_landed = all(coverage.is_landed(manifest.offsets) for manifest in manifests)
    return is_landed and sum(len(manifest.offsets) for manifest in manifests) == len(offsets_of(file))


def drop_range_files(
    topic: str,
    lake: Lake,
    plans: Sequence[Droppable],
    now_ms: int,
    on_step: StepWatcher = no_step,
    *,
    dry_run: bool = False,
) -> Iterator[DropVerdict]:
    """Drop what was planned; yield what became of each range file. Whoever dies at it is followed by any.

    Before, the compacted file has the digest that the table's log says. A dry run looks as well, and writes nothing.
    """
    for plan in plans:
        reason = why_changed(plan.file, raw_table_log(topic, lake.store).folder, lake)
        if reason is None and not dry_run:
            reason = _mark(topic, plan, lake, now_ms, on_step)
        for manifest in plan.manifests:
            yield DropVerdict(manifest.offsets, reason or (None if dry_run else _drop(manifest, lake, on_step)))


def _mark(topic: str, plan: Droppable, lake: Lake, now_ms: int, on_step: StepWatcher) -> str | None:
    offsets = offsets_of(plan.file)
    revisions = {manifest.offsets: manifest.revision for manifest in plan.ranges}
    reason = lake.commit_dropped(
        Dropped(topic, offsets, revisions, plan.file.path, plan.file.tags[DIGEST], code_version(), now_ms)
    )
    if reason is None:
        on_step("drop_marked", key=offsets.key)
    return reason


def _drop(manifest: Manifest, lake: Lake, on_step: StepWatcher) -> str | None:
    with lake.store.locked(manifest_path(manifest.topic, manifest.offsets, 0)):
        if lake.is_replaced(manifest):
            return "it was replaced meanwhile"
        lake.store.delete_folder(published_path(manifest))
    on_step("range_file_dropped", key=manifest.offsets.key)
    return None
