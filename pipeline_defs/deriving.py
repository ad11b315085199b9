"""What a tick does of what is derived from a topic's landed ranges: finds what is due, tells what Dagster has not seen.

All is read from the lake and from Dagster.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import dagster as dg

from .core.decoding import Decided, Decoding
from .core.offsets import OffsetRange
from .days import report_days
from .decoded_asset import decoded_event
from .edges.decodings import DecodedRanges
from .projection import Order, read_order
from .resources import Edges
from .topics import Topic
from .undecoded import read_undecoded

EVENTS_PER_TICK = 200
BACKLOG_SECONDS = 120
BACKLOG_FIRST = f"ranges are being decoded, which is waited for, at most {BACKLOG_SECONDS} s"


@dataclass(frozen=True, slots=True)
class DeriveTick:
    """The ranges that are to be decoded now, how many were told of, and in words what others wait for."""

    due: tuple[OffsetRange, ...]
    told: int
    waiting: str = ""


def run_derive_tick(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> DeriveTick:
    """Runs one tick: what a crash left untold is told."""
    coverage = edges.lake.coverage(topic.name)
    found = read_undecoded(topic, coverage, edges, instance)
    held, now_ms = found.held.keys(), edges.now_ms()
    decoded = found.decoded.with_empty(coverage)
    unseen = find_unseen_decoded(topic, read_order(instance, topic), decoded.keys() - held, instance)
    for offsets in unseen[:EVENTS_PER_TICK]:
        report_decoded(topic, decoded[offsets], edges, instance)
    if not held:  # a run that decodes tells of its days
        report_days(topic, instance, edges)
    return DeriveTick(tuple(found.choose(now_ms)), len(unseen), found.text(now_ms))


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
