"""THE PROTOCOL: find -> scan -> stage -> verify -> commit -> publish -> report, as `land` below reads.

A range is landed when its manifest exists and its file is published. The manifest decides, by put-if-absent; before
it nothing is visible, after it anyone can finish. docs/protocol.md numbers the requirements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from .attempt import Attempt, Run, Tools
from .core.command_lines import command
from .core.coverage import Coverage
from .core.delivery import Delivery
from .core.errors import (
    BadKey,
    BrokerUnavailable,
    DiskRefuses,
    EmptySelection,
    EngineLost,
    EngineUnavailable,
    LakeUnavailable,
    OffsetlakeError,
    ScanFailed,
)
from .core.losses import Reading
from .core.manifest import Manifest
from .core.offsets import OffsetRange, parse_key
from .core.scans import READS_AT_ONCE, Scan, group_scans
from .core.selection import nearest_range
from .core.verdicts import Outcome, Verdict, failed
from .doubles import adopt, delete_proven, publish_from
from .edges.parquet import PartFile
from .reading import claim, split_planned, split_readable, why_unreadable
from .redo import Act, compare, differs_from_found, reinstate, roll_forward, without_manifest
from .staging import (
    ENGINE_TRIES,
    VERIFY_THREADS,
    Staged,
    match_parts,
    stage_anew,
    stage_empty,
    sweep_own_staging,
    verify_range,
)

if TYPE_CHECKING:
    from .edges.kafka import Kafka


def land(topic: str, keys: Sequence[str], attempt: Attempt, tools: Tools) -> Iterator[Verdict]:
    """Lands ranges; yields one verdict per range, as each is decided. One range failing leaves the others landed.

    Raises `BadKey` or `EmptySelection` before anything is read or written.
    """
    coverage = tools.lake.coverage(topic)
    ranges = find_ranges(topic, keys, coverage)
    tools.on_step("find", topic=topic, ranges=len(ranges))

    run = Run(topic, coverage, attempt, tools, tools.open_staging(attempt.id, tools.lake))
    for offsets in ranges:
        if coverage.is_landed(offsets):
            with suppress(OffsetlakeError):  # tried again when the range is decided, and told then
                _delete_doubles(run, coverage.manifests[offsets])
    finished, waiting = _finish_known(run, ranges)
    yield from finished
    unreadable, readings = split_readable(run, waiting)
    yield from (_without_doubles(run, verdict) for verdict in unreadable)

    try:
        yield from _land_readings(run, readings, run.staging.root)
    finally:
        run.staging.close()

    now = tools.lake.coverage(topic)
    try:
        sweep_own_staging(ranges, now, attempt, tools.lake)
    except LakeUnavailable as error:  # what is landed is landed
        tools.on_step("sweep_failed", topic=topic, reason=str(error))
    _move_group(topic, now, tools)
    tools.on_step("report", topic=topic)


def group_of(topic: str) -> str:
    """Is the consumer group that mirrors the landed frontier of a topic."""
    return f"offsetlake.{topic}"


def mirror_frontier(topic: str, coverage: Coverage, kafka: Kafka) -> Mapping[int, int]:
    """Moves the consumer group to where everything is landed, and returns that; raises `BrokerUnavailable`."""
    frontier = coverage.frontier(coverage.log.generation)
    kafka.move_group(topic, frontier, group_of(topic))
    return frontier


def _move_group(topic: str, coverage: Coverage, tools: Tools) -> None:
    """Has Kafka's own lag tools show what is landed; where that fails the run has landed all the same."""
    try:
        mirror_frontier(topic, coverage, tools.kafka)
    except BrokerUnavailable as error:
        tools.on_step("mirror_failed", topic=topic, reason=str(error))  # the next run moves it to where it must be then


# ---- find


def find_ranges(topic: str, keys: Sequence[str], coverage: Coverage) -> list[OffsetRange]:
    """Reads the keys; refuses an empty selection, and keys that are malformed or not ranges of the plan log."""
    if not keys:
        raise EmptySelection(
            f"the run selects no range of topic {topic}; nothing was read or written; select partitions whose keys are "
            f"in the plan log, first one first (`{command('backfill', topic, '--all')}` lists them)"
        )
    ranges = [parse_key(key) for key in keys]
    unknown = [offsets for offsets in ranges if offsets not in coverage.log.ranges]
    if unknown:
        raise BadKey(
            f"{len(unknown)} of {len(ranges)} ranges are not in the plan log of topic {topic}: "
            f"{', '.join(_with_nearest(offsets, coverage) for offsets in unknown[:5])}; nothing was read or written; "
            f"`{command('backfill', topic, '--all')}` lists those there are, `{command('plan', topic, '--commit')}` plans more",
            keys=[offsets.key for offsets in unknown],
        )
    return sorted(set(ranges))


