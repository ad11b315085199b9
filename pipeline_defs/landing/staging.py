"""What a scan staged: which file belongs to which range, and whether a range may be committed.

Invariant: nothing here is visible to a reader, and nothing becomes so.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeVar

from ..adapters.lake import parquet
from ..adapters.lake.lake import Lake
from ..adapters.store.remote_file import File
from ..core.errors import DamagedFile, EngineUnavailable, StagedFileGone
from ..core.landing.verdicts import verify_staged
from ..core.log.coverage import Coverage
from ..core.log.delivery import Delivery
from ..core.log.holes import Missing, Rows, explain_holes, missing_offsets
from ..core.log.losses import Reading
from ..core.log.manifest import Manifest, StagedFile
from ..core.log.plan_step import PlanStep, TopicIds
from ..core.offsets import OffsetRange, Stretches, TopicRange
from ..core.steps import StepWatcher
from .attempt import Attempt, Tools, Work
from .staging_places import Staging, told_if_gone

Result = TypeVar("Result")

READ_THREADS = 8  # footers wait for the disk or the network, not for Python
VERIFY_THREADS = 4  # digests, footers and fsyncs wait for the disk, not for Python
ENGINE_TRIES = 3  # of one job; a server that died is replaced before each


@dataclass(frozen=True, slots=True)
class Staged:
    """What verification needs of a finished scan: its files, the topic's ids before and after, and how long it took."""

    parts: Mapping[OffsetRange, parquet.PartFile | None]
    ids: tuple[TopicIds, TopicIds]
    is_of_compacted_topic: bool
    seconds_per_offset: float

    def part_of(self, reading: Reading) -> parquet.PartFile | None:
        """Return the staged file of what could be read of a range; none where that has no record."""
        return self.parts.get(reading.rest) if reading.rest else None


def stage_anew(
    stage: Callable[[PurePath], Result], folder: PurePath, on_step: StepWatcher, tries: int = ENGINE_TRIES
) -> tuple[Result, PurePath]:
    """Stage in a folder, or, where Spark died meanwhile, again in another one: the first may still be written to.

    Returns the result of `stage`, and the folder that has it. Raises `EngineUnavailable` after the last try, or at once where
    it is not retriable, and anything else that `stage` raises at once.
    """
    for again in range(1, tries):
        try:
            return stage(folder), folder
        except EngineUnavailable as error:
            if not error.retriable:
                raise
            on_step("engine_lost", reason=str(error), again=again)
            folder = folder.with_name(f"{folder.name}_{again}")
    return stage(folder), folder


@dataclass(frozen=True, slots=True)
class Matched:
    """What Spark staged for ranges: the file of each, files that are not exactly one range's, and unreadable ones, as texts.

    A range has no file where it has no record, or where its file is unreadable.
    """

    parts: Mapping[TopicRange, parquet.PartFile | None]
    strays: Sequence[str]
    damaged: Sequence[str]


def match_parts(ranges: Sequence[TopicRange], folder: PurePath, staging: Staging) -> Matched:
    """Match files to ranges by their content."""
    parts: dict[TopicRange, parquet.PartFile | None] = dict.fromkeys(ranges)
    places = sorted(ranges, key=_place)
    expected = sorted({each.topic for each in ranges})
    strays, damaged = [], []
    with ThreadPoolExecutor(READ_THREADS) as pool:
        read = list(pool.map(lambda file: _read_part(file, expected, staging), staging.files(folder)))
    for found in read:
        if found is None:
            continue
        if isinstance(found, str):
            damaged.append(found)
            continue
        topic, part = found
        at = bisect_right(places, (topic, part.partitions[0], part.min_offset), key=_place)
        owner = places[at - 1] if at else None
        if owner is not None and owner.topic == topic and _is_of(part, owner.offsets) and parts[owner] is None:
            parts[owner] = part
        else:
            strays.append(
                f"Spark wrote a file of {topic} with partitions {part.partitions} and offsets {part.min_offset} to "
                f"{part.max_offset}, which is not one planned range's; nothing of this scan became visible"
            )
    return Matched(parts, strays, damaged)


def _read_part(file: File, expected: Sequence[str], staging: Staging) -> tuple[str, parquet.PartFile] | str | None:
    """Return a file with its topic, none for one without rows, or why it cannot be read.

    With several topics, the topic is read from the rows, since the footer does not tell it.
    """
    try:
        part = staging.read_part(file)
        if part is None:
            return None
        with told_if_gone(str(file)), parquet.told_if_damaged(f"staged file {file}", parquet.STAGED):
            return expected[0] if len(expected) == 1 else ",".join(parquet.read_topics(file)), part
    except (StagedFileGone, DamagedFile) as error:
        return str(error)


