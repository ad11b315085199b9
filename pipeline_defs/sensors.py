"""The sensor of a topic: plan, register, report, request; each step can die and the next tick makes it good.

Cursorless: everything is read from the lake and from Dagster's runs. Two sensors at once are harmless.
"""

import uuid
from dataclasses import dataclass

import dagster as dg

from .checks import report_standing
from .core.coverage import Coverage
from .core.dispatch import Request, plan_requests
from .core.lag import find_lag
from .core.offsets import OffsetRange
from .core.verdicts import Outcome, Verdict
from .dead_runs import end_dead_runs
from .planner import commit_next_step
from .progress import Situation, held_back, read_situation, waiting_text
from .projection import (
    open_pool,
    register_keys,
    report_lag,
    report_losses,
    report_unseen,
)
from .raw_asset import RANGES_PER_RUN, materialization
from .raw_table import try_append
from .resources import Edges
from .runs import run_request
from .topics import FAILED_BEFORE_TAG, Topic

TICK_SECONDS = 5
EVENTS_PER_TICK = 200
SHOWN = 5  # in a tick's one line; the check names more


@dataclass(frozen=True, slots=True)
class Tick:
    """Is what one tick did, the runs it asks for, and in words what does not get on."""

    requests: tuple[Request, ...]
    planned: int
    registered: int
    pending: int
    stalled: tuple[str, ...]
    held_back: tuple[str, ...]
    waiting: str = ""


def build_sensor(topic: Topic) -> dg.SensorDefinition:
    """Builds the sensor that plans a topic and requests its landing; it runs unless someone stops it."""

    @dg.sensor(
        name=topic.sensor,
        job_name=topic.land_job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Plans new offset ranges of Kafka topic `{topic.name}` and requests runs that land them.",
    )
    def plan_and_land(context: dg.SensorEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.SensorResult:
        tick = run_tick(topic, context.instance, edges)
        requests = [land_request(topic, request, edges, context.instance) for request in tick.requests]
        edges.watch_step("tick_requested", topic=topic.name, runs=len(requests))
        words = {"stalled": tick.stalled, "held back": [each for each in tick.held_back if each not in tick.stalled]}
        stalled = "".join(f"; {what}: {'; '.join(said[:SHOWN])}" for what, said in words.items() if said)
        context.log.info("planned=%s registered=%s pending=%s%s", tick.planned, tick.registered, tick.pending, stalled)
        if not requests:
            return dg.SensorResult(skip_reason=f"{tick.waiting or 'nothing waits'}{stalled}")
        return dg.SensorResult(run_requests=requests)

    return plan_and_land


def run_tick(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> Tick:
    """Runs one tick: boundaries go to the lake first, then keys to Dagster, then runs are asked for."""
    coverage = edges.lake.coverage(topic.name)  # of a log that is refused nothing is planned
    step = commit_next_step(
        topic.name,
        topic.policy,
        edges.lake,
        edges.kafka(topic),
        edges.now_ms(),
        planner=f"sensor {uuid.uuid4().hex[:8]}",
        known=coverage,
        on_step=edges.watch_step,
    )
    if step is not None:
        coverage = edges.lake.coverage(topic.name)
    registered = register_keys(instance, topic, coverage)
    edges.watch_step("keys_registered", topic=topic.name, keys=registered)

    end_dead_runs(instance, edges.now_ms())
    found = read_situation(topic, coverage, edges, instance)
    now_ms, held = edges.now_ms(), found.held.keys()
    stalled = _report_dangers(topic, found, instance, now_ms)
    report_unseen(instance, topic, coverage, held, lambda o: landed_event(topic, o, coverage, edges), EVENTS_PER_TICK)
    if edges.settings.has_raw_table and not held:  # else the runs that hold ranges append
        failure = try_append(topic.name, edges.lake, edges.now_ms, on_step=edges.watch_step)
        stalled = (*stalled, failure) if failure else stalled
    pending = set(coverage.pending())
    requests: list[Request] = []
    if found.turns.may_ask:
        requests = plan_requests(found.order, pending, held, found.tried, now_ms, ranges_per_run=RANGES_PER_RUN)
    if requests:
        open_pool(instance, topic.landing.pool)
    planned = len(step.ranges) if step else 0
    waiting = waiting_text(topic, found, now_ms)
    return Tick(tuple(requests), planned, registered, len(pending), stalled, held_back(topic, found, now_ms), waiting)


def _report_dangers(topic: Topic, found: Situation, instance: dg.DagsterInstance, now_ms: int) -> tuple[str, ...]:
    """Tells Dagster how far behind landing is, what is lost or soon may be and what does not get on, each where it is news.

    Returns in words what does not get on.
    """
    ledger = found.losses()
    report_losses(instance, topic, ledger)
    since = [each.timestamp_ms for each in found.endangered if each.timestamp_ms is not None]
    waiting_seconds = max(0.0, (now_ms - min(since, default=now_ms)) / 1000)
    report_lag(instance, topic, find_lag(found.coverage, found.marks), waiting_seconds, now_ms)
    return report_standing(topic, found, ledger, instance, now_ms).violations


def land_request(topic: Topic, request: Request, edges: Edges, instance: dg.DagsterInstance) -> dg.RunRequest:
    """Return the run that lands the ranges of a request; its key says when they were planned, which may be anew."""
    planned = edges.lake.read_plan_log(topic.name).ranges
    since_ms = max(planned[offsets].planned_at_ms for offsets in request.ranges)
    tags = {**topic.landing.tags, FAILED_BEFORE_TAG: request.failed_before}
    return run_request(instance, request.run_key(topic.name, since_ms), request.keys, tags)


def landed_event(topic: Topic, offsets: OffsetRange, coverage: Coverage, edges: Edges) -> dg.AssetMaterialization:
    """Is the event of a range that the lake has landed, told to Dagster outside of any run."""
    return materialization(topic, Verdict(offsets, Outcome.ALREADY_LANDED, coverage.manifests[offsets]), edges)
