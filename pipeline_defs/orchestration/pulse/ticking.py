"""What a tick does for one topic: plan, register, report, find what is due; a crash in any step is made good by the next tick.

All state is read from the lake and from Dagster. Two ticks at once are harmless.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import dagster as dg

from ...adapters.tables.latest_table import LatestSnapshot, LatestTable
from ...core.errors import LakeUnavailable, OffsetlakeError
from ...core.landing.progress import find_lag
from ...core.landing.verdicts import Outcome, Verdict
from ...core.log.coverage import Coverage
from ...core.log.delivery import Delivery
from ...core.log.losses import find_skips
from ...core.log.settling import LONGEST_RUN_SECONDS
from ...core.offsets import OffsetRange
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoding import Decided, Decoding
from ...core.tables.latest import Latest
from ...landing.appending import try_append
from ...landing.mirror import mirror_frontier
from ...resources import Adapters
from ...tables.latest import Updated, find_due
from ...topics import Topic
from ..assets.checks import report_troubles
from ..assets.decoded_asset import decoded_event, report_days
from ..assets.latest_asset import latest_metadata
from ..assets.raw_asset import materialization
from ..runs.known import Known, read_known
from ..runs.progress import TopicProgress, held_back, read_progress, waiting_text
from ..runs.projection import find_unseen, forget_unplanned, read_told_lag, register_keys, report_lag, report_losses
from ..runs.tries import UPDATE, read_tries
from ..runs.waiting import backing_off_text, pending_text, read_undecoded, why_blocked

EVENTS_PER_TICK = 200  # of a topic
TELL_SECONDS = 15.0  # of a tick, all topics together: Dagster gives one up after 60, and it would go on beside the next
COMPARE_EVERY_MS = 3_600_000  # even where nothing seems to have changed
BACKLOG_SECONDS = 120
REWRITTEN_PER_SECOND = 256 << 10  # bytes of a latest table, by updates: 22 GB a day
LONGEST_PAUSE_SECONDS = 300  # with the update, less than after which a table that stands still is told
MIRROR_SECONDS = 60  # after which the group of an idle topic is moved again
BACKLOG_FIRST = f"ranges are being decoded, which is waited for, at most {BACKLOG_SECONDS} s"


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick did, the ranges to land now, and texts on what is stalled."""

    due: tuple[OffsetRange, ...]
    planned: int
    pending: int
    stalled: tuple[str, ...]
    held_back: tuple[str, ...]
    waiting: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """State at `at_ms` for which Dagster was found to know all that the lake has of an asset."""

    database: str
    coverage: Coverage
    table_version: int
    last_told: int | None
    at_ms: int

    def is_same(self, before: Self | None) -> bool:
        """Return whether nothing has changed since, so that the comparison still holds; for an hour at most."""
        return (
            before is not None
            and self.coverage is before.coverage
            and (self.database, self.table_version, self.last_told) == (before.database, before.table_version, before.last_told)
            and abs(self.at_ms - before.at_ms) < COMPARE_EVERY_MS
        )


def run_tick(topic: Topic, instance: dg.DagsterInstance, adapters: Adapters, known: Known | None = None) -> Tick:
    """Run one tick: put boundaries into the lake, then keys into Dagster; then tell Dagster of what it lacks of landed ranges.

    `known` is what Dagster knew a moment ago of topics, this one among them; by default it is read.
    """
    known = known or read_known(instance, [topic], adapters.now_ms())
    coverage = adapters.lake.recent(topic.name)  # raises for a refused log: nothing is planned
    if coverage.log.state.seq:  # perhaps by another machine, and from now on Dagster shows it here
        adapters.lake.remember(topic.name)
    step = adapters.planner(topic, "sensor", may_return=False).commit(coverage)
    if step is not None:
        coverage = adapters.lake.recent(topic.name)
    compared = _Compared(known.database, coverage, 0, known.last_told(topic.asset_key), adapters.now_ms())
    is_told = compared.is_same(adapters.compared.get(topic.asset_key))
    registered = 0
    if topic.asset_key not in adapters.compared and coverage.log.steps and coverage.log.base is None:
        # as a lake's backup leaves them; of a longer history the hourly comparison does it
        forget_unplanned(instance, topic, lambda: adapters.lake.recent(topic.name))
    if not is_told:
        registered = register_keys(instance, topic, coverage, read_whole=lambda: adapters.lake.coverage(topic.name))
    adapters.watch_step("keys_registered", topic=topic.name, keys=registered)

    found = read_progress(topic, coverage, adapters, known)
    now_ms = adapters.now_ms()
    stalled = _report_dangers(topic, found, instance, adapters, known)
    if not is_told:
        failure, is_told = _tell_landed(topic, coverage, instance, adapters, _count_events(known))
        stalled = (*stalled, failure) if failure else stalled
        if is_told:
            adapters.compared[topic.asset_key] = compared
    if topic.decode is None and is_told:  # once summed up, only the hourly comparison would tell
        move_frontier(topic, coverage, adapters)
    if not found.tries.in_progress:  # else the run that lands moves it
        failure = _mirror(topic, coverage, adapters)
        stalled = (*stalled, failure) if failure else stalled
    due = known.tries[topic.landing].choose_due(coverage.pending(), now_ms)
    planned = len(step.ranges) if step else 0
    waiting, late = waiting_text(topic, found, now_ms), held_back(topic, found, now_ms)
    return Tick(tuple(due), planned, len(coverage.pending()), stalled, late, waiting)


