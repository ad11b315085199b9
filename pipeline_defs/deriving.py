"""The sensor of what is derived from a topic's landed ranges: finds what is due, tells what Dagster has not seen, asks.

Cursorless, as the sensor that lands: all is read from the lake and from Dagster's runs.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import dagster as dg

from .core.decoding import Decided, Decoding
from .core.dispatch import Request, plan_requests
from .core.offsets import OffsetRange
from .days import report_days
from .dead_runs import end_dead_runs
from .decoded_asset import decoded_event
from .edges.decodings import DecodedRanges
from .projection import Order, open_pool
from .raw_asset import RANGES_PER_RUN
from .resources import Edges
from .runs import run_request
from .topics import FAILED_BEFORE_TAG, Topic
from .undecoded import read_undecoded

TICK_SECONDS = 5
EVENTS_PER_TICK = 200
BACKLOG_SECONDS = 120
BACKLOG_FIRST = f"ranges are being decoded, which is waited for, at most {BACKLOG_SECONDS} s"


@dataclass(frozen=True, slots=True)
class DeriveTick:
    """What one tick asks for, how many ranges wait to be decoded, and in words for what."""

    requests: tuple[Request, ...]
    due: int
    told: int
    waiting: str = ""


def build_derive_sensor(topic: Topic) -> dg.SensorDefinition:
    """Builds the sensor that has landed ranges decoded; it runs unless someone stops it."""

    @dg.sensor(
        name=topic.derive_sensor,
        job_name=topic.decode_job,
        minimum_interval_seconds=TICK_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks for runs that decode what is landed of Kafka topic `{topic.name}`.",
    )
    def derive(context: dg.SensorEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.SensorResult:
        tick = run_derive_tick(topic, context.instance, edges)
        context.log.info("due=%s told=%s", tick.due, tick.told)
        if not tick.requests:
            return dg.SensorResult(skip_reason=tick.waiting or "nothing waits to be decoded")
        asked = [decode_request(topic, request, edges, context.instance) for request in tick.requests]
        return dg.SensorResult(run_requests=asked)

    return derive


def run_derive_tick(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> DeriveTick:
    """Runs one tick: what a crash left untold is told, then runs are asked for."""
    coverage = edges.lake.coverage(topic.name)
    end_dead_runs(instance, edges.now_ms())
    found = read_undecoded(topic, coverage, edges, instance)
    held, now_ms = found.held.keys(), edges.now_ms()
    decoded = found.decoded.with_empty(coverage)
    unseen = find_unseen_decoded(topic, found.order, decoded.keys() - held, instance)
    for offsets in unseen[:EVENTS_PER_TICK]:
        report_decoded(topic, decoded[offsets], edges, instance)
    if not held:  # a run that decodes tells of its days
        report_days(topic, instance, edges)
    requests: list[Request] = []
    if found.turns.may_ask:
        due = set(found.due)
        requests = plan_requests(found.order, due, held, found.tried, now_ms, ranges_per_run=RANGES_PER_RUN)
    if requests:
        open_pool(instance, topic.decoding.pool)
    return DeriveTick(tuple(requests), len(found.due), len(unseen), found.text(now_ms))


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


def decode_request(topic: Topic, request: Request, edges: Edges, instance: dg.DagsterInstance) -> dg.RunRequest:
    """Return the run that decodes the ranges of a request; its key says when they were landed, which may be anew."""
    landed = edges.lake.coverage(topic.name).manifests
    since_ms = max(landed[offsets].provenance.landed_at_ms for offsets in request.ranges)
    tags = {**topic.decoding.tags, FAILED_BEFORE_TAG: request.failed_before}
    return run_request(instance, f"decode:{request.run_key(topic.name, since_ms)}", request.keys, tags)
