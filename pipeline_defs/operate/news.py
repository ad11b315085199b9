"""What failed and what landed since the last look, as Dagster has recorded it of its own runs and of commands.

Reads Dagster only; the lake is not listed, so a look each second costs the same however large it is. Invariant: no failed run
or backfill is passed over; failing ticks give at most one line a minute per topic.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.scheduler.instigation import InstigatorState, TickStatus

from ..core.advice import counted, some_of
from ..orchestration.assets.raw_asset import NEWLY_LANDED
from ..orchestration.runs.projection import error_text, is_run_of, read_reason, reasons_in, worded
from ..topics import LAND_PENDING, Topic

PAUSE = timedelta(minutes=1)
_AT_ONCE = 1_000
_TELLING = [TickStatus.FAILURE, TickStatus.SKIPPED]
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_OVERLAP = timedelta(minutes=1)  # a run's row may become visible later than its time says


class FailedSince:
    """Runs and backfills of some topics that failed since a moment, each told once."""

    def __init__(self, topics: Sequence[Topic], instance: dg.DagsterInstance, since: datetime) -> None:
        self._topics, self._instance, self._from = topics, instance, since
        self._began = (since - _OVERLAP).timestamp()
        self._seen = set[str]()
        self._given_up, _ = read_failed_backfills(instance, topics, None)

    def read(self, now: datetime) -> list[str]:
        """Return a line for each: of a run its topic or job, its first reason, and how many more reasons it has."""
        lines, found = list[str](), RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=self._from)
        for record in reversed(self._instance.get_run_records(found)):
            run, updated = record.dagster_run, record.update_timestamp.replace(tzinfo=UTC)
            whose = self._find_whose(run)
            is_news = (record.end_time or now.timestamp()) >= self._began  # a tag written later makes no run news
            if whose and is_news and run.run_id not in self._seen:
                lines.append(f"run {run.run_id[:8]} of {whose} failed{self._why(run)}")
            self._seen.add(run.run_id)
            self._from = max(self._from, min(updated - _OVERLAP, now))
        self._given_up, texts = read_failed_backfills(self._instance, self._topics, self._given_up)
        return lines + texts

    def _find_whose(self, run: DagsterRun) -> str:
        """Return the topic of a run, `land_pending` for a run of all topics, and nothing for any other."""
        duties = ((each.name, duty) for each in self._topics for duty in (each.landing, each.decoding, each.upserting))
        topic = next((name for name, duty in duties if is_run_of(run, duty)), "")
        return topic or (LAND_PENDING if run.job_name == LAND_PENDING else "")

    def _why(self, run: DagsterRun) -> str:
        text = read_reason(self._instance, run.run_id).strip()
        reasons = reasons_in(text) or [text.partition("\n")[0]]
        first = worded(reasons[0])
        more = f" (and {counted(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        return f"{more}: {first}"


def read_failed_backfills(
    instance: dg.DagsterInstance, topics: Sequence[Topic], known: Collection[str] | None
) -> tuple[list[str], list[str]]:
    """Read the ids of all backfills that Dagster has given up, and a text on each of these topics' that is not `known`.

    Its daemon does so at an error of its own, with ranges left of which it has asked for no run: no failed run tells of these.
    Without `known` none is told, as nobody has looked before.
    """
    chosen = BulkActionsFilter(statuses=[BulkActionStatus.FAILED])
    if known is not None and instance.get_backfills_count(chosen) == len(known):
        return [*known], []
    names, found, texts = {duty.asset_key: each.name for each in topics for duty in each.duties}, list[str](), list[str]()
    for backfill in instance.get_backfills(chosen):
        found.append(backfill.backfill_id)
        whose = sorted({names[key] for key in backfill.asset_selection or () if key in names})
        if whose and known is not None and backfill.backfill_id not in known:
            why = error_text(backfill.error).partition("\n")[0] or "it does not say why"
            texts.append(
                f"backfill {backfill.backfill_id} of {some_of(whose)} was given up by Dagster: {why}; what no run of it has "
                "done is not asked for any more; launch it again"
            )
    return found, texts


class FailedTicks:
    """Reasons why planning fails, each told once for as long as it lasts."""

    def __init__(self, instance: dg.DagsterInstance, since: datetime) -> None:
        self._instance, self._since = instance, since
        self._told: set[str] = set()
        self._told_at: dict[str, datetime] = {}  # by topic

    def read(self, now: datetime, sensors: Sequence[InstigatorState]) -> list[str]:
        """Return the lines that are due, each with its topics."""
        found: dict[str, list[str]] = {}
        for name, reason in read_tick_failures(self._instance, sensors, self._since):
            found.setdefault(reason, []).append(name or "all topics")
        self._told &= found.keys()
        due = [each for each in found if each not in self._told and now - self._told_at.get(found[each][0], _LONG_AGO) >= PAUSE]
        self._told.update(due)
        self._told_at |= {found[each][0]: now for each in due}
        return [f"planning of {some_of(found[each])} fails: {each}" for each in due]


def read_tick_failures(
    instance: dg.DagsterInstance, sensors: Sequence[InstigatorState], since: datetime
) -> list[tuple[str, str]]:
    """Read for which topics, and why, the newest tick of `land_pending` failed; ticks that ask for a run are passed by.

    A reason that is of no topic has an empty name. Ticks before `since` are too old to say what fails now.
    """
    found = []
    for sensor in sensors:
        if sensor.name == LAND_PENDING and sensor.is_running:
            chosen = sensor.instigator_origin_id, sensor.selector_id
            for tick in instance.get_ticks(*chosen, after=since.timestamp(), limit=1, statuses=_TELLING):
                text = error_text(tick.error) if tick.status is TickStatus.FAILURE else ""
                listed = [each.partition(": ") for each in reasons_in(text)]
                found += [(name, reason) for name, _, reason in listed] or [
                    ("", worded(line)) for line in text.splitlines()[:1]
                ]
    return found


@dataclass(frozen=True, slots=True)
class LandedCount:
    """Ranges and rows of one topic."""

    ranges: int = 0
    rows: int = 0


class LandedSince:
    """What landed of some topics since the previous reading, the first time since this was made."""

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
                if outcome is None or outcome.value not in NEWLY_LANDED:  # another run has landed it, or a person says so
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