def move_frontier(topic: Topic, coverage: Coverage, adapters: Adapters, waiting: Collection[OffsetRange] = ()) -> None:
    """Sum up what is settled, where that is due; where it cannot be written, ticks go on, and read more."""
    longest_ms = int(LONGEST_RUN_SECONDS * 1000)
    try:
        is_fenced = topic.delivery is not Delivery.AT_LEAST_ONCE  # else each run takes the documents away
        if is_fenced and coverage.log.steps and adapters.lake.move_frontier(coverage, adapters.now_ms(), longest_ms, waiting):
            adapters.watch_step("frontier", topic=coverage.log.topic, seq=coverage.log.state.seq)
    except LakeUnavailable as error:
        adapters.watch_step("frontier_failed", topic=coverage.log.topic, reason=str(error))


def _count_events(known: Known) -> int:
    """Return of how many ranges of a topic the tick may still tell Dagster."""
    return EVENTS_PER_TICK if time.monotonic() - known.began < TELL_SECONDS else 0


def _tell_landed(
    topic: Topic, coverage: Coverage, instance: dg.DagsterInstance, adapters: Adapters, most: int
) -> tuple[str | None, bool]:
    """Tell Dagster of landed ranges that a crash left untold, `most` at most; append to the raw table what that lacks.

    Return why the append failed, and if all was told before.
    """
    in_progress = read_tries(instance, topic.landing).in_progress.keys()  # after the coverage: a run at work tells of its own
    unseen = find_unseen(
        instance, topic, topic.asset_key, coverage, lambda each: each not in in_progress and coverage.is_landed(each)
    )
    for offsets in unseen[:most]:
        instance.report_runless_asset_event(landed_event(topic, offsets, coverage, adapters))
    failure = None
    if adapters.settings.has_raw_table and not in_progress:  # else the runs at work append
        failure = try_append(topic.name, adapters.lake, adapters.now_ms, on_step=adapters.watch_step)
    return failure, not (unseen or in_progress or failure)


def _mirror(topic: Topic, coverage: Coverage, adapters: Adapters) -> str | None:
    """Move the consumer group to what is landed, where that is news or a minute is over; return why it failed.

    Again each minute: a run that dies while it moves the group may leave it where it was before.
    """
    told, told_ms = adapters.mirrored.get(topic.name, (None, 0))
    if told is coverage and abs(adapters.now_ms() - told_ms) < MIRROR_SECONDS * 1000:
        return None
    try:
        mirror_frontier(topic.name, topic.group, adapters.lake, adapters.kafka(topic))
    except OffsetlakeError as error:
        adapters.watch_step("mirror_failed", topic=topic.name, reason=str(error))
        return str(error)
    adapters.mirrored[topic.name] = coverage, adapters.now_ms()
    return None


def _report_dangers(
    topic: Topic, found: TopicProgress, instance: dg.DagsterInstance, adapters: Adapters, known: Known
) -> tuple[str, ...]:
    """Report to Dagster the lag, what is lost or may soon be, and what is stalled, each where it is news.

    Return texts on what is stalled.
    """
    ledger, now_ms = found.losses(), adapters.now_ms()
    if not found.hides_losses:
        report_losses(instance, topic, ledger, find_skips(found.coverage), known.last(topic.losses_key))
    since = [each.timestamp_ms for each in found.endangered if each.timestamp_ms is not None]
    waiting_seconds = max(0.0, (now_ms - min(since, default=now_ms)) / 1000)
    of, told = adapters.told_lag.get(topic.name, (None, None))
    if of != known.database:
        told = read_told_lag(instance, topic)
    told = report_lag(instance, topic, find_lag(found.coverage, found.marks), waiting_seconds, now_ms, told)
    adapters.told_lag[topic.name] = known.database, told
    return report_troubles(topic, found, ledger, instance, now_ms, known).violations


def landed_event(topic: Topic, offsets: OffsetRange, coverage: Coverage, adapters: Adapters) -> dg.AssetMaterialization:
    """Return the event of a range that the lake has landed, told to Dagster outside of any run."""
    return materialization(topic, Verdict(offsets, Outcome.ALREADY_LANDED, coverage.manifests[offsets]), adapters)


@dataclass(frozen=True, slots=True)
class DerivedTick:
    """Findings of one tick on a derived table: whether a run has anything to do now, what it waits for, ranges to decode."""

    is_due: bool = False
    waiting: str = ""
    due: tuple[OffsetRange, ...] = ()


