"""Progress: silence is told where something waits and nothing lands, and nowhere else; what blocks is always named."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_defs.core.landing.active import WITH_SLOT, ActiveRun, RunState, Turns
from pipeline_defs.core.landing.dispatch import NEVER_TRIED, STALLED_AFTER_ATTEMPTS
from pipeline_defs.core.landing.progress import PATIENCE_SECONDS, Silence, Unplanned, find_silences
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, TOPIC, Script, covered, first_step, landed, log_of, logs

PATIENCE_MS = int(PATIENCE_SECONDS * 1000)


def land(log: PlanLog, ranges: Iterable[OffsetRange], landed_at_ms: int = EPOCH_MS) -> Coverage:
    """Lands some ranges of a log, every row of them, at one moment."""
    return covered(log, [landed(offsets, landed_at_ms=landed_at_ms) for offsets in ranges])


def two_ranges() -> PlanLog:
    """Is a log with `0-0-10` and `0-10-20`, planned at EPOCH_MS."""
    return PlanLog(TOPIC, (first_step(20),))


ACTIONS = [("grow", (0, 20)), ("wait", (60,)), ("add_partition", (20,)), ("recreate", (1, 20))]
TWO_PARTITIONS, RECREATED = (log_of(Script(Policy(10, max_age_seconds=0), True, ACTIONS[:count]).play()) for count in (3, 4))


@given(logs(), st.sets(st.integers(0, 40)), st.integers(0, 2 * PATIENCE_MS), st.integers(0, 2 * PATIENCE_MS))
@example(TWO_PARTITIONS, set(), 0, PATIENCE_MS + 1)
@example(TWO_PARTITIONS, set(), 0, PATIENCE_MS - 5)
@example(two_ranges(), {0, 1}, 0, 10**12)
@example(two_ranges(), {0}, PATIENCE_MS, 5)
@example(two_ranges(), {0}, PATIENCE_MS, PATIENCE_MS + 1)
@example(TWO_PARTITIONS, {0}, PATIENCE_MS, 5)
@example(RECREATED, {0}, PATIENCE_MS, 5)
def test_a_partition_is_named_exactly_when_it_has_waited_for_too_long(
    log: PlanLog, numbers: set[int], landed_ms: int, waited_ms: int
) -> None:
    """[R-56] Per Kafka partition, by the oldest pending range, and anew since anything of it has landed.

    An idle topic makes no noise, however long it is idle. A backlog that is worked off is no silence; what landed of another
    partition, or of a topic of before, ends none.
    """
    some = [offsets for number, offsets in enumerate(log.ranges) if number in numbers]
    newest_ms = max((step.planned_at_ms for step in log.steps), default=EPOCH_MS)
    coverage = land(log, some, newest_ms + landed_ms)
    now_ms = newest_ms + landed_ms + waited_ms
    expected = []
    for partition in sorted({offsets.partition for offsets in coverage.pending()}):
        first = next(offsets for offsets in coverage.pending() if offsets.partition == partition)
        has_landed = any(o.place == (log.generation, partition) for o in coverage.manifests)
        since_ms = newest_ms + landed_ms if has_landed else log.ranges[first].planned_at_ms
        if now_ms - since_ms > PATIENCE_MS:
            expected.append(Silence(partition, first.start, first, since_ms))
    assert find_silences(coverage, {}, 10**6, now_ms) == expected, "a planned range has nothing to wait for"


@pytest.mark.parametrize(
    ("record", "max_age_seconds", "waited_ms", "is_named"),
    [
        pytest.param(Unplanned(20, EPOCH_MS), 60, PATIENCE_MS, False, id="not for long enough"),
        pytest.param(Unplanned(20, EPOCH_MS), 60, PATIENCE_MS + 1, True, id="for too long"),
        pytest.param(Unplanned(20, EPOCH_MS), 100, 10 * 100_000, False, id="it may wait for max_age"),
        pytest.param(Unplanned(20, EPOCH_MS), 100, 10 * 100_000 + 1, True, id="for more than 10 times max_age"),
        pytest.param(Unplanned(20, 1_000), 60, PATIENCE_MS, False, id="an old timestamp: since the last plan step"),
        pytest.param(Unplanned(20, EPOCH_MS + 2 * PATIENCE_MS), 60, PATIENCE_MS + 1, True, id="a future one says nothing"),
        pytest.param(Unplanned(20, None), 60, PATIENCE_MS + 1, True, id="no timestamp: since the last plan step"),
    ],
)
def test_a_record_that_no_range_has_is_named_when_it_has_waited_for_too_long(
    record: Unplanned, max_age_seconds: float, waited_ms: int, is_named: bool
) -> None:
    """[R-56] That the planner does not run is found by what it has not planned."""
    log = two_ranges()
    coverage = land(log, list(log.ranges))
    found = find_silences(coverage, {0: record}, max_age_seconds, EPOCH_MS + waited_ms)
    assert found == ([Silence(0, 20, None, EPOCH_MS)] if is_named else [])


def test_a_topic_that_was_never_planned_is_told_by_its_oldest_record() -> None:
    """[R-56] Nor has it landed anything: since when is what the record itself says, and without that nothing is."""
    nothing = Coverage(PlanLog(TOPIC, ()), {}, {})
    now_ms = EPOCH_MS + PATIENCE_MS + 1
    assert find_silences(nothing, {0: Unplanned(0, EPOCH_MS)}, 60, now_ms) == [Silence(0, 0, None, EPOCH_MS)]
    assert find_silences(nothing, {0: Unplanned(0, None)}, 60, now_ms) == []


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_failures_in_a_row_keep_the_first_and_the_last(seconds: list[int]) -> None:
    """[R-33] [R-56] Since when is the first of them; whose words are told, the last one's."""
    tried, times = NEVER_TRIED, sorted(EPOCH_MS + each for each in seconds)
    for number, ended_ms in enumerate(times):
        tried = tried.then_failed(f"run-{number}", ended_ms)
    assert (tried.attempts, tried.first_failed_ms, tried.last_ended_ms) == (len(times), times[0], times[-1])
    assert tried.failed_run == f"run-{len(times) - 1}"
    assert tried.is_stalled == (len(times) >= STALLED_AFTER_ATTEMPTS)


# ---- what blocks


runs = st.lists(
    st.builds(ActiveRun, st.uuids().map(str), st.just("land"), st.sampled_from(RunState), st.integers(1, 9), st.booleans()),
    max_size=6,
)


@given(runs, st.integers(-1, 5), st.none() | st.integers(0, 9), st.booleans())
def test_what_blocks_is_named_unless_something_gets_on(
    active: list[ActiveRun], slots: int, landed: int | None, silent: bool
) -> None:
    """A block is of an own run; none is found only where there is no own run, or one has landed something."""
    own = [each for each in active if each.is_own]
    block = Turns(active, slots, silent).find_block(landed)
    if block is None:
        started = [each for each in own if each.state in {RunState.STARTED, RunState.CANCELING}]
        assert not own or (started and landed is not None and landed >= min(each.since_ms for each in started))
    else:
        assert block.run in own
        assert all(each.state in WITH_SLOT for each in block.others)
