"""The sensor of a latest state: asks for one update where one is due, and for no second one beside it.

Cursorless: what is due is in the lake, what runs and what failed in Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg
from dagster import RunsFilter

from .core.dispatch import NEVER_TRIED, Tried
from .core.latest import Latest
from .deriving import is_backlog
from .latest import find_waiting
from .projection import ACTIVE, FAILED, fail_dead_runs, is_run_of, read_recent_runs
from .resources import Edges
from .topics import Duty, Topic

TICK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class LatestTick:
    """Is what one tick found: how many buckets and ranges are due, and what to ask for, if anything."""

    buckets: int
    ranges: int
    run_key: str | None = None


def build_latest_sensor(topic: Topic, config: Latest) -> dg.SensorDefinition:
    """Builds the sensor that has the latest state updated; it runs unless someone stops it."""

    @dg.sensor(
        name=topic.latest_sensor,
        job_name=topic.latest_job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for an update of the latest records of `{topic.name}` where ranges were decoded.",
    )
    def due_latest(context: dg.SensorEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.SensorResult:
        tick = run_latest_tick(topic, config, context.instance, edges)
        context.log.info("buckets=%s ranges=%s", tick.buckets, tick.ranges)
        if tick.run_key is None:
            return dg.SensorResult(
                skip_reason=f"{tick.ranges} ranges wait for {tick.buckets} buckets, none to ask for now"
            )
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=tick.run_key, tags=topic.upserting.tags)])

    return due_latest


def run_latest_tick(topic: Topic, config: Latest, instance: dg.DagsterInstance, edges: Edges) -> LatestTick:
    """Runs one tick; a run that is queued or at work, or a failure a moment ago, has it ask for nothing."""
    fail_dead_runs(instance, topic.upserting)
    due = find_waiting(topic.name, config, edges.decodings, edges.latest_files)
    tried = read_tried_updates(instance, topic.upserting)
    is_held = any(is_run_of(run, topic.upserting) for run in instance.get_runs(RunsFilter(statuses=ACTIVE)))
    is_late = not is_backlog(topic, edges, tried.last_ended_ms)
    if not due.targets or is_held or not is_late or not tried.is_due(edges.now_ms()):
        return LatestTick(len(due.targets), len(due.fresh))
    return LatestTick(len(due.targets), len(due.fresh), f"latest:{topic.name}:{tried.last_ended_ms}:{tried.attempts}")


def read_tried_updates(instance: dg.DagsterInstance, duty: Duty) -> Tried:
    """Reads how the recent updates ended: failures count until one succeeds."""
    tried = NEVER_TRIED
    ended = (
        (int((record.end_time or record.update_timestamp.timestamp()) * 1000), record.dagster_run)
        for record in read_recent_runs(instance, duty)
    )
    for ended_ms, run in sorted(ended, key=lambda each: each[0]):
        tried = tried.then_failed(run.run_id, ended_ms) if run.status in FAILED else Tried(0, ended_ms)
    return tried