def run_derive_tick(topic: Topic, instance: dg.DagsterInstance, adapters: Adapters, known: Known) -> DerivedTick:
    """Run one tick of the decoded table, which tells Dagster of what a crash left untold."""
    coverage = adapters.lake.recent(topic.name)
    found = read_undecoded(topic, coverage, adapters, known)
    version, now_ms = found.decoded.table.version, adapters.now_ms()
    compared = _Compared(known.database, coverage, version, known.last_told(topic.decoded_key), now_ms)
    is_told = compared.is_same(adapters.compared.get(topic.decoded_key))
    if not is_told or topic.days is not None:
        in_progress = read_tries(instance, topic.decoding).in_progress.keys()  # after the table, as above
        if not is_told:
            decoded = found.decoded.of(coverage)
            untold = decoded.keys() - in_progress
            unseen = find_unseen(instance, topic, topic.decoded_key, coverage, lambda each: each in untold)
            for offsets in unseen[: _count_events(known)]:
                report_decoded(topic, decoded[offsets], adapters, instance)
            is_told = not unseen and not in_progress
            if is_told:
                adapters.compared[topic.decoded_key] = compared
        if not in_progress:  # a run that decodes tells of its days
            report_days(topic, instance, adapters)
    landed = adapters.compared.get(topic.asset_key)
    if is_told and landed is not None and landed.database == known.database and landed.coverage is coverage:
        move_frontier(topic, coverage, adapters, found.due)
    due = found.tries.choose_due(found.due, now_ms)
    return DerivedTick(bool(due), found.text(now_ms), tuple(due))


def is_backlog(decoded: DecodedRanges, adapters: Adapters, last_ended_ms: int) -> bool:
    """Return whether an update from decoded ranges had better wait: more are to be decoded, and the last update is recent.

    Else each batch of a backlog would rewrite the same files. It never waits for longer than `BACKLOG_SECONDS`.
    """
    since_ms = last_ended_ms or decoded.sums.first_decoded_ms or 0
    if abs(adapters.now_ms() - since_ms) >= BACKLOG_SECONDS * 1000:  # also where a clock was set back
        return False
    return bool(decoded.find_due(adapters.lake.recent(decoded.topic)))


def rewriting_pause(snapshot: LatestSnapshot | None, last_ended_ms: int, now_ms: int) -> str | None:
    """Return a text where an update is to wait: nearly all files are rewritten, and the replaced ones stay a week."""
    size = sum(snapshot.files.values()) if snapshot is not None and not snapshot.damage else 0
    seconds = min(LONGEST_PAUSE_SECONDS, size / REWRITTEN_PER_SECOND)
    is_early = abs(now_ms - last_ended_ms) < seconds * 1000
    return f"it rewrites the table, and so waits {seconds:.0f} s after the last one" if is_early else None


def report_decoded(topic: Topic, decoding: Decoding, adapters: Adapters, instance: dg.DagsterInstance) -> None:
    """Tell Dagster outside of any run that a range is decoded."""
    instance.report_runless_asset_event(decoded_event(topic, decoding, Decided.ALREADY_DECODED, adapters))


def run_latest_tick(
    topic: Topic, config: Latest, instance: dg.DagsterInstance, adapters: Adapters, known: Known
) -> DerivedTick:
    """Run one tick of the latest table, which waits during an update, after a recent failure, and for a decoding backlog."""
    due = find_due(topic.name, config, adapters.decodings)
    tries, now_ms = known.tries[topic.upserting], adapters.now_ms()
    tried, is_in_progress = tries.of(UPDATE), tries.is_in_progress(UPDATE)
    is_early = is_backlog(due.decoded, adapters, tried.last_ended_ms)
    ranges = due.waiting
    if due.snapshot is not None and not is_in_progress:
        _tell_latest(topic, due.snapshot, instance, adapters, known)
    if not due.has_work:
        return DerivedTick()
    pause = None if tried.attempts else rewriting_pause(due.snapshot, tried.last_ended_ms, now_ms)
    postponed = BACKLOG_FIRST if is_early else backing_off_text([tried], now_ms) or pause
    head = f"{ranges:,} range{'s wait' if ranges != 1 else ' waits'} for an update"
    blocked = why_blocked(known, topic.upserting)
    waiting = pending_text(head, blocked, "updating", in_progress=ranges if is_in_progress else 0, postponed=postponed)
    return DerivedTick(not is_in_progress and postponed is None, waiting)


def _tell_latest(
    topic: Topic, snapshot: LatestSnapshot, instance: dg.DagsterInstance, adapters: Adapters, known: Known
) -> None:
    """Tell Dagster of a version of the latest table that it was not told of: a crash, or a lost database, took the event."""
    event = known.last(topic.latest_key)
    told = event.asset_materialization.metadata.get("table_version") if event and event.asset_materialization else None
    if told is None or told.value != snapshot.version:
        facts = latest_metadata(LatestTable(adapters.lake, topic.name), snapshot, Updated(), 0.0)
        instance.report_runless_asset_event(dg.AssetMaterialization(topic.latest_key, metadata=facts))
