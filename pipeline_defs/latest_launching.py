"""An update of a latest state from the command line, through Dagster, so that it is recorded as by any other run."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from .dead_runs import end_dead_runs
from .definitions import build_defs
from .launching import execute, reason_of
from .resources import Edges
from .topics import Topic, op_name


@dataclass(frozen=True, slots=True)
class LaunchedUpdate:
    """Is one run that has ended."""

    run_id: str
    succeeded: bool
    reason: str = ""


def update_latest_through_dagster(
    topic: Topic, edges: Edges, instance: dg.DagsterInstance, *, full: bool, topics: dg.Definitions | None = None
) -> LaunchedUpdate:
    """Runs the topic's job of its latest state in this process.

    Raises `KeyboardInterrupt` where Ctrl-C or SIGTERM ended the run: the table is as it was or as it is to be.
    """
    end_dead_runs(instance, edges.now_ms())
    job = build_defs(edges, topics=topics).resolve_job_def(topic.latest_job)
    config = {"ops": {op_name(topic.latest_key): {"config": {"full": full}}}}
    result = execute(job, instance, topic.upserting.tags, run_config=config)
    return LaunchedUpdate(result.run_id, result.success, reason_of(result))
