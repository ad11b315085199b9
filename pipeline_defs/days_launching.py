"""Event days from the command line, through Dagster, so that events and lineage are recorded as by any other run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

from .core.day_dispatch import plan_day_requests
from .dead_runs import end_dead_runs
from .definitions import build_defs
from .launching import execute, reason_of
from .resources import Edges
from .topics import REDO_TAG, Topic


@dataclass(frozen=True, slots=True)
class LaunchedDays:
    """Is one run that has ended: its id, the days it was for, and whether all of them are up to date."""

    run_id: str
    days: tuple[str, ...]
    succeeded: bool
    reason: str = ""


def update_through_dagster(
    topic: Topic,
    days: Sequence[str],
    edges: Edges,
    instance: dg.DagsterInstance,
    *,
    redo: bool,
    topics: dg.Definitions | None = None,
) -> Iterator[LaunchedDays]:
    """Runs the topic's job of days in this process, once per stretch of near days; with `redo` only of neighbours.

    Raises `KeyboardInterrupt` where Ctrl-C or SIGTERM ended a run: what it brought up to date stays so.
    """
    end_dead_runs(instance, edges.now_ms())
    gap = {"gap_days": 1} if redo else {}
    job = build_defs(edges, topics=topics).resolve_job_def(topic.days_job)
    for request in plan_day_requests(days, frozenset(), {}, edges.now_ms(), **gap):
        tags = {**topic.daily.tags, REDO_TAG: "yes" if redo else "no"}
        result = execute(job, instance, tags, request.days)
        yield LaunchedDays(result.run_id, request.days, result.success, reason_of(result))
