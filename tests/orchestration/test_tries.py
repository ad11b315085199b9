"""What runs came to is not forgotten for what else has run since: failures count per range, a used run key stays used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import dagster as dg
import pytest
from dagster import DagsterRun, DagsterRunStatus
from dagster._core.storage.tags import RUN_KEY_TAG
from dagster._core.test_utils import create_run_for_test

from pipeline_defs import tries
from pipeline_defs.core.dispatch import BACKOFF_LAST_SECONDS, Request, Tried, plan_requests
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.planning import Policy
from pipeline_defs.projection import is_redo_of_person
from pipeline_defs.runs import run_request
from pipeline_defs.topics import FAILED_BEFORE_TAG, Topic
from pipeline_defs.tries import read_tried

TOPIC = Topic("orders", Policy())
RANGES = [OffsetRange(0, 0, at, at + 1) for at in range(30)]
PLANNED = dict.fromkeys(RANGES, 1)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance, of whose runs a tick looks at far fewer than there are failures."""
    monkeypatch.setattr(tries, "RUNS_PER_PAGE", 7)
    monkeypatch.setattr(tries, "MOST_RUNS", 42)
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def work(
    instance: dg.DagsterInstance, request: Request, status: DagsterRunStatus = DagsterRunStatus.FAILURE
) -> DagsterRun:
    """Have a run of a request end, as the sensor asks for it."""
    tags = {**TOPIC.landing.tags, FAILED_BEFORE_TAG: request.failed_before}
    asked = run_request(instance, request.run_key(TOPIC.name), request.keys, tags)
    tags = {**asked.tags, RUN_KEY_TAG: asked.run_key or "", "dagster/partition": request.keys[0]}
    return cast("DagsterRun", create_run_for_test(instance, job_name=TOPIC.land_job, status=status, tags=tags))


def requests(tried: dict[OffsetRange, Tried], now_ms: int = 2**42) -> list[Request]:
    return plan_requests(RANGES, set(RANGES), frozenset(), tried, now_ms, ranges_per_run=1)


def test_ranges_that_fail_one_by_one_each_count_their_own_failures(instance: dg.DagsterInstance) -> None:
    """[R-33] P12: however many others have failed in between; then all are stalled, and back off for long."""
    seen: dict[OffsetRange, Tried] = {}
    for number in range(1, 8):
        for request in requests(seen):
            work(instance, request)
        seen = read_tried(instance, TOPIC.landing, RANGES, PLANNED)
        assert {each.attempts for each in seen.values()} == {number}
        assert set(seen) == set(RANGES)
    assert all(each.is_stalled and each.first_failed_ms <= each.last_ended_ms for each in seen.values())
    soonest = min(each.last_ended_ms for each in seen.values()) + (BACKOFF_LAST_SECONDS - 10) * 1000
    assert requests(seen, soonest) == [], "the back-off has grown to its end"


def test_a_success_ends_what_is_counted(instance: dg.DagsterInstance) -> None:
    """[R-33] The control: failures before it are over."""
    first = requests({})[0]
    for status in (DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED):
        work(instance, requests(read_tried(instance, TOPIC.landing, RANGES, PLANNED))[0], status)
    assert read_tried(instance, TOPIC.landing, RANGES, PLANNED)[first.ranges[0]].attempts == 1


def test_a_range_that_is_pending_again_long_after_gets_a_run_key_that_is_not_used(instance: dg.DagsterInstance) -> None:
    """[R-32] P12: Dagster drops a used key for ever; that run is beyond what a tick looks at."""
    first, *others = requests({})
    landed = work(instance, first, DagsterRunStatus.SUCCESS)
    for _ in range(2):
        for other in others:
            work(instance, other, DagsterRunStatus.SUCCESS)
    (again, *_) = requests(read_tried(instance, TOPIC.landing, RANGES, PLANNED))
    assert again.run_key(TOPIC.name) == first.run_key(TOPIC.name), "nothing remembers that it was landed"
    asked = run_request(instance, again.run_key(TOPIC.name), again.keys, {})
    assert asked.run_key != landed.tags[RUN_KEY_TAG]
    same = run_request(instance, again.run_key(TOPIC.name), again.keys, {})
    assert asked.run_key == same.run_key, "two ticks that ask for the same ask for one run"


@pytest.mark.parametrize(
    ("tag", "by_machine"),
    [
        ("dagster/sensor_name", True),
        ("dagster/schedule_name", True),
        ("dagster/auto_materialize", True),
        ("dagster/from_automation_condition", True),
        ("dagster/parent_run_id", True),
        ("dagster/backfill", False),
        ("dagster/partition", False),
    ],
)
def test_only_a_person_asks_for_a_redo(tag: str, by_machine: bool) -> None:
    """U3: a schedule, a sensor and declarative automation read nothing twice; the UI and a backfill do."""
    assert is_redo_of_person({tag: "x"}) is not by_machine
