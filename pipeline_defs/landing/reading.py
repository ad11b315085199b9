"""What may be read of each range: as much as the broker still has, and under `at_most_once` no range that was claimed.

Invariant: a range that may not be read gets its verdict here, and nothing of it becomes visible.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from ..adapters.lake import parquet
from ..adapters.lake.layout import published_path
from ..adapters.system.locks import scratch
from ..adapters.tables.delta_log import raw_table_log
from ..core.advice import command
from ..core.errors import EngineUnavailable, LakeUnavailable, OffsetlakeError, ScanFailed, Unavailable
from ..core.landing.verdicts import Outcome, Verdict, failed
from ..core.log.delivery import Claim, Delivery
from ..core.log.holes import Interval
from ..core.log.losses import Reading, read_from
from ..core.log.manifest import Manifest
from ..core.log.plan_step import Watermarks
from ..core.log.topic_state import refuse_other_cluster
from ..core.offsets import OffsetRange
from ..core.raw_columns import RAW_COLUMNS, TIMES_FROM_MS, TIMES_TO_MS
from ..core.tables.raw_table import is_compacted
from .attempt import Work
from .landed_files import why_not_as_landed
from .redo import verify_expired
from .staging_places import told_if_gone

if TYPE_CHECKING:
    from ..adapters.kafka.kafka_log import LogRecord


def split_readable(work: Work, ranges: Sequence[OffsetRange]) -> tuple[list[Verdict], list[Reading]]:
    """Ask the broker what it still has of each range; return verdicts of those that may not be read, and readings of others."""
    if not ranges:
        return [], []
    tools, log_state = work.tools, work.coverage.log.state
    seen = tools.kafka.observe(work.topic, tools.isolation_level)
    refuse_other_cluster(work.topic, log_state.cluster_id, seen.cluster_id)
    topic_id, watermarks = seen.topic_id, seen.watermarks
    verdicts, readings = [], []
    for offsets in ranges:
        is_current = offsets.generation == log_state.generation and log_state.topic_id in {None, topic_id}
        marks = watermarks.get(offsets.partition)
        reading, reason = _readable_or_reason(work, offsets, marks, is_current=is_current)
        is_hidden = is_current and offsets.partition in seen.leaderless
        if is_hidden:
            where = offsets.text(work.topic)
            reason = f"range {where}: no broker that answers us leads its partition; nothing was written; start one that has it"
        manifest, is_landed = work.coverage.manifests.get(offsets), work.coverage.is_landed(offsets)
        is_gone = not is_current or (marks is not None and offsets.start < marks.earliest)  # for good, not for want of a leader
        may_leave = is_gone and not is_landed and work.attempt.on_change != "replace"
        if may_leave and manifest is not None and (left := _leave_to_table(work, manifest)) is not None:
            verdicts.append(left)
        elif reading is not None:
            readings.append(reading)
        elif manifest is not None and is_landed and not is_hidden:
            verdicts.append(verify_expired(offsets, manifest, reason, tools.lake, work.digests))
        else:
            verdicts.append(replace(failed(offsets, reason), is_unread=True))
    return verdicts, readings


def _leave_to_table(work: Work, manifest: Manifest) -> Verdict | None:
    """Mark a landed range as dropped where its file is gone and a compacted file has its rows; else return none.

    Kafka no longer has all of its rows, so nothing else has them.
    """
    lake, file = work.tools.lake, work.table_files.find_at(manifest)
    if file is None or not is_compacted(file) or lake.store.size(published_path(manifest)) is not None:
        return None
    try:
        if why_not_as_landed(file, [manifest], raw_table_log(work.topic, lake.store).folder, lake):
            return None
        newest = lake.commit_manifest(manifest.dropped(work.tools.now_ms()))
    except OffsetlakeError as error:
        return failed(manifest.offsets, error.reason)
    work.tools.on_step("left_to_table", key=manifest.offsets.key)
    note = "its file in `data/` is gone, and Kafka has not all of it any more: the raw table has its rows, as of a dropped file"
    return Verdict(manifest.offsets, Outcome.ROLLED_FORWARD, newest, (note,)) if newest.is_dropped else None


def _readable_or_reason(
    work: Work, offsets: OffsetRange, marks: Watermarks | None, *, is_current: bool
) -> tuple[Reading | None, str]:
    """Return what may be read of a range, or why nothing may."""
    where = offsets.text(work.topic)
    if not is_current:
        return None, f"range {where} is of a topic that was deleted and created again: Kafka no longer has its records"
    if marks is None:
        return None, f"range {where}: the topic has no partition {offsets.partition} any more"
    if offsets.end > marks.end:
        return None, f"range {where} ends after the end offset {marks.end} that a reader may see; nothing was written"
    reading = read_from(offsets, marks.earliest)
    reason = "".join(_why_too_little(work, offsets, marks.earliest, lost) for lost in reading.lost)
    return (None, reason) if reason else (reading, "")


def _why_too_little(work: Work, offsets: OffsetRange, earliest: int, lost: Interval) -> str:
    """Return why a range that Kafka has partly deleted is not read; empty where the rest is to be landed."""
    gone = (
        f"range {offsets.text(work.topic)} starts before the earliest offset {earliest}: {lost.end - lost.start} offsets "
        f"[{lost.start}, {lost.end}) are gone, deleted by the broker (retention, or an operator)"
    )
    has_manifest, backup = offsets in work.coverage.manifests, "restore that from a backup of the lake"
    accept = f"`{command('accept-loss', work.topic, offsets.key)}` lands what is left and records the loss"
    if work.coverage.is_landed(offsets):
        return f"{gone} since they were landed; nothing was written"
    if work.tools.on_loss == "record" or offsets in work.coverage.accepted:
        return ""
    if offsets in work.coverage.published:
        amiss = "the landed file is not what its manifest says" if has_manifest else "its manifest is gone"
        return f"{gone} since they were landed, and {amiss}; nothing was written; {backup}"
    if has_manifest:
        return f"{gone} since they were read, and the range's file is not there; nothing was written; {backup}, else {accept}"
    return f"{gone} before they were landed; nothing was written; {accept}, `on_loss: record` in defs.yaml does so by itself"


def may_be_untellable(work: Work, reading: Reading) -> bool:
    """Return whether a range that Spark failed to read may have a timestamp that it cannot represent; false if unknown."""
    rest, tools = reading.rest, work.tools
    assert rest is not None
    try:
        return tools.kafka.has_untellable(work.topic, rest.partition, rest.start, rest.end, tools.isolation_level)
    except Unavailable:
        return False


def stage_log(work: Work, reading: Reading, folder: PurePath) -> None:
    """Stage what is left of a range without Spark's Kafka reader; a timestamp that no column can hold becomes null.

    Spark writes the file, as it does all others. Raises `ScanFailed`, `EngineUnavailable` or `LakeUnavailable`; then nothing
    counts.
    """
    rest, tools, staging = reading.rest, work.tools, work.staging
    assert rest is not None
    path = f"staging/{work.attempt.id}/log/{work.topic}/{rest.key}.parquet"
    store = tools.lake.store
    try:
        records = tools.kafka.read_records(work.topic, rest.partition, rest.start, rest.end, tools.isolation_level)
        with store.explained("write", path), tempfile.TemporaryDirectory(dir=scratch()) as temporary:
            file = Path(temporary) / "log.parquet"
            parquet.write_raw((_raw_row(work.topic, rest, record) for record in records), file)
            store.upload(file, path)
        with told_if_gone(path), staging.opened([path]) as sources:
            tools.files.merge(f"range {rest.text(work.topic)}", sources, parquet.RAW_SCHEMA, ("offset",), staging.url(folder))
    except (ScanFailed, EngineUnavailable, LakeUnavailable):
        raise
    except Unavailable as error:  # the broker, an unreadable batch, or a staged file that is gone
        raise ScanFailed(error.message, topic=work.topic) from error


def _raw_row(topic: str, offsets: OffsetRange, record: LogRecord) -> tuple[object, ...]:
    """Return a record's values in the order of the raw columns."""
    ms = record.timestamp_ms
    told: dict[str, object] = {
        "topic": topic,
        "generation": offsets.generation,
        "partition": offsets.partition,
        "offset": record.offset,
        "timestamp": ms * 1000 if TIMES_FROM_MS <= ms <= TIMES_TO_MS else None,
        "timestamp_type": record.timestamp_type,
        "key": record.key,
        "value": record.value,
        "headers": record.headers or None,
    }
    return tuple(told[column.name] for column in RAW_COLUMNS)


