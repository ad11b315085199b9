"""Compaction of a topic's tables as a Dagster job, and its schedule, which launches it only where something is due."""

import uuid
from collections.abc import Iterator, Mapping, Sequence

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .attempt import Attempt, Tools
from .compaction import RawTable, compact, compact_table
from .core.compaction import CompactionVerdict, Group
from .core.errors import CompactionFailed, OffsetlakeError, Refused
from .decoded_compaction import DecodedTable
from .resources import Edges
from .settings import code_version
from .topics import TOPIC_TAG, Topic


def build_compaction(topic: Topic) -> dg.Definitions:
    """Build the job that compacts a topic's raw and decoded table, and its schedule; runs of it take turns, by a pool."""
    description = (
        f"Compacts the raw and the decoded table of `{topic.name}`: small files become files of about "
        f"{topic.policy.target_file_bytes:,} bytes. The rows stay what they are, and so does `data/`."
    )

    @dg.op(name=f"compact_{topic.slug}_tables", description=description, pool=topic.compaction_job)
    def compact_both(
        context: dg.OpExecutionContext, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> None:
        def log_step(step: str, **fields: object) -> None:
            context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

        tools = edges.tools(topic, pyspark, log_step)
        verdicts = list(compact_tables(topic, context.run_id, tools, edges))
        made = [verdict for verdict in verdicts if verdict.file is not None]
        context.add_output_metadata(
            {
                "files_before": sum(len(verdict.group.files) for verdict in made),
                "files_after": len(made),
                "bytes_after": sum(verdict.file.bytes for verdict in made if verdict.file),
            }
        )
        check_compaction(topic.name, verdicts)

    @dg.job(name=topic.compaction_job, description=description, tags={TOPIC_TAG: topic.name})
    def compact_tables_of_topic() -> None:
        compact_both()

    @dg.schedule(
        name=f"{topic.compaction_job}_often",
        job=compact_tables_of_topic,
        cron_schedule="*/10 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Compacts the tables of `{topic.name}`, where small files weigh enough, or are many.",
    )
    def often(edges: dg.ResourceParam[Edges]) -> dg.RunRequest | dg.SkipReason:
        due: Mapping[str, object] = (
            may_be_due(topic, edges) if edges.lake.is_summed_up(topic.name) else plan_compaction(topic, edges)
        )
        is_due = any(due.values())
        return dg.RunRequest() if is_due else dg.SkipReason(f"nothing of {topic.name} is to be compacted")

    return dg.Definitions(jobs=[compact_tables_of_topic], schedules=[often])


def may_be_due(topic: Topic, edges: Edges) -> dict[str, bool]:
    """Return of which tables something may be to be compacted, by their kinds, without reading all of the history."""
    target_bytes = topic.policy.target_file_bytes
    return {
        "raw": edges.settings.has_raw_table and RawTable(topic.name, edges.lake).may_be_due(target_bytes),
        "decoded": bool(DecodedTable(topic.name, edges.decodings).find(target_bytes, every=False)),
    }


def plan_compaction(topic: Topic, edges: Edges, *, every: bool = False) -> dict[str, Sequence[Group]]:
    """Plan what to compact of a topic's tables now, by their kinds; write nothing."""
    target_bytes, raw = topic.policy.target_file_bytes, RawTable(topic.name, edges.lake)
    return {
        "raw": raw.find(target_bytes, every=every) if edges.settings.has_raw_table else [],
        "decoded": DecodedTable(topic.name, edges.decodings).find(target_bytes, every=every),
    }


def compact_tables(
    topic: Topic, run_id: str, tools: Tools, edges: Edges, *, every: bool = False
) -> Iterator[CompactionVerdict]:
    """Compact what is due of a topic's tables; yield a verdict per group of files. What is broken of one ends no other."""
    target_bytes, errors = topic.policy.target_file_bytes, list[OffsetlakeError]()

    def attempt() -> Attempt:
        return Attempt(f"{run_id[:8]}-{uuid.uuid4().hex[:8]}", run_id, code_version())

    compactions = [
        compact_table(DecodedTable(topic.name, edges.decodings), attempt(), tools, target_bytes, every=every)
    ]
    if edges.settings.has_raw_table:
        compactions.insert(0, compact(topic.name, attempt(), tools, target_bytes, every=every))
    for verdicts in compactions:
        try:
            yield from verdicts
        except OffsetlakeError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def check_has_table(edges: Edges) -> None:
    """Raise `Refused` where the lake has no raw tables."""
    if not edges.settings.has_raw_table:
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
