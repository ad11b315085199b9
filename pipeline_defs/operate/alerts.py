"""Alerts: what is stalled, what may be lost, what failed; as log lines, checks and observations, and to people.

These sensors are separate from the one that plans and lands, so they speak while that one is stuck. Invariant: each receiver
is told once of a trouble, and once that it is over; one that did not take a message gets it at the next look, no other does.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import dagster as dg

from ..adapters.telemetry.alerting import OVER, receiver_of, send_alert
from ..core.advice import command, some_of
from ..core.errors import OffsetlakeError
from ..core.landing.progress import Seen, see_count, see_version
from ..landing.auditing import Finding
from ..orchestration.assets.checks import report_troubles
from ..orchestration.assets.decoded_checks import DEAD_LETTERS
from ..orchestration.runs.known import Known, read_known
from ..orchestration.runs.ledger import check_expiry, check_losses
from ..orchestration.runs.moments import time_text
from ..orchestration.runs.progress import read_progress
from ..orchestration.runs.projection import read_reason, reasons_in
from ..orchestration.runs.visiting import visit_topics
from ..orchestration.topic_set import Broken
from ..resources import Adapters
from ..topics import LAND_PENDING, NOTHING_LOST, TOPIC_TAG, Topic, raw_key
from .news import read_failed_backfills
from .tables import read_tables, table_text

Watched = tuple[list[Finding], Mapping[str, Seen]]
_UNPLANNED = "unplanned"  # what is seen of a topic that has no plan log yet
WATCH_SECONDS = 60
FAILURE_SECONDS = 15
SHOWN = 20  # texts in one message; those beyond follow with the next look
AGAIN_SECONDS = 3600.0  # for which runs that fail by the same reasons are told once
KEPT = 1_000  # texts, the newest, for a receiver that takes none
UNREACHABLE = "unreachable"
DEFS_YAML = "defs.yaml"  # one that cannot be used
_REASONS_TAG = "offsetlake/failed-by"  # on the failed runs that were told
_SEEN = "seen"  # key in the cursor beside a topic's troubles
_UNTOLD = "/untold"  # key beside the topics, none of which can have this name: what receivers did not take
_GIVEN_UP = "/backfills"  # another such key: ids of failed backfills that were told
Troubles = dict[str, list[str]]  # by check, what they concern


def find_troubles(
    topic: Topic, seen: Mapping[str, Seen], adapters: Adapters, instance: dg.DagsterInstance, known: Known
) -> Watched:
    """Find the troubles of a topic, and report its checks to Dagster.

    Return also what is seen of it now, to be passed as `seen` the next time. A topic without a plan log is given 15 minutes
    from the first look, however old its records are.
    """
    found = read_progress(topic, adapters.lake.recent(topic.name), adapters, known)
    ledger, now_ms = found.losses(), adapters.now_ms()
    progress = report_troubles(topic, found, ledger, instance, now_ms, known)
    lost = replace(check_losses(topic, ledger), check=NOTHING_LOST)
    expiry = check_expiry(topic, found.endangered)
    tables = read_tables(topic, found.coverage, adapters, instance)
    still, aside, now = watch_tables(topic, tables, seen, now_ms)
    findings = [progress, expiry, lost, still, aside]
    if not found.coverage.log.steps:
        now[_UNPLANNED] = see_version(seen.get(_UNPLANNED), 0, now_ms)
        if not now[_UNPLANNED].is_old(now_ms):
            findings.remove(progress)
    return [each for each in findings if not each.passed], now


def watch_tables(
    topic: Topic, tables: Iterable[dict[str, Any]], seen: Mapping[str, Seen], now_ms: int
) -> tuple[Finding, Finding, dict[str, Seen]]:
    """Find derived tables that are broken or stalled, and whether records were set aside lately.

    A table is stalled if this sensor has seen no new version of it for 15 minutes while ranges or days wait. How long they
    have waited does not count: work on a backlog makes new versions.
    """
    still = dict[str, str]()  # by what it concerns
    now = {name: each for name, each in seen.items() if name == DEAD_LETTERS}
    for each in tables:
        table, text = each["table"], f"{topic.name}: {table_text(each, now_ms)}"
        if "error" in each:
            still[f"{table} {each['kind']}"] = text
            continue
        if each.get("waiting_ranges") or each.get("untold_days"):
            now[table] = see_version(seen.get(table), each["version"], now_ms)
            if now[table].is_old(now_ms):
                since = time_text(now[table].since_ms)
                still[table] = f"{text}; nothing has been done since {since}: {_mend(topic, table)}"
        if "dead_letters" in each:
            now[DEAD_LETTERS] = see_count(seen.get(DEAD_LETTERS), each["dead_letters"], now_ms)
    dead = now.get(DEAD_LETTERS)
    aside = (
        f"{topic.name}: {dead.number:,} records could not be decoded, some of them lately: "
        f"`{command('dead-letters', topic.name)}`"
        if dead is not None and dead.number and not dead.is_old(now_ms)
        else ""
    )
    return (
        Finding("tables", topic.name, tuple(still.values()), concerns=tuple(still)),
        Finding(DEAD_LETTERS, topic.name, (aside,) if aside else (), concerns=("risen",) if aside else ()),
        now,
    )


def _mend(topic: Topic, table: str) -> str:
    """Return what to do about a stalled table."""
    by_hand = {
        "raw": command("audit", topic.name),
        "decoded": command("decode", topic.name, "--due"),
        "latest": command("latest", topic.name),
        "days": command("rebuild", topic.name),
    }[table]
    return f"see the runs of {LAND_PENDING}, have its sensor run, or `{by_hand}`"


def build_watch(topics: Sequence[Topic], broken: Sequence[Broken] = ()) -> dg.Definitions:
    """Build the sensor that tells of topics that stall, that may lose or have lost records, or whose defs.yaml is broken.

    None without any.
    """
    unusable = _errors_by_name(topics, broken)

    @dg.sensor(
        name="watch",
        minimum_interval_seconds=WATCH_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Alerts on all topics every minute, also while `{LAND_PENDING}` is stopped: ranges that fail "
            "again and again, records that wait while nothing lands, transactions that hang, records that the broker soon "
            "deletes or has deleted before they were landed, a broker or lake that does not answer, a defs.yaml that cannot be "
            "used, decoded and latest records that stand still, records that could not be decoded. Each trouble once: in this "
            "sensor's log, as a failed check where there is one, and to OFFSETLAKE_ALERT_URLS where that is set, as is the end "
            "of it. A receiver that does not take a message is told it again each minute."
        ),
    )
    def watch(context: dg.SensorEvaluationContext, adapters: dg.ResourceParam[Adapters]) -> dg.SensorResult:
        before = json.loads(context.cursor or "{}")  # by topic
        told = {name: _read_cursor(before.get(name, {})) for name in (*(topic.name for topic in topics), *unusable)}
        known = read_known(context.instance, topics, adapters.now_ms())

        watched = visit_topics(
            topics,
            adapters,
            lambda topic: find_troubles(topic, told[topic.name][1], adapters, context.instance, known),
            lambda topic, error: (_only(UNREACHABLE, topic.name, error), told[topic.name][1]),
        )
        found_of = {topic.name: each for topic, each in zip(topics, watched, strict=True)}
        found_of |= {name: (_only(DEFS_YAML, name, error), told[name][1]) for name, error in unusable.items()}
        cursor, ended, news = dict[str, Any](), defaultdict[str, list[str]](list), list[Sequence[str]]()
        for name in before.keys() - told.keys() - {_UNTOLD, _GIVEN_UP}:  # of topics that are gone, which nobody looks at
            for each in _read_cursor(before[name])[0]:
                ended[each].append(name)
        for name, (found, seen) in found_of.items():
            troubles = told[name][0]
            new = {each.check: _find_new(each, troubles.get(each.check, ())) for each in found}
            for check, violations in new.items():
                for violation in violations:
                    context.log.error("alert=%s topic=%s %s", check, name, violation)
            news += filter(None, new.values())
            now = {each.check: list(each.concerns) for each in found}
            if now.keys() & {UNREACHABLE, DEFS_YAML}:
                now = troubles | now  # of the other troubles nothing is known now
            for each in troubles.keys() - now.keys():
                ended[each].append(name)
            cursor[name] = {**now, _SEEN: {what: astuple(each) for what, each in seen.items()}}
        over = [f"{OVER}{check} of {some_of(sorted(names))}" for check, names in sorted(ended.items())]
        cursor[_GIVEN_UP], given_up = read_failed_backfills(context.instance, lambda: topics, before.get(_GIVEN_UP))
        for text in given_up:
            context.log.error(text)
        # a broker that is down is one text, however many topics it has
        texts = dict.fromkeys([*(text for each in news for text in each), *given_up, *over])
        cursor[_UNTOLD] = _tell_all([*texts], before.get(_UNTOLD, {}), adapters, context)
        said = f"{sum(len(found) for found, _ in found_of.values())} troubles, {len(news)} of them new"
        return dg.SensorResult(skip_reason="; ".join([said, *over]), cursor=json.dumps(cursor))

    return dg.Definitions(sensors=[watch] if topics or unusable else [])


def _errors_by_name(topics: Sequence[Topic], broken: Sequence[Broken]) -> Mapping[str, OffsetlakeError]:
    """Return what is wrong with each broken defs.yaml whose name is no topic's that another file has."""
    names = {topic.name for topic in topics}
    return {each.name: each.error for each in broken if each.name not in names}


