"""Sealing as a Dagster job per topic; its schedule stands still until somebody turns it on."""

import uuid
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from .attempt import Attempt
from .core.errors import SealFailed
from .resources import Edges
from .sealing import plan_sealing, seal
from .settings import code_version
from .topics import TOPIC_TAG, Topic


class SealConfig(dg.Config):
    """Is what a person may say of one run, in its run config."""

    every: bool = Field(
        default=False,
        description="seal the newest ranges too, which do not weigh target_file_bytes yet and would wait for more",
    )


def build_sealing(topic: Topic) -> dg.Definitions:
    """Builds the job that seals a topic's landed ranges, and its schedule; runs of it take turns, by a pool."""
    description = (
        f"Merges small landed files of `{topic.name}` into files of about {topic.policy.target_file_bytes:,} bytes below "
        f"`sealed/`, which the views of `offsetlake sql` then read. What is landed stays as it is."
    )

    @dg.op(name=f"seal_{topic.slug}_ranges", description=description, pool=topic.seal_job)
    def seal_ranges(
        context: dg.OpExecutionContext, config: SealConfig, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> None:
        def log_step(step: str, **fields: object) -> None:
            context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

        attempt = Attempt(f"{context.run_id[:8]}-{uuid.uuid4().hex[:8]}", context.run_id, code_version())
        tools = edges.tools(topic, pyspark, log_step)
        found = list(seal(topic.name, attempt, tools, topic.policy.target_file_bytes, every=config.every))
        made = [verdict.seal for verdict in found if verdict.seal is not None]
        facts: dict[str, Any] = {
            "sealed_files": len(made),
            "sealed_ranges": sum(len(each.ranges) for each in made),
            "sealed_bytes": sum(each.file.bytes for each in made),
        }
        context.add_output_metadata(facts)
        check_sealing(topic.name, [v for verdict in found for v in verdict.violations], len(found))

    @dg.job(name=topic.seal_job, description=description, tags={TOPIC_TAG: topic.name})
    def seal_landed() -> None:
        seal_ranges()

    @dg.schedule(
        name=f"{topic.seal_job}_daily",
        job=seal_landed,
        cron_schedule="0 4 * * *",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Seals `{topic.name}` every night, where there is something to seal.",
    )
    def daily(edges: dg.ResourceParam[Edges]) -> dg.RunRequest | dg.SkipReason:
        due = plan_sealing(topic.name, edges.lake, topic.policy.target_file_bytes)
        return dg.RunRequest() if due else dg.SkipReason(f"nothing of {topic.name} is to be sealed")

    return dg.Definitions(jobs=[seal_landed], schedules=[daily])


def check_sealing(topic: str, violations: list[str], total: int) -> None:
    """Raises `SealFailed` where something could not be sealed."""
    if violations:
        raise SealFailed(
            f"{len(violations)} reasons why of {total} sealed files of topic {topic} some were not made; readers take the "
            "landed files there, as before",
            violations,
        )
