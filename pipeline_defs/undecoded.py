"""What of a topic is landed and not decoded: how much, since when, and what blocks it.

The sensor asks for it; its tick, `status` and the progress check say it in the same words. Invariant: nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from .core.active import Turns
from .core.coverage import Coverage
from .core.dispatch import Tried
from .core.offsets import OffsetRange
from .edges.decodings import DecodedRanges
from .moments import time_text
from .projection import Order, read_held, read_order, read_turns
from .resources import Edges
from .topics import Topic
from .tries import read_tried
from .waiting import DECODING, backing_off_text, pending_text


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The landed ranges that are not decoded as they are landed now, by when they were landed, and who is at work on them.

    `order` are Dagster's keys, `held` says which active run holds a range, `tried` how often runs of it have failed.
    """

    due: Mapping[OffsetRange, int]
    decoded: DecodedRanges
    order: Order
    held: Mapping[OffsetRange, str]
    tried: Mapping[OffsetRange, Tried]
    turns: Turns

    def text(self, now_ms: int) -> str:
        """Return what waits to be decoded, for what and since when; empty where nothing does."""
        if not self.due:
            return ""
        some = f"{len(self.due):,} range{'s wait' if len(self.due) > 1 else ' waits'}"
        return pending_text(
            f"{some} to be decoded since {time_text(min(self.due.values()))}",
            self.turns,
            DECODING,
            held=sum(offsets in self.held for offsets in self.due),
            last_done_ms=max((each.provenance.landed_at_ms for each in self.decoded.known.values()), default=None),
            postponed=backing_off_text(self.due, self.tried, now_ms),
        )


def read_due(topic: Topic, edges: Edges) -> list[OffsetRange]:
    """Read which landed ranges are to be decoded, in log order; none where the topic is not decoded."""
    if topic.decode is None:
        return []
    coverage = edges.lake.coverage(topic.name)
    return edges.decodings.read_ranges(topic.name).find_due(coverage)


def read_undecoded(topic: Topic, coverage: Coverage, edges: Edges, instance: dg.DagsterInstance) -> Undecoded:
    """Read what is landed and not decoded, and who is at work on it."""
    decoded = edges.decodings.read_ranges(topic.name)
    due = {offsets: coverage.manifests[offsets].provenance.landed_at_ms for offsets in decoded.find_due(coverage)}
    order = read_order(instance, topic)
    return Undecoded(
        due,
        decoded,
        order,
        read_held(instance, topic.decoding, order),
        read_tried(instance, topic.decoding, order, due),
        read_turns(instance, topic.decoding, edges.now_ms()),
    )


def undecoded_text(topic: Topic, coverage: Coverage, edges: Edges, instance: dg.DagsterInstance) -> str:
    """Return what of a topic waits to be decoded, for what and since when; empty where nothing does."""
    if topic.decode is None:
        return ""
    return read_undecoded(topic, coverage, edges, instance).text(edges.now_ms())
