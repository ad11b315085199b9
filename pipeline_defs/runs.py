"""What a Dagster run says of the work in it: which keys it is asked for or selects, who asked, where its steps are logged."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Literal

import dagster as dg
from dagster import RunsFilter
from dagster._core.storage.tags import MAX_RETRIES_TAG, PRIORITY_TAG, RUN_KEY_TAG

from .attempt import Attempt
from .core.errors import OffsetlakeError
from .projection import RANGE_END, RANGE_START, is_redo_of_person
from .resources import Edges
from .run_locks import hold_run
from .settings import code_version
from .steps import StepWatcher
from .topics import REDO_TAG, Duty

# of what a tick asks for: where it dies the next tick asks again, and a retry by Dagster would be a second run of the same
ASKED_AGAIN = {MAX_RETRIES_TAG: "0"}


def run_request(
    instance: dg.DagsterInstance, run_key: str, keys: Sequence[str], tags: Mapping[str, str]
) -> dg.RunRequest:
    """Return the request of a run over neighbouring keys: one as such, more as Dagster's range tags, which is what it honours.

    It goes before a person's runs in the queue: those may be many, and `Turns` gives them every other turn.
    """
    tags = {**tags, **range_tags(keys), **ASKED_AGAIN, PRIORITY_TAG: "1"}
    return dg.RunRequest(run_key=unused_key(instance, run_key), partition_key=single_key(keys), tags=tags)


def unused_key(instance: dg.DagsterInstance, run_key: str) -> str:
    """Return a run key that no run has had: Dagster drops a used one for ever, without a word.

    What a key is made of may come again long after: a range that is pending anew, whose runs nobody remembers.
    """
    for number in count():
        key = f"{run_key}:{number}" if number else run_key
        if not instance.get_run_records(RunsFilter(tags={RUN_KEY_TAG: key}), limit=1):
            return key
    raise AssertionError("unreachable")


def single_key(keys: Sequence[str]) -> str | None:
    """Is the partition key of a run over just one key; none where its tags say which it is over."""
    return keys[0] if len(keys) == 1 else None


def range_tags(keys: Sequence[str]) -> dict[str, str]:
    """Are the tags by which Dagster lets a run have all keys between two; none for a single one."""
    return {RANGE_START: keys[0], RANGE_END: keys[-1]} if len(keys) > 1 else {}


def selected_keys(context: dg.AssetExecutionContext) -> list[str]:
    """Returns the partition keys of a run, none where Dagster selects none."""
    return list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []


@contextmanager
def run_of(context: dg.AssetExecutionContext, duty: Duty, edges: Edges) -> Iterator[None]:
    """Tag a run with its duty, so that ticks find it, hold its lock where nothing else in this process has, check its lake.

    What fails the run is logged in its own words first: in Dagster's UI the error itself stands below its stack trace.
    """
    context.instance.add_run_tags(context.run.run_id, duty.tags)
    hold_run(context.instance.root_directory, context.run.run_id)
    try:
        edges.check_lake(duty.topic)
        yield
    except OffsetlakeError as error:
        context.log.error("\n".join([f"{error.kind}: {error}", *error.__notes__]))  # noqa: TRY400 (Dagster has the trace)
        raise


def new_attempt(context: dg.AssetExecutionContext, on_change: Literal["keep", "replace"] = "keep") -> Attempt:
    """Name this try; a run that a person asked for does again what is done, one that a machine asked for does not."""
    tags = context.run.tags
    redo = tags.get(REDO_TAG, "yes" if is_redo_of_person(tags) else "no") == "yes"
    name = f"{context.run.run_id[:8]}-{uuid.uuid4().hex[:8]}"
    return Attempt(name, context.run.run_id, code_version(), redo=redo, on_change=on_change)


def step_logger(context: dg.AssetExecutionContext) -> StepWatcher:
    """Returns what writes each protocol step to the run's log, one line each."""

    def log_step(step: str, **fields: object) -> None:
        context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

    return log_step