def _only(check: str, name: str, error: OffsetlakeError) -> list[Finding]:
    """Return the one finding of a topic that cannot be looked at."""
    return [Finding(check, name, (str(error),), concerns=(error.kind,))]


def _find_new(found: Finding, known: Collection[str]) -> Sequence[str]:
    """Return the violations whose concern is new; where the two are not one to one, all of them if any concern is new."""
    new = [each not in known for each in found.concerns]
    if len(new) != len(found.violations):
        return found.violations if any(new) else ()
    return [violation for violation, is_new in zip(found.violations, new, strict=True) if is_new]


def _tell_all(
    texts: Sequence[str], untold: Mapping[str, Sequence[str]], adapters: Adapters, context: dg.SensorEvaluationContext
) -> dict[str, list[str]]:
    """Tell each receiver what is new and what it did not take before, failed runs too; return what each is still to be told."""
    waiting, runs, bodies = dict[str, list[str]](), dict[str, dict[str, str]](), dict[str, str]()
    for url in adapters.settings.alert_urls:
        waiting[url] = [*dict.fromkeys([*untold.get(receiver_of(url), ()), *texts])][-KEPT:]
        room = SHOWN - len(waiting[url])
        missed = context.instance.get_runs(dg.RunsFilter(tags={_untold_tag(url): "yes"}), limit=room) if room > 0 else []
        runs[url] = {run.run_id: _failure_text(run, read_reason(context.instance, run.run_id)) for run in missed}
        later = [f"{-room} more follow"] if room < 0 else []
        bodies[url] = "\n".join([*waiting[url][:SHOWN], *runs[url].values(), *later])
    undelivered = send_alert("Offsetlake alert", bodies)
    for url in bodies.keys() - undelivered.keys():
        del waiting[url][:SHOWN]
        for run_id in runs[url]:
            context.instance.add_run_tags(run_id, {_untold_tag(url): "no"})
    for said in undelivered.values():
        context.log.error("alert not delivered to %s; it is tried again", said)
    return {receiver_of(url): left for url, left in waiting.items() if left}