def _place(each: TopicRange) -> tuple[str, int, int]:
    return each.topic, each.offsets.partition, each.offsets.start


def _is_of(part: parquet.PartFile, offsets: OffsetRange) -> bool:
    is_its_partition = part.partitions == (offsets.partition, offsets.partition)
    return is_its_partition and part.min_offset in offsets and part.max_offset in offsets


def verify_range(topic: str, reading: Reading, staged: Staged, step: PlanStep, work: Work) -> tuple[Manifest | None, list[str]]:
    """Verify one staged range; return its manifest, or the violations."""
    offsets, part, attempt, tools = reading.offsets, staged.part_of(reading), work.attempt, work.tools
    file, stretches = _facts(part, staged_name(topic, offsets), work.staging) if part else (None, ())
    missing = _explain_missing(topic, reading, stretches, staged, tools)
    before, after = staged.ids
    if missing.holes or missing.unexplained:  # the batches that explain them must be of the same topic too
        after = tools.kafka.read_ids(topic)
    missing = missing._replace(holes=(*reading.lost, *missing.holes))
    violations = verify_staged(topic, offsets, file, stretches, missing, (step.ids, before, after))
    if part is not None and not part.is_raw:
        violations.append(
            f"Spark wrote columns of {part.schema}, expected {', '.join(parquet.RAW_SCHEMA.names)} of their types"
        )
    if violations:
        return None, violations
    manifest = Manifest(
        topic,
        offsets,
        file,
        missing.holes,
        attempt.provenance(
            tools.spark.writer, step.seq, step.topic_id, tools.now_ms(), staged.seconds_per_offset * len(offsets)
        ),
        isolation_level=tools.isolation_level,
        delivery=tools.delivery,
        named_after=attempt.id if tools.delivery is Delivery.AT_LEAST_ONCE else "",
        schema=part.schema if part else {},
    )
    return manifest, []


def _explain_missing(topic: str, reading: Reading, stretches: Stretches, staged: Staged, tools: Tools) -> Missing:
    """Explain from Kafka's log why offsets of what was read have no row.

    Its batches are read before its first offset is asked for, which only ever moves on.
    """
    if reading.rest is None:
        return Missing(())
    partition, absent, rows = reading.rest.partition, missing_offsets(reading.rest, stretches), Rows(reading.rest, stretches)
    is_told = rows.are_all_of if staged.is_of_compacted_topic else lambda span: True  # no record may be missing otherwise
    evidence = list(tools.kafka.read_spans(topic, partition, absent, tools.isolation_level, is_told))
    begins = _log_start(topic, partition, tools) if absent and staged.is_of_compacted_topic else None
    return explain_holes(absent, evidence, rows, compacted_from=begins)


def staged_name(topic: str, offsets: OffsetRange) -> str:
    """Return a range's name within its attempt, which may land the same offsets of several topics."""
    return f"{topic}/{offsets.key}"


def _facts(part: parquet.PartFile, name: str, staging: Staging) -> tuple[StagedFile, Stretches]:
    file = staging.settle(part, name)
    with told_if_gone(file.path), parquet.told_if_damaged(f"staged file {file.path}", parquet.STAGED):
        return file, parquet.read_stretches(part.path)


def stage_empty(
    name: str, offsets: OffsetRange, attempt: Attempt, lake: Lake, columns: Sequence[str] = parquet.RAW_SCHEMA.names
) -> StagedFile:
    """Stage a file with these columns and no rows, for a revision that no longer has any.

    If the published file were deleted instead, its name would be free, and a stale attempt could publish there again.
    """
    staged = f"staging/{attempt.id}/{name}.empty.parquet"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        empty = Path(folder) / "empty.parquet"
        parquet.write_empty(empty, columns)
        opened.enter_context(told_if_gone(staged))
        lake.store.upload(empty, staged)
        lake.store.make_durable(staged)
        start = offsets.start
        return StagedFile(staged, empty.stat().st_size, parquet.digest(empty), 0, start, start, None, None)


def _log_start(topic: str, partition: int, tools: Tools) -> int | None:
    """Return the first offset of a Kafka partition; none where a topic that was recreated meanwhile lacks the partition."""
    state = tools.kafka.read_watermarks(topic, tools.isolation_level).get(partition)
    return state.earliest if state else None


def owes(work: Work, ranges: Sequence[OffsetRange], coverage: Coverage) -> bool:
    """Return whether a manifest still needs a staged file of this attempt to be published."""
    return any(
        manifest.provenance.attempt == work.attempt.id and not coverage.is_landed(offsets)
        for offsets in ranges
        if (manifest := coverage.manifests.get(offsets)) is not None
    )
