"""The work in a Dagster run: which keys it selects, who asked for it, what fails it, and which steps it passes."""

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from dagster._core.storage.tags import PARTITION_NAME_TAG

from ...core.advice import command
from ...core.errors import BadKey, EmptySelection, as_ours
from ...core.steps import StepWatcher
from ...landing.attempt import Attempt
from ...resources import Adapters
from ...settings import code_version
from ...topics import REDO_TAG, Duty
from ..home.run_locks import hold_run
from .projection import RANGE_END, RANGE_START, is_redo_of_person

Context = dg.OpExecutionContext | dg.AssetExecutionContext
AnyContext = Context | dg.AssetCheckExecutionContext


def selected_keys(context: dg.AssetExecutionContext, topic: str) -> list[str]:
    """Return the partition keys of a run, none where Dagster selects none.

    Raise `BadKey` where Dagster lacks keys that its tags name, and `EmptySelection` where these are in reverse of Dagster's
    order.
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
def run_of(context: dg.AssetExecutionContext, duty: Duty, adapters: Adapters) -> Iterator[None]:
    """Tag a run with its duty, by which it is found, and do its work as `at_work` says."""
    context.instance.add_run_tags(context.run.run_id, duty.tags)
    with at_work(context, adapters, duty.topic):
        yield


@contextmanager
def at_work(context: Context, adapters: Adapters, topic: str | None = None) -> Iterator[None]:
    """Hold the lock of a run where nothing else in this process has it, check its lake, and tell what fails it."""
    hold_run(context.instance.root_directory, context.run.run_id)
    with logging_failure(context):
        adapters.check_lake(topic)
        yield


@contextmanager
def logging_failure(context: AnyContext) -> Iterator[None]:
    """Log what fails a run in our own words first: Dagster's UI shows the error itself below its stack trace."""
    try:
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
    """Return a new attempt; a run that a person asked for redoes what is done, one that a machine asked for does not."""
    tags = context.run.tags
    redo = tags.get(REDO_TAG, "yes" if is_redo_of_person(tags) else "no") == "yes"
    return replace(attempt_of(context.run.run_id), redo=redo, on_change=on_change)


def attempt_of(run_id: str) -> Attempt:
    """Return a new attempt of a run."""
    return Attempt(f"{run_id[:8]}-{uuid.uuid4().hex[:8]}", run_id, code_version())


class StepSummary:
    """Writer of protocol steps to a run's log; `tell` sums up in one line each the steps that every range or topic passes.

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
        """Write how often each counted step was passed since the last call."""
        with self._lock:
            passed, self._passed = self._passed, Counter()
        for step, times in passed.items():
            self._log(step, times=times)


def step_logger(context: Context) -> StepWatcher:
    """Return a watcher that writes each protocol step to the run's log, one line each."""

    def log_step(step: str, **fields: object) -> None:
        context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

    return log_step