def _read_cursor(found: Mapping[str, Any]) -> tuple[Troubles, dict[str, Seen]]:
    """Return the troubles of a topic that were told, and what was seen of its tables."""
    troubles = {name: each for name, each in found.items() if name != _SEEN}
    return troubles, {name: Seen(*each) for name, each in found.get(_SEEN, {}).items()}


def build_failure_sensor() -> dg.SensorDefinition:
    """Build the sensor that tells of each failed run of this code location; it runs by default."""

    @dg.run_failure_sensor(
        name="run_failures",
        minimum_interval_seconds=FAILURE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Alerts on each failed run, with its reason: in this sensor's log, as an observation of the topic's raw asset, "
            "and, once an hour for the same reasons, to OFFSETLAKE_ALERT_URLS where that is set. Ranges that a failed run has "
            "not landed are asked for again by themselves."
        ),
    )
    def run_failures(context: dg.RunFailureSensorContext, adapters: dg.ResourceParam[Adapters]) -> None:
        run = context.dagster_run
        reason = read_reason(context.instance, run.run_id)
        text = _failure_text(run, reason)
        context.log.error(text)
        if TOPIC_TAG in run.tags:
            metadata: Mapping[str, str] = {"failed_run": run.run_id, "job": run.job_name, "reason": reason}
            observation = dg.AssetObservation(raw_key(run.tags[TOPIC_TAG]), description=text, metadata=metadata)
            context.instance.report_runless_asset_event(observation)
        now = context.instance.get_run_by_id(run.run_id)  # a tick that is given up comes again with the same run
        bodies = {url: text for url in adapters.settings.alert_urls if now is None or _untold_tag(url) not in now.tags}
        reasons = {_REASONS_TAG: _digest(reason)}
        if not bodies or _has_failed_so(run, reasons, context.instance):
            return
        undelivered = send_alert(f"Offsetlake: {run.job_name} failed", bodies)
        if now is not None:
            told = {_untold_tag(url): "yes" if url in undelivered else "no" for url in bodies}
            context.instance.add_run_tags(run.run_id, reasons | told)
        for said in undelivered.values():
            context.log.error("alert of run %s not delivered to %s; it is tried again", run.run_id, said)

    return run_failures


def _digest(reason: str) -> str:
    """Return what tells the reasons of failed runs apart, whatever their order, and however much landed beside."""
    return sha256("\n".join(sorted(reasons_in(reason)) or [reason]).encode()).hexdigest()[:16]


def _has_failed_so(run: dg.DagsterRun, reasons: Mapping[str, str], instance: dg.DagsterInstance) -> bool:
    """Return whether a run of this job that failed by the same reasons was told lately: each try of a range fails so."""
    lately = datetime.now(UTC) - timedelta(seconds=AGAIN_SECONDS)
    alike = instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=reasons, created_after=lately), limit=2)
    return any(each.run_id != run.run_id for each in alike)


def _failure_text(run: dg.DagsterRun, reason: str) -> str:
    return f"run {run.run_id} of {run.job_name} failed: {reason}"


def _untold_tag(url: str) -> str:
    """Return the tag that is `yes` on the failed runs of which a receiver is still to be told, and `no` once it was."""
    return f"offsetlake/untold-{receiver_of(url)}"
