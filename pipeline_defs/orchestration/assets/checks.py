"""Dagster's asset checks of a raw asset: one unpartitioned check per question; metadata names the bad ranges."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster_pyspark import LazyPySparkResource

from ...adapters.lake.lake import Lake
from ...core.log.losses import Loss
from ...core.offsets import OffsetRange
from ...landing.auditing import Finding, check_completeness, check_published, check_replay, check_tiling
from ...resources import Edges
from ...topics import NOTHING_LOST, PROGRESS, TIME_TO_LOSS, Topic
from ..map.page import read_picture, summary, write_page
from ..runs.known import Known, read_known
from ..runs.ledger import check_expiry, check_nothing_lost, read_endangered, read_ledger
from ..runs.moments import DAY_MS
from ..runs.progress import Situation, check_progress, read_situation
from ..runs.projection import CONCERNS, report_check
from ..runs.tries import read_tries
from ..runs.waiting import undecoded_text

REPLAY_RANGES = 1
QUICK = ("tiling", "completeness")  # what every landing run proves again; the rest is the audit job's
MAPPED, PUBLISHED, REPLAY = "coverage_map", "published_digest", "replay"
_ENDED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
Question = Callable[[Edges, dg.DagsterInstance], dg.AssetCheckResult]
_Held = Collection[OffsetRange]
_LAKE_CHECKS: dict[str, tuple[Callable[[Topic, Lake, _Held, bool], Finding], str]] = {
    "tiling": (
        lambda topic, lake, held, is_recent: check_tiling(
            topic.name, lake, is_newest_first=topic.policy.is_newest_first, is_recent=is_recent, held=held
        ),
        "No gap and no overlap over all history, from the first link to the head.",
    ),
    "completeness": (
        lambda topic, lake, _, is_recent: check_completeness(topic.name, lake, is_recent=is_recent),
        "rows + holes + lost = end - start for every landed range.",
    ),
}


def build_checks(topic: Topic) -> list[dg.AssetChecksDefinition]:
    """Build the checks of a topic's landed ranges, and of what is around them, which the sensors tell of too."""

    def of_lake(name: str) -> Question:
        return lambda edges, instance: lake_result(topic, name, edges, held=read_tries(instance, topic.landing).held)

    lake = [build_check(topic.check_key(name), text, of_lake(name)) for name, (_, text) in _LAKE_CHECKS.items()]
    standing = [build_check(topic.check_key(name), text, partial(ask, topic)) for name, (ask, text) in _STANDING_CHECKS.items()]
    return [*lake, _replay_check(topic), *standing]


def audit_keys(topic: Topic) -> list[dg.AssetCheckKey]:
    """Return the keys of all checks that an audit of a topic makes."""
    return [topic.check_key(name) for name in (*_LAKE_CHECKS, REPLAY, *_STANDING_CHECKS)]


def report_standing(
    topic: Topic, found: Situation, ledger: list[Loss], instance: dg.DagsterInstance, now_ms: int, known: Known
) -> Finding:
    """Tell Dagster outside of any run what is lost, what soon may be and what does not get on, each where it is news.

    Returns what does not get on.
    """
    progress = check_progress(topic, found, instance, now_ms)
    for name, finding in (
        (NOTHING_LOST, check_nothing_lost(topic, ledger)),
        (TIME_TO_LOSS, check_expiry(topic, found.endangered)),
        (PROGRESS, progress),
    ):
        key = topic.check_key(name)
        report_check(instance, key, as_result(finding), known.checks.get(key))
    return progress


def _ask_expiry(topic: Topic, edges: Edges, _: dg.DagsterInstance) -> dg.AssetCheckResult:
    marks = edges.kafka(topic).read_watermarks(topic.name, topic.policy.isolation_level)
    return as_result(check_expiry(topic, read_endangered(topic, edges.lake.recent(topic.name), marks, edges)))


