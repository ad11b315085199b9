"""Dagster as a projection of the lake: keys, materialisations, and which runs hold or failed which ranges.

The lake decides, always: what Dagster lacks is given to it, in log order, and everything in its database can be
deleted at any time. Invariant: nothing here is written to the lake.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dagster as dg
import stamina
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecord
from dagster._core.storage.tags import PARTITION_NAME_TAG
from dagster_shared.error import SerializableErrorInfo
from sqlalchemy.exc import IntegrityError

from ...core.advice import command
from ...core.errors import BadKey
from ...core.landing.progress import PartitionLag, Told, is_lag_news
from ...core.landing.selection import retired
from ...core.log.coverage import Coverage
from ...core.log.losses import Loss, Skip
from ...core.offsets import OffsetRange, parse_key
from ...topics import Duty, Topic

KEYS_AT_ONCE = 5_000  # SQLite's limit on variables is above 10,000
SHOWN_PARTITIONS, SHOWN_LOSSES = 100, 100
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
CONCERNS = "concerns"  # of a check's metadata: another value is news, even where the result is the same
ACTIVE = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]
_MACHINES = {f"dagster/{name}" for name in ("sensor_name", "schedule_name", "auto_materialize", "from_automation_condition")}
FAILED = [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
_MATERIALIZED, _PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
# events that may say why a run failed
_TOLD = {
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.ENGINE_EVENT,
    dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterEventType.RUN_CANCELED,
}


# two processes that register the same key at once: the second one finds what the first one has written
@stamina.retry(on=IntegrityError, attempts=5, wait_initial=0.05, wait_max=1.0)
def register_keys(
    instance: dg.DagsterInstance,
    topic: Topic,
    coverage: Coverage,
    wanted: Collection[OffsetRange] = (),
    read_whole: Callable[[], Coverage] | None = None,
) -> int:
    """Register the keys that the log has and Dagster lacks, in log order; return how many.

    Retired keys stay away, unless they are `wanted` again. Where Dagster lacks all keys, its database was lost: then the whole
    history, from `read_whole`, is registered, as keys before a frontier document would later come out of order for ever.
    """
    away = retired(coverage, topic.max_keys) - set(wanted)
    due = [offsets.key for offsets in coverage.log.ranges if offsets not in away]
    known = instance.get_existing_dynamic_partitions(topic.ranges_name, due)
    lacking = [key for key in due if key not in known]
    if read_whole is not None and coverage.log.base is not None and lacking == due:
        return register_keys(instance, topic, read_whole(), wanted)
    for at in range(0, len(lacking), KEYS_AT_ONCE):
        instance.add_dynamic_partitions(topic.ranges_name, lacking[at : at + KEYS_AT_ONCE])
    return len(lacking)


def forget_unplanned(instance: dg.DagsterInstance, topic: Topic, read_whole: Callable[[], Coverage]) -> Coverage:
    """Delete Dagster's keys that no step of the plan log has: somebody typed them between those of ranges.

    The whole history is returned; it is read after the keys, so it has what was planned meanwhile. Where it is summed up by
    now, nothing is deleted.
    """
    keys, coverage = instance.get_dynamic_partitions(topic.ranges_name), read_whole()
    for key in {*keys} - {offsets.key for offsets in coverage.log.ranges} if coverage.log.base is None else ():
        instance.delete_dynamic_partition(topic.ranges_name, key)
    return coverage


def find_unseen(
    instance: dg.DagsterInstance, topic: Topic, key: dg.AssetKey, coverage: Coverage, is_done: Callable[[OffsetRange], bool]
) -> list[OffsetRange]:
    """Find ranges that are done and that Dagster does not show as such, after a crash, a lost database or a failed run."""
    away = retired(coverage, topic.max_keys)
    return find_untold(instance, key, [each for each in coverage.log.ranges if each not in away and is_done(each)])


def find_untold(instance: dg.DagsterInstance, key: dg.AssetKey, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Find which of some ranges Dagster does not show as materialised; it is asked about these alone.

    Some have no materialisation; others are red, since a run that was to read them again has failed after it.
    """
    storage, untold = instance.event_log_storage, list[OffsetRange]()
    for at in range(0, len(ranges), KEYS_AT_ONCE):
        some = {offsets.key for offsets in ranges[at : at + KEYS_AT_ONCE]}
        told, planned = (storage.get_latest_storage_id_by_partition(key, kind, some) for kind in (_MATERIALIZED, _PLANNED))
        hidden = {name: number for name, number in planned.items() if name in told and number > told[name]}
        red = _find_red(instance, key, hidden) if hidden else set()
        untold += [each for each in ranges[at : at + KEYS_AT_ONCE] if each.key not in told or each.key in red]
    return untold


