"""Whether a latest table is to be updated now: what is due is in the lake, what is under way and what failed in Dagster."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from .core.latest import Latest
from .deriving import BACKLOG_FIRST, is_backlog
from .latest import find_due
from .projection import read_turns
from .resources import Edges
from .topics import Topic
from .tries import read_tried_update
from .waiting import UPDATING, backing_off_text, pending_text


@dataclass(frozen=True, slots=True)
class LatestTick:
    """What one tick found: how many ranges are due, whether an update is to be made now, and what is waited for."""

    ranges: int
    is_due: bool = False
    waiting: str = ""


def run_latest_tick(topic: Topic, config: Latest, instance: dg.DagsterInstance, edges: Edges) -> LatestTick:
    """Run one tick; an update under way, a failure a moment ago, or a backlog that is being decoded has it wait."""
    due = find_due(topic.name, config, edges.decodings)
    tried, is_held = read_tried_update(instance, topic.upserting)
    now_ms = edges.now_ms()
    turns = read_turns(instance, topic.upserting, now_ms)
    is_early = is_backlog(due.decoded, edges, tried.last_ended_ms)
    ranges = due.waiting
    if not due.has_work:
        return LatestTick(0)
    postponed = BACKLOG_FIRST if is_early else backing_off_text([0], {0: tried}, now_ms)
    head = f"{ranges:,} range{'s wait' if ranges != 1 else ' waits'} for an update"
    waiting = pending_text(head, turns, UPDATING, held=ranges if is_held else 0, postponed=postponed)
    return LatestTick(ranges, is_due=not is_held and postponed is None, waiting=waiting)
