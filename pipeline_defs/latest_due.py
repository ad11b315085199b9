"""The sensor of a latest state: asks for one update where one is due, and for no second one beside it.

Cursorless: what is due is in the lake, what runs and what failed in Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg
from dagster import RunsFilter

from .core.dispatch import NEVER_TRIED
from .core.latest import Latest
from .dead_runs import end_dead_runs
from .deriving import is_backlog
from .latest import find_update, read_state
from .projection import ACTIVE, is_run_of
from .resources import Edges
from .runs import ASKED_AGAIN, unused_key
from .topics import Topic
from .tries import read_tried_by

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
        tags = {**topic.upserting.tags, **ASKED_AGAIN}
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=tick.run_key, tags=tags)])

    return due_latest


def run_latest_tick(topic: Topic, config: Latest, instance: dg.DagsterInstance, edges: Edges) -> LatestTick:
    """Runs one tick; a run that is queued or at work, or a failure a moment ago, has it ask for nothing."""
    end_dead_runs(instance, edges.now_ms())
    facts = read_state(topic.name, config, edges.latest_files)
    decoded = edges.decodings.read_ranges(topic.name)
    due = find_update(config, facts, decoded)
    tried = read_tried_by(instance, topic.upserting, lambda run: [topic.upserting]).get(topic.upserting, NEVER_TRIED)
    is_held = any(is_run_of(run, topic.upserting) for run in instance.get_runs(RunsFilter(statuses=ACTIVE)))
    is_late = not is_backlog(decoded, edges, tried.last_ended_ms)
    if not due.targets or is_held or not is_late or not tried.is_due(edges.now_ms()):
        return LatestTick(len(due.targets), len(due.fresh))
    run_key = unused_key(instance, f"latest:{topic.name}:{tried.last_ended_ms}:{tried.attempts}")
    return LatestTick(len(due.targets), len(due.fresh), run_key)
