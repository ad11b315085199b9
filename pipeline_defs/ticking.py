"""What a tick does of one topic: plan, register, report, find what is due; each step can die and the next tick makes it good.

All is read from the lake and from Dagster. Two ticks at once are harmless.
"""

import uuid
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import dagster as dg

from .checks import report_standing
from .core.coverage import Coverage
from .core.decoding import Decided, Decoding
from .core.dispatch import choose_due
from .core.lag import find_lag
from .core.latest import Latest
from .core.offsets import OffsetRange
from .core.verdicts import Outcome, Verdict
from .days import report_days
from .decoded_asset import decoded_event
from .edges.decodings import DecodedRanges
from .edges.latest_table import LatestTable, Standing
from .latest import Updated, find_due
from .latest_asset import latest_metadata
from .planner import commit_next_step
from .progress import Situation, held_back, read_situation, waiting_text
from .projection import (
    Order,
    open_pool,
    read_order,
    read_turns,
    register_keys,
    report_lag,
    report_losses,
    report_unseen,
)
from .raw_asset import materialization
from .raw_table import try_append
from .resources import Edges
from .topics import Topic
from .tries import ALL, UPDATE, read_held, read_tried, read_tried_as_one
from .undecoded import Undecoded, read_undecoded
from .waiting import UPDATING, backing_off_text, pending_text

EVENTS_PER_TICK = 200
BACKLOG_SECONDS = 120
BACKLOG_FIRST = f"ranges are being decoded, which is waited for, at most {BACKLOG_SECONDS} s"


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
        for duty in (topic.landing, *([topic.decoding] if topic.decode is not None else [])):
            open_pool(instance, duty.pool)
    edges.watch_step("keys_registered", topic=topic.name, keys=registered)

    found = read_situation(topic, coverage, edges, instance)
    now_ms, held = edges.now_ms(), found.held.keys()
    stalled = _report_dangers(topic, found, instance, now_ms)
    report_unseen(instance, topic, coverage, held, lambda o: landed_event(topic, o, coverage, edges), EVENTS_PER_TICK)
    if edges.settings.has_raw_table and not held:  # else the runs that hold ranges append
        failure = try_append(topic.name, edges.lake, edges.now_ms, on_step=edges.watch_step)
        stalled = (*stalled, failure) if failure else stalled
    pending = coverage.pending()
    due = find_due_ranges(topic, coverage, instance, now_ms)
    planned = len(step.ranges) if step else 0
    waiting = waiting_text(topic, found, now_ms)
    return Tick(tuple(due), planned, registered, len(pending), stalled, held_back(topic, found, now_ms), waiting)


def find_due_ranges(topic: Topic, coverage: Coverage, instance: dg.DagsterInstance, now_ms: int) -> list[OffsetRange]:
    """Find the ranges that are to be landed now: none while all of the topic backs off, whatever arrives meanwhile."""
    duty, tried = topic.landing, read_tried(instance, topic.landing)
    if not read_tried_as_one(instance, duty, ALL)[0].is_due(now_ms):
        return []
    return choose_due(coverage.pending(), read_held(instance, duty), tried, now_ms)


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


# ---- decoded


@dataclass(frozen=True, slots=True)
class DeriveTick:
    """The ranges that are to be decoded now, how many were told of, and in words what others wait for."""

    due: tuple[OffsetRange, ...]
    told: int
    waiting: str = ""


