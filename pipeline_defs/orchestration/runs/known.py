"""What Dagster knows of topics, read for all of them in few queries: a tick asks for a hundred topics as for one.

It is of one moment; a run may begin right after it. Which topics are slow, and have a lane apart for a while so that the
others of theirs need not wait, runs note in their own tags, so every process finds the same. Invariant: nothing else is decided
from what is here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg
from dagster import RunRecord, RunsFilter

from ...topics import LAND_PENDING, STANDING, Duty, Topic
from ..home.daemons import is_silent, read_silence
from ..home.run_locks import is_code_server_gone
from .projection import ACTIVE
from .tries import Tries, read_all_tries

if TYPE_CHECKING:
    from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
    from dagster._core.storage.event_log.base import AssetRecord

SLOW_SECONDS = 60.0  # of a job, which is to take ten
SLOW_FOR_MS = 600_000
_HAS_JUDGED, _SLOW, _QUICK = "offsetlake/has_judged", "offsetlake/slow_topics", "offsetlake/quick_topics"


@dataclass(frozen=True, slots=True)
class Known:
    """What Dagster knows of some topics; `assets` and `checks` lack what it was never told of.

    `active` are the runs of the instance that have not ended, the oldest first, which wait for one of its `slots`, negative
    where there is no limit, or for a daemon that is silent. `began` is when all that was read, in seconds of this process.
    """

    tries: Mapping[Duty, Tries]
    active: Sequence[RunRecord]
    slots: int
    is_daemon_silent: bool
    assets: Mapping[dg.AssetKey, AssetRecord]
    checks: Mapping[dg.AssetCheckKey, AssetCheckExecutionRecord]
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
    checks = [topic.check_key(name) for topic in topics for name in STANDING]
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
    )


def name_of(duty: Duty) -> str:
    """Return the name by which a duty is noted: that of its asset."""
    return duty.asset_key.to_user_string()


def is_slow(topic: Topic, found: Collection[str]) -> bool:
    """Return whether a topic's landing or decoding is among what was found slow."""
    return any(name_of(duty) in found for duty in (topic.landing, topic.decoding))


def note_speed(duties: Collection[str], run_id: str, instance: dg.DagsterInstance, *, is_slow: bool) -> None:
    """Note in the tags of a run what it found slow, or quick after all, beside what it found before."""
    slow, quick = _read(instance.get_run_by_id(run_id))
    slow, quick = (slow | {*duties}, quick - {*duties}) if is_slow else (slow - {*duties}, quick | {*duties})
    tags = {_HAS_JUDGED: "yes", _SLOW: ",".join(sorted(slow)), _QUICK: ",".join(sorted(quick))}
    instance.add_run_tags(run_id, tags)


def read_slow(instance: dg.DagsterInstance, now_ms: int) -> set[str]:
    """Read what runs of the last ten minutes have found slow, as `name_of` names it; the word of the newest one counts."""
    since = datetime.fromtimestamp((now_ms - SLOW_FOR_MS) / 1000, UTC)
    found: set[str] = set()
    judged = RunsFilter(job_name=LAND_PENDING, tags={_HAS_JUDGED: "yes"}, updated_after=since)
    for run in reversed(instance.get_runs(judged)):
        slow, quick = _read(run)
        found = (found | slow) - quick
    return found


def _read(run: dg.DagsterRun | None) -> tuple[set[str], set[str]]:
    tags = run.tags if run is not None else {}
    slow, quick = (set(filter(None, tags.get(name, "").split(","))) for name in (_SLOW, _QUICK))
    return slow, quick
