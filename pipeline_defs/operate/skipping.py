"""Skipping ahead: a person leaves out what waits before some time, so that what comes now is landed at once.

What is skipped, and what is planned of it, is decided by `core.log.planning.plan_skip` and written as one step of the plan log.
"""

from __future__ import annotations

from ..core.errors import Refused
from ..core.log.plan_step import PlanStep
from ..core.log.planning import SkipAhead
from ..orchestration.runs.moments import parse_time
from ..resources import Edges
from ..topics import Topic

LATEST = "latest"


def find_skip(topic: Topic, to: str, by: str, edges: Edges) -> SkipAhead:
    """Find where a skip goes in each Kafka partition: `to` is `latest` or a time; raise `Refused` for anything else."""
    moment_ms = None if to == LATEST else _parse(to)
    kafka = edges.kafka(topic)
    seen = kafka.observe(topic.name, topic.policy.isolation_level)
    ends = {p: marks.end for p, marks in seen.watermarks.items()}
    offsets = ends if moment_ms is None else kafka.read_offsets_at(topic.name, seen.watermarks, moment_ms)
    cause = f"by {by}: skip --to {to}"
    return SkipAhead(offsets, cause, edges.lake.recent(topic.name).log.generation, seen.topic_id)


def _parse(to: str) -> int:
    try:
        return parse_time(to, None, zone_name="its zone")
    except ValueError as error:
        raise Refused(f"--to {to}: {error}; or {LATEST}; nothing was written") from None


def preview_skip(topic: Topic, skip: SkipAhead, edges: Edges) -> PlanStep | None:
    """Return the step that skips, without writing it; none where nothing waits before it."""
    return edges.planner(topic, "preview").decide(skip=skip)


def commit_skip(topic: Topic, skip: SkipAhead, edges: Edges) -> PlanStep | None:
    """Write the step that skips; none where nothing waits before it."""
    return edges.planner(topic, "cli").commit(skip=skip)
