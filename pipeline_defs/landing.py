"""THE PROTOCOL: find -> scan -> stage -> verify -> commit -> publish -> report, as `land` below reads.

A range is landed when its manifest exists and its file is published. The manifest decides, by put-if-absent; before
it nothing is visible, after it anyone can finish. docs/protocol.md numbers the requirements.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .attempt import Attempt, Tools
from .core.coverage import Coverage
from .core.errors import BadKey, EmptySelection, OffsetlakeError, ScanFailed
from .core.losses import Reading, read_from
from .core.offsets import OffsetRange, parse_key
from .core.planlog import Watermarks
from .core.scans import Scan, group_scans
from .core.verdicts import Outcome, Verdict, failed
from .redo import compare, roll_forward, verify_expired
from .staging import Staged, match_parts, open_staging, sweep_own_staging, verify_range, written_back

VERIFY_THREADS = 4  # digests, footers and fsyncs wait for the disk, not for Python


@dataclass(frozen=True, slots=True)
class _Run:
    """Is what every step of one attempt is given: the topic, the lake as it was at the beginning, who tries, with what."""

    topic: str
    coverage: Coverage
    attempt: Attempt
    tools: Tools


def land(topic: str, keys: Sequence[str], attempt: Attempt, tools: Tools) -> Iterator[Verdict]:
    """Lands ranges; yields one verdict per range, as each is decided. One range failing leaves the others landed.

    Raises `BadKey` or `EmptySelection` before anything is read or written.
    """
    coverage = tools.lake.coverage(topic)
    ranges = find_ranges(topic, keys, coverage)
    tools.on_step("find", topic=topic, ranges=len(ranges))

    run = _Run(topic, coverage, attempt, tools)
    finished, waiting = _finish_known(run, ranges)
    yield from finished
    unreadable, readings = _split_readable(run, waiting)
    yield from unreadable

    folder, is_local = open_staging(attempt, tools.lake)
    try:
        yield from _land_readings(run, readings, folder)
    finally:
        if not is_local:
            shutil.rmtree(folder, ignore_errors=True)

    now = tools.lake.coverage(topic)
    sweep_own_staging(ranges, now, attempt, tools.lake)
    tools.kafka.move_group(topic, now.frontier(coverage.log.generation), group_of(topic))
    tools.on_step("report", topic=topic)


def group_of(topic: str) -> str:
    """Is the consumer group that mirrors the landed frontier of a topic."""
    return f"offsetlake.{topic}"


# ---- find


def find_ranges(topic: str, keys: Sequence[str], coverage: Coverage) -> list[OffsetRange]:
    """Reads the keys; refuses an empty selection, and keys that are malformed or not ranges of the plan log."""
    if not keys:
        raise EmptySelection(
            f"the run selects no range of topic {topic}; nothing was read or written; select partitions whose keys are "
            "in the plan log, first one first (`offsetlake plan TOPIC` prints them)"
        )
    ranges = [parse_key(key) for key in keys]
    unknown = [offsets for offsets in ranges if offsets not in coverage.log.ranges]
    if unknown:
        raise BadKey(
            f"{len(unknown)} of {len(ranges)} ranges are not in the plan log of topic {topic}: "
            f"{', '.join(offsets.key for offsets in unknown[:5])}; nothing was read or written; boundaries are planned "
            "before they are read: `offsetlake plan TOPIC --commit`",
            keys=[offsets.key for offsets in unknown],
        )
    return sorted(set(ranges))


def _finish_known(run: _Run, ranges: Sequence[OffsetRange]) -> tuple[list[Verdict], list[OffsetRange]]:
    """Rolls forward what has a manifest, leaves what is landed, and returns what must be read."""
    finished, waiting = [], []
    for offsets in ranges:
        manifest = run.coverage.manifests.get(offsets)
        if manifest is None:
            waiting.append(offsets)
        elif not run.coverage.is_landed(offsets):
            if roll_forward(manifest, run.tools.lake):
                run.tools.on_step("rolled_forward", key=offsets.key)
                finished.append(Verdict(offsets, Outcome.ROLLED_FORWARD, manifest))
            else:
                waiting.append(offsets)
        elif run.attempt.redo:
            waiting.append(offsets)
        else:
            finished.append(Verdict(offsets, Outcome.ALREADY_LANDED, manifest))
    return finished, waiting


def _split_readable(run: _Run, ranges: Sequence[OffsetRange]) -> tuple[list[Verdict], list[Reading]]:
    """Asks the broker what it still has of each range; what may not be read gets its verdict without being read."""
    if not ranges:
        return [], []
    tools, tail = run.tools, run.coverage.log.tail
    topic_id = tools.kafka.read_topic_id(run.topic)
    watermarks = tools.kafka.read_watermarks(run.topic, tools.isolation_level)
    verdicts, readings = [], []
    for offsets in ranges:
        is_current = offsets.generation == tail.generation and tail.topic_id in {None, topic_id}
        reading, reason = _read_or_reason(run, offsets, watermarks.get(offsets.partition), is_current=is_current)
        manifest = run.coverage.manifests.get(offsets)
        if reading is not None:
            readings.append(reading)
        elif manifest is not None and run.coverage.is_landed(offsets):
            verdicts.append(verify_expired(offsets, manifest, reason, tools.lake))
        else:
            verdicts.append(failed(offsets, reason))
    return verdicts, readings


def _read_or_reason(
    run: _Run, offsets: OffsetRange, marks: Watermarks | None, *, is_current: bool
) -> tuple[Reading | None, str]:
    """Returns what may be read of a range, or why nothing may."""
    where = offsets.text(run.topic)
    if not is_current:
        return None, f"range {where} is of a topic that was deleted and created again: Kafka no longer has its records"
    if marks is None:
        return None, f"range {where}: the topic has no partition {offsets.partition} any more"
    if offsets.end > marks.end:
        return None, f"range {where} ends after the end offset {marks.end} that a reader may see; nothing was written"
    reading = read_from(offsets, marks.earliest)
    is_accepted = run.tools.on_loss == "record" or offsets in run.coverage.accepted
    if reading.lost and (not is_accepted or run.coverage.is_landed(offsets)):
        (lost,) = reading.lost
        return None, (
            f"range {where} starts before the earliest offset {marks.earliest}: {lost.end - lost.start} offsets "
            f"[{lost.start}, {lost.end}) are gone, deleted by the broker (retention, or an operator) before they were "
            f"landed; nothing was written; `offsetlake accept-loss {run.topic} {offsets.key}` lands what is left and "
            "records the loss, `on_loss: record` in defs.yaml does so by itself"
        )
    return reading, ""


# ---- scan, stage


def _land_readings(run: _Run, readings: Sequence[Reading], staging: Path) -> Iterator[Verdict]:
    """Lands what is left of ranges, in few scans; of what nothing is left, only the loss is recorded."""
    by_rest = {reading.rest: reading for reading in readings if reading.rest is not None}
    for scan in group_scans(by_rest):
        yield from _land_scan(run, scan, by_rest, staging)
    gone = [reading for reading in readings if reading.rest is None]
    if gone:
        topic_id = run.tools.kafka.read_topic_id(run.topic)
        nothing = Staged({}, (topic_id, topic_id), is_compacted=False, seconds_per_offset=0.0)
        yield from (_decide(run, reading, nothing) for reading in gone)


def _land_scan(run: _Run, scan: Scan, by_rest: Mapping[OffsetRange, Reading], staging: Path) -> Iterator[Verdict]:
    """Reads one scan and decides each of its ranges; a scan that fails is read again in halves, to isolate the cause."""
    topic, tools = run.topic, run.tools
    readings = [by_rest[rest] for rest in scan.ranges]
    folder = staging / f"{scan.ranges[0].key}_{len(scan.ranges)}"
    tools.on_step("scan", topic=topic, ranges=len(scan.ranges), partitions=len(scan.bounds))
    started = tools.now_ms()
    before = tools.kafka.read_topic_id(topic)
    try:
        with written_back(folder):
            tools.spark.stage(topic, scan, tools.isolation_level, str(folder))
    except ScanFailed as error:
        yield from _land_halves(run, readings, staging, error)
        return
    seconds = (tools.now_ms() - started) / 1000
    tools.on_step("stage", topic=topic, seconds=seconds)
    parts, strays = match_parts(topic, scan, folder)
    if strays:
        yield from (failed(reading.offsets, *strays) for reading in readings)
        return
    staged = Staged(
        parts,
        (before, tools.kafka.read_topic_id(topic)),
        tools.kafka.is_compacted(topic),
        seconds / sum(len(rest) for rest in scan.ranges),
    )
    with ThreadPoolExecutor(VERIFY_THREADS) as pool:
        yield from pool.map(lambda reading: _decide(run, reading, staged), readings)


def _land_halves(run: _Run, readings: Sequence[Reading], staging: Path, error: ScanFailed) -> Iterator[Verdict]:
    # Spark's words are not trusted: the broker is asked what is there, and what it has is read on its own
    verdicts, left = _split_readable(run, [reading.offsets for reading in readings])
    yield from verdicts
    if len(readings) == 1 and left == readings:
        yield failed(left[0].offsets, str(error))
        return
    middle = max(1, len(left) // 2)
    for number, half in enumerate((left[:middle], left[middle:])):
        yield from _land_readings(run, half, staging / f"half{number}")


# ---- verify, commit, publish


def _decide(run: _Run, reading: Reading, staged: Staged) -> Verdict:
    try:
        return _commit_and_publish(run, reading, staged)
    except OffsetlakeError as error:
        return failed(reading.offsets, str(error))


def _commit_and_publish(run: _Run, reading: Reading, staged: Staged) -> Verdict:
    """Verifies one staged range, commits its manifest and publishes its file, or says why not."""
    offsets, coverage, tools, lake = reading.offsets, run.coverage, run.tools, run.tools.lake
    part = staged.part_of(reading)
    ours, violations = verify_range(run.topic, reading, staged, coverage.log.ranges[offsets], run.attempt, tools)
    if ours is None:
        return failed(offsets, *violations)
    tools.on_step("verify", key=offsets.key, rows=ours.rows)

    known = coverage.manifests.get(offsets)
    if part is not None and ours.file is not None and lake.store.local_root is None and not coverage.is_landed(offsets):
        lake.store.upload(part.path, ours.file.path)
    if ours.file is not None:
        lake.store.make_durable(ours.file.path)
    standing = known or lake.commit_manifest(ours)
    if standing.provenance.attempt != run.attempt.id:
        return compare(standing, ours, part, lake, is_redo=known is not None)
    tools.on_step("commit", key=offsets.key, digest=ours.digest)
    if not lake.publish(ours):
        return failed(offsets, f"staged file {ours.file.path if ours.file else ''} is gone before it was published")
    tools.on_step("publish", key=offsets.key)
    return Verdict(offsets, Outcome.LANDED, ours)
