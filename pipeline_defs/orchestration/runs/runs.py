"""What a Dagster run says of the work in it: which keys it is asked for or selects, who asked, and what fails it.

Runs of one backfill share a Spark session: Dagster makes one run of each stretch of neighbouring keys, so a scattered selection
would be a session per key; the first to start lands the ranges of those that still wait, too. Invariant: a waiting run is ended
only after every range of it is landed and reported; a crash before leaves it as it was.
"""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import dagster as dg
from dagster import DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.storage.tags import PARTITION_NAME_TAG

from ...core.advice import command
from ...core.errors import BadKey, EmptySelection, as_ours
from ...core.offsets import OffsetRange
from ...core.steps import StepWatcher
from ...landing.attempt import Attempt
from ...resources import Edges
from ...settings import code_version
from ...topics import REDO_TAG, Duty, Topic
from ..home.run_locks import hold_run
from .projection import RANGE_END, RANGE_START, find_places, is_redo_of_person, read_order, read_ranges_of

Context = dg.OpExecutionContext | dg.AssetExecutionContext
BACKFILL_TAG = "dagster/backfill"
LANDED_BY_TAG = "offsetlake/landed_by"
TRIED_BY_TAG = "offsetlake/tried_by"


def selected_keys(context: dg.AssetExecutionContext, topic: str) -> list[str]:
    """Return the partition keys of a run, none where Dagster selects none.

    Raise `BadKey` where Dagster has not the keys that its tags name, and `EmptySelection` where these stand the other way
    round in Dagster's order.
    """
    if not (context.has_partition_key or context.has_partition_key_range):
        return []
    named = [context.run.tags[name] for name in (RANGE_START, RANGE_END, PARTITION_NAME_TAG) if name in context.run.tags]
    try:
        keys = list(context.partition_keys)
    except dg.DagsterInvalidInvocationError as error:
        raise BadKey(
            f"Dagster lacks a key of topic {topic} among those that the run names, {' and '.join(named)}; nothing was read or "
            f"written; `{command('rebuild', topic)}` gives it those of the plan log, and no others are ranges"
        ) from error
    if not keys and named:
        raise EmptySelection(
            f"the run selects the ranges of topic {topic} from {' to '.join(named)}, and in the order of Dagster's keys the "
            "second comes before the first; nothing was read or written; select them one by one, or "
            f"`{command('backfill', topic, '--key', 'KEY')}` for each"
        )
    return keys


@contextmanager
def run_of(context: dg.AssetExecutionContext, duty: Duty, edges: Edges) -> Iterator[None]:
    """Tag a run with its duty, by which it is found, and do its work as `at_work` says."""
    context.instance.add_run_tags(context.run.run_id, duty.tags)
    with at_work(context, edges, duty.topic):
        yield


@contextmanager
def at_work(context: Context, edges: Edges, topic: str | None = None) -> Iterator[None]:
    """Hold the lock of a run where nothing else in this process has it, and check its lake.

    What fails the run is logged in words of ours first: in Dagster's UI the error itself stands below its stack trace.
    """
    hold_run(context.instance.root_directory, context.run.run_id)
    try:
        edges.check_lake(topic)
        yield
    except Exception as error:
        ours = as_ours(error, f"run {context.run.run_id}")
        context.log.error("\n".join([f"{ours.kind}: {ours}", *ours.__notes__]))  # noqa: TRY400 (Dagster has the trace)
        raise


def tell_range(context: dg.AssetExecutionContext, event: dg.AssetMaterialization) -> Iterator[dg.MaterializeResult[Any]]:
    """Tell Dagster of one range: a run over a single key by its output, which the checks after it wait for."""
    if context.has_partition_key:
        version = dg.DataVersion((event.tags or {})[DATA_VERSION_TAG])
        yield dg.MaterializeResult(metadata=event.metadata, data_version=version)
    else:
        context.log_event(event)


def new_attempt(context: dg.AssetExecutionContext, on_change: Literal["keep", "replace"] = "keep") -> Attempt:
    """Name this try; a run that a person asked for does again what is done, one that a machine asked for does not."""
    tags = context.run.tags
    redo = tags.get(REDO_TAG, "yes" if is_redo_of_person(tags) else "no") == "yes"
    return replace(attempt_of(context.run.run_id), redo=redo, on_change=on_change)


