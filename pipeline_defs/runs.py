"""What a Dagster run says of the work in it: which keys it is asked for or selects, who asked, where its steps are logged."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Literal

import dagster as dg

from .attempt import Attempt
from .projection import RANGE_END, RANGE_START
from .settings import code_version
from .steps import StepWatcher
from .topics import REDO_TAG


def run_request(run_key: str, keys: Sequence[str], tags: Mapping[str, str]) -> dg.RunRequest:
    """Is the request of a run over neighbouring keys: one as such, more as Dagster's range tags, which is what it honours."""
    return dg.RunRequest(run_key=run_key, partition_key=single_key(keys), tags={**tags, **range_tags(keys)})


def single_key(keys: Sequence[str]) -> str | None:
    """Is the partition key of a run over just one key; none where its tags say which it is over."""
    return keys[0] if len(keys) == 1 else None


def range_tags(keys: Sequence[str]) -> dict[str, str]:
    """Are the tags by which Dagster lets a run have all keys between two; none for a single one."""
    return {RANGE_START: keys[0], RANGE_END: keys[-1]} if len(keys) > 1 else {}


def selected_keys(context: dg.AssetExecutionContext) -> list[str]:
    """Returns the partition keys of a run, none where Dagster selects none."""
    return list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []


def new_attempt(context: dg.AssetExecutionContext, on_change: Literal["keep", "replace"] = "keep") -> Attempt:
    """Names this try. Runs that a person asked for do again what is done; sensors and retries do not."""
    tags = context.run.tags
    by_machine = "dagster/sensor_name" in tags or "dagster/parent_run_id" in tags
    redo = tags.get(REDO_TAG, "no" if by_machine else "yes") == "yes"
    name = f"{context.run.run_id[:8]}-{uuid.uuid4().hex[:8]}"
    return Attempt(name, context.run.run_id, code_version(), redo=redo, on_change=on_change)


def step_logger(context: dg.AssetExecutionContext) -> StepWatcher:
    """Returns what writes each protocol step to the run's log, one line each."""

    def log_step(step: str, **fields: object) -> None:
        context.log.info(" ".join([f"step={step}", *(f"{name}={value}" for name, value in fields.items())]))

    return log_step
