"""The asset of a topic's event days: Dagster's face of `days.update_days`; one event with its facts per day brought up to date.

Invariant: the run is red unless every due day that it selects is up to date; what is up to date is reported even so.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .catalog import days_description, derived_asset
from .core.day_verdicts import DayDecided, DayFacts, DayVerdict
from .core.days import Days
from .core.errors import EmptySelection, RangesFailed
from .days import update_days
from .days_checks import days_results
from .edges.days import day_path
from .moments import Pace
from .projection import as_evaluation
from .resources import Edges
from .runs import new_attempt, run_of, selected_keys, step_logger
from .topics import Topic

DAYS_PER_BACKFILL_RUN = 366
WRITTEN = {DayDecided.CREATED, DayDecided.UPDATED, DayDecided.UNCHANGED}


def build_days_asset(topic: Topic, days: Days, lake: str | None = None) -> dg.AssetsDefinition:
    """Builds the asset that holds the decoded rows of a topic by the day of their event; `lake` is only shown."""

    @derived_asset(
        topic,
        "days",
        "*.parquet",
        lake,
        deps=[dg.AssetDep(topic.decoded_key, partition_mapping=dg.AllPartitionMapping())],
        partitions_def=dg.DailyPartitionsDefinition(start_date=days.start, end_offset=1),
        # not its parent's, or Dagster skips it in a backfill of both
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=DAYS_PER_BACKFILL_RUN),
        output_required=False,
        description=days_description(topic, days),
    )
    def daily(
        context: dg.AssetExecutionContext, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        with run_of(context, topic.daily, edges):
            chosen = selected_keys(context)
            if not chosen:
                raise EmptySelection(
                    f"no day of topic {topic.name} is selected; nothing was read or written; choose days since {days.start}"
                )
            tools = edges.day_tools(days, pyspark, step_logger(context))
            failures: list[DayVerdict] = []
            pace = Pace(len(chosen), edges.now_ms)
            for verdict in update_days(topic.name, chosen, new_attempt(context), tools):
                if progress := pace.after_one():
                    context.log.info("step=progress %s", progress)
                if verdict.outcome in {DayDecided.FAILED, DayDecided.OVERTAKEN}:
                    failures.append(verdict)
                elif verdict.facts is not None and context.has_partition_key:
                    metadata = day_metadata(topic, verdict, verdict.facts, edges)
                    yield dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(verdict.facts.digest))
                elif verdict.facts is not None and verdict.outcome in WRITTEN:
                    context.log_event(day_event(topic, verdict, verdict.facts, edges))
                edges.watch_step("reported_day", day=verdict.day, outcome=verdict.outcome.value)
            # a run without a partition key has no output, so Dagster skips the checks that come after it
            if not context.has_partition_key:
                _tell_checks(context, topic, days, edges)
            if failures:
                raise RangesFailed(
                    f"{len(failures)} of {len(chosen)} days of topic {topic.name} are not up to date; what stood stands, the "
                    "rows are in the decoded ranges, and the days are tried again",
                    [text for verdict in failures for text in verdict.violations or (_overtaken(verdict),)],
                )

    return daily


def _tell_checks(context: dg.AssetExecutionContext, topic: Topic, days: Days, edges: Edges) -> None:
    for name, result in days_results(topic, days, edges).items():
        context.log_event(as_evaluation(dg.AssetCheckKey(topic.days_key, name), result))


def day_event(topic: Topic, verdict: DayVerdict, facts: DayFacts, edges: Edges) -> dg.AssetMaterialization:
    """Is the event of one day; its data version is its file's digest."""
    return dg.AssetMaterialization(
        asset_key=topic.days_key,
        partition=verdict.day,
        metadata=day_metadata(topic, verdict, facts, edges),
        tags={"dagster/data_version": facts.digest},
    )


def day_metadata(topic: Topic, verdict: DayVerdict, facts: DayFacts, edges: Edges) -> Mapping[str, Any]:
    """Are the facts of a day that the UI shows."""
    return {
        "outcome": verdict.outcome.value,
        "rows": facts.rows,
        "dagster/partition_row_count": facts.rows,
        "added_rows": verdict.added,
        "late_rows": facts.late,
        "bytes": facts.bytes,
        "ranges": facts.ranges,
        "newest_ranges": ", ".join(facts.newest),
        "seconds": round(verdict.seconds, 3),
        "sha256": facts.digest,
        "file": dg.MetadataValue.path(edges.lake.store.url(day_path(topic.name, verdict.day))),
    }


def _overtaken(verdict: DayVerdict) -> str:
    return f"day {verdict.day} was changed by somebody else whenever it was to be exchanged; it is tried again"