def split_planned(work: Work, readings: Sequence[Reading]) -> tuple[list[Verdict], list[Reading]]:
    """Refuse ranges whose plan step has changed since this run read it; return the verdicts, and the other readings.

    Another step may plan their offsets in other ranges, and rows would be shown twice. While the newest step is unchanged, so
    are earlier ones: none is planned again before all later ones are gone. So in most cases this reads one object.
    """
    log, lake = work.coverage.log, work.tools.lake
    if not readings:
        return [], []
    try:
        if lake.has_step(log.steps[-1]):
            return [], list(readings)
        steps = {step.seq: step for step in (log.ranges[reading.offsets] for reading in readings)}
        gone = {seq for seq, step in steps.items() if not lake.has_step(step)}
    except OffsetlakeError as error:
        return [failed(reading.offsets, error.reason) for reading in readings], []
    refused = [
        failed(
            reading.offsets,
            f"range {reading.offsets.text(work.topic)} was planned by step {seq} of the plan log, which is gone or another one "
            "by now: somebody deleted it while this run read the range; nothing was written, since another step may plan its "
            "records in other ranges; the next tick plans what no step has, and asks for it",
        )
        for reading in readings
        if (seq := log.ranges[reading.offsets].seq) in gone
    ]
    return refused, [reading for reading in readings if log.ranges[reading.offsets].seq not in gone]


def claim(work: Work, readings: Sequence[Reading]) -> tuple[list[Verdict], list[Reading]]:
    """Claim uncommitted ranges before they are read under `at_most_once`; return verdicts of refused ones, and the rest.

    A range that another attempt has claimed is never read again. A failed claim fails its own range.
    """
    if work.tools.delivery is not Delivery.AT_MOST_ONCE or not readings:
        return [], list(readings)
    taken, planned = split_planned(work, readings)
    ours = []
    for reading in planned:
        offsets, attempt = reading.offsets, work.attempt
        mine = Claim(work.topic, offsets, attempt.id, attempt.run_id, work.tools.now_ms())
        try:
            first = mine if offsets in work.coverage.manifests else work.tools.lake.commit_claim(mine)
        except OffsetlakeError as error:
            taken.append(failed(offsets, error.reason))
            continue
        if first == mine:
            ours.append(reading)
            continue
        taken.append(
            failed(
                offsets,
                f"range {offsets.text(work.topic)} was claimed by attempt {first.attempt} of run {first.run_id}, which has "
                "not landed it; `delivery: at_most_once` never reads a range twice; nothing was written; "
                f"`{command('losses', work.topic)}` lists what was abandoned so",
            )
        )
    work.tools.on_step("claim", topic=work.topic, ranges=len(ours))
    return taken, ours
