"""The sensor of a latest state: asks for one update where one is due, and for no second one beside it.

Cursorless: what is due is in the lake, what runs and what failed in Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from .core.dispatch import NEVER_TRIED
from .core.latest import Latest
from .dead_runs import end_dead_runs
from .deriving import BACKLOG_FIRST, is_backlog
from .latest import find_due
from .projection import read_turns
from .resources import Edges
from .runs import ASKED_AGAIN, unused_key
from .topics import Topic
from .tries import read_tried_by
from .waiting import UPDATING, backing_off_text, pending_text

TICK_SECONDS = 10


@dataclass(frozen=True, slots=True)
class LatestTick:
    """What one tick found: how many ranges are due, what to ask for, if anything, and what is waited for."""

    ranges: int
    run_key: str | None = None
    waiting: str = ""


def build_latest_sensor(topic: Topic, config: Latest) -> dg.SensorDefinition:
    """Build the sensor that has the latest state updated; it runs unless someone stops it."""

    @dg.sensor(
        name=topic.latest_sensor,
        job_name=topic.latest_job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for an update of the latest records of `{topic.name}` where ranges were decoded.",
    )
    def due_latest(context: dg.SensorEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.SensorResult:
        tick = run_latest_tick(topic, config, context.instance, edges)
        context.log.info("ranges=%s", tick.ranges)
        if tick.run_key is None:
            return dg.SensorResult(skip_reason=tick.waiting or "nothing waits for an update")
        tags = {**topic.upserting.tags, **ASKED_AGAIN}
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=tick.run_key, tags=tags)])

    return due_latest


def run_latest_tick(topic: Topic, config: Latest, instance: dg.DagsterInstance, edges: Edges) -> LatestTick:
    """Run one tick; a run that is queued or at work, or a failure a moment ago, has it ask for nothing."""
    end_dead_runs(instance, edges.now_ms())
    due = find_due(topic.name, config, edges.decodings)
    tried = read_tried_by(instance, topic.upserting, lambda run: [topic.upserting]).get(topic.upserting, NEVER_TRIED)
    now_ms = edges.now_ms()
    turns = read_turns(instance, topic.upserting, now_ms)
    is_held = any(run.is_own for run in turns.runs)
    is_early = is_backlog(due.decoded, edges, tried.last_ended_ms)
    ranges = due.waiting
    if not due.has_work:
        return LatestTick(0)
    if is_held or is_early or not tried.is_due(now_ms):
        postponed = BACKLOG_FIRST if is_early else backing_off_text([0], {0: tried}, now_ms)
        head = f"{ranges:,} range{'s wait' if ranges != 1 else ' waits'} for an update"
        waiting = pending_text(head, turns, UPDATING, held=ranges if is_held else 0, postponed=postponed)
        return LatestTick(ranges, waiting=waiting)
    run_key = unused_key(instance, f"latest:{topic.name}:{tried.last_ended_ms}:{tried.attempts}")
    return LatestTick(ranges, run_key)
