"""Decoding: find -> read -> stage -> verify -> place -> commit, from landed rows alone; Kafka is not asked.

One commit of the decoded table's log decides for all ranges of a Spark job: before it no version names their files. Invariant:
a range above its budget of dead letters fails, and nothing of it becomes visible.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePath

from ..adapters.lake import comparing, parquet
from ..adapters.lake.lake import Lake
from ..adapters.tables.columns_of_table import ColumnsDiffer
from ..adapters.tables.decodings import decoded_table_log
from ..core.advice import command
from ..core.errors import (
    DiskRefuses,
    EngineLost,
    EngineUnavailable,
    JobStuck,
    OffsetlakeError,
    Refused,
    ScanFailed,
    TableFileGone,
    as_ours,
)
from ..core.landing.selection import find_ranges
from ..core.log.manifest import Manifest
from ..core.offsets import OffsetRange, TopicRange
from ..core.tables.decoded_ranges import DecodedRanges
from ..core.tables.decoded_table import IDENTITY, TREE, paths_of
from ..core.tables.decoding import Decided, DecodeVerdict, Decoding, decode_failed, of_nothing
from ..landing.appending import write_checkpoint_if_due
from ..landing.attempt import Attempt
from ..landing.landed_files import table_file
from ..landing.staging import VERIFY_THREADS, match_parts, stage_anew, stage_empty
from ..landing.staging_places import Landed
from .decoded_compaction import cut
from .decoded_staging import Batch, DecodeTools, DecodeWork, describe, find_violations

RANGES_PER_JOB = 200


@dataclass(frozen=True, slots=True)
class _Verified:
    """A verified range to commit; `ours` has the paths of its files in staging, `placed` those in the table's folder."""

    manifest: Manifest
    ours: Decoding
    placed: Decoding


def decode(topic: str, keys: Sequence[str], attempt: Attempt, tools: DecodeTools) -> Iterator[DecodeVerdict]:
    """Decode landed ranges; yield one verdict per range. A failing range leaves the others decoded.

    With `attempt.redo` decoded ranges are decoded again, and a different outcome replaces the old one: the landed rows are the
    truth, decoded ones are derived. Raise `BadKey` or `EmptySelection` before anything is read or written.
    """
    coverage = tools.lake.coverage_of(topic, keys)
    ranges = find_ranges(topic, keys, coverage)
    known = tools.decodings.read_ranges(topic)
    staging = tools.open_staging(attempt.id, tools.lake)
    work = DecodeWork(topic, coverage, known, attempt, tools, staging)
    tools.on_step("find_landed", topic=topic, ranges=len(ranges))
    waiting = []
    for offsets in ranges:
        manifest, decoding = coverage.manifests.get(offsets), known.get(offsets)
        if manifest is None or not coverage.is_landed(offsets):
            yield decode_failed(offsets, f"range {offsets.text(topic)} is not landed: land it first; nothing was decoded")
        elif decoding is None and not manifest.rows:
            yield DecodeVerdict(offsets, Decided.ALREADY_DECODED, of_nothing(manifest))
        elif decoding is None and (other := known.find_clash(offsets)) is not None:
            yield decode_failed(offsets, _clash_text(topic, offsets, other, tools.lake))
        elif decoding is None or attempt.redo or not decoding.is_of(manifest):
            waiting.append(manifest)
        else:
            yield DecodeVerdict(offsets, Decided.ALREADY_DECODED, decoding)
    postponed: list[_Verified] = []
    try:
        for batch in _batches(waiting):
            yield from _decode_batch(work, batch, "all", postponed)
        yield from _commit(work, postponed)
    finally:
        staging.close()
    tools.lake.store.discard(f"staging/{attempt.id}", tools.on_step)


def _clash_text(topic: str, offsets: OffsetRange, other: OffsetRange, lake: Lake) -> str:
    return (
        f"range {offsets.text(topic)}: the decoded table has {other.text(topic)} in its place, which no plan step has, as "
        f"where a backup has an older plan log; nothing was decoded; move {lake.store.url(f'{TREE}/{topic}')} away, and all "
        "ranges are decoded again"
    )


