"""Housekeeping as Dagster jobs with schedules: sweeping staging, and retiring old keys. Each runs only where it is due.

A schedule that finds nothing to do says so and launches nothing.
"""

import dagster as dg

from .core.command_lines import command
from .resources import Edges
from .retirement import find_retirable, has_too_many, retire_keys
from .sweeping import SWEEP_AFTER_SECONDS, find_orphans, sweep_orphans
from .topics import Topic
from .undecoded import read_due
from .vacuum import is_vacuum_due, vacuum

SWEEP_JOB = "sweep_staging"


def build_sweep() -> dg.Definitions:
    """Builds the job that sweeps the lake's staging, and its daily schedule; it is of the whole lake, not of a topic."""
    description = (
        "Deletes what attempts that died left in the lake's staging, once no run can be at work on it any more, and files of "
        "tables that no version of the last week names. Published files are never touched."
    )

    @dg.op(name="sweep", description=description)
    def sweep(context: dg.OpExecutionContext, edges: dg.ResourceParam[Edges]) -> None:
        orphans = sweep_orphans(edges.lake, edges.now_ms())
        for orphan in orphans:
            context.log.info("step=swept attempt=%s bytes=%s", orphan.name, orphan.bytes)
        deleted, errors = vacuum(edges.lake, edges.now_ms())
        for path in deleted:
            context.log.info("step=vacuumed path=%s", path)
        swept_bytes = sum(orphan.bytes for orphan in orphans)
        context.add_output_metadata({"swept": len(orphans), "swept_bytes": swept_bytes, "vacuumed": len(deleted)})
        for error in errors:
            raise error

    @dg.job(name=SWEEP_JOB, description=description)
    def sweep_staging() -> None:
        sweep()

    @dg.schedule(
        name=f"{SWEEP_JOB}_daily",
        job=sweep_staging,
        cron_schedule="30 3 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Sweeps the lake's staging every night, where there is something to sweep.",
    )
    def daily(edges: dg.ResourceParam[Edges]) -> dg.RunRequest | dg.SkipReason:
        lake, now_ms = edges.lake, edges.now_ms()
        is_due = find_orphans(lake, now_ms, SWEEP_AFTER_SECONDS) or is_vacuum_due(lake, now_ms)
        return dg.RunRequest() if is_due else dg.SkipReason("nothing in staging or in a table is old enough")

    return dg.Definitions(jobs=[sweep_staging], schedules=[daily])


def build_retirement(topic: Topic) -> dg.Definitions:
    """Builds the job that retires a topic's old keys, and its hourly schedule."""
    description = (
        f"Retires the oldest landed ranges of `{topic.name}` from Dagster beyond the newest {topic.max_keys:,} (`max_keys`), "
        "so that its pages stay quick. The lake keeps everything: audit and trace see it, and "
        f"`{command('backfill', topic.name, '--key KEY')}` brings a range back."
    )

    @dg.op(name=f"retire_{topic.slug}", description=description)
    def retire(context: dg.OpExecutionContext, edges: dg.ResourceParam[Edges]) -> None:
        coverage = edges.lake.coverage(topic.name)
        due = read_due(topic, edges)
        gone = retire_keys(
            topic, coverage, context.instance, due, lambda done: context.log.info("step=retired keys=%s", done)
        )
        context.add_output_metadata({"retired": len(gone), "first": gone[0].key, "last": gone[-1].key} if gone else {})

    @dg.job(name=topic.retire_job, description=description)
    def retire_old_keys() -> None:
        retire()

    @dg.schedule(
        name=f"{topic.retire_job}_hourly",
        job=retire_old_keys,
        cron_schedule="17 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Retires old keys of `{topic.name}` every hour, where Dagster has more than {topic.max_keys:,}.",
    )
    def hourly(context: dg.ScheduleEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.RunRequest | dg.SkipReason:
        coverage = edges.lake.recent(topic.name)
        found = find_retirable(topic, coverage, context.instance, read_due(topic, edges))
        # of a key that a frontier document sums up only the job looks which it is
        is_due = bool(found) or (coverage.log.base is not None and has_too_many(topic, context.instance))
        return dg.RunRequest() if is_due else dg.SkipReason(f"no key of {topic.name} is to be retired")

    return dg.Definitions(jobs=[retire_old_keys], schedules=[hourly])
