"""Files of a range that no manifest names, as attempts of `at_least_once` leave them: which may be landed, which deleted.

Invariant: a file is deleted here only after each of its rows was read in the landed file of its range, value by value.
"""

from collections.abc import Iterable
from dataclasses import replace

from ..adapters.lake import parquet
from ..adapters.lake.lake import Lake
from ..adapters.lake.layout import published_path, range_of
from ..core.errors import DamagedFile
from ..core.landing.verdicts import verify_staged
from ..core.log.holes import Cause, Interval, Missing
from ..core.log.manifest import Manifest
from ..core.log.plan_step import TopicIds
from ..core.offsets import merge_intervals, subtract_intervals
from ..core.steps import StepWatcher
from .standing import has_bytes_of, landed_files

MAY_BE_THERE = {Cause.COMPACTED, Cause.LOST}  # what Kafka had and has no more; nothing else becomes a hole


def adopt(ours: Manifest, part: parquet.PartFile | None, paths: Iterable[str], lake: Lake) -> Manifest | None:
    """Return the manifest of a published file that has each row that was read now; none where there is no such file.

    Such a file is of an attempt that died before its commit, or somebody deleted the manifest. It may have rows that Kafka
    has deleted since. Of several files the one with most rows is landed. Nothing is written.
    """
    found = (_manifest_of(path, ours, part, lake) for path in paths)
    return max((each for each in found if each is not None), key=lambda each: each.rows, default=None)


def _manifest_of(path: str, ours: Manifest, part: parquet.PartFile | None, lake: Lake) -> Manifest | None:
    try:
        with lake.store.local_copy(path) as found, parquet.told_if_damaged(lake.store.url(path)):
            its = parquet.read_part(found)
            if its is None or (part is not None and parquet.rows_beyond(part.path, found, in_common=True) is not None):
                return None
            file, runs = parquet.staged_file(its, f"staging/{ours.provenance.attempt}/{path}"), parquet.read_runs(found)
    except (FileNotFoundError, DamagedFile):
        return None
    holes = tuple(each for hole in ours.holes for each in _left_of(hole, runs))
    ids = TopicIds(ours.provenance.topic_id, None)
    is_explained = all(hole.cause in MAY_BE_THERE or hole in holes for hole in ours.holes)
    if not is_explained or verify_staged(ours.topic, ours.offsets, file, runs, Missing(holes), (ids, ids, ids)):
        return None
    _, ending = range_of("data", ours.topic, path)
    return replace(ours, file=file, holes=holes, named_after=ending.removeprefix("."), schema=its.schema)


def _left_of(hole: Interval, runs: Iterable[tuple[int, int]]) -> list[Interval]:
    left = subtract_intervals([(hole.start, hole.end)], merge_intervals(runs))
    return [Interval(start, end, hole.cause) for start, end in left]


def publish_from(manifest: Manifest, paths: Iterable[str], lake: Lake) -> bool:
    """Publish what a manifest names from a file with those very bytes, where its own is gone; false where there is none."""
    for path in paths:
        if has_bytes_of(manifest, path, lake):
            return lake.publish(manifest, path) is not None
    return False


def delete_proven(manifest: Manifest, paths: Iterable[str], lake: Lake, on_step: StepWatcher) -> list[str]:
    """Delete those of a range's files whose rows are all in its landed file; return of each other one why it stays."""
    kept = []
    for path in paths:
        if path == published_path(manifest):  # an attempt has committed it since the files were listed
            continue
        beyond = _rows_beyond(path, manifest, lake)
        if beyond is not None:
            kept.append(_why_kept(path, manifest, beyond, lake))
        else:
            lake.store.delete_folder(path)
            on_step("double_deleted", key=manifest.offsets.key, path=path)
    return kept


def _rows_beyond(path: str, manifest: Manifest, lake: Lake) -> str | None:
    """Return which rows of a file are not in the landed one; none where all are, or the file is gone."""
    if not lake.store.exists(path):
        return None
    try:
        with lake.store.local_copy(path) as double, parquet.told_if_damaged(lake.store.url(path)):
            if manifest.file is None:
                return None if parquet.read_part(double) is None else "no row is landed"
            with landed_files([manifest], lake) as files:
                return parquet.rows_beyond(double, files[manifest.offsets].path)
    except FileNotFoundError:
        return "the landed file, or this one, is not there"
    except DamagedFile as error:
        return str(error)


def _why_kept(path: str, manifest: Manifest, beyond: str, lake: Lake) -> str:
    return (
        f"range {manifest.offsets.text(manifest.topic)}: {lake.store.url(path)}, which no manifest names, has rows that the "
        f"landed file has not: {beyond}; it stays, since nothing else may have them; to show each row once, move it out of "
        "`data/` and keep it"
    )
