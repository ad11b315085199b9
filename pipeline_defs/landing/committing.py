"""The end of the protocol for one range: verify -> commit -> publish, or roll forward what was committed before.

The manifest decides, by put-if-absent. Invariants: nothing of a range becomes visible before its manifest is there, except for
an attempt's own file under `at_least_once`; such a file, where no manifest names it, is deleted only after each of its rows
was found in the landed file of its range, value by value.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from ..adapters.lake import comparing, parquet
from ..adapters.lake.lake import Lake
from ..adapters.lake.layout import published_path, range_of
from ..adapters.lake.parquet import PartFile
from ..adapters.tables.delta_log import raw_table_log
from ..core.errors import DamagedFile, OffsetlakeError, as_ours
from ..core.landing.verdicts import Outcome, Verdict, failed, verify_staged
from ..core.log.holes import Cause, Interval, Missing
from ..core.log.losses import Reading
from ..core.log.manifest import Manifest
from ..core.log.plan_step import TopicIds
from ..core.offsets import OffsetRange, merge_intervals, subtract_intervals
from ..core.steps import StepWatcher
from ..core.tables.raw_table import is_compacted
from .attempt import Work
from .landed_files import has_bytes_of, landed_files
from .redo import Act, compare, differs_from_found, reinstate, roll_forward, without_manifest
from .staging import Staged, stage_empty, staged_name, verify_range

MAY_BE_THERE = {Cause.COMPACTED, Cause.LOST}  # holes that an older file may have rows for, since Kafka had these records


def adopt(ours: Manifest, part: parquet.PartFile | None, paths: Iterable[str], lake: Lake) -> Manifest | None:
    """Return the manifest for a published file that has each row that was read now; none where there is no such file.

    Such a file is of an attempt that died before its commit, or its manifest was deleted. It may have rows that Kafka has
    deleted since. Of several files the one with most rows is chosen. Nothing is written.
    """
    found = (_manifest_of(path, ours, part, lake) for path in paths)
    return max((each for each in found if each is not None), key=lambda each: each.rows, default=None)


def _manifest_of(path: str, ours: Manifest, part: parquet.PartFile | None, lake: Lake) -> Manifest | None:
    try:
        with lake.store.local_copy(path) as found, parquet.told_if_damaged(lake.store.url(path)):
            its = parquet.read_part(found)
            if its is None or (part is not None and comparing.rows_beyond(part.path, found, in_common=True) is not None):
                return None
            file = parquet.staged_file(its, f"staging/{ours.provenance.attempt}/{path}")
            stretches = parquet.read_stretches(found)
    except (FileNotFoundError, DamagedFile):
        return None
    holes = tuple(each for hole in ours.holes for each in _left_of(hole, stretches))
    ids = TopicIds(ours.provenance.topic_id, None)
    is_explained = all(hole.cause in MAY_BE_THERE or hole in holes for hole in ours.holes)
    if not is_explained or verify_staged(ours.topic, ours.offsets, file, stretches, Missing(holes), (ids, ids, ids)):
        return None
    _, ending = range_of("data", ours.topic, path)
    return replace(ours, file=file, holes=holes, named_after=ending.removeprefix("."), schema=its.schema)


def _left_of(hole: Interval, stretches: Iterable[tuple[int, int]]) -> list[Interval]:
    left = subtract_intervals([(hole.start, hole.end)], merge_intervals(stretches))
    return [Interval(start, end, hole.cause) for start, end in left]


def publish_from(manifest: Manifest, paths: Iterable[str], lake: Lake) -> bool:
    """Publish a manifest's file from another file with the same bytes, where its own is gone; false where there is none."""
    for path in paths:
        if has_bytes_of(manifest, path, lake):
            return lake.publish(manifest, path) is not None
    return False


def delete_proven(manifest: Manifest, paths: Iterable[str], lake: Lake, on_step: StepWatcher) -> list[str]:
    """Delete the files of a range whose rows are all in its landed file; return why each other one stays."""
    kept = []
    for path in paths:
        if path == published_path(manifest):  # an attempt has committed it since the files were listed
            continue
        beyond = _rows_beyond(path, manifest, lake)
        if beyond is not None:
            kept.append(_why_kept(path, manifest, beyond, lake))
        else:
            lake.store.delete(path)
            on_step("double_deleted", key=manifest.offsets.key, path=path)
    return kept


def _rows_beyond(path: str, manifest: Manifest, lake: Lake) -> str | None:
    """Return, as a message, which rows of a file are not in the landed one; none where all are, or the file is gone."""
    if not lake.store.exists(path):
        return None
    try:
        with lake.store.local_copy(path) as double, parquet.told_if_damaged(lake.store.url(path)):
            if manifest.file is None:
                return None if parquet.read_part(double) is None else "no row is landed"
            with landed_files([manifest], lake) as files:
                return comparing.rows_beyond(double, files[manifest.offsets].path)
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


