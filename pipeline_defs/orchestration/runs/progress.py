"""Whether a topic lands and decodes what arrives: ranges that fail again and again, silence, transactions that do not end.

Found from the lake, the broker and Dagster's runs; the sensor's tick and the check of the audit job ask the same.
Invariants: a topic on which nothing waits has nothing to say; no transaction holds back a topic that is read regardless of
transactions.
"""

import re
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Self

import dagster as dg

from ...adapters.kafka.kafka_transactions import OpenTransaction
from ...core.advice import command, counted
from ...core.landing.dispatch import NEVER_TRIED, STALLED_AFTER_ATTEMPTS, Tried
from ...core.landing.progress import Silence, Unplanned, find_lag, find_silences, patience_seconds
from ...core.log.coverage import Coverage
from ...core.log.losses import Loss, all_losses
from ...core.log.plan_step import Watermarks
from ...core.log.topic_state import refuse_recreated
from ...core.offsets import OffsetRange
from ...landing.auditing import Finding
from ...resources import Adapters
from ...tables.latest import find_due
from ...topics import LAND_PENDING, Topic
from .known import Known
from .ledger import Endangered, read_endangered
from .moments import duration_text, time_text
from .projection import read_reason
from .tries import ALL, UPDATE, Tries
from .waiting import backing_off_text, pending_text, read_undecoded, tail_text, why_blocked

_OF_ONE = re.compile(r"range \S+/\d+ (g\d+ )?\[|^topic \S+: ")  # what a line is about
REASON_LENGTH = 600
REASONS = 100  # failing ranges of a topic that are told with a reason: each is looked for in all reasons of its run


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """Where a topic stands by the lake, the broker and Dagster's runs: what of it waits, for what, and since when.

    `tries` are those of landing each range, `decodings` those of decoding it, `update` those of updating the latest table;
    `active` are the ids of runs that have not ended, `is_served` says that one of them lands all topics, and `blocked` is a
    text on what keeps it from that.
    """

    coverage: Coverage
    marks: Mapping[int, Watermarks]
    leaderless: Sequence[int]
    endangered: Sequence[Endangered]
    transactions: Sequence[OpenTransaction]
    tries: Tries
    decodings: Tries
    update: Tried
    active: Collection[str]
    is_served: bool
    blocked: str

    @property
    def hides_losses(self) -> bool:
        """Whether nobody can say what Kafka has deleted of a range that waits."""
        return any(offsets.partition in self.leaderless for offsets in self.coverage.pending())

    def losses(self) -> list[Loss]:
        """Return the loss ledger as of now, without claims whose run is still at work: those are no loss yet."""
        return [loss for loss in all_losses(self.coverage, self.marks) if loss.offsets not in self.tries.in_progress]


def read_progress(topic: Topic, coverage: Coverage, adapters: Adapters, known: Known) -> TopicProgress:
    """Read where a topic stands now; `known` is what Dagster knows of it.

    Raise `TopicRecreated` or `OtherCluster` where the topic is not the one that was planned.
    """
    seen = adapters.kafka(topic).observe(topic.name, topic.policy.isolation_level)
    refuse_recreated(topic.name, coverage.log.state, seen.topic_id, seen.cluster_id)
    marks, last_ms = seen.watermarks, max(coverage.last_landed().values(), default=None)
    return TopicProgress(
        coverage,
        marks,
        seen.leaderless,
        read_endangered(topic, coverage, marks, adapters),
        read_holding(topic, adapters),
        known.tries[topic.landing],
        *_still_due(topic, coverage, adapters, known),
        {each.dagster_run.run_id for each in known.active},
        adapters.settings.lanes == 1 and any(each.dagster_run.job_name == LAND_PENDING for each in known.active),
        why_blocked(known, topic.landing, last_done_ms=last_ms, done="landed") if coverage.pending() else "",
    )


def _still_due(topic: Topic, coverage: Coverage, adapters: Adapters, known: Known) -> tuple[Tries, Tried]:
    """Return the tries of decoding and of the update, without failures at what has been done since.

    All of them where a table cannot be read, which a run that decodes reports.
    """
    tries, update = known.tries[topic.decoding], known.tries[topic.upserting].of(UPDATE)
    with suppress(Exception):  # no fault of a table is one of landing
        if topic.decode is not None and tries.tried:
            due = read_undecoded(topic, coverage, adapters, known).due
            tries = replace(tries, tried={offsets: tried for offsets, tried in tries.tried.items() if offsets in due})
        if topic.latest is not None and update.attempts:
            latest = find_due(topic.name, topic.latest, adapters.decodings)
            update = NEVER_TRIED if latest.snapshot is not None and not latest.has_work else update
    return tries, update