def _with_nearest(offsets: OffsetRange, coverage: Coverage) -> str:
    near = nearest_range(coverage.log.ranges, offsets)
    return f"{offsets.key} (the nearest there is: {near.key})" if near else offsets.key


def _finish_known(run: Run, ranges: Sequence[OffsetRange]) -> tuple[list[Verdict], list[OffsetRange]]:
    """Rolls forward what has a manifest, leaves what is landed, and returns what must be read."""
    finished, waiting = [], []
    for offsets in ranges:
        manifest = run.coverage.manifests.get(offsets)
        if manifest is None:
            waiting.append(offsets)
        elif not run.coverage.is_landed(offsets):
            verdict = _roll_forward(run, manifest)
            if verdict is None:
                waiting.append(offsets)
            else:
                finished.append(verdict)
        elif run.attempt.redo:
            waiting.append(offsets)
        else:
            finished.append(Verdict(offsets, Outcome.ALREADY_LANDED, manifest))
    return [_without_doubles(run, verdict) for verdict in finished], waiting


def _roll_forward(run: Run, manifest: Manifest) -> Verdict | None:
    """Finish what an attempt before has committed; none where its staged file is gone, and the range is read again."""
    lake, offsets = run.tools.lake, manifest.offsets
    try:
        if roll_forward(manifest, lake) or publish_from(manifest, run.coverage.doubles_of(offsets), lake):
            run.tools.on_step("rolled_forward", key=offsets.key)
            return Verdict(offsets, Outcome.ROLLED_FORWARD, lake.newest(manifest))
        again = reinstate(manifest, lake)
        if again is not None and lake.commit_manifest(again) == again:
            run.tools.on_step("reinstated", key=offsets.key, revision=again.revision)
            note = f"revision {manifest.revision} was never published and its staged file is gone: what stood before stands on"
            return Verdict(offsets, Outcome.ALREADY_LANDED, again, (note,))
    except OffsetlakeError as error:
        return failed(offsets, str(error))
    return None


# ---- scan, stage


def _land_readings(run: Run, readings: Sequence[Reading], below: PurePath) -> Iterator[Verdict]:
    """Lands what is left of ranges, in few scans; of what nothing is left, only the loss is recorded."""
    by_rest = {reading.rest: reading for reading in readings if reading.rest is not None}
    # where what fails is abandoned, a scan that fails must take as little along as can be
    reads_at_once = 1 if run.tools.delivery is Delivery.AT_MOST_ONCE else READS_AT_ONCE
    for scan in group_scans(by_rest, reads_at_once=reads_at_once):
        if run.tools.delivery is Delivery.AT_MOST_ONCE:
            try:
                run.tools.spark.open()  # what is claimed and not read is abandoned: nothing is, where there is no Spark
            except EngineUnavailable as error:
                yield from (failed(by_rest[rest].offsets, str(error)) for rest in scan.ranges)
                continue
        refused, ours = claim(
            run, [by_rest[rest] for rest in scan.ranges]
        )  # now, not before the scans that come before it
        yield from refused
        rests = (reading.rest for reading in ours if reading.rest is not None)
        for rest_of_scan in group_scans(rests, reads_at_once=reads_at_once) if refused else (scan,):
            yield from _land_scan(run, rest_of_scan, by_rest, below)
    refused, gone = claim(run, [reading for reading in readings if reading.rest is None])
    yield from refused
    refused, gone = split_planned(run, gone)
    yield from refused
    if gone:
        topic_id = run.tools.kafka.read_topic_id(run.topic)
        nothing = Staged({}, (topic_id, topic_id), is_compacted=False, seconds_per_offset=0.0)
        yield from (_decide(run, reading, nothing) for reading in gone)


