"""Slow topics: what kept the others of its lane waiting for long is landed and decoded in a lane apart for a while.

A run notes them in its own tags, so every process finds the same.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import dagster as dg
from dagster import RunsFilter

from ...topics import LAND_PENDING

SLOW_SECONDS = 60.0  # of a job, which is to take ten
SLOW_FOR_MS = 600_000
_IS_SLOW, _SLOW = "offsetlake/has_slow", "offsetlake/slow_topics"


def note_slow(names: Collection[str], run_id: str, instance: dg.DagsterInstance) -> None:
    """Note topics in the tags of the run that found them slow, beside those that it found before."""
    run = instance.get_run_by_id(run_id)
    before = set(filter(None, run.tags.get(_SLOW, "").split(","))) if run is not None else set()
    instance.add_run_tags(run_id, {_IS_SLOW: "yes", _SLOW: ",".join(sorted(before | {*names}))})


def read_slow(instance: dg.DagsterInstance, now_ms: int) -> set[str]:
    """Read which topics runs of the last ten minutes have found slow."""
    since = datetime.fromtimestamp((now_ms - SLOW_FOR_MS) / 1000, UTC)
    found = RunsFilter(job_name=LAND_PENDING, tags={_IS_SLOW: "yes"}, updated_after=since)
    return {name for run in instance.get_runs(found) for name in run.tags[_SLOW].split(",")}
