"""What Dagster knows of topics, read for all of them in few queries: a tick asks for a hundred topics as for one.

It is of one moment; a run may begin right after it. Runs also note in Dagster's database which topics are slow, and so have a
lane apart for a while in which no other topic waits for them; every process finds the same. Invariant: nothing else is decided
from what is here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dagster as dg
from dagster import RunRecord, RunsFilter

from ...topics import TICK_CHECKS, Duty, Topic
from ..home.daemons import is_silent, read_silence
from ..home.run_locks import is_code_server_gone
from .projection import ACTIVE
from .tries import Tries, read_all_tries, write_values

if TYPE_CHECKING:
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
    from dagster._core.storage.event_log.base import AssetRecord

SLOW_SECONDS = 60.0  # of a job, which is to take ten
SLOW_FOR_MS = 600_000


@dataclass(frozen=True, slots=True)
class Known:
    """What Dagster knows of some topics; `assets` and `checks` lack what it was never told of.

    `active` are the runs of the instance that have not ended, the oldest first. They wait for one of its `slots`, negative
    where there is no limit, or for a daemon that is silent. `began` is when all of this was read, by `time.monotonic`, and
    `database` names the database that it was read from.
    """

    tries: Mapping[Duty, Tries]
    active: Sequence[RunRecord]
    slots: int
    is_daemon_silent: bool
    assets: Mapping[dg.AssetKey, AssetRecord]
    checks: Mapping[dg.AssetCheckKey, AssetCheckExecutionRecord]
    database: str
    began: float = field(default_factory=time.monotonic)

    def last(self, key: dg.AssetKey) -> dg.EventLogEntry | None:
        """Return the last materialisation of an asset."""
        record = self.assets.get(key)
        return record.asset_entry.last_materialization if record is not None else None

    def last_told(self, key: dg.AssetKey) -> int | None:
        """Return the storage id of that event."""
        record = self.assets.get(key)
        return record.asset_entry.last_materialization_storage_id if record is not None else None


def read_known(instance: dg.DagsterInstance, topics: Sequence[Topic], now_ms: int) -> Known:
    """Read what Dagster knows of these topics."""
    duties = [duty for topic in topics for duty in (topic.landing, topic.decoding, topic.upserting)]
    keys = [key for topic in topics for key in (topic.asset_key, topic.decoded_key, topic.latest_key, topic.losses_key)]
    checks = [topic.check_key(name) for topic in topics for name in TICK_CHECKS]
    tries, active = read_all_tries(instance, duties), instance.get_run_records(RunsFilter(statuses=ACTIVE))
    queue = instance.get_concurrency_config().run_queue_config
    is_silent_daemon = is_silent(read_silence(instance, "QUEUED_RUN_COORDINATOR", now_ms / 1000))
    return Known(
        tries,
        active[::-1],
        queue.max_concurrent_runs if queue else -1,
        is_silent_daemon or is_code_server_gone(instance.root_directory),  # without which no run starts
        {record.asset_entry.asset_key: record for record in instance.get_asset_records(keys)} if keys else {},
        instance.event_log_storage.get_latest_asset_check_execution_by_key(checks),
        database_of(instance),
    )


def database_of(instance: dg.DagsterInstance) -> str:
    """Return the id of Dagster's database, which a new one does not have; each tick has an instance of its own."""
    storage: Any = instance.run_storage
    read_id = getattr(storage, "get_run_storage_id", None)  # of `SqlRunStorage`; without one each instance counts as another
    return str(read_id() if read_id else uuid4())


def is_slow(topic: Topic, found: Collection[Duty]) -> bool:
    """Return whether a topic's landing or decoding is among what was found slow."""
    return topic.landing in found or topic.decoding in found


def note_speed(instance: dg.DagsterInstance, duties: Iterable[Duty], now_ms: int, *, is_slow: bool) -> None:
    """Note duties as found slow now, or as quick after all."""
    write_values(instance, {_slow_name(duty): str(now_ms if is_slow else 0) for duty in duties})


def read_slow(instance: dg.DagsterInstance, topics: Iterable[Topic], now_ms: int) -> set[Duty]:
    """Read which duties of topics were found slow within the last ten minutes, and not quick since."""
    duties = {_slow_name(duty): duty for topic in topics for duty in (topic.landing, topic.decoding)}
    found = instance.daemon_cursor_storage.get_cursor_values({*duties}) if duties else {}
    return {duties[name] for name, since_ms in found.items() if abs(now_ms - int(since_ms)) < SLOW_FOR_MS}


def _slow_name(duty: Duty) -> str:
    return f"offsetlake/slow/{duty.asset_key.to_user_string()}"