def _ask_progress(topic: Topic, edges: Edges, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    coverage = edges.lake.recent(topic.name)
    known = read_known(instance, [topic], edges.now_ms())
    found = read_situation(topic, coverage, edges, known)
    undecoded = undecoded_text(topic, coverage, edges, known)
    return as_result(check_progress(topic, found, instance, edges.now_ms(), undecoded=undecoded))


def _ask_published(topic: Topic, edges: Edges, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    """Ask tonight's part of the files, and again what the last result named: no night after it says that all is well."""
    storage, key = instance.event_log_storage, topic.check_key(PUBLISHED)
    doubted = ""
    for last in storage.get_asset_check_execution_history(key, limit=1, status=_ENDED):
        told = last.event.dagster_event if last.event else None
        if told and (named := told.asset_check_evaluation_data.metadata.get(CONCERNS)):
            doubted = str(named.value)
    night = edges.now_ms() // DAY_MS
    return as_result(check_published(topic.name, edges.lake, night=night, doubted=doubted.split(", ")))


def _draw(topic: Topic, edges: Edges, instance: dg.DagsterInstance) -> dg.AssetCheckResult:
    picture, remark = read_picture(topic, edges, instance)
    file = edges.settings.home / "maps" / f"{topic.name}.html"  # on the machine that the audit runs on
    write_page(picture, remark, edges.now_ms(), file)
    metadata: dict[str, dg.MetadataValue[Any]] = {
        "map": dg.MetadataValue.path(str(file)),
        "coverage": dg.MetadataValue.md(summary(picture)),
        "ranges": dg.MetadataValue.int(len(picture.lengths)),
    }
    if edges.settings.pages_url:
        metadata["open_the_map"] = dg.MetadataValue.url(f"{edges.settings.pages_url}/map/{topic.name}")
    return dg.AssetCheckResult(passed=True, metadata=metadata | ({"remark": dg.MetadataValue.text(remark)} if remark else {}))


_STANDING_CHECKS: dict[str, tuple[Callable[[Topic, Edges, dg.DagsterInstance], dg.AssetCheckResult], str]] = {
    PUBLISHED: (
        _ask_published,
        "Every published file has the sha256 that its manifest names; of a large topic not all of them are read each night.",
    ),
    NOTHING_LOST: (
        lambda topic, edges, _: as_result(check_nothing_lost(topic, read_ledger(topic, edges))),
        "No offset was deleted by the broker before it was landed; names those that were, and who accepted it.",
    ),
    TIME_TO_LOSS: (
        _ask_expiry,
        "What is not landed will be kept for long enough: a warning at half, an error at a quarter of the time.",
    ),
    PROGRESS: (
        _ask_progress,
        "What arrives is landed: no range fails again and again, nothing waits while nothing lands, no transaction hangs.",
    ),
    MAPPED: (
        _draw,
        "Draws what is landed, planned, failed or lost: a bar per Kafka partition here, and an HTML file to look closely.",
    ),
}


def build_check(key: dg.AssetCheckKey, description: str, ask: Question) -> dg.AssetChecksDefinition:
    """Build a check of an asset."""

    @dg.asset_check(asset=key.asset_key, name=key.name, description=description)
    def check(context: dg.AssetCheckExecutionContext, edges: dg.ResourceParam[Edges]) -> dg.AssetCheckResult:
        return ask(edges, context.instance)

    return check


def lake_result(topic: Topic, name: str, edges: Edges, *, held: _Held, is_recent: bool = False) -> dg.AssetCheckResult:
    """Return what one of the checks of the lake finds now; `is_recent` leaves out what a frontier document sums up.

    `held` are ranges that runs are at.
    """
    question, _ = _LAKE_CHECKS[name]
    return as_result(question(topic, edges.lake, held, is_recent))


def _replay_check(topic: Topic) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=topic.asset_key,
        name=REPLAY,
        description=f"Reading {REPLAY_RANGES} landed range again from Kafka, drawn at random, gives the same rows.",
        pool=topic.landing.pool,
    )
    def replay(
        context: dg.AssetCheckExecutionContext, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> dg.AssetCheckResult:
        tools = edges.tools(topic, pyspark)
        return as_result(
            check_replay(topic.name, tools, sample=REPLAY_RANGES, seed=context.run.run_id, run_id=context.run.run_id)
        )

    return replay


def as_result(finding: Finding) -> dg.AssetCheckResult:
    """Show a finding: what was looked at, how much, and each violation with its offsets."""
    shown = finding.violations[:100]
    more = f" (and {len(finding.violations) - 1} more)" if len(shown) > 1 else ""
    return dg.AssetCheckResult(
        passed=finding.passed,
        severity=dg.AssetCheckSeverity.WARN if finding.is_warning else dg.AssetCheckSeverity.ERROR,
        description=f"{shown[0]}{more}" if shown else None,  # what the UI shows without a click
        metadata={
            "looked_at": finding.looked_at,
            **finding.facts,
            "violations": len(finding.violations),
            **({CONCERNS: ", ".join(finding.concerns[:100])} if finding.concerns else {}),
            **({"offsets": dg.MetadataValue.md("\n".join(f"- {text}" for text in shown))} if shown else {}),
        },
    )