def _find_red(instance: dg.DagsterInstance, key: dg.AssetKey, hidden: Mapping[str, int]) -> set[str]:
    """Find the partitions whose last run has ended; `hidden` gives the storage id of the event that planned each."""
    storage = instance.event_log_storage
    before = min(hidden.values()) - 1  # of a long history nothing else is read
    tried = storage.get_latest_asset_partition_materialization_attempts_without_materializations(key, before)
    active = {run.run_id for run in instance.get_runs(RunsFilter(statuses=ACTIVE))}
    return {partition for partition in hidden if partition in tried and tried[partition][0] not in active}


def read_data_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str | None]:
    """Read the last data version of each partition that was materialised; none where it was told without one."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, [DATA_VERSION_TAG]
    )
    return {partition: found.get(DATA_VERSION_TAG) for partition, found in tags.items()}


def report_losses(
    instance: dg.DagsterInstance, topic: Topic, losses: Sequence[Loss], skips: Sequence[Skip], told: dg.EventLogEntry | None
) -> None:
    """Report losses and skips, where they are not what Dagster was `told` last."""
    before = told.asset_materialization.metadata.get("ledger_sha256") if told and told.asset_materialization else None
    texts = [*(loss.text(topic.name) for loss in losses), *(skip.text(topic.name) for skip in skips)]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest() if texts else ""
    if (before.value if before else "") == digest:
        return
    # telling the whole ledger each time would make the database grow with its square
    more = [f"{len(texts) - SHOWN_LOSSES:,} more: `{command('losses', topic.name)}`"] if len(texts) > SHOWN_LOSSES else []
    metadata: Mapping[str, Any] = {
        "lost_offsets": sum(len(loss.offsets) for loss in losses),
        "losses": len(losses),
        "skipped_offsets": sum(len(skip.offsets) for skip in skips),
        "ledger": dg.MetadataValue.md("\n".join(f"- {text}" for text in [*texts[-SHOWN_LOSSES:], *more])),
        "ledger_sha256": digest,
    }
    instance.report_runless_asset_event(dg.AssetMaterialization(topic.losses_key, metadata=metadata))


def read_told_lag(instance: dg.DagsterInstance, topic: Topic) -> Told | None:
    """Read the lag that was noted last; none where none was."""
    latest = next(iter(instance.fetch_observations(topic.source_key, limit=1).records), None)
    if latest is None or latest.asset_observation is None:
        return None
    told = latest.asset_observation.metadata
    with suppress(KeyError, ValueError):  # somebody else's: Dagster takes observations from anybody
        lag, end = (int(str(told[name].value)) for name in ("lag", "end_offset"))
        return Told(lag, end, int(latest.timestamp * 1000))
    return None


def report_lag(
    instance: dg.DagsterInstance,
    topic: Topic,
    lags: Sequence[PartitionLag],
    waiting_seconds: float,
    now_ms: int,
    told: Told | None,
) -> Told | None:
    """Note the lag on the Kafka topic's asset, where it is news; return what is told by then."""
    lag, end_offset = sum(each.offsets for each in lags), sum(each.end for each in lags)
    if not is_lag_news(told, lag, end_offset, now_ms):
        return told
    rows = [f"| {each.partition} | {each.landed:,} | {each.end:,} | {each.offsets:,} |" for each in lags[:SHOWN_PARTITIONS]]
    metadata: dict[str, Any] = {
        "lag": lag,
        "lag_seconds": round(waiting_seconds, 3),
        "end_offset": end_offset,
        "partitions": dg.MetadataValue.md(
            "\n".join(["| Kafka partition | landed to | end | lag |", "|---|---|---|---|", *rows])
        ),
    }
    instance.report_runless_asset_event(dg.AssetObservation(topic.source_key, metadata=metadata))
    return Told(lag, end_offset, now_ms)


