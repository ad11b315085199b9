"""The grid, and how long a tail may wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.log.plan_step import Head, LogState, Watermarks
from pipeline_defs.core.log.planning import (
    AUTO_RECORDS_DEFAULT,
    AUTO_RECORDS_MAX,
    PartitionState,
    Policy,
    TopicState,
    grid_of,
    plan,
)
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import EPOCH_MS, GROW, TOPIC, WAIT, Kind, Script, World, decide, open_log, planned, scripts

# ---- 4: the grid and the tail


@given(scripts())
def test_ranges_end_on_the_grid_but_for_a_tail_that_is_due(script: Script) -> None:
    """[R-5] A shorter range ends at the end offset, and its partition's first record has waited for `max_age`."""
    grid, max_age_ms = script.policy.records_per_range, script.policy.max_age_seconds * 1000
    assert isinstance(grid, int)
    for tick in script.play():
        for offsets in planned(tick):
            assert len(offsets) <= grid
            assert offsets.start // grid == (offsets.end - 1) // grid
            is_cut_at_growth = offsets.end in {growth.get(offsets.partition) for growth in tick.after.growths}
            if offsets.end % grid and not is_cut_at_growth:
                seen = tick.state.partitions[offsets.partition]
                assert offsets.end == seen.watermarks.end
                oldest = seen.oldest_ms
                assert oldest is None or oldest > tick.now_ms or tick.now_ms - oldest >= max_age_ms


@given(scripts(budget=200))
def test_every_full_range_is_planned_at_once(script: Script) -> None:
    """No grid line is left between a head and the end offset while the budget lasts."""
    grid = script.policy.records_per_range
    assert isinstance(grid, int)
    for tick in script.play():
        if len(planned(tick)) < script.policy.budget:
            for partition, seen in tick.state.partitions.items():
                assert tick.after.heads[partition].offset // grid == seen.watermarks.end // grid


@given(scripts(events=[GROW, WAIT], budget=200))
def test_a_tail_is_cut_at_most_once_per_max_age(script: Script) -> None:
    """[R-5] Whatever the timestamps say, short files are no more than one per `max_age` and partition."""
    grid = script.policy.records_per_range
    assert isinstance(grid, int)
    cut_at: dict[int, int] = {}
    for tick in script.play():
        for offsets in planned(tick):
            if offsets.end % grid:
                waited_ms = tick.now_ms - cut_at.get(offsets.partition, 0)
                assert waited_ms >= script.policy.max_age_seconds * 1000
                cut_at[offsets.partition] = tick.now_ms


@given(scripts(budget=200))
def test_no_record_waits_longer_than_max_age(script: Script) -> None:
    """[R-5] What a tick leaves unplanned arrived less than `max_age` ago, or says that it is that young.

    A timestamp that is later than the arrival can put a record off until `max_age` after that timestamp.
    """
    for tick in script.play():
        for record in tick.first_waiting.values():
            says = record.timestamp_ms
            believed = says if says is not None and record.arrived_ms < says <= tick.now_ms else record.arrived_ms
            assert tick.now_ms - believed < script.policy.max_age_seconds * 1000


@given(
    kind=st.sampled_from(["now", "past", "future", "soon", "none"]),
    idle_seconds=st.integers(60, 7200),
    late_seconds=st.integers(0, 20),
    tick_seconds=st.integers(1, 30),
)
def test_one_record_then_silence_is_planned_within_max_age(
    kind: Kind, idle_seconds: int, late_seconds: int, tick_seconds: int
) -> None:
    """[R-5] One record an hour is planned within `max_age` and one tick, for any event timestamp."""
    policy = Policy(records_per_range=1000, max_age_seconds=60)
    world = World()
    world.grow(0, 1)
    log_state = open_log(world, policy)
    for _ in range(2):
        world.wait(idle_seconds)
        step = plan(log_state, world.observe(log_state), policy, world.now_ms)
        log_state = step.after(log_state) if step else log_state
        world.wait(idle_seconds)
        arrived_ms = world.now_ms
        world.grow(0, 1, kind)
        world.wait(late_seconds)
        while log_state.heads[0].offset < len(world.partitions[0].records):
            assert world.now_ms - arrived_ms < (60 + late_seconds + tick_seconds) * 1000
            step = plan(log_state, world.observe(log_state), policy, world.now_ms)
            log_state = step.after(log_state) if step else log_state
            world.wait(tick_seconds)


