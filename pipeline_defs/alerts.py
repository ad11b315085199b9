"""Alerts: what does not get on, what may be lost, what failed; as log lines, checks and observations, and to people.

Sensors apart from the one that plans and lands, so they speak where that one stands still. Invariant: the same trouble
is told once, and again only where nobody could be reached.
"""

import json
from collections.abc import Mapping, Sequence

import dagster as dg

from .auditing import Finding
from .checks import NOTHING_LOST, report_standing
from .core.errors import OffsetlakeError
from .edges.alerting import send_alert
from .exposure import check_expiry
from .ledger import is_accepted, loss_text
from .progress import read_situation
from .projection import read_reason
from .resources import Edges
from .topics import TOPIC_TAG, Topic, raw_key

WATCH_SECONDS = 60
FAILURE_SECONDS = 15
SHOWN = 20
UNREACHABLE = "unreachable"


def build_watch(topic: Topic) -> dg.SensorDefinition:
    """Builds the sensor that tells of a topic that stalls, or that may lose or has lost records; it runs by default."""

    @dg.sensor(
        name=f"watch_{topic.slug}",
        minimum_interval_seconds=WATCH_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Alerts on `{topic.name}` every minute, also while `plan_and_land_{topic.slug}` is stopped: ranges that fail "
            "again and again, records that wait while nothing lands, transactions that hang, records that the broker soon "
            "deletes or has deleted before they were landed, a broker or lake that does not answer. Each trouble once: in "
            "this sensor's log, as a failed check, and to OFFSETLAKE_ALERT_URLS where that is set."
        ),
    )
    def watch(context: dg.SensorEvaluationContext, edges: dg.ResourceParam[Edges]) -> dg.SensorResult:
        before: dict[str, list[str]] = json.loads(context.cursor or "{}")
        found = find_troubles(topic, edges, context.instance)
        news = [each for each in found if set(each.concerns) - set(before.get(each.check, []))]
        for trouble in news:
            for violation in trouble.violations:
                context.log.error("alert=%s %s", trouble.check, violation)
        undelivered = _tell(f"Offsetlake: {topic.name}", [text for each in news for text in each.violations], edges)
        for url in undelivered:
            context.log.error("alert not delivered to %s; it is tried again", url)
        now = {each.check: list(each.concerns) for each in found}
        if UNREACHABLE in now:
            now = before | now  # of the others nothing is known
        over = ", ".join(sorted(set(before) - set(now)))
        words = f"{len(found)} troubles, {len(news)} of them new{f'; over: {over}' if over else ''}"
        return dg.SensorResult(skip_reason=words, cursor=context.cursor if undelivered else json.dumps(now))

    return watch


def find_troubles(topic: Topic, edges: Edges, instance: dg.DagsterInstance) -> list[Finding]:
    """Finds what of a topic is not well, and tells Dagster's checks; what does not answer is a trouble too."""
    try:
        found = read_situation(topic, edges.lake.coverage(topic.name), edges, instance)
    except OffsetlakeError as error:
        return [Finding(UNREACHABLE, topic.name, (str(error),), concerns=(error.kind,))]
    ledger = found.losses()
    progress = report_standing(topic, found, ledger, instance, edges.now_ms())
    waiting = [loss for loss in ledger if not is_accepted(topic, loss)]
    lost = Finding(
        NOTHING_LOST,
        f"{len(ledger)} losses",
        tuple(loss_text(topic, loss) for loss in waiting),
        concerns=tuple(loss.key for loss in waiting),
    )
    expiry, _ = check_expiry(topic, found.endangered)
    return [each for each in (progress, expiry, lost) if not each.passed]


def build_failure_sensor() -> dg.SensorDefinition:
    """Builds the sensor that tells of each failed run of this code location; it runs by default."""

    @dg.run_failure_sensor(
        name="run_failures",
        minimum_interval_seconds=FAILURE_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Alerts on each failed run, with its reason: in this sensor's log, as an observation of the topic's raw asset, "
            "and to OFFSETLAKE_ALERT_URLS where that is set. Ranges that a failed run has not landed are asked for again by "
            "themselves."
        ),
    )
    def run_failures(context: dg.RunFailureSensorContext, edges: dg.ResourceParam[Edges]) -> None:
        run = context.dagster_run
        reason = read_reason(context.instance, run.run_id)
        text = f"run {run.run_id} of {run.job_name} failed: {reason}"
        context.log.error(text)
        if TOPIC_TAG in run.tags:
            metadata: Mapping[str, str] = {"failed_run": run.run_id, "job": run.job_name, "reason": reason}
            observation = dg.AssetObservation(raw_key(run.tags[TOPIC_TAG]), description=text, metadata=metadata)
            context.instance.report_runless_asset_event(observation)
        for url in _tell(f"Offsetlake: {run.job_name} failed", [text], edges):
            context.log.error("alert of run %s not delivered to %s", run.run_id, url)

    return run_failures


def _tell(title: str, texts: Sequence[str], edges: Edges) -> list[str]:
    """Tells people, where the machine's settings say whom; returns who could not be reached."""
    if not texts or not edges.settings.alert_urls:
        return []
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return send_alert(edges.settings.alert_urls, title, "\n".join([*texts[:SHOWN], *more]))