def finish_known(work: Work, ranges: Sequence[OffsetRange]) -> tuple[list[Verdict], list[OffsetRange]]:
    """Roll forward committed ranges and leave landed ones; return their verdicts, and the ranges that must be read."""
    finished, waiting = [], []
    for offsets in ranges:
        manifest = work.coverage.manifests.get(offsets)
        if manifest is None:
            waiting.append(offsets)
        elif not work.coverage.is_landed(offsets):
            verdict = _roll_forward(work, manifest)
            if verdict is None:
                waiting.append(offsets)
            else:
                finished.append(verdict)
        elif work.attempt.redo:
            with suppress(OffsetlakeError):  # tried again when the range is decided, and reported then
                _delete_doubles(work, manifest)
            waiting.append(offsets)
        else:
            finished.append(Verdict(offsets, Outcome.ALREADY_LANDED, manifest))
    return [without_doubles(work, verdict) for verdict in finished], waiting


def _roll_forward(work: Work, manifest: Manifest) -> Verdict | None:
    """Finish what an earlier attempt committed; none where its staged file is gone, so the range is read again."""
    lake, offsets = work.tools.lake, manifest.offsets
    try:
        if roll_forward(manifest, lake) or publish_from(manifest, _find_copies(work, manifest), lake):
            work.tools.on_step("rolled_forward", key=offsets.key)
            return Verdict(offsets, Outcome.ROLLED_FORWARD, lake.newest(manifest))
        again = reinstate(manifest, lake)
        if again is not None and lake.commit_manifest(again) == again:
            work.tools.on_step("reinstated", key=offsets.key, revision=again.revision)
            note = f"revision {manifest.revision} was never published and its staged file is gone: what stood before stands on"
            return Verdict(offsets, Outcome.ALREADY_LANDED, again, (note,))
    except OffsetlakeError as error:
        return failed(offsets, error.reason)
    return None


def _find_copies(work: Work, manifest: Manifest) -> Iterator[str]:
    """Yield the paths of files that may have a manifest's bytes: doubles, and the raw table's file.

    Publishing may move a file, so the table's is first linked into staging.
    """
    yield from work.coverage.doubles_of(manifest.offsets)
    store, copy = work.tools.lake.store, f"staging/{work.attempt.id}/{manifest.offsets.key}.of-table.parquet"
    file = work.table_files.find_at(manifest)
    if file is not None and not is_compacted(file):
        with suppress(FileNotFoundError):
            store.publish(f"{raw_table_log(manifest.topic, store).folder}/{file.path}", copy)
            yield copy


def decide(work: Work, reading: Reading, staged: Staged) -> Verdict:
    """Verify, commit and publish a staged range; any error fails this range alone."""
    try:
        return without_doubles(work, _commit_and_publish(work, reading, staged))
    except Exception as error:  # noqa: BLE001 (told by its type: other ranges must not fail by it)
        return failed(reading.offsets, as_ours(error, f"range {reading.offsets.text(work.topic)}").reason)


def without_doubles(work: Work, verdict: Verdict) -> Verdict:
    """Return a range's verdict, or a failed one where a replace could not delete a file that may show its rows twice."""
    try:
        kept = _delete_doubles(work, verdict.manifest) if verdict.manifest is not None else []
    except OffsetlakeError as error:
        return failed(verdict.offsets, error.reason)
    return failed(verdict.offsets, *kept) if kept else verdict


def _delete_doubles(work: Work, manifest: Manifest) -> list[str]:
    """Delete, for a replace, the files that show rows of a landed range twice; return why any of them stays.

    A replace also does so before it takes rows away, while the landed file still has them.
    """
    if work.attempt.on_change != "replace":
        return []
    return delete_proven(manifest, work.coverage.doubles_of(manifest.offsets), work.tools.lake, work.tools.on_step)


