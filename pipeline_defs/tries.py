"""What the recent runs of a duty came to, for each range, day or update that they covered: from Dagster's database alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter

from .core.dispatch import NEVER_TRIED, Tried
from .core.offsets import OffsetRange
from .projection import FAILED, RANGE_END, RANGE_START, Order, covered_ranges, find_places, parsed
from .topics import Duty

FAILED_RUNS = 500  # looked at by a tick; a range that always fails is tried six times in an hour
SUCCESSFUL_RUNS = 100
Key = TypeVar("Key")


def read_tried(instance: dg.DagsterInstance, duty: Duty, order: Order) -> dict[OffsetRange, Tried]:
    """Reads of each range how the recent runs ended that covered it."""
    places = find_places(order)
    return read_tried_by(instance, duty, lambda run: covered_ranges(run, order, places))


def read_tried_by(
    instance: dg.DagsterInstance, duty: Duty, covered: Callable[[DagsterRun], Iterable[Key]]
) -> dict[Key, Tried]:
    """Reads how the recent runs ended of each thing that `covered` says a run was for: failures count until one succeeds."""
    ended = (
        (int((record.end_time or record.update_timestamp.timestamp()) * 1000), record.dagster_run)
        for record in _read_recent_runs(instance, duty)
    )
    tried: dict[Key, Tried] = {}
    for ended_ms, run in sorted(ended, key=lambda each: each[0]):
        for key in covered(run):
            before = tried.get(key, NEVER_TRIED)
            tried[key] = before.then_failed(run.run_id, ended_ms) if run.status in FAILED else Tried(0, ended_ms)
    return tried


def read_ends_of_runs(instance: dg.DagsterInstance, duty: Duty) -> set[OffsetRange]:
    """Reads the first and last range of each recent range run: without them nobody could tell what it covered."""
    tags = (record.dagster_run.tags for record in _read_recent_runs(instance, duty))
    ends = (parsed(each[name]) for each in tags for name in (RANGE_START, RANGE_END) if name in each)
    return {offsets for offsets in ends if offsets is not None}


def _read_recent_runs(instance: dg.DagsterInstance, duty: Duty) -> list[dg.RunRecord]:
    """Reads the runs of a duty that have ended, the latest of those that failed and of those that did not."""
    records: list[dg.RunRecord] = []
    for statuses, limit in ((FAILED, FAILED_RUNS), ([DagsterRunStatus.SUCCESS], SUCCESSFUL_RUNS)):
        records += instance.get_run_records(RunsFilter(tags=duty.tags, statuses=statuses), limit=limit)
    return records
