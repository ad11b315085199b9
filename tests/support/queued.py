"""Runs that wait in Dagster's queue, as the daemon finds them there; nothing executes them."""

from __future__ import annotations

from typing import Any, cast

import dagster as dg
from dagster import DagsterRun
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test


def queue_run(instance: dg.DagsterInstance, job_name: str = "land", **facts: Any) -> DagsterRun:
    location = GrpcServerCodeLocationOrigin(host="127.0.0.1", port=1, location_name="offsetlake")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job_name)
    run = cast("DagsterRun", create_run_for_test(instance, job_name=job_name, remote_job_origin=origin, **facts))
    instance.report_dagster_event(dg.DagsterEvent.job_enqueue(run), run.run_id)
    queued = instance.get_run_by_id(run.run_id)
    assert queued is not None and queued.status is dg.DagsterRunStatus.QUEUED
    return queued
