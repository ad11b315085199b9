"""THE PROTOCOL: find -> scan -> stage -> verify -> commit -> publish -> report, as `land` below reads.

A range is landed when its manifest exists and its file is published. The manifest decides, by put-if-absent; before
it nothing is visible, after it anyone can finish. docs/protocol.md numbers the requirements.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .attempt import Attempt, Tools
from .core.coverage import Coverage
from .core.errors import BadKey, EmptySelection, OffsetlakeError, ScanFailed
from .core.offsets import OffsetRange, parse_key
from .core.planlog import Watermarks
from .core.scans import Scan, group_scans
from .core.verdicts import Outcome, Verdict, failed
from .redo import compare, roll_forward, verify_expired
from .staging import Staged, match_parts, open_staging, sweep_own_staging, verify_range, written_back

VERIFY_THREADS = 4  # digests, footers and fsyncs wait for the disk, not for Python


def land(topic: str, keys: Sequence[str], attempt: Attempt, tools: Tools) -> Iterator[Verdict]:
    """Lands ranges; yields one verdict per range, as each is decided. One range failing leaves the others landed.

    Raises `BadKey` or `EmptySelection` before anything is read or written.
    """
    coverage = tools.lake.coverage(topic)
    ranges = find_ranges(topic, keys, coverage)
    tools.on_step("find", topic=topic, ranges=len(ranges))

    finished, waiting = _finish_known(ranges, coverage, attempt, tools)
    yield from finished
    unreadable, readable = _split_readable(topic, waiting, coverage, tools)
    yield from unreadable

    folder, is_local = open_staging(attempt, tools.lake)
    try:
        for scan in group_scans(readable):
            yield from _land_scan(topic, scan, folder, coverage, attempt, tools)
    finally:
        if not is_local:
            shutil.rmtree(folder, ignore_errors=True)

    now = tools.lake.coverage(topic)
    sweep_own_staging(ranges, now, attempt, tools.lake)
    tools.kafka.move_group(topic, now.frontier(coverage.log.tail.generation), group_of(topic))
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


def _finish_known(
    ranges: Sequence[OffsetRange], coverage: Coverage, attempt: Attempt, tools: Tools
) -> tuple[list[Verdict], list[OffsetRange]]:
    """Rolls forward what has a manifest, leaves what is landed, and returns what must be read."""
    finished, waiting = [], []
    for offsets in ranges:
        manifest = coverage.manifests.get(offsets)
        if manifest is None:
            waiting.append(offsets)
        elif not coverage.is_landed(offsets):
            if roll_forward(manifest, tools.lake):
                tools.on_step("rolled_forward", key=offsets.key)
                finished.append(Verdict(offsets, Outcome.ROLLED_FORWARD, manifest))
            else:
                waiting.append(offsets)
        elif attempt.redo:
            waiting.append(offsets)
        else:
            finished.append(Verdict(offsets, Outcome.ALREADY_LANDED, manifest))
    return finished, waiting


def _split_readable(
    topic: str, ranges: Sequence[OffsetRange], coverage: Coverage, tools: Tools
) -> tuple[list[Verdict], list[OffsetRange]]:
    """Asks the broker which ranges it still has whole; the rest get their verdict without being read."""
    if not ranges:
        return [], []
    tail = coverage.log.tail
    topic_id = tools.kafka.read_topic_id(topic)
    watermarks = tools.kafka.read_watermarks(topic, tools.isolation_level)
    verdicts, readable = [], []
    for offsets in ranges:
        is_current = offsets.generation == tail.generation and tail.topic_id in {None, topic_id}
        reason = _unreadable_reason(topic, offsets, watermarks.get(offsets.partition), is_current=is_current)
        manifest = coverage.manifests.get(offsets)
        if reason is None:
            readable.append(offsets)
        elif manifest is not None and coverage.is_landed(offsets):
            verdicts.append(verify_expired(offsets, manifest, reason, tools.lake))
        else:
            verdicts.append(failed(offsets, reason))
    return verdicts, readable


def _unreadable_reason(topic: str, offsets: OffsetRange, marks: Watermarks | None, *, is_current: bool) -> str | None:
    where = offsets.text(topic)
    if not is_current:
        return f"range {where} is of a topic that was deleted and created again: Kafka no longer has its records"
    if marks is None:
        return f"range {where}: the topic has no partition {offsets.partition} any more"
    if offsets.start < marks.earliest:
        gone = min(marks.earliest, offsets.end) - offsets.start
        return (
            f"range {where} starts before the earliest offset {marks.earliest}: {gone} offsets "
            f"[{offsets.start}, {offsets.start + gone}) are gone; nothing was written"
        )
    if offsets.end > marks.end:
        return f"range {where} ends after the end offset {marks.end} that a reader may see; nothing was written"
    return None


# ---- scan, stage


def _land_scan(
    topic: str, scan: Scan, staging: Path, coverage: Coverage, attempt: Attempt, tools: Tools
) -> Iterator[Verdict]:
    """Reads one scan and decides each of its ranges; a scan that fails is read again in halves, to isolate the cause."""
    folder = staging / f"{scan.ranges[0].key}_{len(scan.ranges)}"
    tools.on_step("scan", topic=topic, ranges=len(scan.ranges), partitions=len(scan.bounds))
    started = tools.now_ms()
    before = tools.kafka.read_topic_id(topic)
    try:
        with written_back(folder):
            tools.spark.stage(topic, scan, tools.isolation_level, str(folder))
    except ScanFailed as error:
        yield from _land_halves(topic, scan, staging, coverage, attempt, tools, error)
        return
    seconds = (tools.now_ms() - started) / 1000
    tools.on_step("stage", topic=topic, seconds=seconds)
    parts, strays = match_parts(topic, scan, folder)
    staged = Staged(
        parts,
        (before, tools.kafka.read_topic_id(topic)),
        tools.kafka.is_compacted(topic),
        seconds / sum(len(offsets) for offsets in scan.ranges),
    )

    def decide(offsets: OffsetRange) -> Verdict:
        try:
            return _commit_and_publish(topic, offsets, staged, coverage, attempt, tools)
        except OffsetlakeError as error:
            return failed(offsets, str(error))

    if strays:
        yield from (failed(offsets, *strays) for offsets in scan.ranges)
        return
    with ThreadPoolExecutor(VERIFY_THREADS) as pool:
        yield from pool.map(decide, scan.ranges)


def _land_halves(
    topic: str, scan: Scan, staging: Path, coverage: Coverage, attempt: Attempt, tools: Tools, error: ScanFailed
) -> Iterator[Verdict]:
    # Spark's words are not trusted: the broker is asked what is there, and what it has is read on its own
    verdicts, readable = _split_readable(topic, scan.ranges, coverage, tools)
    yield from verdicts
    if len(scan.ranges) == 1:
        yield from (failed(offsets, str(error)) for offsets in readable)
        return
    middle = max(1, len(readable) // 2)
    for number, half in enumerate((readable[:middle], readable[middle:])):
        for smaller in group_scans(half):
            yield from _land_scan(topic, smaller, staging / f"half{number}", coverage, attempt, tools)


# ---- verify, commit, publish


def _commit_and_publish(
    topic: str, offsets: OffsetRange, staged: Staged, coverage: Coverage, attempt: Attempt, tools: Tools
) -> Verdict:
    """Verifies one staged range, commits its manifest and publishes its file, or says why not."""
    lake, part = tools.lake, staged.parts[offsets]
    ours, violations = verify_range(topic, offsets, staged, coverage.log.ranges[offsets], attempt, tools)
    if ours is None:
        return failed(offsets, *violations)
    tools.on_step("verify", key=offsets.key, rows=ours.rows)

    known = coverage.manifests.get(offsets)
    if part is not None and ours.file is not None and lake.store.local_root is None and not coverage.is_landed(offsets):
        lake.store.upload(part.path, ours.file.path)
    if ours.file is not None:
        lake.store.make_durable(ours.file.path)
    standing = known or lake.commit_manifest(ours)
    if standing.provenance.attempt != attempt.id:
        return compare(standing, ours, part, lake, is_redo=known is not None)
    tools.on_step("commit", key=offsets.key, digest=ours.digest)
    if not lake.publish(ours):
        return failed(offsets, f"staged file {ours.file.path if ours.file else ''} is gone before it was published")
    tools.on_step("publish", key=offsets.key)
    return Verdict(offsets, Outcome.LANDED, ours)
