"""`offsetlake sql`, `trace` and `audit`: what the lake says, where a record came from, whether it all holds."""

from functools import partial
from typing import Any

import click

from ...adapters.tables.delta_log import raw_table_log
from ...adapters.tables.duck import Duck
from ...core.advice import counted
from ...landing.auditing import Finding, check_completeness, check_published, check_replay, check_table, check_tiling, looked
from ...operate.reports import NOT_ASKED, check_broker, trace_row
from ...operate.status import find_instance
from ...orchestration.assets.decoded_checks import COMPLETENESS, DIGEST, check_decoded, check_decoded_files
from ...orchestration.assets.latest_asset import RECOMPUTED, check_share, share_of
from ...orchestration.runs.ledger import check_losses, read_ledger
from ...orchestration.runs.moments import time_text
from ...orchestration.runs.tries import read_tries
from ...resources import Adapters
from ...topic_files import load_topics
from ...topics import Topic
from ..show import cell, find_topic, json_option, open_adapters, print_json, print_table, topic_argument
from ..terminal import ERRORS, OUT, Shown, progress, styled

MOST_ROWS = 1_000  # of a table: Rich takes 8 ms for each


@click.command()
@click.argument("statement")
@json_option
def sql(statement: str, as_json: bool) -> None:
    """Ask the lake in DuckDB's SQL: a view per topic, plus `ranges` and `losses`.

    One statement that reads: SELECT, FROM, WITH, DESCRIBE, SHOW or SUMMARIZE. It reaches no file outside of the lake. Columns
    of one name are told apart: `a`, `a_1`. A table shows 1,000 rows; --json prints all, bytes that are not UTF-8 in base64,
    NaN and the infinities as text.

    \b
    Examples:
      offsetlake sql "SELECT count(*) FROM flights"
      offsetlake sql "SELECT state, count(*), sum(rows) FROM ranges GROUP BY ALL"
    """
    with progress("asking DuckDB"):
        duck = Duck(open_adapters().lake, load_topics().names)
        columns, rows = duck.ask(statement, None if as_json else MOST_ROWS + 1)
    for reason in duck.find_left_out(statement):
        ERRORS.print(f"note: {reason}", soft_wrap=True)
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        shown = rows[:MOST_ROWS]
        print_table(counted(len(shown), "row"), columns, shown)
        if len(rows) > len(shown):
            ERRORS.print("note: there are more rows, which --json prints", soft_wrap=True)


@click.command()
@topic_argument
@click.argument("kafka_partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--generation", type=click.IntRange(min=0), help="Incarnation of the topic; by default the open one.")
@json_option
def trace(topic: str, kafka_partition: int, offset: int, generation: int | None, as_json: bool) -> None:
    """Follow one record back: row, file, range, run, attempt, code version, plan step.

    \b
    Example:
      offsetlake trace flights 0 12345
    """
    with progress(f"following {topic}/{kafka_partition} offset {offset}"):
        answer = trace_row(find_topic(topic), kafka_partition, offset, open_adapters(), generation)
    if as_json:
        print_json(answer)
        return
    print_fields(answer)


def print_fields(fields: dict[str, Any], prefix: str = "") -> None:
    """Print a line per field; the fields of a nested document get its name as prefix."""
    width = len(prefix) + max(14, *map(len, fields))
    for name, value in fields.items():
        if isinstance(value, dict):
            print_fields(value, f"{prefix}{name}.")
            continue
        is_time, is_number = name.endswith("_ms"), type(value) is int  # no commas: to be typed to another command
        text = time_text(value) if is_time else str(value) if is_number else cell(value)
        OUT.print(f"{prefix + name.removesuffix('_ms'):>{width}}  {text}", soft_wrap=True)


