"""What failed and what landed since one last looked, from Dagster: whoever did it, a run of Dagster or a command.

Reads Dagster only; the lake is not listed, so that looking each second costs the same however much there is. Invariant: no
failure is passed over; of a topic they are at most one line a minute, which counts those within it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.scheduler.instigation import InstigatorState, TickStatus

from ..core.advice import counted, some_of
from ..orchestration.assets.raw_asset import NEWLY_LANDED
from ..orchestration.runs.projection import error_text, is_run_of, read_reason, reasons_in
from ..topics import LAND_PENDING, Duty, Topic

PAUSE = timedelta(minutes=1)
_AT_ONCE = 1_000
_FAILED, _NEWEST = BulkActionsFilter(statuses=[BulkActionStatus.FAILED]), 10  # backfills
_ENDED = "its process was told to end; what it left undone is asked for again"
_WORDS = {  # in place of Dagster's own, which say nothing of what comes next
    "DagsterExecutionInterruptedError": _ENDED,
    "Execution was interrupted unexpectedly": _ENDED,
    "marked as failed from outside": "its process was killed; what it left undone is asked for again",
}
_TELLING = [TickStatus.FAILURE, TickStatus.SKIPPED]
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_OVERLAP = timedelta(minutes=1)  # a run's row may become visible later than its time says


class FailedSince:
    """Reads which runs and backfills of some topics failed since a moment, and says each once."""

    def __init__(self, topics: Sequence[Topic], instance: dg.DagsterInstance, since: datetime) -> None:
        self._topics, self._instance, self._from = topics, instance, since
        self._failed_count = 0  # of backfills, when they were read last
        self._seen = {each.backfill_id for each in self._failed_backfills()}
        self._untold: dict[str, list[tuple[str, str]]] = {}  # by topic what failed, and why
        self._told_at: dict[str, datetime] = {}

    def read(self, now: datetime) -> list[str]:
        """Return the lines that are due: of each topic that failed the first reason, and how many more there are."""
        found = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=self._from)
        for record in reversed(self._instance.get_run_records(found)):
            run, updated = record.dagster_run, record.update_timestamp.replace(tzinfo=UTC)
            if run.run_id not in self._seen:
                for name, reason in self._reasons_of(run):
                    self._untold.setdefault(name, []).append((f"run {run.run_id[:8]}", reason))
            self._seen.add(run.run_id)
            self._from = max(self._from, min(updated - _OVERLAP, now))
        for backfill in self._failed_backfills():
            topic = next((each for each, duty in self._duties if duty.asset_key in (backfill.asset_selection or ())), None)
            if topic is not None and backfill.backfill_id not in self._seen:
                why = backfill.error.message.strip().splitlines()[0] if backfill.error else "Dagster says no more"
                self._untold.setdefault(topic, []).append((f"backfill {backfill.backfill_id}", f"{why}; ask for it again"))
            self._seen.add(backfill.backfill_id)
        due = [name for name in self._untold if now - self._told_at.get(name, now - PAUSE) >= PAUSE]
        self._told_at |= dict.fromkeys(due, now)
        return [_line(name, self._untold.pop(name)) for name in due]

    def _reasons_of(self, run: DagsterRun) -> list[tuple[str, str]]:
        """Read why a run failed, by topic; a run of all topics may say it of none, and is told by its job's name then."""
        topic = next((name for name, duty in self._duties if is_run_of(run, duty)), None)
        if topic is None and run.job_name != LAND_PENDING:
            return []
        text = read_reason(self._instance, run.run_id).strip()
        listed = reasons_in(text) or text.splitlines()[:1]
        reasons = [next((_WORDS[said] for said in _WORDS if said in each), each) for each in listed]
        if topic is not None:
            return [(topic, reasons[0])]
        return [(self._topic_in(reason) or LAND_PENDING, reason) for reason in reasons]

    @property
    def _duties(self) -> Iterator[tuple[str, Duty]]:
        return ((each.name, duty) for each in self._topics for duty in (each.landing, each.decoding, each.upserting))

    def _failed_backfills(self) -> Sequence[PartitionBackfill]:
        """Read the newest that the daemon gave up since, as where it found no definitions: of others their runs are told."""
        count = self._instance.get_backfills_count(_FAILED)  # which reads none of them, each second
        if count == self._failed_count:
            return ()
        self._failed_count = count
        return self._instance.get_backfills(_FAILED, limit=_NEWEST)

    def _topic_in(self, reason: str) -> str | None:
        names = (each.name for each in self._topics)
        return next((name for name in names if f"range {name}/" in reason or reason.startswith(f"topic {name}:")), None)


