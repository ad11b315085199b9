"""Housekeeping as Dagster jobs, one of each kind for all topics of a code location, each with one schedule.

A schedule launches its job where something is due for any topic; the job finds out itself what is. A failing topic stops no
other.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from ...core.advice import command, some_of
from ...core.errors import TopicsFailed, UnknownTopic, as_one, as_ours
from ...resources import Adapters
from ...tables.deleting import may_have_leftovers, sweep_orphans, vacuum
from ...topics import TOPIC_TAG, Topic
from ..assets.checks import audit_keys
from ..assets.decoded_asset import decoded_check_keys
from ..assets.latest_asset import RECOMPUTED
from ..pulse.rebuilding import COMPARE
from ..runs.visiting import do_for_each
from ..runs.waiting import read_due
from ..runs.work import logging_failure
from .compacting import compact_and_check, may_be_due
from .pruning import Pruning, find_retirable, has_too_many, is_any_old, location_of, retire_keys

AUDIT = "audit"
AUDIT_TAG = "offsetlake/audit"  # of which dagster.yaml lets one at a time take a slot
COMPACT = "compact_tables"
PRUNE = "prune_runs"
RETIRE = "retire_keys"
SWEEP = "sweep_staging"
JOBS = (AUDIT, COMPACT, COMPARE, PRUNE, RETIRE, SWEEP)
LOOKING_SECONDS = 20.0  # of the minute that Dagster gives a schedule: who has found nothing by then has the job look
COMPACTING_SECONDS = 1800.0  # after which a run begins no further topic: the next one does


@dataclass(frozen=True, slots=True)
class Chore:
    """Recurring work on each topic, and whether it is due for one."""

    job: str
    cron: str
    description: str
    is_due: Callable[[Topic, Adapters, dg.DagsterInstance], bool]
    do: Callable[[Topic, dg.OpExecutionContext, Adapters, LazyPySparkResource], None]
    longest_seconds: float | None = None


def build_housekeeping(topics: Sequence[Topic]) -> dg.Definitions:
    """Build the jobs and schedules of a code location; sweeping is of the whole lake."""
    chores = [_build_chore(topics, chore) for chore in (_RETIREMENT, _COMPACTION)]
    return dg.Definitions.merge(build_sweep(), _build_pruning(topics), _build_audit(topics), *chores)


def _build_chore(topics: Sequence[Topic], chore: Chore) -> dg.Definitions:
    @dg.op(
        name=chore.job.split("_")[0],
        description=chore.description,
        config_schema={"topics": dg.Field([str], default_value=[], description="Which topics; all, where none is named.")},
        pool=chore.job,
    )
    def do(context: dg.OpExecutionContext, adapters: dg.ResourceParam[Adapters], pyspark: LazyPySparkResource) -> None:
        began = time.monotonic()

        def do_one(topic: Topic) -> None:
            if chore.longest_seconds is None or time.monotonic() - began < chore.longest_seconds:
                chore.do(topic, context, adapters, pyspark)

        with logging_failure(context):
            do_for_each(_choose(topics, context.op_config["topics"]), adapters, do_one)

    return _with_schedule(
        do,
        chore.job,
        chore.cron,
        f"Launches `{chore.job}`, where something is due.",
        lambda adapters, instance: _is_any_due(topics, chore, adapters, instance),
        "nothing is due",
    )


def _with_schedule(
    op: dg.OpDefinition,
    name: str,
    cron: str,
    description: str,
    is_due: Callable[[Adapters, dg.DagsterInstance], bool],
    nothing: str,
) -> dg.Definitions:
    """Return the job of one op with the schedule that launches it where it is due, and else says that there is `nothing`."""

    @dg.job(name=name, description=op.description)
    def job() -> None:
        op()

    @dg.schedule(
        name=f"{name}_schedule",
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description,
    )
    def schedule(context: dg.ScheduleEvaluationContext, adapters: dg.ResourceParam[Adapters]) -> dg.RunRequest | dg.SkipReason:
        return dg.RunRequest() if is_due(adapters, context.instance) else dg.SkipReason(nothing)

    return dg.Definitions(jobs=[job], schedules=[schedule])


def _choose(topics: Sequence[Topic], named: Sequence[str]) -> list[Topic]:
    """Return the topics that were named; else all, in random order, so that none is always the last."""
    known = {topic.name: topic for topic in topics}
    unknown = [name for name in named if name not in known]
    if unknown:
        raise UnknownTopic(
            f"no topic of this code location is {', '.join(unknown)}; nothing was done; known are {some_of([*known])}"
        )
    return [known[name] for name in named] or random.sample(topics, len(topics))


def _is_any_due(topics: Sequence[Topic], chore: Chore, adapters: Adapters, instance: dg.DagsterInstance) -> bool:
    """Return whether anything is due for any topic, or may be where looking takes too long; raise `TopicsFailed`."""
    began, failures = time.monotonic(), list[str]()
    for topic in topics:
        try:
            is_due = chore.is_due(topic, adapters, instance)
        except Exception as error:  # noqa: BLE001 (told by its type: another topic is not to pay for it)
            failures.append(f"{topic.name}: {as_ours(error, f'topic {topic.name}')}")
            is_due = False
        if is_due or time.monotonic() - began > LOOKING_SECONDS:
            return True
    if failures:
        raise TopicsFailed(f"{len(failures)} of {len(topics)} topics cannot be looked at; nothing of others is due", failures)
    return False


def _is_retirement_due(topic: Topic, adapters: Adapters, instance: dg.DagsterInstance) -> bool:
    coverage = adapters.lake.recent(topic.name)
    if coverage.log.base is not None:  # only the job finds out which keys of a frontier document are retirable
        return has_too_many(topic, instance)
    return bool(find_retirable(topic, coverage, instance, read_due(topic, adapters)))


def _retire(topic: Topic, context: dg.OpExecutionContext, adapters: Adapters, _: LazyPySparkResource) -> None:
    if not _is_retirement_due(topic, adapters, context.instance):
        return
    coverage, due = adapters.lake.coverage(topic.name), read_due(topic, adapters)
    gone = retire_keys(topic, coverage, context.instance, due)
    if gone:
        context.log.info("step=retired topic=%s keys=%s first=%s last=%s", topic.name, len(gone), gone[0].key, gone[-1].key)


_RETIREMENT = Chore(
    RETIRE,
    "17 * * * *",
    "Retires the oldest landed ranges of each topic from Dagster beyond its newest `max_keys`, so that its pages stay quick. "
    "The lake keeps everything: audit and trace see it, and "
    f"`{command('backfill', 'TOPIC', '--key KEY')}` brings a range back.",
    _is_retirement_due,
    _retire,
)

_COMPACTION = Chore(
    COMPACT,
    "*/10 * * * *",
    "Compacts the raw and the decoded table of each topic: small files become files of about `target_file_bytes`. The rows "
    "stay what they are, and so does `data/`.",
    lambda topic, adapters, _: may_be_due(topic, adapters),
    compact_and_check,
    COMPACTING_SECONDS,
)


def build_sweep() -> dg.Definitions:
    """Build the job that sweeps the lake's staging, and its daily schedule; it is of the whole lake, not of a topic."""
    description = (
        "Deletes what attempts that died left in the lake's staging, once no run can be at work on it any more, and files of "
        "tables that no version of the last week names. Published files are never touched."
    )

    @dg.op(name="sweep", description=description)
    def sweep(context: dg.OpExecutionContext, adapters: dg.ResourceParam[Adapters]) -> None:
        deleted, errors = vacuum(adapters.lake, adapters.now_ms())
        for path in deleted:
            context.log.info("step=vacuumed path=%s", path)
        # last: where a manifest that may need staged files cannot be read, nothing is swept
        orphans = sweep_orphans(adapters.lake, adapters.lake.store.clock_ms())  # which dates what was written last
        for name, orphan in orphans.items():
            context.log.info("step=swept attempt=%s bytes=%s", name, orphan.bytes)
        swept_bytes = sum(orphan.bytes for orphan in orphans.values())
        context.add_output_metadata({"swept": len(orphans), "swept_bytes": swept_bytes, "vacuumed": len(deleted)})
        if errors:
            raise as_one(errors)

    def is_due(adapters: Adapters, _: dg.DagsterInstance) -> bool:
        return may_have_leftovers(adapters.lake, adapters.now_ms())

    told = "Sweeps the lake's staging every night, where there is something to sweep."
    return _with_schedule(sweep, SWEEP, "30 3 * * *", told, is_due, "nothing in staging or in a table is old enough")