def waiting_text(topic: Topic, found: TopicProgress, now_ms: int) -> str:
    """Return what of a topic waits, for what and since when; empty where nothing waits."""
    pending = found.coverage.pending()
    if pending:
        since_ms = min(found.coverage.log.ranges[offsets].planned_at_ms for offsets in pending)
        head = f"{counted(len(pending), 'range')} pending since {time_text(since_ms)}"
        in_progress = sum(offsets in found.tries.in_progress for offsets in pending)
        postponed = backing_off_text([found.tries.tried.get(o, NEVER_TRIED) for o in pending], now_ms, found.tries.of(ALL))
        return pending_text(head, found.blocked, "landing", in_progress=in_progress, postponed=postponed)
    records = sum(each.offsets for each in find_lag(found.coverage, found.marks))
    if not records:
        return ""
    oldest_ms = min((each.timestamp_ms for each in found.endangered if each.timestamp_ms is not None), default=None)
    return tail_text(records, oldest_ms, topic.policy.max_age_seconds, now_ms)


def check_progress(
    topic: Topic, found: TopicProgress, instance: dg.DagsterInstance, now_ms: int, *, undecoded: str = ""
) -> Finding:
    """Check that what arrives is landed, and what is derived of it too; a warning where runs are still at work on it.

    `undecoded` is a text on what of it waits to be decoded, which alone is no violation.
    """
    pending = found.coverage.pending()
    failing = _find_failing(topic, found, {*pending})
    concerns = [each.concern for each in failing]
    waiting = {each.partition: Unplanned(each.offset, each.timestamp_ms) for each in found.endangered}
    silent = [
        silence
        for silence in find_silences(found.coverage, waiting, topic.policy.max_age_seconds, now_ms)
        if silence.planned is None or silence.planned.key not in concerns
    ]
    patience = patience_seconds(topic.policy.max_age_seconds)
    holding = [each for each in found.transactions if each.hanging or open_seconds(each, now_ms) > patience]
    reason_of = cache(lambda run_id: read_reason(instance, run_id))
    violations = [
        f"{each.subject} has failed {each.tried.attempts} times in a row since {time_text(each.tried.first_failed_ms)}, "
        f"{each.last_text(reason_of(each.tried.failed_run) if number < REASONS else '')}"
        for number, each in enumerate(failing)
    ]
    violations += [_silent_text(topic, silence, found) for silence in silent]
    violations += [holding_text(topic, each, now_ms) for each in holding]
    violations += [
        f"{topic.name}/{each}: no broker that answers us leads it; what it has is neither planned nor landed until one that "
        "has it is started, or can be reached from here"
        for each in found.leaderless
    ]
    concerns += [each.planned.key if each.planned else f"{each.partition}-{each.offset}-" for each in silent]
    concerns += [f"{each.partition}-{each.first_offset}-" for each in holding]
    concerns += [f"{each}-" for each in found.leaderless]
    facts = {
        "pending_ranges": len(pending),
        "failing_ranges": sum(not each.is_derived for each in failing),
        "failing_of_tables": sum(each.is_derived for each in failing),
        "silent_partitions": len(silent),
        "open_transactions": len(found.transactions),
    }
    is_at_work = all(silence.planned is not None and silence.planned in found.tries.in_progress for silence in silent)
    looked_at = "; ".join(filter(None, (waiting_text(topic, found, now_ms), undecoded))) or "nothing waits"
    is_warning = is_at_work and not (failing or holding or found.leaderless)
    return Finding("progress", looked_at, tuple(violations), facts, tuple(concerns), is_warning=is_warning)


@dataclass(frozen=True, slots=True)
class _Failing:
    """What fails again and again: landing a range, or deriving; a line of a run is about it if it has one of `marks`."""

    subject: str
    concern: str
    marks: tuple[str, ...]
    tried: Tried
    is_derived: bool = False

    @classmethod
    def of_range(cls, topic: Topic, offsets: OffsetRange, tried: Tried, *, is_derived: bool = False) -> Self:
        where, doing = f"range {offsets.text(topic.name)}", "decoding " if is_derived else ""
        marks = where, f"/{topic.name}/{offsets.folder}/{offsets.stem}", f"topic {topic.name}: "
        return cls(f"{doing}{where}", f"{doing}{offsets.key}", marks, tried, is_derived)

    def last_text(self, reason: str) -> str:
        """Return in which run it failed last, and why, without the lines on other ranges and topics that failed there."""
        lines = [line.strip().removeprefix("- ") for line in reason.splitlines()]
        own = [line for line in lines if any(mark in line for mark in self.marks)]
        why = " ".join(own or [line for line in lines if not _OF_ONE.search(line)])[:REASON_LENGTH]
        return f"last in run {self.tried.failed_run[:8]}{f': {why}' if why else ''}"