def attempt_of(run_id: str) -> Attempt:
    """Return a new try of a run."""
    return Attempt(f"{run_id[:8]}-{uuid.uuid4().hex[:8]}", run_id, code_version())


class StepSummary:
    """Writes protocol steps to a run's log: what each range or topic passes as one line for all of them, when it is told.

    A run of many topics passes thousands of steps, and a line costs Dagster as much as a small file costs Spark.
    """

    PASSED_BY_MANY = frozenset({"find", "verify", "verify_decoded", "commit", "publish", "link_to_table", "append", "report"})

    def __init__(self, context: Context) -> None:
        self._log = step_logger(context)
        self._lock = threading.Lock()
        self._passed: Counter[str] = Counter()

    def __call__(self, step: str, **fields: object) -> None:
        """Count a step, or write it."""
        if step not in self.PASSED_BY_MANY:
            self._log(step, **fields)
            return
        with self._lock:  # files are verified side by side
            self._passed[step] += 1

    def tell(self) -> None:
        """Write how often each step was passed since it was told last."""
        with self._lock:
            passed, self._passed = self._passed, Counter()
        for step, times in passed.items():
            self._log(step, times=times)


def step_logger(context: Context) -> StepWatcher:
    """Return what writes each protocol step to the run's log, one line each."""

    def log_step(step: str, **fields: object) -> None:
        context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

    return log_step


def read_siblings(
    instance: dg.DagsterInstance, run: DagsterRun, topic: Topic, planned: Callable[[], Collection[OffsetRange]], room: int
) -> dict[str, list[OffsetRange]]:
    """Read the waiting runs of the same backfill that ask for the same of this topic alone, with their ranges, `room` at most.

    `planned` reads the topic's ranges, all of history, which is asked for in a backfill only. One that another run has tried
    in vain is left to itself.
    """
    backfill = run.tags.get(BACKFILL_TAG)
    if backfill is None or run.asset_selection != frozenset({topic.asset_key}):
        return {}
    order = read_order(instance, topic)
    places, known = find_places(order), planned()
    siblings = {}
    runs = instance.get_runs(RunsFilter(tags={BACKFILL_TAG: backfill}, statuses=[DagsterRunStatus.QUEUED]))
    for waiting in reversed(runs):  # the oldest first
        if waiting.run_id == run.run_id or {LANDED_BY_TAG, TRIED_BY_TAG} & waiting.tags.keys():
            continue
        ranges = read_ranges_of(waiting, order, places)
        is_alike = (
            waiting.asset_selection == run.asset_selection
            and waiting.run_config == run.run_config
            and waiting.tags.get(REDO_TAG) == run.tags.get(REDO_TAG)
        )
        if is_alike and 0 < len(ranges) <= room and all(offsets in known for offsets in ranges):
            siblings[waiting.run_id] = [offsets for offsets in ranges if offsets is not None]
            room -= len(ranges)
    return siblings


def end_siblings(
    instance: dg.DagsterInstance,
    run: DagsterRun,
    siblings: Mapping[str, Iterable[OffsetRange]],
    failed: AbstractSet[OffsetRange],
) -> None:
    """End the waiting runs whose ranges this run has landed; one with a range that failed is left to try by itself."""
    for run_id, ranges in siblings.items():
        if not failed.isdisjoint(ranges):
            instance.add_run_tags(run_id, {TRIED_BY_TAG: run.run_id})
            continue
        instance.add_run_tags(run_id, {LANDED_BY_TAG: run.run_id})
        waiting = instance.get_run_by_id(run_id)
        if waiting is not None and waiting.status is DagsterRunStatus.QUEUED:
            instance.report_run_canceled(
                waiting, f"not needed any more: run {run.run_id} of the same backfill has landed its ranges"
            )


def read_landed_by(instance: dg.DagsterInstance, run: DagsterRun) -> str | None:
    """Read which run has landed the ranges of this one while it waited for its turn; none where it is to land them."""
    now = instance.get_run_by_id(run.run_id) if BACKFILL_TAG in run.tags else None
    return now.tags.get(LANDED_BY_TAG) if now is not None else None