def _batches(manifests: Sequence[Manifest]) -> Iterator[Sequence[Manifest]]:
    """Split ranges into Spark jobs, each of one generation, since footers tell only partition and offsets."""
    for _, group in groupby(manifests, key=lambda manifest: manifest.offsets.generation):
        listed = list(group)
        yield from (listed[at : at + RANGES_PER_JOB] for at in range(0, len(listed), RANGES_PER_JOB))


def _decode_batch(
    work: DecodeWork, manifests: Sequence[Manifest], name: str, postponed: list[_Verified]
) -> Iterator[DecodeVerdict]:
    """Decode ranges of one generation in one Spark job; where that fails, in halves, to isolate what cannot be read."""
    folder: PurePath = work.staging.root / f"{manifests[0].offsets.key}_{name}"
    with_rows = [manifest for manifest in manifests if manifest.rows]
    with ExitStack() as opened:
        try:
            landed = opened.enter_context(work.staging.landed(with_rows))
            batch, _ = stage_anew(lambda anew: _stage(work, with_rows, landed, anew), folder, work.tools.on_step)
        except (ScanFailed, EngineLost, TableFileGone, Refused, FileNotFoundError) as error:
            if len(manifests) == 1 or isinstance(error, DiskRefuses):
                yield from (decode_failed(each.offsets, _explain(work, each, error)) for each in manifests)
                return
            middle = len(manifests) // 2
            yield from _decode_batch(work, manifests[:middle], f"{name}0", postponed)
            yield from _decode_batch(work, manifests[middle:], f"{name}1", postponed)
            return
        except EngineUnavailable as error:
            yield from (decode_failed(each.offsets, error.reason) for each in manifests)
            return
        with ThreadPoolExecutor(VERIFY_THREADS) as pool:
            finished = [each for each in manifests if each.offsets not in batch.unfinished]
            found = list(pool.map(lambda manifest: _verify_and_place(work, manifest, batch), finished))
    yield from (decode_failed(*each) for each in batch.unfinished.items())
    yield from (each for each in found if isinstance(each, DecodeVerdict))
    yield from _commit(work, [each for each in found if isinstance(each, _Verified)], postponed)


def _explain(work: DecodeWork, manifest: Manifest, error: OffsetlakeError | FileNotFoundError) -> str:
    """Return why a range is not decoded: its landed file was replaced, or, if reading failed, is gone; else the error."""
    if work.tools.lake.is_replaced(manifest):
        return _landed_anew(work, manifest)
    if isinstance(error, OffsetlakeError) and not isinstance(error, ScanFailed):
        return error.reason
    lake, where = work.tools.lake, manifest.offsets.text(work.topic)
    own = lake.own_path(manifest) if manifest.file is not None else None
    if own is not None and not lake.store.exists(own):
        return (
            f"the landed file of range {where} is gone: {lake.store.url(own)}; nothing of it became visible; "
            f"`{command('audit', work.topic)}` says what is there; restore it from a backup, or land the range again"
        )
    if isinstance(error, FileNotFoundError):
        return f"a file of range {where} is gone while it was decoded: {error}; nothing of it became visible; decode it again"
    return error.reason


