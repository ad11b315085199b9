"""Runs of one backfill share a Spark session: the first to start lands the ranges of those that still wait, too.

Dagster makes one run of each stretch of neighbouring keys, so a scattered selection would be a session per key. Invariant: a
waiting run is ended only after every range of it is landed and reported; a crash before leaves it as it was.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from ...core.offsets import OffsetRange
from ...topics import REDO_TAG, Topic
from .projection import find_places, read_order, read_ranges_of

BACKFILL_TAG = "dagster/backfill"
LANDED_BY_TAG = "offsetlake/landed_by"
TRIED_BY_TAG = "offsetlake/tried_by"


def read_siblings(
    instance: dg.DagsterInstance, run: DagsterRun, topic: Topic, planned: Callable[[], Collection[OffsetRange]], room: int
) -> dict[str, list[OffsetRange]]:
    """Read the queued runs of the same backfill that do the same for this topic alone, with their ranges, `room` at most.

    `planned` reads the topic's ranges of all history, and is called in a backfill only. A run whose ranges another has tried in
    vain is left to itself.
    """
    backfill = run.tags.get(BACKFILL_TAG)
    if backfill is None or run.asset_selection != frozenset({topic.asset_key}):
        return {}
    order = read_order(instance, topic)
    places, known = find_places(order), planned()
    siblings = {}
    runs = instance.get_runs(RunsFilter(tags={BACKFILL_TAG: backfill}, statuses=[DagsterRunStatus.QUEUED]))
    for waiting in reversed(runs):  # the oldest first
        if waiting.run_id == run.run_id or {LANDED_BY_TAG, TRIED_BY_TAG} & waiting.tags.keys():
            continue
        ranges = read_ranges_of(waiting, order, places)
        is_alike = (
            waiting.asset_selection == run.asset_selection
            and waiting.run_config == run.run_config
            and waiting.tags.get(REDO_TAG) == run.tags.get(REDO_TAG)
        )
        if is_alike and 0 < len(ranges) <= room and all(offsets in known for offsets in ranges):
            siblings[waiting.run_id] = [offsets for offsets in ranges if offsets is not None]
            room -= len(ranges)
    return siblings


def end_siblings(
    instance: dg.DagsterInstance,
    run: DagsterRun,
    siblings: Mapping[str, Iterable[OffsetRange]],
    failed: AbstractSet[OffsetRange],
) -> None:
    """End the waiting runs whose ranges this run has landed; one with a range that failed is left to try by itself."""
    for run_id, ranges in siblings.items():
        if not failed.isdisjoint(ranges):
            instance.add_run_tags(run_id, {TRIED_BY_TAG: run.run_id})
            continue
        instance.add_run_tags(run_id, {LANDED_BY_TAG: run.run_id})
        waiting = instance.get_run_by_id(run_id)
        if waiting is not None and waiting.status is DagsterRunStatus.QUEUED:
            instance.report_run_canceled(
                waiting, f"not needed any more: run {run.run_id} of the same backfill has landed its ranges"
            )


def read_landed_by(instance: dg.DagsterInstance, run: DagsterRun) -> str | None:
    """Read which run has landed the ranges of this one while it waited for its turn; none where it is to land them."""
    is_first = BACKFILL_TAG in run.tags and PARENT_RUN_ID_TAG not in run.tags  # else the tag is of the run that it repeats
    now = instance.get_run_by_id(run.run_id) if is_first else None
    return now.tags.get(LANDED_BY_TAG) if now is not None else None