@pytest.mark.parametrize("kind", ["now", "past", "future", "none"])
def test_a_partition_noticed_late_is_planned_at_once(kind: Kind) -> None:
    """[R-8] Records that waited before their partition was noticed do not wait again."""
    world, policy = World(), Policy(records_per_range=1000, max_age_seconds=60)
    log_state = open_log(world, policy)
    world.add_partition(0)
    world.grow(1, 7, kind)
    world.wait(60)
    step = decide(log_state, world.observe(log_state), policy, world.now_ms)
    assert step.ranges == (OffsetRange(0, 1, 0, 7),)


def test_a_planner_with_a_wrong_clock_does_not_stall_the_others() -> None:
    """A head moved in the year 2100 does not put a tail off until then."""
    marks = {0: PartitionState(Watermarks(0, 20), oldest_ms=EPOCH_MS - 3_600_000)}
    log_state = LogState(1, 0, "id-0", {0: Head(10, EPOCH_MS + 10**12)})
    step = decide(log_state, TopicState(TOPIC, "id-0", marks), Policy(records_per_range=1000), EPOCH_MS)
    assert step.ranges == (OffsetRange(0, 0, 10, 20),)
    assert step.heads == {0: Head(20, EPOCH_MS)}


@pytest.mark.parametrize("apart_ms", [0, 2_000, 120_000])
def test_planners_of_two_hosts_cut_one_tail_per_max_age(apart_ms: int) -> None:
    """[R-5] Of a topic with old event times: what the one ahead has planned was not planned for the other one long ago."""
    log_state, cuts = LogState(), 0
    for tick in range(240):
        for ahead_ms in (apart_ms, 0):
            partition = PartitionState(Watermarks(0, tick + 1), EPOCH_MS - 10**10)
            now_ms = EPOCH_MS + tick * 5_000 + ahead_ms
            step = plan(log_state, TopicState(TOPIC, "id-0", {0: partition}), Policy(max_age_seconds=60), now_ms)
            if step is not None:
                log_state, cuts = step.after(log_state), cuts + len(step.ranges)
    assert 19 <= cuts <= 22


def test_a_person_can_cut_the_tail_at_once() -> None:
    """[R-5] Control beside it: without that word the same tail waits."""
    world, policy = World(), Policy(records_per_range=10, max_age_seconds=10**9)
    log_state = open_log(world, policy)
    world.grow(0, 25)
    state = world.observe(log_state)
    for through_end, ends in ((False, [10, 20]), (True, [10, 20, 25])):
        step = decide(log_state, state, policy, world.now_ms, through_end=through_end)
        assert [o.end for o in step.ranges] == ends


@given(st.floats(1e-3, 1e9), st.integers(1, 2**40))
def test_the_auto_grid_is_the_power_of_two_at_or_just_below_the_target(bytes_per_record: float, target: int) -> None:
    """[R-6] A range is between half of the target and the target, where the bounds allow it."""
    grid = grid_of(Policy(target_file_bytes=target), bytes_per_record)
    assert grid.bit_count() == 1
    assert 1 <= grid <= AUTO_RECORDS_MAX
    if grid < AUTO_RECORDS_MAX:
        assert (grid * 2) * bytes_per_record > target * 0.999999
    if grid > 1:
        assert grid * bytes_per_record <= target * 1.000001


@pytest.mark.parametrize("unknown", [None, 0.0, -1.0])
def test_the_auto_grid_has_a_default_where_nothing_is_known_and_a_number_is_taken_as_it_is(unknown: float | None) -> None:
    """[R-6] Before the first record nobody knows a size."""
    assert grid_of(Policy(), unknown) == AUTO_RECORDS_DEFAULT
    assert grid_of(Policy(records_per_range=37), 10.0) == 37