def _stage(work: DecodeWork, with_rows: Sequence[Manifest], landed: Landed, folder: PurePath) -> Batch:
    """Have Spark decode the ranges with rows, then write dead letters for those where decoded rows are missing."""
    tools, topic, staging = work.tools, work.topic, work.staging
    decoder = tools.decoder()
    if not with_rows:
        return Batch({}, {}, {}, {}, decoder.writer, 0.0, {})
    tools.on_step("read_landed", topic=topic, ranges=len(with_rows))
    started = tools.now_ms()
    files = {offsets: file.path for offsets, file in sorted(landed.items())}
    decided = decoder.decide([*files.values()])
    of, most_rows = len(files), max(each.rows for each in with_rows)
    stuck = ""
    try:
        with staging.watched(folder / "decoded", lambda files: tools.on_step("files_decoded", topic=topic, files=files, of=of)):
            decoder.stage_decoded([*files.values()], decided, staging.url(folder / "decoded"), most_rows)
    except JobStuck as error:
        stuck = error.reason
    decoded = _parts(work, [*files], folder / "decoded")
    lacking = [each.offsets for each in with_rows if (part := decoded[each.offsets]) is None or part.rows < each.rows]
    dead: Mapping[OffsetRange, parquet.PartFile | None] = {}
    if lacking and not stuck:
        bad = [files[offsets] for offsets in lacking]
        try:
            decoder.stage_dead_letters(bad, decided, staging.url(folder / "dead_letters"), most_rows)
            dead = _parts(work, lacking, folder / "dead_letters")
        except JobStuck as error:
            stuck = error.reason
    seconds = (tools.now_ms() - started) / 1000
    tools.on_step("stage_decoded", topic=topic, seconds=seconds, with_dead_letters=len(lacking))
    return Batch(
        staging.with_digests(landed),
        decoded,
        dead,
        decided.schemas,
        decoder.writer,
        seconds / sum(each.rows for each in with_rows),
        dict.fromkeys(lacking, stuck) if stuck else {},
    )


def _parts(work: DecodeWork, ranges: Sequence[OffsetRange], folder: PurePath) -> Mapping[OffsetRange, parquet.PartFile | None]:
    work.staging.finish(folder)
    matched = match_parts([TopicRange(work.topic, offsets) for offsets in ranges], folder, work.staging)
    if wrong := [*matched.strays, *matched.damaged]:
        raise ScanFailed(wrong[0], topic=work.topic)
    return {each.offsets: part for each, part in matched.parts.items()}


def _verify_and_place(work: DecodeWork, manifest: Manifest, batch: Batch) -> DecodeVerdict | _Verified:
    """Verify one staged range and give its files names in the table's folder; return a verdict where that cannot be."""
    offsets, tools = manifest.offsets, work.tools
    decoded, dead = batch.decoded.get(offsets), batch.dead.get(offsets)
    try:
        ours = describe(work, manifest, decoded, dead, batch)
        violations = find_violations(work, ours, manifest, batch)
        if violations:
            return decode_failed(offsets, *violations)
        tools.on_step("verify_decoded", key=offsets.key, rows=ours.rows, dead_letters=ours.dead)
        for part, file in ((decoded, ours.decoded), (dead, ours.dead_letters)):
            work.staging.bring(part, file)
        if not manifest.rows:  # it had some: the table then has a file for the revision without rows too
            ours = replace(ours, decoded=stage_empty(offsets.key, offsets, work.attempt, tools.lake, IDENTITY))
        return _Verified(manifest, ours, tools.decodings.place(ours))
    except (OffsetlakeError, FileNotFoundError) as error:
        return decode_failed(offsets, _explain(work, manifest, error))
    except Exception as error:  # noqa: BLE001 (told by its type: other ranges must not fail by it)
        return decode_failed(offsets, as_ours(error, f"range {offsets.text(work.topic)}").reason)


def _commit(
    work: DecodeWork, verified: Sequence[_Verified], postponed: list[_Verified] | None = None
) -> Iterator[DecodeVerdict]:
    """Commit ranges in one version of the table; yield a verdict of each.

    Where no columns can hold both their rows and the table's, they are `postponed`: once all ranges of the attempt are
    committed together, the obstacle may be gone. At the end, without `postponed`, they fail.
    """
    tools, left = work.tools, {each.manifest.offsets: each for each in verified}
    try:
        while left:
            decoded = tools.decodings.read_ranges(work.topic)
            ours = list[Decoding]()
            for offsets, each in [*left.items()]:
                found = _decide(work, each, decoded)
                if isinstance(found, DecodeVerdict):
                    yield _give_up(work, left.pop(offsets), found)
                else:
                    ours.append(found)
            if not ours or not _commit_onto(work, decoded, ours):
                continue
            version = decoded.table.version + 1
            write_checkpoint_if_due(work.topic, decoded_table_log(work.topic, tools.lake), version, tools.on_step)
            left.clear()
            yield from (
                DecodeVerdict(each.offsets, Decided.REPLACED if each.revision else Decided.DECODED, each) for each in ours
            )
    except ColumnsDiffer as error:
        if postponed is not None:
            postponed += left.values()
            return
        yield from (
            _give_up(work, each, decode_failed(each.manifest.offsets, _differs(work, each, error))) for each in left.values()
        )
    except OffsetlakeError as error:  # placed files are left to the vacuum: a version may name them
        yield from (decode_failed(offsets, error.reason) for offsets in left)