def _land_scan(run: Run, scan: Scan, by_rest: Mapping[OffsetRange, Reading], below: PurePath) -> Iterator[Verdict]:
    """Reads one scan and decides each of its ranges; a scan that fails is read again in halves, to isolate the cause."""
    topic, tools, staging = run.topic, run.tools, run.staging
    readings = [by_rest[rest] for rest in scan.ranges]
    folder: PurePath = below / f"{scan.ranges[0].key}_{len(scan.ranges)}"
    partitions = {rest.partition for rest in scan.ranges}
    tools.on_step("scan", topic=topic, ranges=len(scan.ranges), partitions=len(partitions), reads=len(scan.reads))
    started = tools.now_ms()
    before = tools.kafka.read_topic_id(topic)

    def stage(folder: PurePath) -> None:
        of = len(scan.ranges)
        with staging.watched(folder, lambda files: tools.on_step("read", topic=topic, files=files, of=of)):
            tools.spark.stage(topic, scan, tools.isolation_level, staging.url(folder))
        staging.finish(folder)

    try:
        # a range that is abandoned where its first read fails is not read a second time
        tries = 1 if tools.delivery is Delivery.AT_MOST_ONCE else ENGINE_TRIES
        _, folder = stage_anew(stage, folder, tools.on_step, tries)
    except (ScanFailed, EngineLost) as error:  # one range may be what Spark fails at, or dies of
        if isinstance(error, DiskRefuses):
            yield from (failed(reading.offsets, str(error)) for reading in readings)
            return
        yield from _land_halves(run, readings, below, error)
        return
    except EngineUnavailable as error:
        yield from (failed(reading.offsets, str(error)) for reading in readings)
        return
    seconds = (tools.now_ms() - started) / 1000
    tools.on_step("stage", topic=topic, seconds=seconds)
    parts, strays = match_parts(topic, scan.ranges, folder, staging)
    if strays:
        yield from (failed(reading.offsets, *strays) for reading in readings)
        return
    staged = Staged(
        parts,
        (before, tools.kafka.read_topic_id(topic)),
        tools.kafka.is_compacted(topic),
        seconds / sum(len(rest) for rest in scan.ranges),
    )
    unplanned, planned = split_planned(run, readings)
    yield from unplanned
    with ThreadPoolExecutor(VERIFY_THREADS) as pool:
        yield from pool.map(lambda reading: _decide(run, reading, staged), planned)