@click.command()
@topic_argument
@click.option("--replay", default="1", metavar="N|all|none", show_default=True, help="Landed ranges to read again.")
@click.option("--seed", default="0", show_default=True, help="Which ranges the replay draws.")
@json_option
def audit(topic: str, replay: str, seed: str, as_json: bool) -> None:
    """Prove it: every check of TOPIC from the lake and the broker. Exit code 1 on any violation.

    \b
    Examples:
      offsetlake audit flights
      offsetlake audit flights --replay all --json
    """
    if replay not in {"all", "none"} and not (replay.isascii() and replay.isdigit() and len(replay) < 10):
        raise click.BadParameter(f"expected how many ranges, all or none, found {replay!r}", param_hint="--replay")
    configured, adapters = find_topic(topic), open_adapters()
    with progress(f"auditing {topic}") as shown:
        adapters.watch_step = shown.watching()
        findings = run_audit(configured, adapters, replay, seed, shown)
    if as_json:
        print_json(
            [
                {"check": f.check, "passed": f.passed, "looked_at": f.looked_at, "facts": f.facts, "violations": f.violations}
                for f in findings
            ]
        )
    else:
        print_findings(topic, findings)
    if not all(finding.passed for finding in findings):
        raise SystemExit(1)


def run_audit(topic: Topic, adapters: Adapters, replay: str, seed: str, shown: Shown) -> list[Finding]:
    """Run every check of a topic, and show the progress."""
    with find_instance(adapters.settings.dagster_home) as instance:
        in_progress = read_tries(instance, topic.landing).in_progress
    findings = [
        check_tiling(topic.name, adapters.lake, is_newest_first=topic.policy.is_newest_first, in_progress=in_progress),
        check_completeness(topic.name, adapters.lake),
    ]
    shown.begin(f"digests of {topic.name}")
    findings.append(check_published(topic.name, adapters.lake, shown.update))
    if adapters.settings.has_raw_table:
        findings.append(looked("raw_table", lambda: check_table(topic.name, adapters.lake, in_progress)))
    elif adapters.lake.store.list(raw_table_log(topic.name, adapters.lake.store).folder):
        findings.append(looked("raw_table", lambda: _find_frozen(topic.name, adapters)))
    if topic.decode is not None:
        findings.append(looked(COMPLETENESS, lambda: check_decoded(topic, adapters)))
        findings.append(looked(DIGEST, lambda: check_decoded_files(topic, adapters)))
    if topic.latest is not None:
        compare = partial(check_share, topic.name, topic.latest, share_of(seed), adapters.latest_tools(), may_wait=True)
        findings.append(looked(RECOMPUTED, compare))
    shown.begin(f"broker and losses of {topic.name}")
    findings.append(looked("broker", lambda: check_broker(topic, adapters)))
    is_asked = findings[-1].looked_at != NOT_ASKED
    findings.append(looked("losses", lambda: check_losses(topic, read_ledger(topic, adapters, is_asked=is_asked))))
    if replay in {"none", "0"}:
        return findings
    if not findings[0].passed:
        reason = f"nothing was read again: {topic.name} does not tile, so no range of it is certain; see `tiling` first"
        findings.append(Finding("replay", "nothing", (reason,)))
    elif not is_asked:
        findings.append(Finding("replay", "nothing", ("nothing was read again: see `broker`",)))
    else:
        tools = adapters.tools(topic, adapters.pyspark())
        shown.begin(f"reading {topic.name} again")
        sample = None if replay == "all" else int(replay)
        findings.append(check_replay(topic.name, tools, sample=sample, seed=seed, progress=shown.update))
    return findings


def _find_frozen(topic: str, adapters: Adapters) -> Finding:
    """Say that nobody appends to a raw table which is there."""
    version = raw_table_log(topic, adapters.lake.store).read_head().version
    said = f"the raw table stays at version {version}, as OFFSETLAKE_RAW_TABLE is off: set it to on"
    return Finding("raw_table", f"version {version}", (said,))


def print_findings(topic: str, findings: list[Finding]) -> None:
    """Print one line per check, then every violation, each once: one broken object fails several checks."""
    rows = [
        (
            finding.check,
            "ok" if finding.passed else "VIOLATED",
            finding.looked_at,
            ", ".join(f"{name} {count:,}" for name, count in finding.facts.items()),
        )
        for finding in findings
    ]
    print_table(f"audit of {topic}", ["check", "result", "looked at", "found"], rows)
    checks: dict[str, list[str]] = {}
    for finding in findings:
        for violation in finding.violations:
            checks.setdefault(violation, []).append(finding.check)
    for violation, names in checks.items():
        OUT.print(styled((", ".join(names), "red"), f": {violation}"), soft_wrap=True)