def _commit_onto(work: DecodeWork, decoded: DecodedRanges, ours: Sequence[Decoding]) -> bool:
    """Commit ranges onto a version, with what is left of compacted files; false where that is not the last version."""
    tools = work.tools
    found = cut((each.offsets for each in ours), decoded, tools.decodings, tools.now_ms())
    if found.lost:
        tools.on_step("damaged_files_removed", topic=work.topic, ranges=len(found.lost))
    tools.on_step("place_decoded", topic=work.topic, ranges=len(ours))
    # where this raises, a version may still name the files: they are left to the vacuum
    is_committed = tools.decodings.commit(ours, decoded, tools.now_ms(), found.rests, found.lost)
    if is_committed:
        tools.on_step("commit_decoded", topic=work.topic, version=decoded.table.version + 1, ranges=len(ours))
    else:
        tools.decodings.delete(work.topic, [rest.path for rest in found.rests.values()])
    return is_committed


def _give_up(work: DecodeWork, verified: _Verified, verdict: DecodeVerdict) -> DecodeVerdict:
    work.tools.decodings.delete(work.topic, paths_of(verified.placed))
    return verdict


def _decide(work: DecodeWork, verified: _Verified, table: DecodedRanges) -> Decoding | DecodeVerdict:
    """Return the decoding to commit of a range, given what the table has of it now, or the verdict where there is none."""
    manifest, ours, lake = verified.manifest, verified.ours, work.tools.lake
    offsets, before, newest = manifest.offsets, work.known.get(manifest.offsets), table.get(manifest.offsets)
    if lake.is_replaced(manifest):  # asked after the table was read: a decoding of the later revision commits after that
        return decode_failed(offsets, _landed_anew(work, manifest))
    if newest is None:
        return verified.placed
    if newest.is_like(ours) and _is_same(table, verified.placed, lake):
        return DecodeVerdict(offsets, Decided.UNCHANGED if newest == before else Decided.SUPERSEDED, newest)
    if newest != before and newest.is_of(manifest):
        return DecodeVerdict(offsets, Decided.SUPERSEDED, newest)
    return replace(verified.placed, revision=newest.revision + 1)


def _landed_anew(work: DecodeWork, manifest: Manifest) -> str:
    return (
        f"range {manifest.offsets.text(work.topic)} was landed anew while it was decoded; nothing of it became visible; it is "
        "decoded as it is landed now"
    )


def _is_same(table: DecodedRanges, ours: Decoding, lake: Lake) -> bool:
    """Return whether the table has the rows that were decoded now, though another Spark may have written other bytes."""
    folder = f"{TREE}/{table.topic}"
    for now, is_dead in ((ours.decoded, False), (ours.dead_letters, True)):
        before = table.file_of(ours.offsets, is_dead=is_dead)
        if before is None or now is None:
            if before is not None or now is not None:
                return False
            continue
        try:
            with table_file(before, folder, lake) as there, lake.store.local_copy(f"{folder}/{now.path}") as here:
                if comparing.differing_range(there, ours.offsets, here) is not None:
                    return False
        except (FileNotFoundError, OffsetlakeError):
            return False  # it was deleted or changed: what was decoded now replaces it
    return True


def _differs(work: DecodeWork, verified: _Verified, error: ColumnsDiffer) -> str:
    """Return why a range does not fit, and what to do: `--outdated` misses ranges that only a registry's version outdates."""
    again = command("decode", work.topic, "--outdated")
    return (
        f"range {verified.manifest.offsets.text(work.topic)} does not fit into the table beside ranges that were decoded "
        f"otherwise: {error}; nothing of it became visible; `{again}` decodes those again, as defs.yaml says now, and puts "
        "them in together; where a registry has another version since, `--schema ID` with the ids of before does"
    )