def report_check(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, result: dg.AssetCheckResult, latest: AssetCheckExecutionRecord | None
) -> None:
    """Report a check's result outside of any run where it is not what its `latest` record says."""
    event = latest.event if latest else None
    told = event.dagster_event.event_specific_data if event and event.dagster_event else None
    # a first result that all is well is no news
    is_known = _news(told) == _news(result) if isinstance(told, dg.AssetCheckEvaluation) else result.passed
    if not is_known:
        instance.report_runless_asset_event(as_evaluation(key, result))


def as_evaluation(key: dg.AssetCheckKey, result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Return a check's result as the event that Dagster keeps."""
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=bool(result.passed),
        severity=result.severity,
        description=result.description,
        metadata=result.metadata or {},
    )


def _news(check: dg.AssetCheckEvaluation | dg.AssetCheckResult) -> tuple[object, ...]:
    concerns = (check.metadata or {}).get(CONCERNS)
    return check.passed, check.severity, concerns.value if isinstance(concerns, dg.MetadataValue) else concerns


Order = Sequence[OffsetRange | None]  # Dagster's keys in insertion order; none where somebody typed what is no range


def read_order(instance: dg.DagsterInstance, topic: Topic) -> list[OffsetRange | None]:
    """Read Dagster's keys in insertion order; none stands for a key that is no range."""
    return [parsed(key) for key in instance.get_dynamic_partitions(topic.ranges_name)]


def open_pools(instance: dg.DagsterInstance, pools: Collection[str]) -> None:
    """Register pools before their first run is queued, and give each registered pool as many slots as its limit says.

    A pool that Dagster first sees in its queue lets several runs in. One without slots, as `dagster run wipe` leaves it, never
    lets any in.
    """
    storage = instance.event_log_storage
    known = storage.get_concurrency_keys()
    for pool in sorted({*pools} - known):
        storage.initialize_concurrency_limit_to_default(pool)
    for pool, found in storage.get_concurrency_infos([*known]).items():
        if found.slot_count < (found.limit or 0):
            if found.using_default_limit:
                storage.initialize_concurrency_limit_to_default(pool)
            else:
                storage.set_concurrency_slots(pool, found.limit or 0)


def read_selected(instance: dg.DagsterInstance, duty: Duty, order: Order) -> set[OffsetRange]:
    """Read which ranges the active runs of a duty select, queued runs included."""
    places, found = find_places(order), set[OffsetRange | None]()
    for run in instance.get_runs(RunsFilter(statuses=ACTIVE)):
        if is_run_of(run, duty):
            is_of_many = RANGE_START in run.tags and RANGE_END in run.tags
            found.update(read_ranges_of(run, order, places) if is_of_many else [parsed(run.tags.get(PARTITION_NAME_TAG, ""))])
    return {offsets for offsets in found if offsets is not None}