class FailedTicks:
    """Reads what planning fails at, and says each reason once for as long as it lasts."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._told: set[str] = set()
        self._told_at: dict[str, datetime] = {}  # by topic

    def read(self, now: datetime, sensors: Sequence[InstigatorState]) -> list[str]:
        """Return the lines that are due, each with the topics that it is of."""
        found: dict[str, list[str]] = {}
        for name, reason in read_tick_failures(self._instance, sensors):
            found.setdefault(reason, []).append(name or "all topics")
        self._told &= found.keys()
        due = [each for each in found if each not in self._told and now - self._told_at.get(found[each][0], _LONG_AGO) >= PAUSE]
        self._told.update(due)
        self._told_at |= {found[each][0]: now for each in due}
        return [f"planning of {some_of(found[each])} fails: {each}" for each in due]


def read_tick_failures(instance: dg.DagsterInstance, sensors: Sequence[InstigatorState]) -> list[tuple[str, str]]:
    """Read of which topics, and why, the newest tick of `land_pending` failed; one that asks for a run says nothing of it.

    What is no topic's is of an empty name.
    """
    found = []
    for sensor in sensors:
        if sensor.name == LAND_PENDING and sensor.is_running:
            for tick in instance.get_ticks(sensor.instigator_origin_id, sensor.selector_id, limit=1, statuses=_TELLING):
                text = error_text(tick.error) if tick.status is TickStatus.FAILURE else ""
                listed = [each.partition(": ") for each in reasons_in(text)]
                found += [(name, reason) for name, _, reason in listed] or [("", line) for line in text.splitlines()[:1]]
    return found


def _line(name: str, failures: Sequence[tuple[str, str]]) -> str:
    (what, reason), *others = failures
    more = f" (and {len(others)} more failed)" if others else ""
    return f"{what} of {name} failed{more}: {reason.removeprefix(f'topic {name}: ')}"


@dataclass(frozen=True, slots=True)
class LandedCount:
    """Ranges and rows of one topic."""

    ranges: int = 0
    rows: int = 0


class LandedSince:
    """Reads what landed of some topics since the reading before; the first one begins now."""

    def __init__(self, topics: Sequence[Topic], instance: dg.DagsterInstance) -> None:
        self._topics = topics  # read anew each time: there may be more by then
        self._instance = instance
        self._seen = self._newest()

    def read(self) -> Mapping[str, LandedCount]:
        """Return what landed of each topic; topics of which nothing did are left out."""
        found = {}
        for key, newest in self._newest().items():
            before = self._seen.get(key, 0)
            if newest < before:  # Dagster's history was wiped, and counts from its beginning again
                before = 0
            if newest > before:
                self._seen[key] = newest
                count = self._count(key, before, newest)
                if count.ranges:
                    found[key.path[-1]] = count
        return found

    def _newest(self) -> dict[dg.AssetKey, int]:
        records = self._instance.get_asset_records([topic.asset_key for topic in self._topics])
        entries = {record.asset_entry.asset_key: record.asset_entry for record in records}
        return {key: entry.last_materialization_storage_id or 0 for key, entry in entries.items()}

    def _count(self, key: dg.AssetKey, after: int, newest: int) -> LandedCount:
        ranges = rows = 0
        chosen = dg.AssetRecordsFilter(key, after_storage_id=after, before_storage_id=newest + 1)
        cursor: str | None = None
        while True:
            page = self._instance.fetch_materializations(chosen, limit=_AT_ONCE, cursor=cursor, ascending=True)
            for record in page.records:
                materialization = record.asset_materialization
                said = materialization.metadata if materialization else {}
                outcome, value = said.get("outcome"), said.get("rows")
                if outcome is not None and outcome.value not in NEWLY_LANDED:  # another run has landed it
                    continue
                ranges += 1
                rows += int(value.value) if isinstance(value, dg.IntMetadataValue) and value.value else 0
            cursor = page.cursor
            if not page.has_more:
                return LandedCount(ranges, rows)


def landed_text(landed: Mapping[str, LandedCount]) -> str:
    """Return one line: ranges and rows in all, and the rows of each topic, of many topics those of some."""
    ranges, rows = sum(each.ranges for each in landed.values()), sum(each.rows for each in landed.values())
    topics = [f"{name} {each.rows:,}" for name, each in sorted(landed.items())]
    return f"landed {counted(ranges, 'range')}, {counted(rows, 'row')}: {some_of(topics)}"