def _build_pruning(topics: Sequence[Topic]) -> dg.Definitions:
    description = (
        "Deletes runs of Offsetlake that ended more than OFFSETLAKE_RUN_RETENTION_DAYS ago, with their events and logs, and as "
        "old results of checks, events of no run and logs of ticks. What Dagster shows an asset, a partition or a check by "
        "stays. The lake is not touched."
    )

    @dg.op(name="prune", description=description, pool=PRUNE)
    def prune(context: dg.OpExecutionContext, adapters: dg.ResourceParam[Adapters]) -> None:
        days = adapters.settings.run_retention_days
        if days is None:
            context.log.info("OFFSETLAKE_RUN_RETENTION_DAYS is off: nothing is deleted")
            return
        pruning = Pruning(topics, JOBS, context.instance, location_of(context.run))
        gone, kept = pruning.prune(
            pruning.find_old(adapters.now_ms(), days),
            lambda gone, kept: context.log.info("step=pruned runs=%s kept=%s", gone, kept),
        )
        events, ticks = pruning.forget_events(adapters.now_ms(), days), pruning.forget_tick_logs(adapters.now_ms(), days)
        context.add_output_metadata({"deleted": gone, "kept": kept, "deleted_events": events, "deleted_tick_logs": ticks})

    def is_due(adapters: Adapters, instance: dg.DagsterInstance) -> bool:
        days = adapters.settings.run_retention_days
        return days is not None and is_any_old(instance, adapters.now_ms(), days)

    told = "Launches the job every night, where a run is old enough."
    return _with_schedule(prune, PRUNE, "45 3 * * *", told, is_due, "no run is old enough")


def audited(topic: Topic) -> list[dg.AssetCheckKey]:
    """Return the keys of all checks of a topic."""
    latest = [dg.AssetCheckKey(topic.latest_key, RECOMPUTED)] if topic.latest else []
    return [*audit_keys(topic), *decoded_check_keys(topic), *latest]


def _build_audit(topics: Sequence[Topic]) -> dg.Definitions:
    """Build the job with every check of every topic; its schedule launches a run for each topic."""
    if not topics:
        return dg.Definitions()
    job = dg.define_asset_job(
        AUDIT,
        selection=dg.AssetSelection.checks(*(key for topic in topics for key in audited(topic))),
        description="Every check of each topic: of what is landed, lost and waiting, and of its decoded and latest tables.",
    )

    @dg.schedule(
        name=f"{AUDIT}_schedule",
        job=job,
        cron_schedule="0 3 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Audits each topic every night, in a run of its own.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        at = context.scheduled_execution_time.isoformat()
        return [
            dg.RunRequest(
                f"{topic.name} {at}", asset_check_keys=audited(topic), tags={TOPIC_TAG: topic.name, AUDIT_TAG: "nightly"}
            )
            for topic in topics
        ]

    return dg.Definitions(jobs=[job], schedules=[nightly])
