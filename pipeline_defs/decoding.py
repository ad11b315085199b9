"""Decoding: find -> read -> stage -> verify -> commit -> publish, from landed files alone; Kafka is not asked.

A range is decoded when its document exists and its files are published; the document decides, by put-if-absent, as a
manifest does for landing. Invariant: a range above its budget of dead letters fails, and nothing of it becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from pathlib import PurePath

from .attempt import Attempt
from .core.command_lines import command
from .core.decoding import Decided, DecodeVerdict, Decoding, decode_failed
from .core.errors import (
    DiskRefuses,
    EngineLost,
    EngineUnavailable,
    OffsetlakeError,
    Refused,
    ScanFailed,
    TableFileGone,
)
from .core.manifest import Manifest, StagedFile
from .core.offsets import OffsetRange, TopicRange
from .decoded_staging import Batch, DecodeTools, Work, describe, find_violations
from .edges import parquet
from .edges.decodings import dead_letters_path, decoded_path
from .edges.lake import Lake
from .landing import find_ranges
from .staging import VERIFY_THREADS, match_parts, stage_anew, stage_empty
from .staging_places import Landed

RANGES_PER_JOB = 200


def decode(topic: str, keys: Sequence[str], attempt: Attempt, tools: DecodeTools) -> Iterator[DecodeVerdict]:
    """Decodes landed ranges; yields one verdict per range. One range failing leaves the others decoded.

    With `attempt.redo` ranges that are decoded are decoded again, and what comes out otherwise takes their place: the landed
    file is the truth, this is derived. Raises `BadKey` or `EmptySelection` before anything is read or written.
    """
    coverage = tools.lake.coverage(topic)
    ranges = find_ranges(topic, keys, coverage)
    decoded = tools.decodings.read_ranges(topic)
    staging = tools.open_staging(attempt.id, tools.lake)
    work = Work(topic, coverage, decoded.known, attempt, tools, staging)
    tools.on_step("find_landed", topic=topic, ranges=len(ranges))
    waiting = []
    for offsets in ranges:
        manifest, decoding = coverage.manifests.get(offsets), decoded.known.get(offsets)
        if manifest is None or not coverage.is_landed(offsets):
            yield decode_failed(
                offsets, f"range {offsets.text(topic)} is not landed: land it first; nothing was decoded"
            )
        elif decoding is None or attempt.redo or not decoding.is_of(manifest):
            waiting.append(manifest)
        elif offsets in decoded.published:
            yield DecodeVerdict(offsets, Decided.ALREADY_DECODED, decoding)
        elif tools.decodings.publish(decoding):
            yield DecodeVerdict(offsets, Decided.ROLLED_FORWARD, decoding)
        else:
            waiting.append(manifest)
    try:
        for batch in _batches(waiting):
            yield from _decode_batch(work, batch, "all")
    finally:
        staging.close()
    _sweep_own_staging(work)


def _batches(manifests: Sequence[Manifest]) -> Iterator[Sequence[Manifest]]:
    """Splits ranges into Spark jobs: of one generation each, since files tell partition and offset only."""
    for _, group in groupby(manifests, key=lambda manifest: manifest.offsets.generation):
        listed = list(group)
        yield from (listed[at : at + RANGES_PER_JOB] for at in range(0, len(listed), RANGES_PER_JOB))


def _sweep_own_staging(work: Work) -> None:
    """Deletes what this attempt staged, unless a document of it still waits to be published."""
    tools = work.tools
    decoded = tools.decodings.read_ranges(work.topic)
    if all(decoded.known[offsets].provenance.attempt != work.attempt.id for offsets in decoded.held):
        tools.lake.store.delete_folder(f"staging/{work.attempt.id}")


def _decode_batch(work: Work, manifests: Sequence[Manifest], name: str) -> Iterator[DecodeVerdict]:
    """Decodes ranges of one generation in one Spark job; where that fails, in halves, to leave what cannot be read alone."""
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
            yield from _decode_batch(work, manifests[:middle], f"{name}0")
            yield from _decode_batch(work, manifests[middle:], f"{name}1")
            return
        except EngineUnavailable as error:
            yield from (decode_failed(each.offsets, str(error)) for each in manifests)
            return
        with ThreadPoolExecutor(VERIFY_THREADS) as pool:
            yield from pool.map(lambda manifest: _decide(work, manifest, batch), manifests)


def _explain(work: Work, manifest: Manifest, error: Exception) -> str:
    """Says why a range is not decoded; that its landed file went away meanwhile is named as that."""
    if not isinstance(error, (ScanFailed, FileNotFoundError)):
        return str(error)
    lake, where = work.tools.lake, manifest.offsets.text(work.topic)
    own = lake.own_path(manifest) if manifest.file is not None else None
    if own is not None and not lake.store.exists(own):
        return (
            f"the landed file of range {where} is gone: {lake.store.url(own)}; nothing of it became visible; "
            f"`{command('audit', work.topic)}` says what is there; restore it from a backup, or land the range again"
        )
    if isinstance(error, FileNotFoundError):
        return f"a file of range {where} is gone while it was decoded: {error}; nothing of it became visible; decode it again"
    return str(error)


# ---- read, stage


def _stage(work: Work, with_rows: Sequence[Manifest], landed: Landed, folder: PurePath) -> Batch:
    """Has Spark decode what has rows, and set aside what does not decode where anything is missing then."""
    tools, topic, staging = work.tools, work.topic, work.staging
    decoder = tools.decoder()
    if not with_rows:
        return Batch({}, {}, {}, {}, decoder.writer, 0.0)
    tools.on_step("read_landed", topic=topic, ranges=len(with_rows))
    started = tools.now_ms()
    files = {offsets: file.path for offsets, file in sorted(landed.items())}
    decided = decoder.decide([*files.values()])
    of = len(files)
    with staging.watched(
        folder / "decoded", lambda files: tools.on_step("files_decoded", topic=topic, files=files, of=of)
    ):
        decoder.stage_decoded([*files.values()], decided, staging.url(folder / "decoded"))
    decoded = _parts(work, [*files], folder / "decoded")
    lacking = [each.offsets for each in with_rows if _rows(decoded[each.offsets]) < each.rows]
    dead: Mapping[OffsetRange, parquet.PartFile | None] = {}
    if lacking:
        decoder.stage_dead_letters(
            [files[offsets] for offsets in lacking], decided, staging.url(folder / "dead_letters")
        )
        dead = _parts(work, lacking, folder / "dead_letters")
    seconds = (tools.now_ms() - started) / 1000
    tools.on_step("stage_decoded", topic=topic, seconds=seconds, with_dead_letters=len(lacking))
    return Batch(
        staging.with_digests(landed),
        decoded,
        dead,
        decided.schemas,
        decoder.writer,
        seconds / sum(each.rows for each in with_rows),
    )


def _parts(
    work: Work, ranges: Sequence[OffsetRange], folder: PurePath
) -> Mapping[OffsetRange, parquet.PartFile | None]:
    work.staging.finish(folder)
    matched = match_parts([TopicRange(work.topic, offsets) for offsets in ranges], folder, work.staging)
    if wrong := [*matched.strays, *matched.damaged]:
        raise ScanFailed(wrong[0], topic=work.topic)
    return {each.offsets: part for each, part in matched.parts.items()}


def _rows(part: parquet.PartFile | None) -> int:
    return part.rows if part else 0


# ---- verify, commit, publish


def _decide(work: Work, manifest: Manifest, batch: Batch) -> DecodeVerdict:
    try:
        return _commit_and_publish(work, manifest, batch)
    except (OffsetlakeError, FileNotFoundError) as error:
        return decode_failed(manifest.offsets, _explain(work, manifest, error))


def _commit_and_publish(work: Work, manifest: Manifest, batch: Batch) -> DecodeVerdict:
    """Verifies one staged range, commits its document and publishes its files, or says why not."""
    offsets, tools = manifest.offsets, work.tools
    decoded, dead = batch.decoded.get(offsets), batch.dead.get(offsets)
    ours = describe(work, manifest, decoded, dead, batch)
    violations = find_violations(work, ours, manifest, batch)
    if violations:
        return decode_failed(offsets, *violations)
    tools.on_step("verify_decoded", key=offsets.key, rows=ours.rows, dead_letters=ours.dead)
    for part, file in ((decoded, ours.decoded), (dead, ours.dead_letters)):
        work.staging.bring(part, file)
    standing = work.known.get(offsets)
    if standing is not None:
        if (
            standing.is_like(ours)
            and _is_seen(standing, ours, tools)
            and _is_same(standing, ours, decoded, dead, tools.lake)
        ):
            return DecodeVerdict(offsets, Decided.UNCHANGED, standing)
        ours = _next(work, standing, ours)
    winner = tools.decodings.commit(ours)
    tools.on_step("commit_decoded", key=offsets.key, digest=winner.digest)
    if not tools.decodings.publish(winner, lambda path: tools.on_step("file_published", path=path)):
        return decode_failed(offsets, f"a staged file of {offsets.text(work.topic)} is gone before it was published")
    tools.on_step("publish_decoded", key=offsets.key)
    if winner.provenance.attempt != work.attempt.id:
        return DecodeVerdict(offsets, Decided.SUPERSEDED, winner)
    return DecodeVerdict(offsets, Decided.REPLACED if winner.revision else Decided.DECODED, winner)


def _is_seen(standing: Decoding, ours: Decoding, tools: DecodeTools) -> bool:
    """Says whether a reader sees what the document that stands names, from its own files or from ours of the same bytes."""
    publish = tools.decodings.publish
    return publish(standing) or (standing.digest == ours.digest and publish(_with_files(standing, ours)))


def _is_same(
    standing: Decoding, ours: Decoding, decoded: parquet.PartFile | None, dead: parquet.PartFile | None, lake: Lake
) -> bool:
    """Says whether what was decoded now has the rows of what stands; another Spark may write them in other bytes."""
    topic, offsets = ours.topic, ours.offsets
    pairs = (
        (standing.decoded, ours.decoded, decoded, decoded_path(topic, offsets)),
        (standing.dead_letters, ours.dead_letters, dead, dead_letters_path(topic, offsets)),
    )
    for before, now, part, path in pairs:
        if (before.rows if before else 0) != (now.rows if now else 0):
            return False
        if before is None or now is None or part is None or before.sha256 == now.sha256:
            continue
        if not lake.store.exists(path):
            return False
        with lake.local_copy(path) as published:
            if parquet.differing_rows(published, part.path) is not None:
                return False
    return True


def _with_files(standing: Decoding, ours: Decoding) -> Decoding:
    """Is the document that stands, with the same rows as staged now: those that it names are gone."""
    return replace(standing, decoded=ours.decoded, dead_letters=ours.dead_letters)


def _next(work: Work, standing: Decoding, ours: Decoding) -> Decoding:
    """Is the next revision. A file that has no rows any more stays as one without rows: a name is never free again."""
    store, topic, offsets = work.tools.lake.store, ours.topic, ours.offsets
    files: dict[str, StagedFile | None] = {"decoded": ours.decoded, "dead_letters": ours.dead_letters}
    for name, path in (
        ("decoded", decoded_path(topic, offsets)),
        ("dead_letters", dead_letters_path(topic, offsets)),
    ):
        before: StagedFile | None = getattr(standing, name)
        # seen, or only named: who committed it may stand still, and would publish it if the name were free
        like = next((each for each in (path, before.path if before else path) if store.exists(each)), None)
        if files[name] is None and like is not None:
            files[name] = stage_empty(f"{offsets.key}.{name}", offsets, work.attempt, work.tools.lake, like)
    return replace(ours, revision=standing.revision + 1, decoded=files["decoded"], dead_letters=files["dead_letters"])
