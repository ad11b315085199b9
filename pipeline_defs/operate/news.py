"""What failed and what landed since the last look, as Dagster has recorded it of its own runs and of commands.

Reads Dagster only; the lake is not listed, so a look each second costs the same however large it is. Invariant: no failed run
or backfill is passed over; failing ticks give at most one line a minute per topic.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import chain

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, TickStatus

from ..core.advice import counted, some_of
from ..core.log.cutting import Policy
from ..orchestration.assets.raw_asset import NEWLY_LANDED
from ..orchestration.runs.projection import error_text, is_run_of, read_reason, reasons_in, worded
from ..topics import BROKEN_TOPICS, LAND_PENDING, Topic

PAUSE = timedelta(minutes=1)
TICKS_COUNT = timedelta(minutes=10)  # for which a failed tick says what fails now
_AT_ONCE = 1_000
_TELLING = [TickStatus.FAILURE, TickStatus.SKIPPED]
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_OVERLAP = timedelta(minutes=1)  # a run's row may become visible later than its time says


class FailedSince:
    """Runs and backfills of topics that failed since a moment, each told once."""

    def __init__(self, instance: dg.DagsterInstance, since: datetime) -> None:
        self._instance, self._from = instance, since
        self._began = (since - _OVERLAP).timestamp()
        self._seen = set[str]()
        self._given_up, _ = read_failed_backfills(instance, list, None)

    def read(self, now: datetime) -> list[str]:
        """Return a line for each: of a run its topic or job, its first reason, and how many more reasons it has."""
        lines, found = list[str](), RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=self._from)
        topics = cache(partial(_read_topics, self._instance))  # only where something has failed
        for record in reversed(self._instance.get_run_records(found)):
            run, updated = record.dagster_run, record.update_timestamp.replace(tzinfo=UTC)
            is_news = (record.end_time or now.timestamp()) >= self._began  # a tag written later makes no run news
            if is_news and run.run_id not in self._seen and (whose := _find_whose(run, topics())):
                lines.append(f"run {run.run_id[:8]} of {whose} failed{self._why(run)}")
            self._seen.add(run.run_id)
            self._from = max(self._from, min(updated - _OVERLAP, now))
        self._given_up, texts = read_failed_backfills(self._instance, topics, self._given_up)
        return lines + texts

    def _why(self, run: DagsterRun) -> str:
        text = read_reason(self._instance, run.run_id).strip()
        reasons = reasons_in(text) or [text.partition("\n")[0]]
        first = worded(reasons[0])
        more = f" (and {counted(len(reasons) - 1, 'more reason')})" if len(reasons) > 1 else ""
        return f"{more}: {first}"


def _read_topics(instance: dg.DagsterInstance) -> list[Topic]:
    """Read the topics that Dagster has a raw asset of, by their names alone."""
    return [Topic(key.path[-1], Policy()) for key in instance.get_asset_keys(prefix=["raw"])]


def _find_whose(run: DagsterRun, topics: Sequence[Topic]) -> str:
    """Return the topic of a run, `land_pending` for a run of all topics, and nothing for any other."""
    duties = ((each.name, duty) for each in topics for duty in (each.landing, each.decoding, each.upserting))
    topic = next((name for name, duty in duties if is_run_of(run, duty)), "")
    return topic or (LAND_PENDING if run.job_name == LAND_PENDING else "")


def read_failed_backfills(
    instance: dg.DagsterInstance, topics: Callable[[], Sequence[Topic]], known: Collection[str] | None
) -> tuple[list[str], list[str]]:
    """Read the ids of all backfills that Dagster has given up, and a text on each of some topics' that is not `known`.

    Its daemon does so at an error of its own, with ranges left of which it has asked for no run: no failed run tells of these.
    Without `known` none is told, as nobody has looked before.
    """
    chosen = BulkActionsFilter(statuses=[BulkActionStatus.FAILED])
    if known is not None and instance.get_backfills_count(chosen) == len(known):
        return [*known], []
    names, found, texts = {key: each.name for each in topics() for key in each.asset_keys}, list[str](), list[str]()
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
    """Reasons why topics cannot be planned, or files not be used, each told once for as long as it lasts."""

    def __init__(self, instance: dg.DagsterInstance, since: datetime) -> None:
        self._instance, self._since = instance, since
        self._told: dict[str, list[str]] = {}  # by reason, the topics
        self.over: list[str] = []  # lines on what the last reading no longer found
        self._told_at: dict[str, datetime] = {}  # by topic

    def read(self, now: datetime, sensors: Sequence[InstigatorState]) -> list[str]:
        """Return the lines that are due, each with its topics."""
        found: dict[str, list[str]] = {}
        for name, reason in read_tick_failures(self._instance, sensors, max(self._since, now - TICKS_COUNT)):
            found[reason] = [*dict.fromkeys([*found.get(reason, ()), name or "all topics"])]
        ended = chain.from_iterable(names for reason, names in self._told.items() if reason not in found)
        over = sorted({*ended} - {*chain.from_iterable(found.values())})
        self.over = [f"{some_of(over)}: that is over"] if over else []
        self._told = {reason: found[reason] for reason in self._told if reason in found}
        due = [each for each in found if each not in self._told and now - self._told_at.get(found[each][0], _LONG_AGO) >= PAUSE]
        self._told |= {each: found[each] for each in due}
        self._told_at |= {found[each][0]: now for each in due}
        return [f"{some_of(found[each])}: {each}" for each in due]


def read_tick_failures(
    instance: dg.DagsterInstance, sensors: Sequence[InstigatorState], since: datetime
) -> list[tuple[str, str]]:
    """Read for which topics, and why, the newest tick of our sensors failed; ticks that ask for a run are passed by.

    A reason that is of no topic has an empty name. Ticks before `since` are too old to say what fails now.
    """
    found = []
    for sensor in sensors:
        if sensor.name == LAND_PENDING and sensor.status is InstigatorStatus.STOPPED:
            found.append(("", f"Dagster's sensor {LAND_PENDING} is switched off: nothing plans and lands by itself"))
        if sensor.name in {LAND_PENDING, BROKEN_TOPICS} and sensor.is_running:
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
    """What landed since the previous reading, the first time since this was made."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._storage = instance.event_log_storage
        self._seen = self._storage.get_maximum_record_id() or 0

    def read(self) -> Mapping[str, LandedCount]:
        """Return what landed of each topic; topics of which nothing did are left out."""
        found = dict[str, LandedCount]()
        self._seen = min(self._seen, self._storage.get_maximum_record_id() or 0)  # less where the history was wiped
        while page := self._storage.get_event_records(
            dg.EventRecordsFilter(dg.DagsterEventType.ASSET_MATERIALIZATION, after_cursor=self._seen), _AT_ONCE, ascending=True
        ):
            self._seen = page[-1].storage_id
            for event in filter(None, (record.asset_materialization for record in page)):
                outcome, value, (*kind, topic) = event.metadata.get("outcome"), event.metadata.get("rows"), event.asset_key.path
                # of other assets anybody may report anything; another outcome is of a range that was there
                if kind == ["raw"] and isinstance(outcome, dg.TextMetadataValue) and outcome.value in NEWLY_LANDED:
                    count = found.get(topic, LandedCount())
                    rows = value.value if isinstance(value, dg.IntMetadataValue) and value.value else 0
                    found[topic] = LandedCount(count.ranges + 1, count.rows + rows)
        return found


def landed_text(landed: Mapping[str, LandedCount]) -> str:
    """Return one line: ranges and rows in all, and the rows of each topic, of many topics those of some."""
    ranges, rows = sum(each.ranges for each in landed.values()), sum(each.rows for each in landed.values())
    topics = [f"{name} {each.rows:,}" for name, each in sorted(landed.items())]
    return f"landed {counted(ranges, 'range')}, {counted(rows, 'row')}: {some_of(topics)}"
