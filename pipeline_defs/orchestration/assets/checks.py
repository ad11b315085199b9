"""Dagster's asset checks of a raw asset: one unpartitioned check per question; metadata names the bad ranges."""

from collections.abc import Callable, Collection
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from ...core.log.losses import Loss
from ...core.offsets import OffsetRange
from ...landing.auditing import Finding, check_completeness, check_published, check_replay, check_tiling
from ...resources import Adapters
from ...topics import NOTHING_LOST, PROGRESS, TIME_TO_LOSS, Topic, op_name
from ..map.page import read_picture, summary, write_page
from ..runs.known import Known, read_known
from ..runs.ledger import check_expiry, check_nothing_lost, read_endangered, read_ledger
from ..runs.moments import DAY_MS
from ..runs.progress import TopicProgress, check_progress, read_progress
from ..runs.projection import CONCERNS, as_evaluation, report_check
from ..runs.tries import read_tries
from ..runs.waiting import undecoded_text
from ..runs.work import logging_failure

REPLAY_RANGES = 1
QUICK = ("tiling", "completeness")  # what every landing run proves again; the rest is the audit job's
MAPPED, PUBLISHED, REPLAY = "coverage_map", "published_digest", "replay"
_ENDED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
Ask = Callable[[Topic, Adapters, dg.AssetCheckExecutionContext], Finding | dg.AssetCheckResult]


def build_checks(topic: Topic) -> list[dg.AssetChecksDefinition]:
    """Build the checks of a topic's landed ranges, losses and progress; sensors report the latter two as well."""
    pools = {REPLAY: topic.landing.pool}
    return [build_check(topic, topic.check_key(name), *each, pools.get(name)) for name, each in _CHECKS.items()]


def audit_keys(topic: Topic) -> list[dg.AssetCheckKey]:
    """Return the keys of all checks that an audit of a topic makes."""
    return [topic.check_key(name) for name in _CHECKS]


def build_check(
    topic: Topic, key: dg.AssetCheckKey, ask: Ask, description: str, pool: str | None = None
) -> dg.AssetChecksDefinition:
    """Build a check of a topic's asset, with an op name that no other topic has.

    Dagster's own name has `_` for each `-` and `.` of the asset's key, so with topics `a-b` and `a_b` the code location would
    not load.
    """
    spec = dg.AssetCheckSpec(key.name, asset=key.asset_key, description=description)

    @dg.multi_asset_check(name=f"{op_name(key.asset_key)}_{key.name}", specs=[spec], pool=pool)
    def check(context: dg.AssetCheckExecutionContext, adapters: dg.ResourceParam[Adapters]) -> dg.AssetCheckResult:
        with logging_failure(context):
            found = ask(topic, adapters, context)
        return as_result(found) if isinstance(found, Finding) else found

    return check


def tiling_of(topic: Topic, adapters: Adapters, in_progress: Collection[OffsetRange], *, is_recent: bool = False) -> Finding:
    """Check that a topic's ranges tile; `in_progress` are ranges that runs are working on."""
    is_newest_first = topic.policy.is_newest_first
    return check_tiling(
        topic.name, adapters.lake, is_newest_first=is_newest_first, is_recent=is_recent, in_progress=in_progress
    )


def check_quickly(topic: Topic, adapters: Adapters, in_progress: Collection[OffsetRange]) -> list[dg.AssetCheckEvaluation]:
    """Return what the `QUICK` checks find now, without what a frontier document sums up."""
    found = [
        tiling_of(topic, adapters, in_progress, is_recent=True),
        check_completeness(topic.name, adapters.lake, is_recent=True),
    ]
    return [evaluation_of(topic.asset_key, finding) for finding in found]


def evaluation_of(asset: dg.AssetKey, finding: Finding) -> dg.AssetCheckEvaluation:
    """Return a finding of a run as the event of that asset's check."""
    return as_evaluation(dg.AssetCheckKey(asset, finding.check), as_result(finding))


def report_troubles(
    topic: Topic, found: TopicProgress, ledger: list[Loss], instance: dg.DagsterInstance, now_ms: int, known: Known
) -> Finding:
    """Report to Dagster, outside of any run, what is lost, what may soon be and what is stalled, each where it is news.

    Returns the finding on what is stalled. While nobody can say what is lost, what was told of it stands.
    """
    progress = check_progress(topic, found, instance, now_ms)
    losses = [] if found.hides_losses else [check_nothing_lost(topic, ledger), check_expiry(topic, found.endangered)]
    for finding in (*losses, progress):
        key = topic.check_key(finding.check)
        report_check(instance, key, as_result(finding), known.checks.get(key))
    return progress


