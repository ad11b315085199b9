"""What became of tries is not forgotten for what else was tried since, and one that is killed has failed."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from pipeline_defs.core.landing.dispatch import BACKOFF_LAST_SECONDS, choose_due
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.orchestration.runs.projection import is_redo_of_person
from pipeline_defs.orchestration.runs.tries import UPDATE, read_tries, trying
from pipeline_defs.topics import Topic

TOPIC = Topic("orders", Policy())
RANGES = [OffsetRange(0, 0, at, at + 1) for at in range(30)]
NOW_MS = 10**12


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


def attempt(instance: dg.DagsterInstance, ranges: list[OffsetRange], done: set[OffsetRange], now_ms: int) -> str:
    """Have a run try ranges and do some of them; return its id."""
    run = create_run_for_test(instance, status=DagsterRunStatus.STARTED)
    keys = [offsets.key for offsets in ranges]
    with trying(instance, TOPIC.landing, keys, run.run_id, lambda: now_ms) as well:
        well.update(offsets.key for offsets in done)
    return str(run.run_id)


def test_ranges_that_fail_one_by_one_each_count_their_own_failures(instance: dg.DagsterInstance) -> None:
    """[R-33] P12: however many others have failed in between; then all are stalled, and back off for long."""
    for number in range(1, 8):
        for offsets in RANGES:
            attempt(instance, [offsets], set(), NOW_MS + number)
        seen = read_tries(instance, TOPIC.landing).tried
        assert {each.attempts for each in seen.values()} == {number}
        assert set(seen) == set(RANGES)
    assert all(each.is_stalled and each.first_failed_ms == NOW_MS + 1 for each in seen.values())
    soonest = NOW_MS + (BACKOFF_LAST_SECONDS - 10) * 1000
    assert choose_due(RANGES, (), seen, soonest) == [], "the back-off has grown to its end"


def test_a_success_ends_what_is_counted_of_that_range_alone(instance: dg.DagsterInstance) -> None:
    """[R-33] The control: failures before it are over."""
    first, second, *_ = RANGES
    attempt(instance, [first, second], set(), NOW_MS)
    attempt(instance, [first, second], {first}, NOW_MS)
    assert {offsets: each.attempts for offsets, each in read_tries(instance, TOPIC.landing).tried.items()} == {second: 2}
    last = attempt(instance, [first, second], set(), NOW_MS)
    found = read_tries(instance, TOPIC.landing).tried
    assert (found[first].attempts, found[second].attempts, found[first].failed_run) == (1, 3, last)


@pytest.mark.parametrize("ends", [DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED, None])
def test_a_run_that_is_killed_has_failed_at_what_it_was_at(instance: dg.DagsterInstance, ends: DagsterRunStatus | None) -> None:
    """[R-33] It holds its ranges while it lives, counts as failed once it has ended, or where nobody knows it any more."""
    run = create_run_for_test(instance, status=DagsterRunStatus.STARTED)
    killed = trying(instance, TOPIC.landing, [RANGES[0].key], run.run_id, lambda: NOW_MS)
    killed.__enter__()
    assert read_tries(instance, TOPIC.landing).held == {RANGES[0]: f"run {run.run_id[:8]} (STARTED)"}
    assert read_tries(instance, TOPIC.landing).tried == {}
    if ends is None:
        instance.delete_run(run.run_id)
    elif ends is DagsterRunStatus.FAILURE:
        instance.report_run_failed(run)
    else:
        instance.report_run_canceled(run)
    assert read_tries(instance, TOPIC.landing).held == {}
    assert read_tries(instance, TOPIC.landing).tried[RANGES[0]].attempts == 1
    attempt(instance, RANGES[:1], set(), NOW_MS)
    assert read_tries(instance, TOPIC.landing).tried[RANGES[0]].attempts == 2, "the next run adds to it"


def test_what_another_run_has_taken_over_is_its_to_tell(instance: dg.DagsterInstance) -> None:
    """The first of two that are at the same range takes nothing away that the second notes."""
    first, second = (create_run_for_test(instance, status=DagsterRunStatus.STARTED) for _ in range(2))
    with trying(instance, TOPIC.landing, [RANGES[0].key], first.run_id, lambda: NOW_MS):
        taken = trying(instance, TOPIC.landing, [RANGES[0].key], second.run_id, lambda: NOW_MS)
        taken.__enter__()
    assert read_tries(instance, TOPIC.landing).held == {RANGES[0]: f"run {second.run_id[:8]} (STARTED)"}


@pytest.mark.parametrize("is_done", [False, True])
def test_an_update_is_known_to_have_ended(instance: dg.DagsterInstance, is_done: bool) -> None:
    """When the last one ended counts for the next, well or not."""
    run = create_run_for_test(instance, status=DagsterRunStatus.STARTED)
    with trying(instance, TOPIC.upserting, [UPDATE], run.run_id, lambda: NOW_MS) as well:
        assert read_tries(instance, TOPIC.upserting).is_held(UPDATE), "the control: a run is at it"
        well.update({UPDATE} if is_done else ())
    found = read_tries(instance, TOPIC.upserting)
    tried = found.of(UPDATE)
    assert (tried.attempts, tried.last_ended_ms, found.is_held(UPDATE)) == (0 if is_done else 1, NOW_MS, False)


def test_only_a_person_asks_for_a_redo() -> None:
    """U3: a schedule, a sensor and declarative automation read nothing twice; the UI and a backfill do."""
    tags = ("sensor_name", "schedule_name", "auto_materialize", "from_automation_condition", "parent_run_id")
    assert not [tag for tag in tags if is_redo_of_person({f"dagster/{tag}": "x"})]
    assert all(is_redo_of_person({f"dagster/{tag}": "x"}) for tag in ("backfill", "partition"))
