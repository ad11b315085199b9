"""The sensor of what is derived from a topic's landed ranges: finds what is due, tells what Dagster has not seen, asks.

Cursorless, as the sensor that lands: all is read from the lake and from Dagster's runs.
"""

from dataclasses import dataclass

import dagster as dg

from .core.decoding import Decided, find_due
from .core.dispatch import Request, plan_requests
from .decoded_asset import decoded_event
from .projection import RANGE_END, RANGE_START, fail_dead_runs, read_held, read_order, read_tried
from .raw_asset import RANGES_PER_RUN
from .resources import Edges
from .topics import Topic

TICK_SECONDS = 5
EVENTS_PER_TICK = 200


@dataclass(frozen=True, slots=True)
class DeriveTick:
    """Is what one tick asks for, and how many ranges wait to be decoded."""

    requests: tuple[Request, ...]
    due: int
    told: int


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
            return dg.SensorResult(skip_reason=f"{tick.due} ranges wait to be decoded, none to ask for now")
        return dg.SensorResult(run_requests=[decode_request(topic, request, edges) for request in tick.requests])

    return derive


def run_derive_tick(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> DeriveTick:
    """Runs one tick: what a crash left untold is told, then runs are asked for."""
    coverage = edges.lake.coverage(topic.name)
    known = edges.decodings.read(topic.name)
    published = edges.decodings.read_published(topic.name, known)
    due = find_due(coverage, known, published)
    fail_dead_runs(instance, topic.decoding)
    order = read_order(instance, topic)
    held = read_held(instance, topic.decoding, order).keys()
    seen = instance.get_materialized_partitions(topic.decoded_key)
    unseen = [each for each in order if each in published and each not in held and each.key not in seen]
    for offsets in unseen[:EVENTS_PER_TICK]:
        event = decoded_event(topic, known[offsets], Decided.ALREADY_DECODED, edges)
        instance.report_runless_asset_event(event)
    tried = read_tried(instance, topic.decoding, order)
    requests = plan_requests(order, set(due), held, tried, edges.now_ms(), ranges_per_run=RANGES_PER_RUN)
    return DeriveTick(tuple(requests), len(due), len(unseen))


def decode_request(topic: Topic, request: Request, edges: Edges) -> dg.RunRequest:
    """Is the run that decodes the ranges of a request; its key says when they were landed, which may be anew."""
    landed = edges.lake.coverage(topic.name).manifests
    since_ms = max(landed[offsets].provenance.landed_at_ms for offsets in request.ranges)
    run_key = f"decode:{request.run_key(topic.name, since_ms)}"
    tags = topic.decoding.tags
    if len(request.ranges) == 1:
        return dg.RunRequest(run_key=run_key, partition_key=request.ranges[0].key, tags=tags)
    tags |= {RANGE_START: request.ranges[0].key, RANGE_END: request.ranges[-1].key}
    return dg.RunRequest(run_key=run_key, tags=tags)
