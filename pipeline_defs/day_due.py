"""The sensor of event days: finds the days that are due, tells what Dagster has not seen, asks for runs.

Cursorless: all is read from the lake and from Dagster's runs. A late record makes its own day due, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg
from dagster import DagsterRun, RunsFilter

from .core.calendar import days_between, parse_day
from .core.day_dispatch import DayRequest, plan_day_requests
from .core.day_verdicts import DayDecided, DayVerdict
from .core.days import Days
from .day_situation import read_days, read_facts
from .days_asset import day_event
from .dead_runs import end_dead_runs
from .deriving import BACKLOG_FIRST, is_backlog
from .projection import (
    ACTIVE,
    RANGE_END,
    RANGE_START,
    is_run_of,
    open_pool,
    read_turns,
)
from .resources import Edges
from .runs import run_request
from .topics import Duty, Topic
from .tries import read_tried_by
from .waiting import UPDATING, backing_off_text, pending_text

TICK_SECONDS = 10
EVENTS_PER_TICK = 50
COUNTS_PER_TICK = 100  # ranges that a tick counts by day where nobody has; a run counts all that are left


@dataclass(frozen=True, slots=True)
class DaysTick:
    """What one tick asks for, how many days are due, when the newest of what made them due was decoded, what they wait for."""

    requests: tuple[DayRequest, ...]
    due: int
    told: int
    newest_ms: int
    waiting: str = ""


def build_days_sensor(topic: Topic, days: Days) -> dg.SensorDefinition:
    """Builds the sensor that has due days brought up to date; it runs unless someone stops it."""

    @dg.sensor(
        name=topic.days_sensor,
        job_name=topic.days_job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for runs that bring the event days of `{topic.name}` up to date.",
    )
    def due_days(context: dg.SensorEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.SensorResult:
        tick = run_days_tick(topic, days, context.instance, edges)
        context.log.info("due=%s told=%s", tick.due, tick.told)
        if not tick.requests:
            return dg.SensorResult(skip_reason=tick.waiting or "no day is due")
        return dg.SensorResult(
            run_requests=[day_run_request(topic, each, tick.newest_ms, context.instance) for each in tick.requests]
        )

    return due_days


def run_days_tick(topic: Topic, days: Days, instance: dg.DagsterInstance, edges: Edges) -> DaysTick:
    """Runs one tick: what a crash left untold is told, then runs are asked for."""
    situation = read_days(topic.name, days, edges.day_files, edges.decodings, count_at_most=COUNTS_PER_TICK)
    end_dead_runs(instance, edges.now_ms())
    held, seen = read_held_days(instance, topic.daily), instance.get_materialized_partitions(topic.days_key)
    now_ms = edges.now_ms()
    unseen = [
        day
        for day in sorted(situation.states)
        if day not in seen and day not in held and days.place(day, now_ms) == "held"
    ]
    for day in unseen[:EVENTS_PER_TICK]:
        facts = read_facts(topic.name, day, situation, edges.day_files)
        event = day_event(topic, DayVerdict(day, DayDecided.UP_TO_DATE, facts), facts, edges)
        instance.report_runless_asset_event(event)
    due = situation.due(days, now_ms)
    tried = read_tried_by(instance, topic.daily, days_of)
    last_ended_ms = max((each.last_ended_ms for each in tried.values()), default=0)
    is_early = is_backlog(situation.decoded, edges, last_ended_ms)
    turns = read_turns(instance, topic.daily, now_ms)
    requests = plan_day_requests([] if is_early else due, held, tried, now_ms) if turns.may_ask else []
    if requests:
        open_pool(instance, topic.daily.pool)
    newest_ms = max((each.provenance.landed_at_ms for each in situation.decodings.values()), default=0)
    postponed = BACKLOG_FIRST if is_early else backing_off_text(due, tried, now_ms)
    head = f"{len(due):,} day{'s are' if len(due) > 1 else ' is'} due"
    waiting = pending_text(head, turns, UPDATING, held=len(held & {*due}), postponed=postponed) if due else ""
    return DaysTick(tuple(requests), len(due), len(unseen), newest_ms, waiting)


def day_run_request(topic: Topic, request: DayRequest, newest_ms: int, instance: dg.DagsterInstance) -> dg.RunRequest:
    """Is the run that brings the days of a request up to date."""
    return run_request(instance, request.run_key(topic.name, newest_ms), request.days, topic.daily.tags)


def read_held_days(instance: dg.DagsterInstance, duty: Duty) -> set[str]:
    """Reads which days active runs hold, however they were launched."""
    runs = instance.get_runs(RunsFilter(statuses=ACTIVE))
    return {day for run in runs if is_run_of(run, duty) for day in days_of(run)}


def days_of(run: DagsterRun) -> Iterator[str]:
    """Reads the days that a run covers: one, or all between two; none where somebody named what is no day."""
    single = run.tags.get("dagster/partition", "")
    try:
        first, last = (parse_day(run.tags.get(name, single)) for name in (RANGE_START, RANGE_END))
    except ValueError:
        return
    yield from days_between(first, last)
