"""What a Dagster run says of the work in it: which keys it selects, who asked for it, and where its steps are logged."""

from __future__ import annotations

import uuid
from typing import Literal

import dagster as dg

from .attempt import Attempt
from .settings import code_version
from .steps import StepWatcher
from .topics import REDO_TAG


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
