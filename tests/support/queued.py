"""Runs that wait in Dagster's queue, as the daemon finds them there; nothing executes them."""

from __future__ import annotations

from typing import Any, cast

import dagster as dg
from dagster import DagsterRun
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.orchestration.runs.projection import RANGE_END, RANGE_START
from tests.support.world import World


def queue_run(instance: dg.DagsterInstance, job_name: str = "land", **facts: Any) -> DagsterRun:
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1, location_name="offsetlake")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job_name)
    run = cast("DagsterRun", create_run_for_test(instance, job_name=job_name, remote_job_origin=origin, **facts))
    instance.report_dagster_event(dg.DagsterEvent.job_enqueue(run), run.run_id)
    queued = instance.get_run_by_id(run.run_id)
    assert queued is not None and queued.status is dg.DagsterRunStatus.QUEUED
    return queued


def queue_asset_run(world: World, first: OffsetRange, last: OffsetRange, **facts: Any) -> DagsterRun:
    """Queue a run of a topic's raw asset from one range to another, as a backfill does."""
    tags = {RANGE_START: first.key, RANGE_END: last.key, **facts.pop("tags")}
    selection = frozenset({world.topic.asset_key})
    return queue_run(world.instance, "__ASSET_JOB", asset_selection=selection, tags=tags, **facts)