def _commit_and_publish(work: Work, reading: Reading, staged: Staged) -> Verdict:
    """Verify one staged range, commit its manifest and publish its file; return a failed verdict where that cannot be.

    | what is in the lake already | what is done |
    |---|---|
    | a manifest | it is compared with what was read now |
    | a published file without a manifest, since somebody deleted that | it is given one, if its rows are those read now |
    | a file of an attempt under `at_least_once` that died before its commit | it is given a manifest, likewise |
    | nothing | what was read is committed |
    """
    offsets, coverage, tools, lake = reading.offsets, work.coverage, work.tools, work.tools.lake
    part = staged.part_of(reading)
    ours, violations = verify_range(work.topic, reading, staged, coverage.log.ranges[offsets], work)
    if ours is None:
        return failed(offsets, *violations)
    tools.on_step("verify", key=offsets.key, rows=ours.rows)
    known = coverage.manifests.get(offsets)
    if known is not None:
        return _act_on_newest(work, ours, part, known, is_redo=True)
    if offsets in coverage.published:
        return _commit_for_published(work, reading, replace(ours, named_after=""), part)
    adopted = adopt(ours, part, coverage.doubles_of(offsets), lake)
    if adopted is None:
        return _commit(work, ours, part)
    newest = lake.commit_manifest(adopted)
    if newest != adopted:
        return _act_on_newest(work, ours, part, newest, is_redo=False)
    tools.on_step("commit", key=offsets.key, digest=adopted.digest)
    return Verdict(offsets, Outcome.ROLLED_FORWARD, adopted)


def _commit_for_published(work: Work, reading: Reading, ours: Manifest, part: PartFile | None) -> Verdict:
    """Commit a manifest for a published file that has none; where its rows differ, only a replace may write them anew."""
    offsets, lake = reading.offsets, work.tools.lake
    found = differs_from_found(ours, part, lake)
    if found and (work.attempt.on_change != "replace" or reading.lost):  # only that file has what Kafka has deleted
        return failed(offsets, without_manifest(ours, found, lake))
    if found and ours.file is None:
        ours = replace(ours, file=stage_empty(staged_name(work.topic, offsets), offsets, work.attempt, lake))
    return _commit(work, ours, part, mend=found is not None)


def _commit(work: Work, ours: Manifest, part: PartFile | None, *, mend: bool = False) -> Verdict:
    lake, tools, offsets = work.tools.lake, work.tools, ours.offsets
    work.staging.bring(part, ours.file)
    if ours.named_after:
        lake.publish(ours)  # at_least_once, no fence: visible under the attempt's own name before any commit
        tools.on_step("publish", key=offsets.key)
    newest = lake.commit_manifest(ours)
    if newest != ours:
        return _act_on_newest(work, ours, part, newest, is_redo=False)
    tools.on_step("commit", key=offsets.key, digest=ours.digest)
    return _publish(work, ours, Verdict(offsets, Outcome.LANDED, ours), mend=mend)


def _act_on_newest(work: Work, ours: Manifest, part: PartFile | None, newest: Manifest, *, is_redo: bool) -> Verdict:
    """Compare what was read now with the newest manifest and act on it; repeat where another attempt commits meanwhile."""
    lake = work.tools.lake
    while True:
        newest = lake.newest(newest)
        is_first_since = newest.revision == work.revision_before(newest.offsets)
        act, verdict = compare(newest, ours, part, work, is_redo=is_redo, is_first_since=is_first_since)
        if act is Act.MEND and ours.file is not None:
            work.staging.bring(part, ours.file)
            return _publish(work, newest, verdict, staged=ours.file.path, mend=True)
        if act is Act.NEXT:
            newer = _next_revision(work, ours, part, newest)
            newest = lake.commit_manifest(newer)
            if newest == newer:
                work.tools.on_step("commit", key=newer.offsets.key, digest=newer.digest)
                return _publish(work, newer, replace(verdict, manifest=newer))
        elif not lake.is_replaced(newest):
            return verdict


def _next_revision(work: Work, ours: Manifest, part: PartFile | None, newest: Manifest) -> Manifest:
    """Stage what was read now as the next revision, and return its manifest."""
    file = ours.file
    if file is None and newest.file is not None:
        file = stage_empty(staged_name(ours.topic, ours.offsets), ours.offsets, work.attempt, work.tools.lake)
    work.staging.bring(part, file)
    return replace(ours, file=file, revision=newest.revision + 1, named_after=newest.named_after, drop=newest.drop)


def _publish(work: Work, manifest: Manifest, verdict: Verdict, *, staged: str | None = None, mend: bool = False) -> Verdict:
    """Publish a committed manifest; the verdict is of the newest revision then, which may be a later one."""
    lake, offsets = work.tools.lake, manifest.offsets
    published = lake.publish(manifest, staged, mend=mend)
    if published is None:
        newest = lake.newest(manifest)
        if newest == manifest or not roll_forward(newest, lake):
            return failed(
                offsets,
                f"range {offsets.text(manifest.topic)}: revision {newest.revision} of attempt {newest.provenance.attempt} is "
                "committed, and its staged file is gone, so it was not published; the next run reads the range again",
            )
        published = lake.newest(newest)
    work.tools.on_step("publish", key=offsets.key)
    return verdict if published.revision == manifest.revision else Verdict(offsets, Outcome.SUPERSEDED, published)