def run_derive_tick(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> DeriveTick:
    """Runs one tick: what a crash left untold is told."""
    coverage = edges.lake.coverage(topic.name)
    found, due = find_undecoded(topic, instance, edges)
    held, now_ms = found.held.keys(), edges.now_ms()
    decoded = found.decoded.with_empty(coverage)
    unseen = find_unseen_decoded(topic, read_order(instance, topic), decoded.keys() - held, instance)
    for offsets in unseen[:EVENTS_PER_TICK]:
        report_decoded(topic, decoded[offsets], edges, instance)
    if not held:  # a run that decodes tells of its days
        report_days(topic, instance, edges)
    return DeriveTick(tuple(due), len(unseen), found.text(now_ms))


def find_undecoded(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> tuple[Undecoded, list[OffsetRange]]:
    """Find what waits to be decoded, and what of it is to be decoded now: nothing while all of the topic backs off."""
    found, now_ms = read_undecoded(topic, edges.lake.coverage(topic.name), edges, instance), edges.now_ms()
    backs_off = not read_tried_as_one(instance, topic.decoding, ALL)[0].is_due(now_ms)
    return found, [] if backs_off else found.choose(now_ms)


def is_backlog(decoded: DecodedRanges, edges: Edges, last_ended_ms: int) -> bool:
    """Says whether what is made of decoded ranges had better wait: more are being decoded, and the last update is not old.

    Else each batch of a backlog would have the same files written anew. It never waits for longer than that.
    """
    since_ms = last_ended_ms or min((each.provenance.landed_at_ms for each in decoded.known.values()), default=0)
    if edges.now_ms() - since_ms >= BACKLOG_SECONDS * 1000:
        return False
    return bool(decoded.find_due(edges.lake.coverage(decoded.topic)))


def find_unseen_decoded(
    topic: Topic, order: Order, published: AbstractSet[OffsetRange], instance: dg.DagsterInstance
) -> list[OffsetRange]:
    """Finds decoded ranges of which Dagster has the key and no materialisation: a crash, or a lost database, took it."""
    seen = instance.get_materialized_partitions(topic.decoded_key)
    return [offsets for offsets in order if offsets in published and offsets is not None and offsets.key not in seen]


def report_decoded(topic: Topic, decoding: Decoding, edges: Edges, instance: dg.DagsterInstance) -> None:
    """Tells Dagster outside of any run that a range is decoded."""
    instance.report_runless_asset_event(decoded_event(topic, decoding, Decided.ALREADY_DECODED, edges))


# ---- latest


@dataclass(frozen=True, slots=True)
class LatestTick:
    """What one tick found: how many ranges are due, whether an update is to be made now, and what is waited for."""

    ranges: int
    is_due: bool = False
    waiting: str = ""


def run_latest_tick(topic: Topic, config: Latest, instance: dg.DagsterInstance, edges: Edges) -> LatestTick:
    """Run one tick; an update under way, a failure a moment ago, or a backlog that is being decoded has it wait."""
    due = find_due(topic.name, config, edges.decodings)
    tried, is_held = read_tried_as_one(instance, topic.upserting, UPDATE)
    now_ms = edges.now_ms()
    turns = read_turns(instance, topic.upserting, now_ms)
    is_early = is_backlog(due.decoded, edges, tried.last_ended_ms)
    ranges = due.waiting
    if due.standing is not None and not is_held:
        _tell_latest(topic, due.standing, instance, edges)
    if not due.has_work:
        return LatestTick(0)
    postponed = BACKLOG_FIRST if is_early else backing_off_text([0], {0: tried}, now_ms)
    head = f"{ranges:,} range{'s wait' if ranges != 1 else ' waits'} for an update"
    waiting = pending_text(head, turns, UPDATING, held=ranges if is_held else 0, postponed=postponed)
    return LatestTick(ranges, is_due=not is_held and postponed is None, waiting=waiting)


def _tell_latest(topic: Topic, standing: Standing, instance: dg.DagsterInstance, edges: Edges) -> None:
    """Tell Dagster of a version of the latest table that it was not told of: a crash, or a lost database, took the event."""
    event = instance.get_latest_materialization_event(topic.latest_key)
    told = event.asset_materialization.metadata.get("table_version") if event and event.asset_materialization else None
    if told is None or told.value != standing.version:
        facts = latest_metadata(standing, *LatestTable(edges.lake, topic.name).count(standing), Updated(), 0.0)
        instance.report_runless_asset_event(dg.AssetMaterialization(topic.latest_key, metadata=facts))
