"""Pruning: what Dagster may forget since the lake still has it: runs that ended long ago, events of no run, old partition keys.

A run stays while Dagster shows an asset, or one of its partitions, by one of its events. Keys beyond a topic's `max_keys` are
retired, the oldest first; `core.landing.selection` says which, computed from the lake each time. Invariant: a key goes only
while nothing holds it: no active run or backfill, and no failed try.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from dagster import AssetRecordsFilter, DagsterEventType, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter, BulkActionStatus
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable, SqlEventLogStorageTable
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager
from sqlalchemy import delete, func, select

from ...core.errors import PruningFailed
from ...core.landing.selection import retired
from ...core.log.coverage import Coverage
from ...core.offsets import OffsetRange
from ...topics import LAND_PENDING, Topic
from ..runs.moments import DAY_MS
from ..runs.projection import read_order, read_selected
from ..runs.tries import read_tries

FINISHED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
TELL_EVERY = 100  # runs
_SHOWING = {DagsterEventType.ASSET_MATERIALIZATION, DagsterEventType.ASSET_MATERIALIZATION_PLANNED}
_SQLITE_ENDS = ("", "-wal", "-shm", "-journal")
KEYS_AT_ONCE = 200  # before it looks again at what is held


def is_any_old(instance: dg.DagsterInstance, now_ms: int, days: int) -> bool:
    """Return whether there is a finished run, whosever it is, that was created more than so many days ago."""
    return bool(instance.get_run_ids(_created_before(now_ms, days), limit=1))


def _created_before(now_ms: int, days: int) -> RunsFilter:
    return RunsFilter(statuses=FINISHED, created_before=datetime.fromtimestamp((now_ms - days * DAY_MS) / 1000, UTC))


def location_of(run: DagsterRun) -> str | None:
    """Return the name of the code location that a run is of; none where it was launched in a process of its own."""
    origin = run.remote_job_origin
    return origin.repository_origin.code_location_origin.location_name if origin is not None else None


@dataclass(slots=True)
class Pruning:
    """Pruning of one code location: of runs of its `jobs`, of its topics' jobs, and of runs by hand of their assets.

    `location` is its name, none where it is not known; other locations of the same Dagster have jobs of the same names.
    """

    topics: Sequence[Topic]
    jobs: Collection[str]
    instance: dg.DagsterInstance
    location: str | None = None
    _registered: dict[dg.AssetKey, Collection[str]] = field(default_factory=dict, init=False)

    def find_old(self, now_ms: int, days: int) -> Iterator[DagsterRun]:
        """Yield the runs that ended more than so many days ago, the oldest first."""
        for run_id in reversed(self.instance.get_run_ids(_created_before(now_ms, days))):
            record = self.instance.get_run_record_by_id(run_id)
            is_old = record is not None and (record.end_time or 0) * 1000 < now_ms - days * DAY_MS
            if record is not None and is_old and self._is_own(record.dagster_run):
                yield record.dagster_run

    def _is_own(self, run: DagsterRun) -> bool:
        location = location_of(run)
        if run.job_name in {*self.jobs, LAND_PENDING}:
            return location == self.location
        jobs, assets = set[str](), set[dg.AssetKey]()
        for topic in self.topics:
            jobs |= {topic.landing.job, topic.decoding.job, topic.upserting.job, topic.backfill_job}
            assets |= {topic.asset_key, topic.decoded_key, topic.latest_key}
        selected = run.asset_selection or frozenset()
        return location in {None, self.location} and (run.job_name in jobs or bool(selected and selected <= assets))

    def prune(
        self, runs: Iterator[DagsterRun], on_step: Callable[[int, int], None] = lambda gone, kept: None
    ) -> tuple[int, int]:
        """Delete the runs by which Dagster shows nothing; return how many went, and how many stay.

        Raises `PruningFailed` in the end, with those that could not be deleted.
        """
        gone, kept, failures = 0, 0, list[str]()
        for run in runs:
            try:
                if self.is_shown(run.run_id):
                    kept += 1
                else:
                    self._delete(run.run_id)
                    gone += 1
            except Exception as error:  # noqa: BLE001 (of a database; it is told, and the others go on)
                failures.append(f"run {run.run_id}: {type(error).__name__}")
            if (gone + kept) % TELL_EVERY == 0:
                on_step(gone, kept)
        if failures:
            raise PruningFailed(f"{len(failures)} runs could not be deleted; {gone} were; it is tried again", failures)
        return gone, kept

    def is_shown(self, run_id: str) -> bool:
        """Return whether this run was the last to materialise, or begin, an asset or a partition that still exists."""
        events = self.instance.all_logs(run_id, of_type=_SHOWING)
        asked = {(event.dagster_event.asset_key, event.dagster_event.partition) for event in events if event.dagster_event}
        return any(self._is_last(key, partition, run_id) for key, partition in asked if key is not None)

    def _is_last(self, key: dg.AssetKey, partition: str | None, run_id: str) -> bool:
        if partition is not None and not self._is_there(key, partition):
            return False
        chosen = AssetRecordsFilter(key, asset_partitions=None if partition is None else [partition])
        last = self.instance.fetch_materializations(chosen, limit=1).records
        begun = self.instance.event_log_storage.get_latest_planned_materialization_info(key, partition)
        return any(each.event_log_entry.run_id == run_id for each in last) or (begun is not None and begun.run_id == run_id)

    def _is_there(self, key: dg.AssetKey, partition: str) -> bool:
        """Return whether a partition is shown: a range may be retired; any partition of other assets counts as shown."""
        topic = next((each for each in self.topics if key in {each.asset_key, each.decoded_key}), None)
        if topic is None:
            return True
        if key not in self._registered:
            self._registered[key] = frozenset(self.instance.get_dynamic_partitions(topic.ranges_name))
        return partition in self._registered[key]

    def _delete(self, run_id: str) -> None:
        """Delete a run after its events: a crash in between leaves a run without events, which the next pruning deletes."""
        storage = self.instance.event_log_storage
        storage.delete_events(run_id)
        with suppress(NotImplementedError):  # where a manager keeps logs elsewhere, its own retention deletes them
            self.instance.compute_log_manager.delete_logs(prefix=[run_id])
        if isinstance(storage, SqliteEventLogStorage):  # which has a file for each run, and leaves it
            for end in _SQLITE_ENDS:
                Path(f"{storage.path_for_shard(run_id)}{end}").unlink(missing_ok=True)
        self.instance.run_storage.delete_run(run_id)

    def forget_events(self, now_ms: int, days: int) -> int:
        """Delete results of checks, and events of no run, of our assets that are older than so many days; return how many.

        The last one of an asset, of a partition or of a check stays. Dagster itself keeps all of them for ever.
        """
        storage = self.instance.event_log_storage
        if not isinstance(storage, SqlEventLogStorage):
            return 0
        before = datetime.fromtimestamp((now_ms - days * DAY_MS) / 1000, UTC).replace(tzinfo=None)  # as Dagster writes it
        checks, events, tags = AssetCheckExecutionsTable.c, SqlEventLogStorageTable.c, AssetEventTagsTable.c
        gone = 0
        for key in [key.to_string() for topic in self.topics for key in topic.asset_keys]:
            told = [events.asset_key == key, events.run_id == RUNLESS_RUN_ID, events.timestamp < before]
            with storage.index_connection() as connection:
                last = select(func.max(checks.id)).where(checks.asset_key == key).group_by(checks.check_name, checks.partition)
                old = [checks.asset_key == key, checks.create_timestamp < before, checks.id.not_in(last)]
                gone += connection.execute(delete(AssetCheckExecutionsTable).where(*old)).rowcount
                of_asset = select(events.id).where(events.asset_key == key)
                last = select(func.max(events.id)).where(events.asset_key == key)
                last = last.group_by(events.dagster_event_type, events.partition)
                gone += connection.execute(delete(SqlEventLogStorageTable).where(*told, events.id.not_in(last))).rowcount
                old = [tags.asset_key == key, tags.event_timestamp < before, tags.event_id.not_in(of_asset)]
                connection.execute(delete(AssetEventTagsTable).where(*old))
            if isinstance(storage, SqliteEventLogStorage):  # which has each a second time, read by nobody
                with storage.run_connection(RUNLESS_RUN_ID) as connection:
                    connection.execute(delete(SqlEventLogStorageTable).where(*told))
        return gone

    def forget_tick_logs(self, now_ms: int, days: int) -> int:
        """Delete logs of ticks that are older than so many days; return how many.

        Dagster deletes ticks, not these; code locations whose sensors have the same names share them.
        """
        manager, gone = self.instance.compute_log_manager, 0
        if not isinstance(manager, LocalComputeLogManager):  # elsewhere the store's own retention deletes them
            return 0
        for state in self.instance.all_instigator_state():
            repository = state.origin.repository_origin
            if repository.code_location_origin.location_name == self.location:
                log = manager.get_captured_local_path([repository.repository_name, state.instigator_name, "0"], "err")
                for each in Path(log).parent.glob("*.err"):
                    with suppress(FileNotFoundError):  # another location deletes them too
                        if each.stat().st_mtime * 1000 < now_ms - days * DAY_MS:
                            each.unlink()
                            gone += 1
        return gone


def find_retirable(
    topic: Topic, coverage: Coverage, instance: dg.DagsterInstance, due: Collection[OffsetRange] = ()
) -> list[OffsetRange]:
    """Find the keys that Dagster has, need not show any more, and that nothing holds; `due` is still asked for by key."""
    away = retired(coverage, topic.max_keys)
    if not away or has_backfill(topic, instance):
        return []
    order = read_order(instance, topic)
    failed = read_tries(instance, topic.landing).tried.keys() - coverage.skipped()  # nobody tries those again
    needed = {*due, *failed}
    for duty in (topic.landing, topic.decoding):
        needed |= {*read_tries(instance, duty).in_progress, *read_selected(instance, duty, order)}
    return [offsets for offsets in order if offsets in away and offsets not in needed]


def has_too_many(topic: Topic, instance: dg.DagsterInstance) -> bool:
    """Return whether Dagster has more keys of a topic than it is to show, and no backfill may ask for any of them."""
    return len(read_order(instance, topic)) > topic.max_keys and not has_backfill(topic, instance)


def retire_keys(
    topic: Topic, coverage: Coverage, instance: dg.DagsterInstance, due: Collection[OffsetRange] = ()
) -> list[OffsetRange]:
    """Delete the keys that can go from Dagster, oldest first, and return them; any number of runs may be at it.

    A crash in the middle leaves the rest for the next time. Events of these ranges stay in Dagster's log.
    """
    gone: list[OffsetRange] = []
    while batch := find_retirable(topic, coverage, instance, due)[:KEYS_AT_ONCE]:
        for offsets in batch:
            instance.delete_dynamic_partition(topic.ranges_name, offsets.key)
        gone += batch
    return gone


def has_backfill(topic: Topic, instance: dg.DagsterInstance) -> bool:
    """Return whether a backfill of the topic is under way: which keys it has yet to ask for, only its daemon knows."""
    active = [status for status in BulkActionStatus if status not in BULK_ACTION_TERMINAL_STATUSES]
    found = instance.get_backfills(filters=BulkActionsFilter(statuses=active))
    ours = {duty.asset_key for duty in topic.duties}
    return any(not ours.isdisjoint(backfill.asset_selection or ()) for backfill in found)
