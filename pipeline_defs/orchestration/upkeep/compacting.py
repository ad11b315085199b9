"""Compaction of a topic's raw and decoded table: what is due of them, and a run that does it."""

from collections.abc import Iterator, Sequence

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from ...core.errors import CompactionFailed, OffsetlakeError, Refused, as_one
from ...core.tables.compaction import CompactionVerdict, Group
from ...landing.attempt import Tools
from ...resources import Adapters
from ...tables.compaction import RawTable, compact, compact_table
from ...tables.decoded_compaction import DecodedTable
from ...topics import Topic
from ..runs.work import attempt_of, step_logger


def may_be_due(topic: Topic, adapters: Adapters) -> bool:
    """Return whether anything may have to be compacted, without reading the whole of a long history."""
    if not adapters.lake.frontiers.has(topic.name):
        return any(plan_compaction(topic, adapters).values())
    target_bytes = topic.policy.target_file_bytes
    if adapters.settings.has_raw_table and RawTable(topic.name, adapters.lake).may_be_due(target_bytes):
        return True
    return bool(DecodedTable(topic.name, adapters.decodings).find(target_bytes, every=False))


def compact_and_check(topic: Topic, context: dg.OpExecutionContext, adapters: Adapters, pyspark: LazyPySparkResource) -> None:
    """Compact what is due of a topic in a run, and say what was done; raise `CompactionFailed`."""
    if not may_be_due(topic, adapters):
        return

    tools = adapters.tools(topic, pyspark, step_logger(context))
    verdicts = list(compact_tables(topic, context.run_id, tools, adapters))
    files = [verdict.file for verdict in verdicts if verdict.file is not None]
    before = sum(len(verdict.group.files) for verdict in verdicts if verdict.file is not None)
    context.log.info(
        "step=compacted topic=%s files_before=%s files_after=%s bytes_after=%s",
        *(topic.name, before, len(files), sum(file.bytes for file in files)),
    )
    check_compaction(topic.name, verdicts)


def plan_compaction(topic: Topic, adapters: Adapters, *, every: bool = False) -> dict[str, Sequence[Group]]:
    """Plan what to compact of a topic's tables now, by their kinds; write nothing."""
    target_bytes, raw = topic.policy.target_file_bytes, RawTable(topic.name, adapters.lake)
    return {
        "raw": raw.find(target_bytes, every=every) if adapters.settings.has_raw_table else [],
        "decoded": DecodedTable(topic.name, adapters.decodings).find(target_bytes, every=every),
    }


def compact_tables(
    topic: Topic, run_id: str, tools: Tools, adapters: Adapters, *, every: bool = False
) -> Iterator[CompactionVerdict]:
    """Compact what is due of a topic's tables; yield a verdict per group of files. A broken table stops no other."""
    target_bytes, errors = topic.policy.target_file_bytes, list[OffsetlakeError]()
    table = DecodedTable(topic.name, adapters.decodings)
    compactions = [compact_table(table, attempt_of(run_id), tools, target_bytes, every=every)]
    if adapters.settings.has_raw_table:
        compactions.insert(0, compact(topic.name, attempt_of(run_id), tools, target_bytes, every=every))
    for verdicts in compactions:
        try:
            yield from verdicts
        except OffsetlakeError as error:
            errors.append(error)
    if errors:
        raise as_one(errors)


def check_has_table(adapters: Adapters) -> None:
    """Raise `Refused` where the lake has no raw tables."""
    if not adapters.settings.has_raw_table:
        raise Refused(
            "this lake has no raw tables: OFFSETLAKE_RAW_TABLE is off, as it is by default on an object store, where a table "
            "takes its bytes a second time; nothing was written; set it to on for this command and for Dagster"
        )


def check_compaction(topic: str, verdicts: Sequence[CompactionVerdict]) -> None:
    """Raise `CompactionFailed` where something could not be compacted."""
    violations = [violation for verdict in verdicts for violation in verdict.violations]
    if violations:
        raise CompactionFailed(
            f"{len(violations)} reasons why of {len(verdicts)} groups of files of topic {topic} some were not compacted; the "
            "tables have them as before",
            violations,
        )
