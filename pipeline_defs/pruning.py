"""Pruning: runs of Offsetlake that ended long ago go from Dagster, with their events and logs.

A run stays while Dagster shows an asset, or one of its partitions, by an event of it. The lake has all of it still.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from dagster import AssetRecordsFilter, DagsterEventType, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.storage.event_log import SqliteEventLogStorage

from .topics import LAND_PENDING, Topic, partitions_of

FINISHED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
DAY_MS = 24 * 3_600_000


def list_old_runs(
    topics: Sequence[Topic], jobs: Collection[str], instance: dg.DagsterInstance, now_ms: int, days: int
) -> Iterator[DagsterRun]:
    """Yield runs that ended more than so many days ago, the oldest first: of these jobs and of jobs of these topics.

    What people launched of the topics' assets is among them.
    """
    before = datetime.fromtimestamp((now_ms - days * DAY_MS) / 1000, UTC)
    own, assets = {*jobs, LAND_PENDING}, set[dg.AssetKey]()
    for topic in topics:
        own |= {topic.land_job, topic.decode_job, topic.latest_job, topic.backfill_job}
        assets |= {topic.asset_key, topic.decoded_key, topic.latest_key}
    ids = instance.get_run_ids(RunsFilter(statuses=FINISHED, created_before=before))
    for run_id in reversed(ids):
        record = instance.get_run_record_by_id(run_id)
        if record is None or (record.end_time or 0) >= before.timestamp():
            continue
        run = record.dagster_run
        selected = run.asset_selection or frozenset()
        if run.job_name in own or (selected and selected <= assets):
            yield run


def prune_runs(
    runs: Iterator[DagsterRun],
    instance: dg.DagsterInstance,
    on_step: Callable[[int, int], None] = lambda done, kept: None,
) -> tuple[int, int]:
    """Delete the runs that nothing is shown by; return how many went, and how many stay.

    Events go first: a crash in between leaves a run without events, which the next time deletes.
    """
    gone = kept = 0
    registered: dict[str, Collection[str]] = {}
    for run in runs:
        if is_shown(run.run_id, instance, registered):
            kept += 1
        else:
            _delete(run.run_id, instance)
            gone += 1
        if (gone + kept) % 100 == 0:
            on_step(gone, kept)
    return gone, kept


def is_shown(run_id: str, instance: dg.DagsterInstance, registered: dict[str, Collection[str]]) -> bool:
    """Return whether the last materialisation of an asset, or of a partition that there still is, is one of this run.

    `registered` keeps the keys of topics that were asked for before.
    """
    events = instance.all_logs(run_id, of_type=DagsterEventType.ASSET_MATERIALIZATION)
    return any(_is_last(event, run_id, instance, registered) for event in events)


def _is_last(
    event: dg.EventLogEntry, run_id: str, instance: dg.DagsterInstance, registered: dict[str, Collection[str]]
) -> bool:
    told = event.asset_materialization
    if told is None:
        return False
    tree, name = (told.asset_key.path[0], told.asset_key.path[-1])
    if told.partition is not None and tree in {"raw", "decoded"}:
        partitions = partitions_of(name)
        if partitions not in registered:
            registered[partitions] = frozenset(instance.get_dynamic_partitions(partitions))
        if told.partition not in registered[partitions]:
            return False
    asked = [told.partition] if told.partition is not None else None
    found = instance.fetch_materializations(AssetRecordsFilter(told.asset_key, asset_partitions=asked), limit=1)
    return any(record.event_log_entry.run_id == run_id for record in found.records)


def _delete(run_id: str, instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    storage.delete_events(run_id)
    with suppress(NotImplementedError):  # where a manager keeps logs elsewhere, its own retention deletes them
        instance.compute_log_manager.delete_logs(prefix=[run_id])
    instance.delete_run(run_id)
    if isinstance(storage, SqliteEventLogStorage):  # which has a file for each run, and leaves it
        file = Path(storage.path_for_shard(run_id))
        for path in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm", "-journal"))):
            path.unlink(missing_ok=True)
