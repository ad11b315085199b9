"""What a tick does of one topic: plan, register, report, find what is due; each step can die and the next tick makes it good.

All is read from the lake and from Dagster. Two ticks at once are harmless.
"""

import uuid
from dataclasses import dataclass

import dagster as dg

from .checks import report_standing
from .core.coverage import Coverage
from .core.dispatch import choose_due
from .core.lag import find_lag
from .core.offsets import OffsetRange
from .core.verdicts import Outcome, Verdict
from .planner import commit_next_step
from .progress import Situation, held_back, read_situation, waiting_text
from .projection import (
    open_pool,
    register_keys,
    report_lag,
    report_losses,
    report_unseen,
)
from .raw_asset import materialization
from .raw_table import try_append
from .resources import Edges
from .topics import Topic

EVENTS_PER_TICK = 200


@dataclass(frozen=True, slots=True)
class Tick:
    """Is what one tick did, the ranges that are to be landed now, and in words what does not get on."""

    due: tuple[OffsetRange, ...]
    planned: int
    registered: int
    pending: int
    stalled: tuple[str, ...]
    held_back: tuple[str, ...]
    waiting: str = ""


def run_tick(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> Tick:
    """Runs one tick: boundaries go to the lake first, then keys to Dagster; of what is left untold there Dagster is told."""
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
    if registered:
        open_pool(instance, topic.landing.pool)
    edges.watch_step("keys_registered", topic=topic.name, keys=registered)

    found = read_situation(topic, coverage, edges, instance)
    now_ms, held = edges.now_ms(), found.held.keys()
    stalled = _report_dangers(topic, found, instance, now_ms)
    report_unseen(instance, topic, coverage, held, lambda o: landed_event(topic, o, coverage, edges), EVENTS_PER_TICK)
    if edges.settings.has_raw_table and not held:  # else the runs that hold ranges append
        failure = try_append(topic.name, edges.lake, edges.now_ms, on_step=edges.watch_step)
        stalled = (*stalled, failure) if failure else stalled
    pending = coverage.pending()
    due = choose_due(pending, held, found.tried, now_ms)
    planned = len(step.ranges) if step else 0
    waiting = waiting_text(topic, found, now_ms)
    return Tick(tuple(due), planned, registered, len(pending), stalled, held_back(topic, found, now_ms), waiting)


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


def landed_event(topic: Topic, offsets: OffsetRange, coverage: Coverage, edges: Edges) -> dg.AssetMaterialization:
    """Is the event of a range that the lake has landed, told to Dagster outside of any run."""
    return materialization(topic, Verdict(offsets, Outcome.ALREADY_LANDED, coverage.manifests[offsets]), edges)
