"""Compaction as a Dagster job per topic, and its schedule, which launches it only where there is something to compact."""

import uuid
from collections.abc import Sequence

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .attempt import Attempt
from .compaction import compact, plan_compaction
from .core.compaction import CompactionVerdict
from .core.errors import CompactionFailed, Refused
from .resources import Edges
from .settings import code_version
from .topics import TOPIC_TAG, Topic


def build_compaction(topic: Topic) -> dg.Definitions:
    """Build the job that compacts a topic's raw table, and its schedule; runs of it take turns, by a pool."""
    description = (
        f"Compacts the raw table of `{topic.name}`: its small files become files of about {topic.policy.target_file_bytes:,} "
        "bytes. The rows stay what they are, and so does `data/`."
    )

    @dg.op(name=f"compact_{topic.slug}_table", description=description, pool=topic.compaction_job)
    def compact_table(
        context: dg.OpExecutionContext, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> None:
        def log_step(step: str, **fields: object) -> None:
            context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

        check_has_table(edges)
        attempt = Attempt(f"{context.run_id[:8]}-{uuid.uuid4().hex[:8]}", context.run_id, code_version())
        tools = edges.tools(topic, pyspark, log_step)
        verdicts = list(compact(topic.name, attempt, tools, topic.policy.target_file_bytes))
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
    def compact_raw_table() -> None:
        compact_table()

    @dg.schedule(
        name=f"{topic.compaction_job}_often",
        job=compact_raw_table,
        cron_schedule="*/10 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Compacts the raw table of `{topic.name}`, where small files of it weigh enough, or are many.",
    )
    def often(edges: dg.ResourceParam[Edges]) -> dg.RunRequest | dg.SkipReason:
        if not edges.settings.has_raw_table:
            return dg.SkipReason("this lake has no raw tables: OFFSETLAKE_RAW_TABLE is off")
        due = plan_compaction(topic.name, edges.lake, topic.policy.target_file_bytes)
        return dg.RunRequest() if due else dg.SkipReason(f"nothing of {topic.name} is to be compacted")

    return dg.Definitions(jobs=[compact_raw_table], schedules=[often])


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
            "table has them as before",
            violations,
        )