_LEFT = "what it left undone is asked for again, but for claims of at_most_once, which are abandoned"
_ENDED = f"its process was told to end; {_LEFT}"
_NOT_STARTED = (  # Dagster's words
    "Could not load job definition",
    "Error while loading environment variables",
    "Caught an unrecoverable error while dequeuing the run",
)
_WORDS = {  # in place of Dagster's own, which say nothing of what comes next
    "DagsterExecutionInterruptedError": _ENDED,
    "Execution was interrupted unexpectedly": _ENDED,
    "marked as failed from outside": f"its process was killed; {_LEFT}",
    "seconds to start": "this machine is too busy to start it in time; it is tried again",
    "The sensor tick timed out": (
        "a tick took longer than Dagster allows: this machine is busy; the next one goes on; where it lasts, set "
        "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS"
    ),
}
_STATEMENT = "\n[SQL: "  # with its parameters, behind what the database said
_OUR_CLASS = re.compile(r"\Apipeline_defs\.[\w.]+: ")


def read_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """Read why a run failed: in the words of the step's error, of the engine's, or of the run's end; ours for Dagster's."""
    events = instance.all_logs(run_id, of_type=_TOLD)
    texts = [(event.dagster_event, event.user_message) for event in events if event.dagster_event is not None]
    for event, _ in texts:
        if event.is_step_failure:
            return worded(failure_text(event))
    for event, _ in texts:  # Dagster ends such a run as it ends one whose process was killed
        if event.is_engine_event and (event.message or "").startswith(_NOT_STARTED):
            return f"Dagster could not start it: {_outer_text(event.engine_event_data.error)}"
    return worded(next((event.message or text for event, text in texts if not event.is_engine_event), "its run says no reason"))


def worded(reason: str) -> str:
    """Return a reason of one line in words that say what comes next, where it is one of Dagster's own, which do not."""
    return next((_WORDS[said] for said in _WORDS if said in reason and "\n" not in reason.strip()), reason)


def failure_text(event: dg.DagsterEvent) -> str:
    """Read why a step failed, in the words of the error itself."""
    return error_text(event.step_failure_data.error)


def error_text(error: SerializableErrorInfo | None) -> str:
    """Return the text of an error that Dagster has kept, or of its cause, without our class's name and a database's SQL."""
    cause = error.cause if error is not None and error.cause is not None else error
    return _OUR_CLASS.sub("", cause.message).partition(_STATEMENT)[0].strip() if cause is not None else ""


def _outer_text(error: SerializableErrorInfo | None) -> str:
    """Return the text of an error; that of its cause only where it is one line, which gRPC's is not."""
    found = error_text(error)
    if error is not None and "\n" in found:
        found = error.message.strip().partition("\n")[0]
    return found or "it does not say why"


def reasons_in(text: str) -> list[str]:
    """Return the reasons that an error lists below its first line; empty where it lists none."""
    return [line.strip().removeprefix("- ") for line in text.splitlines() if line.startswith("  - ")]


def is_run_of(run: DagsterRun, duty: Duty) -> bool:
    """Return whether a run does this duty, however it was launched."""
    selected = duty.asset_key in (run.asset_selection or ())
    return selected or run.tags.get(duty.tag) == duty.topic or run.job_name == duty.job


Places = Mapping[OffsetRange | None, int]  # of each range, where in that order


def find_places(order: Order) -> Places:
    """Find where in Dagster's insertion order each range stands."""
    return {offsets: place for place, offsets in enumerate(order) if offsets is not None}


def is_redo_of_person(tags: Mapping[str, str]) -> bool:
    """Return whether a person launched a run, which then reads landed ranges again.

    Sensors, schedules and declarative automation do not ask for that; a retry, or a click on Re-execute, has the tags of the
    run that it repeats.
    """
    return tags.keys().isdisjoint(_MACHINES)


def read_ranges_of(run: DagsterRun, order: Order, places: Places) -> list[OffsetRange | None]:
    """Read what a range run covers, everything between two keys in insertion order; none stands for what is no range."""
    start, end = parsed(run.tags.get(RANGE_START, "")), parsed(run.tags.get(RANGE_END, ""))
    return [*order[places[start] : places[end] + 1]] if start in places and end in places else []


def parsed(key: str) -> OffsetRange | None:
    """Return the range of a key; none where somebody typed what is no range."""
    try:
        return parse_key(key)
    except BadKey:
        return None