def _find_failing(topic: Topic, found: TopicProgress, pending: Container[OffsetRange]) -> list[_Failing]:
    """Find what has failed often enough to be told of, once the run has ended that gives the reason at its end."""

    def is_told(tried: Tried) -> bool:
        return tried.is_stalled and (tried.attempts > STALLED_AFTER_ATTEMPTS or tried.failed_run not in found.active)

    landing = [each for each in sorted(found.tries.tried.items()) if each[0] in pending and is_told(each[1])]
    failing = [_Failing.of_range(topic, *each) for each in landing]
    if topic.decode is not None:
        decoding = [each for each in sorted(found.decodings.tried.items()) if is_told(each[1])]
        failing += [_Failing.of_range(topic, *each, is_derived=True) for each in decoding]
    if topic.latest is not None and is_told(found.update):
        table = f"latest/{topic.name}"
        marks = f"topic {topic.name}: ", table
        failing.append(_Failing(f"updating {table}", "updating", marks, found.update, is_derived=True))
    return failing


def held_back(topic: Topic, found: TopicProgress, now_ms: int) -> tuple[str, ...]:
    """Return which open transactions have held the topic back for longer than its records may wait."""
    late = [each for each in found.transactions if open_seconds(each, now_ms) > topic.policy.max_age_seconds]
    return tuple(holding_text(topic, each, now_ms) for each in late)


def why_failed(topic: Topic, found: TopicProgress, instance: dg.DagsterInstance) -> str:
    """Return why the first of the ranges that have failed did so last, and in which run; nothing where none has."""
    for offsets in sorted(found.coverage.pending()):
        tried = found.tries.tried.get(offsets)
        if tried is not None:
            return _Failing.of_range(topic, offsets, tried).last_text(read_reason(instance, tried.failed_run))
    return ""


def _silent_text(topic: Topic, silence: Silence, found: TopicProgress) -> str:
    since = f"waits and nothing of {topic.name}/{silence.partition} has landed since {time_text(silence.since_ms)}"
    if silence.planned is None:
        return (
            f"{topic.name}/{silence.partition}: offset {silence.offset} is in no range, {since}; have the sensor "
            f"{LAND_PENDING} run, or `{command('plan', topic.name, '--apply')}`"
        )
    return f"range {silence.planned.text(topic.name)} {since}: {_why_silent(topic, silence.planned, found)}"


def _why_silent(topic: Topic, offsets: OffsetRange, found: TopicProgress) -> str:
    run, tried = found.tries.in_progress.get(offsets), found.tries.tried.get(offsets)
    if run or found.blocked:
        return "; ".join(filter(None, [f"{run} is landing it" if run else "", found.blocked]))
    failed = f"run {tried.failed_run[:8]} has failed at it, and it is tried again; " if tried else ""
    if found.is_served:
        return f"{failed}the run that is at work lands others first"
    return f"{failed}no run is landing it; have the sensor {LAND_PENDING} run, or `{command('land', topic.name, '--pending')}`"


def read_holding(topic: Topic, adapters: Adapters) -> list[OpenTransaction]:
    """Read the transactions that hold a topic back; the broker is asked for them only where something is held back."""
    if topic.policy.isolation_level != "read_committed":
        return []
    return adapters.kafka(topic).read_open_transactions(topic.name, adapters.now_ms())


def open_seconds(transaction: OpenTransaction, now_ms: int) -> float:
    """Return for how long a transaction is open, 0 where nothing tells."""
    started = now_ms if transaction.started_at_ms is None else transaction.started_at_ms
    return max(0.0, (now_ms - started) / 1000)


def holding_text(topic: Topic, transaction: OpenTransaction, now_ms: int) -> str:
    """Return a transaction in one line: what it holds back, whose it is, since when, and what to do where it hangs."""
    place = f"{topic.name}/{transaction.partition}"
    what = (
        f"{place} is held back at offset {transaction.first_offset} by an open transaction of producer "
        f"{transaction.producer_id} ({transaction.transactional_id or 'no transactional id'}), open for "
        f"{duration_text(open_seconds(transaction, now_ms))} since {time_text(transaction.started_at_ms)}: "
        f"{transaction.held_offsets} offsets wait"
    )
    if transaction.hanging is None:
        return f"{what}; what follows is planned when it ends"
    return (
        f"{what}; it hangs: {transaction.hanging}, so nobody ends it; once its producer is gone, abort it: "
        "kafka-transactions.sh abort --topic "
        f"{topic.name} --partition {transaction.partition} --start-offset {transaction.first_offset}"
    )


def holding_row(topic: Topic, transaction: OpenTransaction, now_ms: int) -> dict[str, Any]:
    """Return a transaction as a document, in words too."""
    text = holding_text(topic, transaction, now_ms)
    return {**asdict(transaction), "open_seconds": open_seconds(transaction, now_ms), "text": text}
