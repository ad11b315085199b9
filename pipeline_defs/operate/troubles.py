"""Troubles of a topic: what does not get on, what may be lost or is, what could not be decoded."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from ..core.advice import command
from ..core.landing.progress import Seen, see_count, see_version
from ..landing.auditing import Finding
from ..orchestration.assets.checks import report_standing
from ..orchestration.assets.decoded_checks import DEAD_LETTERS
from ..orchestration.runs.exposure import check_expiry
from ..orchestration.runs.known import Known
from ..orchestration.runs.ledger import check_losses
from ..orchestration.runs.moments import time_text
from ..orchestration.runs.progress import read_situation
from ..resources import Edges
from ..topics import LAND_PENDING, NOTHING_LOST, Topic
from .tables import read_tables, table_text

Watched = tuple[list[Finding], Mapping[str, Seen]]
_UNPLANNED = "unplanned"  # what is seen of a topic that has no plan log yet


def find_troubles(topic: Topic, seen: Mapping[str, Seen], edges: Edges, instance: dg.DagsterInstance, known: Known) -> Watched:
    """Find what of a topic is not well, and tell Dagster's checks.

    Return too what is seen of it now, to be given as `seen` the next time. A topic that nobody has planned yet is given 15
    minutes from the first look, however old its records are.
    """
    found = read_situation(topic, edges.lake.recent(topic.name), edges, known)
    ledger, now_ms = found.losses(), edges.now_ms()
    progress = report_standing(topic, found, ledger, instance, now_ms, known)
    lost = replace(check_losses(topic, ledger), check=NOTHING_LOST)
    expiry = check_expiry(topic, found.endangered)
    tables = read_tables(topic, found.coverage, edges, instance)
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
    """Find derived tables that are broken, or stand still with something to do, and whether records were set aside lately.

    A table stands still that has had one version for 15 minutes, as this sensor sees it, while ranges or days wait: however
    long they have waited before, whoever works off a backlog makes versions.
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
    """Return what to do about a table that stands still."""
    by_hand = {
        "raw": command("audit", topic.name),
        "decoded": command("decode", topic.name, "--due"),
        "latest": command("latest", topic.name),
        "days": command("rebuild", topic.name),
    }[table]
    return f"see the runs of {LAND_PENDING}, have its sensor run, or `{by_hand}`"