def _ask_expiry(topic: Topic, adapters: Adapters, _: dg.AssetCheckExecutionContext) -> Finding:
    marks = adapters.kafka(topic).read_watermarks(topic.name, topic.policy.isolation_level)
    return check_expiry(topic, read_endangered(topic, adapters.lake.recent(topic.name), marks, adapters))


def _ask_progress(topic: Topic, adapters: Adapters, context: dg.AssetCheckExecutionContext) -> Finding:
    coverage = adapters.lake.recent(topic.name)
    known = read_known(context.instance, [topic], adapters.now_ms())
    found = read_progress(topic, coverage, adapters, known)
    undecoded = undecoded_text(topic, coverage, adapters, known)
    return check_progress(topic, found, context.instance, adapters.now_ms(), undecoded=undecoded)


def _ask_published(topic: Topic, adapters: Adapters, context: dg.AssetCheckExecutionContext) -> Finding:
    night, doubted = adapters.now_ms() // DAY_MS, read_doubted(context.instance, topic.check_key(PUBLISHED))
    return check_published(topic.name, adapters.lake, night=night, doubted=doubted)


def read_doubted(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> list[str]:
    """Return the keys that the last result of a check named: if the next night left them out, it would say all is well."""
    for last in instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=_ENDED):
        told = last.event.dagster_event if last.event else None
        if told and (named := told.asset_check_evaluation_data.metadata.get(CONCERNS)):
            return str(named.value).split(", ")
    return []


def _ask_replay(topic: Topic, adapters: Adapters, context: dg.AssetCheckExecutionContext) -> Finding:
    run_id, tools = context.run.run_id, adapters.tools(topic, adapters.pyspark())
    return check_replay(topic.name, tools, sample=REPLAY_RANGES, seed=run_id, run_id=run_id)


def _draw(topic: Topic, adapters: Adapters, context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    picture, remark = read_picture(topic, adapters, context.instance)
    file = adapters.settings.home / "maps" / f"{topic.name}.html"  # on the machine that the audit runs on
    write_page(picture, remark, adapters.now_ms(), file)
    metadata: dict[str, dg.MetadataValue[Any]] = {
        "map": dg.MetadataValue.path(str(file)),
        "coverage": dg.MetadataValue.md(summary(picture)),
        "ranges": dg.MetadataValue.int(len(picture.lengths)),
    }
    if adapters.settings.pages_url:
        metadata["open_the_map"] = dg.MetadataValue.url(f"{adapters.settings.pages_url}/map/{topic.name}")
    return dg.AssetCheckResult(passed=True, metadata=metadata | ({"remark": dg.MetadataValue.text(remark)} if remark else {}))


_CHECKS: dict[str, tuple[Ask, str]] = {
    "tiling": (
        lambda topic, adapters, context: tiling_of(topic, adapters, read_tries(context.instance, topic.landing).in_progress),
        "No gap and no overlap over all history, from the first link to the head.",
    ),
    "completeness": (
        lambda topic, adapters, _: check_completeness(topic.name, adapters.lake),
        "rows + holes + lost = end - start for every landed range.",
    ),
    REPLAY: (_ask_replay, f"Reading {REPLAY_RANGES} landed range again from Kafka, drawn at random, gives the same rows."),
    PUBLISHED: (
        _ask_published,
        "Every published file has the sha256 that its manifest names; of a large topic not all of them are read each night.",
    ),
    NOTHING_LOST: (
        lambda topic, adapters, _: check_nothing_lost(topic, read_ledger(topic, adapters)),
        "No offset was deleted by the broker before it was landed; names those that were, and who accepted it.",
    ),
    TIME_TO_LOSS: (
        _ask_expiry,
        "What is not landed will be kept for long enough: a warning at half, an error at a quarter of the time.",
    ),
    PROGRESS: (
        _ask_progress,
        "What arrives is landed, and decoded: no range fails again and again, nothing waits in silence, no transaction hangs.",
    ),
    MAPPED: (
        _draw,
        "Draws what is landed, planned, failed or lost: a bar per Kafka partition here, and an HTML file to look closely.",
    ),
}


def as_result(finding: Finding) -> dg.AssetCheckResult:
    """Return a finding as Dagster shows it: what was looked at, how much, and the first 100 violations."""
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