def _land_halves(run: Run, readings: Sequence[Reading], below: PurePath, error: OffsetlakeError) -> Iterator[Verdict]:
    # Spark's words are not trusted: the broker is asked what is there, and what it has is read on its own
    verdicts, left = split_readable(run, [reading.offsets for reading in readings])
    yield from (_without_doubles(run, verdict) for verdict in verdicts)
    if run.tools.delivery is Delivery.AT_MOST_ONCE or (len(readings) == 1 and left == readings):
        yield from (failed(reading.offsets, why_unreadable(run, reading) or str(error)) for reading in left)
        return
    middle = max(1, len(left) // 2)
    for number, half in enumerate((left[:middle], left[middle:])):
        yield from _land_readings(run, half, below / f"half{number}")


# ---- verify, commit, publish


def _decide(run: Run, reading: Reading, staged: Staged) -> Verdict:
    try:
        verdict = _commit_and_publish(run, reading, staged)
    except OffsetlakeError as error:
        return failed(reading.offsets, str(error))
    return _without_doubles(run, verdict)


def _without_doubles(run: Run, verdict: Verdict) -> Verdict:
    """Return the verdict of a range, failed where a replace had to leave a file that may show rows of it a second time."""
    try:
        kept = _delete_doubles(run, verdict.manifest) if verdict.manifest is not None else []
    except OffsetlakeError as error:
        return failed(verdict.offsets, str(error))
    return failed(verdict.offsets, *kept) if kept else verdict


def _delete_doubles(run: Run, manifest: Manifest) -> list[str]:
    """Delete, for a replace, what shows rows of a landed range a second time; return why anything of it stays.

    A replace does so before it takes rows away as well, while the landed file still has them.
    """
    if run.attempt.on_change != "replace":
        return []
    return delete_proven(manifest, run.coverage.doubles_of(manifest.offsets), run.tools.lake, run.tools.on_step)


def _commit_and_publish(run: Run, reading: Reading, staged: Staged) -> Verdict:
    """Verify one staged range, commit its manifest and publish its file, or say why not."""
    offsets, coverage, tools, lake = reading.offsets, run.coverage, run.tools, run.tools.lake
    part = staged.part_of(reading)
    ours, violations = verify_range(run.topic, reading, staged, coverage.log.ranges[offsets], run)
    if ours is None:
        return failed(offsets, *violations)
    tools.on_step("verify", key=offsets.key, rows=ours.rows)

    known = coverage.manifests.get(offsets)
    if known is not None:
        return _hold(run, ours, part, known, is_redo=True)
    found = None
    if offsets not in coverage.published:
        adopted = adopt(ours, part, coverage.doubles_of(offsets), lake)
        if adopted is not None:
            standing = lake.commit_manifest(adopted)
            if standing != adopted:
                return _hold(run, ours, part, standing, is_redo=False)
            tools.on_step("commit", key=offsets.key, digest=adopted.digest)
            return Verdict(offsets, Outcome.ROLLED_FORWARD, adopted)
    else:  # and no manifest: somebody deleted it
        ours = replace(ours, named_after="")
        found = differs_from_found(ours, part, lake)
        if found and (run.attempt.on_change != "replace" or reading.lost):  # what Kafka has deleted is nowhere else
            return failed(offsets, without_manifest(ours, found, lake))
        if found and ours.file is None:
            ours = replace(ours, file=stage_empty(offsets.key, offsets, run.attempt, lake))
    run.staging.bring(part, ours.file)
    if ours.named_after:
        lake.publish(ours)  # at_least_once, no fence: visible under the attempt's own name, whoever commits
        tools.on_step("publish", key=offsets.key)
    standing = lake.commit_manifest(ours)
    if standing == ours:
        tools.on_step("commit", key=offsets.key, digest=ours.digest)
        return _publish(run, ours, Verdict(offsets, Outcome.LANDED, ours), mend=found is not None)
    return _hold(run, ours, part, standing, is_redo=False)


def _hold(run: Run, ours: Manifest, part: PartFile | None, standing: Manifest, *, is_redo: bool) -> Verdict:
    """Hold what was read now against the newest manifest and do what follows, until nobody decides otherwise meanwhile."""
    lake = run.tools.lake
    while True:
        standing = lake.newest(standing)
        is_first_since = standing.revision == run.revision_before(standing.offsets)
        found = compare(standing, ours, part, run.attempt, lake, is_redo=is_redo, is_first_since=is_first_since)
        if found.act is Act.MEND and ours.file is not None:
            run.staging.bring(part, ours.file)
            return _publish(run, standing, found.verdict, staged=ours.file.path, mend=True)
        if found.act is Act.NEXT:
            newer = _next_revision(run, ours, part, standing)
            standing = lake.commit_manifest(newer)
            if standing == newer:
                run.tools.on_step("commit", key=newer.offsets.key, digest=newer.digest)
                return _publish(run, newer, replace(found.verdict, manifest=newer))
        elif not lake.is_replaced(standing):
            return found.verdict


def _next_revision(run: Run, ours: Manifest, part: PartFile | None, standing: Manifest) -> Manifest:
    """Stage what was read now as the next revision; one attempt wins, as ever."""
    file = ours.file
    if file is None and standing.file is not None:
        file = stage_empty(ours.offsets.key, ours.offsets, run.attempt, run.tools.lake)
    run.staging.bring(part, file)
    return replace(ours, file=file, revision=standing.revision + 1, named_after=standing.named_after)


def _publish(
    run: Run, manifest: Manifest, verdict: Verdict, *, staged: str | None = None, mend: bool = False
) -> Verdict:
    """Publish what a manifest has decided; the verdict is of what stands then, which may be a later revision."""
    lake, offsets = run.tools.lake, manifest.offsets
    standing = lake.publish(manifest, staged, mend=mend)
    if standing is None:
        newest = lake.newest(manifest)
        if newest == manifest or not roll_forward(newest, lake):
            return failed(
                offsets,
                f"range {offsets.text(manifest.topic)}: revision {newest.revision} of attempt {newest.provenance.attempt} is "
                "committed, and its staged file is gone, so it was not published; the next run reads the range again",
            )
        standing = lake.newest(newest)
    run.tools.on_step("publish", key=offsets.key)
    return verdict if standing == manifest else Verdict(offsets, Outcome.SUPERSEDED, standing)
