"""DESIGN section 4, laws 1 to 8 of `plan`, over random histories of a topic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.errors import Refused
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.planlog import Head, LinkKind, PlanLog, Tail, Watermarks
from pipeline_defs.core.planning import (
    AUTO_RECORDS_DEFAULT,
    AUTO_RECORDS_MAX,
    PartitionState,
    Policy,
    TopicState,
    plan,
    records_per_range,
)
from tests.support.strategies import EPOCH_MS, GROW, TOPIC, WAIT, Kind, Record, Script, Tick, World, log_of, scripts

NEVER = 10**9  # seconds


def planned(tick: Tick, kind: LinkKind = LinkKind.RANGE) -> list[OffsetRange]:
    return [link.offsets for link in tick.step.links if link.kind is kind] if tick.step else []


def open_log(world: World, policy: Policy) -> Tail:
    step = plan(Tail(), world.observe(Tail()), policy, world.now_ms)
    assert step is not None
    return step.tail


# ---- 1: the links tile


@given(scripts())
def test_links_tile_through_growth_retention_new_partitions_recreation_and_truncation(script: Script) -> None:
    """[R-2] Law 1, AC4, AC5: per generation and Kafka partition each link starts where the last one ended."""
    ticks = script.play()
    ends: dict[tuple[int, int], int] = {}
    for tick in ticks:
        for link in tick.step.links if tick.step else ():
            place = (link.offsets.generation, link.offsets.partition)
            assert link.offsets.start == ends.get(place, 0)
            ends[place] = link.offsets.end
        for partition, head in tick.after.heads.items():
            assert head.offset == ends.get((tick.after.generation, partition), 0)
    assert log_of(ticks).tail == ticks[-1].after


@given(scripts())
def test_steps_are_numbered_and_only_written_when_they_decide_something(script: Script) -> None:
    tail = Tail()
    for tick in script.play():
        if tick.step:
            assert tick.step.seq == tail.seq
            assert tick.step.links or tick.step.tail != replace(tail, seq=tail.seq + 1)
            tail = tick.step.tail
        assert tick.after == tail


# ---- 2: inside the watermarks


@given(scripts())
def test_a_range_is_inside_the_watermarks_it_was_planned_from(script: Script) -> None:
    """[R-3] Law 2, AC15: no range goes past the end that a reader may see, nor below the earliest offset."""
    for tick in script.play():
        for offsets in planned(tick):
            marks = tick.state.partitions[offsets.partition].watermarks
            assert marks.earliest <= offsets.start
            assert offsets.end <= marks.end
            assert tick.step is not None
            assert tick.step.watermarks[offsets.partition] == marks


# ---- 3: loss is exact


@given(scripts())
def test_a_lost_link_is_exactly_what_was_deleted_before_it_was_planned(script: Script) -> None:
    """[R-4] Law 3, AC1: `[head, earliest)` with a cause; every partition that lost nothing gets no such link."""
    for tick in script.play():
        if tick.before.seq == 0:
            assert planned(tick, LinkKind.LOST) == []
            continue
        same = tick.after.generation == tick.before.generation
        expected = []
        for partition, seen in sorted(tick.state.partitions.items()):
            head = tick.before.heads[partition].offset if same and partition in tick.before.heads else 0
            if seen.watermarks.earliest > head:
                expected.append(OffsetRange(tick.after.generation, partition, head, seen.watermarks.earliest))
        assert planned(tick, LinkKind.LOST) == expected
        if tick.step:
            assert all(link.cause for link in tick.step.links if link.kind is LinkKind.LOST)


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50))
def test_loss_in_one_partition_does_not_touch_another(lost: int, left: int, other: int) -> None:
    """[R-4] Law 3, AC1: what the other partition is given is what it would be given without the loss."""
    tail = Tail(1, 0, "id-0", {0: Head(0, 0), 1: Head(0, 0)})
    states = [
        TopicState(
            TOPIC, "id-0", {0: PartitionState(Watermarks(e, lost + left)), 1: PartitionState(Watermarks(0, other))}
        )
        for e in (0, lost)
    ]
    healthy, lossy = (plan(tail, state, Policy(records_per_range=7), EPOCH_MS) for state in states)
    assert healthy is not None
    assert lossy is not None
    assert [o for o in lossy.ranges if o.partition == 1] == [o for o in healthy.ranges if o.partition == 1]
    assert lossy.heads[1] == healthy.heads[1]
    assert lossy.generation == healthy.generation


def test_records_behind_a_loss_keep_their_age() -> None:
    """Law 3: retention that deletes more often than `max_age` must not put off the rest for ever."""
    world, policy = World(), Policy(records_per_range=100, max_age_seconds=60)
    world.grow(0, 10)
    world.wait(60)
    tail = open_log(world, policy)
    world.grow(0, 50)
    world.wait(90)
    world.partitions[0].earliest = 30
    step = plan(tail, world.observe(tail), policy, world.now_ms)
    assert step is not None
    assert [(link.kind, link.offsets.start, link.offsets.end) for link in step.links] == [
        (LinkKind.LOST, 10, 30),
        (LinkKind.RANGE, 30, 60),
    ]


# ---- 4: the grid and the tail


@given(scripts())
def test_ranges_end_on_the_grid_but_for_a_tail_that_is_due(script: Script) -> None:
    """Law 4: a shorter range ends at the end offset, and its partition's first record has waited for `max_age`.

    [R-5]
    """
    grid, max_age_ms = script.policy.records_per_range, script.policy.max_age_seconds * 1000
    assert isinstance(grid, int)
    for tick in script.play():
        for offsets in planned(tick):
            assert len(offsets) <= grid
            assert offsets.start // grid == (offsets.end - 1) // grid
            if offsets.end % grid:
                seen = tick.state.partitions[offsets.partition]
                assert offsets.end == seen.watermarks.end
                oldest = seen.oldest_ms
                assert oldest is None or oldest > tick.now_ms or tick.now_ms - oldest >= max_age_ms


@given(scripts(budget=200))
def test_every_full_range_is_planned_at_once(script: Script) -> None:
    """Law 4: no grid line is left between a head and the end offset while the budget lasts."""
    grid = script.policy.records_per_range
    assert isinstance(grid, int)
    for tick in script.play():
        if len(planned(tick)) < script.policy.budget:
            for partition, seen in tick.state.partitions.items():
                assert tick.after.heads[partition].offset // grid == seen.watermarks.end // grid


@given(scripts(events=[GROW, WAIT], budget=200))
def test_a_tail_is_cut_at_most_once_per_max_age(script: Script) -> None:
    """[R-5] Law 4: whatever the timestamps say, short files are no more than one per `max_age` and partition."""
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
    """[R-5] Law 4, AC16: what a tick leaves unplanned arrived less than `max_age` ago, or says that it is that young.

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
    """AC3, AC16: one record an hour is planned within `max_age` and one tick, for any event timestamp."""
    policy = Policy(records_per_range=1000, max_age_seconds=60)
    world = World()
    world.grow(0, 1)
    tail = open_log(world, policy)
    for _ in range(2):
        world.wait(idle_seconds)
        step = plan(tail, world.observe(tail), policy, world.now_ms)
        tail = step.tail if step else tail
        world.wait(idle_seconds)
        arrived_ms = world.now_ms
        world.grow(0, 1, kind)
        world.wait(late_seconds)
        while tail.heads[0].offset < len(world.partitions[0].records):
            assert world.now_ms - arrived_ms < (60 + late_seconds + tick_seconds) * 1000
            step = plan(tail, world.observe(tail), policy, world.now_ms)
            tail = step.tail if step else tail
            world.wait(tick_seconds)


@pytest.mark.parametrize("kind", ["now", "past", "future", "none"])
def test_a_partition_noticed_late_is_planned_at_once(kind: Kind) -> None:
    """AC5: records that waited before their partition was noticed do not wait again."""
    world, policy = World(), Policy(records_per_range=1000, max_age_seconds=60)
    tail = open_log(world, policy)
    world.add_partition(0)
    world.grow(1, 7, kind)
    world.wait(60)
    step = plan(tail, world.observe(tail), policy, world.now_ms)
    assert step is not None
    assert step.ranges == (OffsetRange(0, 1, 0, 7),)


def test_a_planner_with_a_wrong_clock_does_not_stall_the_others() -> None:
    """Law 4: a head moved in the year 2100 does not put a tail off until then."""
    marks = {0: PartitionState(Watermarks(0, 20), oldest_ms=EPOCH_MS - 3_600_000)}
    tail = Tail(1, 0, "id-0", {0: Head(10, EPOCH_MS + 10**12)})
    step = plan(tail, TopicState(TOPIC, "id-0", marks), Policy(records_per_range=1000), EPOCH_MS)
    assert step is not None
    assert step.ranges == (OffsetRange(0, 0, 10, 20),)
    assert step.heads == {0: Head(20, EPOCH_MS)}


def test_a_person_can_cut_the_tail_at_once() -> None:
    """[R-5] Control beside it: without that word the same tail waits."""
    world, policy = World(), Policy(records_per_range=10, max_age_seconds=NEVER)
    tail = open_log(world, policy)
    world.grow(0, 25)
    state = world.observe(tail)
    waits = plan(tail, state, policy, world.now_ms)
    cut = plan(tail, state, policy, world.now_ms, through_end=True)
    assert waits is not None
    assert cut is not None
    assert [o.end for o in waits.ranges] == [10, 20]
    assert [o.end for o in cut.ranges] == [10, 20, 25]


@given(st.floats(1e-3, 1e9), st.integers(1, 2**40))
def test_the_auto_grid_is_the_power_of_two_at_or_just_below_the_target(bytes_per_record: float, target: int) -> None:
    """[R-6] Law 4, AC23: a range is between half of the target and the target, where the bounds allow it."""
    grid = records_per_range(Policy(target_file_bytes=target), bytes_per_record)
    assert grid.bit_count() == 1
    assert 1 <= grid <= AUTO_RECORDS_MAX
    if grid < AUTO_RECORDS_MAX:
        assert (grid * 2) * bytes_per_record > target * 0.999999
    if grid > 1:
        assert grid * bytes_per_record <= target * 1.000001


@pytest.mark.parametrize("unknown", [None, 0.0, -1.0])
def test_the_auto_grid_has_a_default_where_nothing_is_known_and_a_number_is_taken_as_it_is(
    unknown: float | None,
) -> None:
    """[R-6] Law 4: before the first record nobody knows a size."""
    assert records_per_range(Policy(), unknown) == AUTO_RECORDS_DEFAULT
    assert records_per_range(Policy(records_per_range=37), 10.0) == 37


# ---- 5: decided once, bounded, fair


@given(scripts())
def test_planning_again_with_the_same_inputs_decides_nothing(script: Script) -> None:
    """[R-7] Law 5: unless the budget was used up, and then only more ranges."""
    for tick in script.play():
        again = plan(tick.after, tick.state, script.policy, tick.now_ms)
        if len(planned(tick)) < script.policy.budget:
            assert again is None
        elif again is not None:
            assert {link.kind for link in again.links} == {LinkKind.RANGE}


@given(scripts())
def test_the_same_inputs_give_the_same_step(script: Script) -> None:
    """[R-7] Law 5: `plan` is a function; two planners that race write the same boundaries."""
    for tick in script.play():
        step = plan(tick.before, tick.state, script.policy, tick.now_ms, planner="test")
        assert (step and step.to_json()) == (tick.step and tick.step.to_json())


@given(scripts())
def test_the_budget_bounds_a_step_and_is_shared_fairly(script: Script) -> None:
    """[R-7] Law 5: a partition gets a second range more than another only when that one has no more to cut."""
    unbounded = replace(script.policy, budget=10**6)
    for tick in script.play():
        assert len(planned(tick)) <= script.policy.budget
        wanted_step = plan(tick.before, tick.state, unbounded, tick.now_ms)
        wanted = wanted_step.ranges if wanted_step else ()
        assert len(planned(tick)) == min(len(wanted), script.policy.budget)
        got = {p: sum(o.partition == p for o in planned(tick)) for p in tick.state.partitions}
        could = {p: sum(o.partition == p for o in wanted) for p in tick.state.partitions}
        for partition, count in got.items():
            assert count == could[partition] or max(got.values()) <= count + 1


def test_loss_is_recorded_whatever_the_budget() -> None:
    """[R-4] Law 3: a budget bounds the ranges of a step, not what must be said."""
    tail = Tail(1, 0, "id-0", {p: Head(0, 0) for p in range(5)})
    state = TopicState(TOPIC, "id-0", {p: PartitionState(Watermarks(10, 30)) for p in range(5)})
    step = plan(tail, state, Policy(records_per_range=10, budget=1), EPOCH_MS)
    assert step is not None
    assert [link.kind for link in step.links] == [LinkKind.LOST] * 5 + [LinkKind.RANGE]


@given(st.permutations(range(5)))
def test_the_partition_whose_record_has_waited_longest_goes_first(ages: list[int]) -> None:
    """Law 5: with a budget of one, the oldest record is the one that retention takes next."""
    tail = Tail(1, 0, "id-0", {p: Head(0, 0) for p in range(5)})
    marks = {p: PartitionState(Watermarks(0, 10), EPOCH_MS - 1000 * age) for p, age in enumerate(ages)}
    step = plan(tail, TopicState(TOPIC, "id-0", marks), Policy(records_per_range=10, budget=1), EPOCH_MS)
    assert step is not None
    assert [o.partition for o in step.ranges] == [ages.index(4)]


@given(st.lists(st.sampled_from(["now", "past", "future", "none"]), min_size=2, max_size=6))
def test_no_partition_is_starved_whatever_the_timestamps_of_the_others(kinds: list[Kind]) -> None:
    """Law 5, AC16: with a budget of one and a record everywhere at each tick, each partition has its turn."""
    policy = Policy(records_per_range=1000, max_age_seconds=0, budget=1)
    world = World()
    for _ in kinds[1:]:
        world.add_partition(0)
    tail = open_log(world, policy)
    turns = dict.fromkeys(range(len(kinds)), 0)
    for _ in range(4 * len(kinds)):
        for partition, kind in enumerate(kinds):
            world.grow(partition, 1, kind)
        world.wait(5)
        step = plan(tail, world.observe(tail), policy, world.now_ms)
        assert step is not None
        turns[step.ranges[0].partition] += 1
        tail = step.tail
    assert min(turns.values()) >= 1


@pytest.mark.timeout(5)
def test_a_backlog_of_a_million_ranges_is_cut_only_as_far_as_the_budget() -> None:
    """AC25: cuts are made lazily, so a step costs its budget, not the backlog."""
    tail = Tail(1, 0, "id-0", {p: Head(0, 0) for p in range(100)})
    state = TopicState(TOPIC, "id-0", {p: PartitionState(Watermarks(0, 2**62)) for p in range(100)})
    step = plan(tail, state, Policy(records_per_range=1, budget=5_000), EPOCH_MS)
    assert step is not None
    assert len(step.ranges) == 5_000
    assert {o.end for o in step.ranges if o.partition == 42} == set(range(1, 51))


def test_an_idle_topic_plans_nothing() -> None:
    """AC16: after the step that opens the log, silence adds no step and so no key."""
    world, policy = World(), Policy(max_age_seconds=0)
    world.add_partition(3)
    tail = open_log(world, policy)
    for seconds in (0, 1, 60, 10**6):
        world.wait(seconds)
        assert plan(tail, world.observe(tail), policy, world.now_ms) is None
        assert plan(tail, world.observe(tail), policy, world.now_ms, through_end=True) is None


# ---- 6: the beginning


@pytest.mark.parametrize(
    ("start", "start_offset", "skipped", "ranges"),
    [
        pytest.param("earliest", None, [], [(5, 10), (10, 12)], id="earliest"),
        pytest.param("latest", 12, [(5, 12)], [], id="latest"),
        pytest.param(EPOCH_MS, 9, [(5, 9)], [(9, 10), (10, 12)], id="timestamp"),
        pytest.param(EPOCH_MS, 2, [], [(5, 10), (10, 12)], id="timestamp before retention"),
        pytest.param(EPOCH_MS, 99, [(5, 12)], [], id="timestamp after the end"),
    ],
)
def test_start_applies_to_the_first_link_and_says_what_it_skips(
    start: str | int, start_offset: int | None, skipped: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    """[R-8] Law 6: as Kafka's `auto.offset.reset`, but written down."""
    state = TopicState(TOPIC, "id-0", {3: PartitionState(Watermarks(5, 12), None, start_offset)})
    step = plan(Tail(), state, Policy(records_per_range=10, start=start), EPOCH_MS)
    assert step is not None
    found = [(link.offsets.start, link.offsets.end) for link in step.links if link.kind is LinkKind.SKIPPED]
    assert found == skipped
    assert [(o.start, o.end) for o in step.ranges] == ranges
    assert step.heads[3].offset == 12
    PlanLog(TOPIC, (step,))


def test_start_applies_once() -> None:
    """[R-8] Law 6, AC5: a partition that appears later starts at its first offset, whatever `start` says."""
    world, policy = World(), Policy(records_per_range=10, start="latest", max_age_seconds=0)
    world.grow(0, 10)
    first = plan(Tail(), world.observe(Tail(), {0: 10}), policy, world.now_ms)
    assert first is not None
    world.add_partition(8, expired=3)
    world.grow(0, 4)
    second = plan(first.tail, world.observe(first.tail, {0: 14, 1: 8}), policy, world.now_ms)
    assert second is not None
    assert set(second.ranges) == {OffsetRange(0, 1, 3, 8), OffsetRange(0, 0, 10, 14)}
    assert [link.offsets for link in second.links if link.kind is LinkKind.LOST] == [OffsetRange(0, 1, 0, 3)]
    PlanLog(TOPIC, (first, second))


def test_start_none_refuses_a_topic_without_a_plan_log_and_nothing_else() -> None:
    """[R-8] Law 6: a lake that was lost is not begun again by mistake."""
    world, policy = World(), Policy(start="none", max_age_seconds=0)
    world.grow(0, 3)
    with pytest.raises(Refused, match=f"topic {TOPIC} has no plan log and its policy says start: none"):
        plan(Tail(), world.observe(Tail()), policy, world.now_ms)
    tail = open_log(world, replace(policy, start="earliest"))
    world.grow(0, 1)
    assert plan(tail, world.observe(tail), policy, world.now_ms) is not None


def test_an_empty_topic_is_opened_so_that_nothing_of_it_goes_unnoticed() -> None:
    """AC3: records that come and expire before the next tick are lost in the log, not unheard of."""
    world, policy = World(), Policy(max_age_seconds=0)
    tail = open_log(world, policy)
    world.grow(0, 5)
    world.expire(0, 100)
    step = plan(tail, world.observe(tail), policy, world.now_ms)
    assert step is not None
    assert [(link.kind, link.offsets) for link in step.links] == [(LinkKind.LOST, OffsetRange(0, 0, 0, 5))]


# ---- 7: generations


@pytest.mark.parametrize("count", [0, 4, 10, 25], ids=["none", "fewer", "as many", "more"])
def test_a_recreated_topic_opens_a_new_generation_at_its_first_offset(count: int) -> None:
    """[R-9] Law 7, AC4: whether it has fewer, as many or more records; no old range is written again."""
    world, policy = World(), Policy(records_per_range=10, max_age_seconds=0)
    world.grow(0, 10)
    tail = open_log(world, policy)
    world.recreate(2, count)
    step = plan(tail, world.observe(tail), policy, world.now_ms)
    assert step is not None
    assert (step.generation, step.topic_id) == (1, "id-1")
    assert {o.generation for o in step.ranges} <= {1}
    ranges = [(o.start, o.end) for o in step.ranges if o.partition == 1]
    assert ranges == [(at, min(at + 10, count)) for at in range(0, count, 10)]
    assert set(step.heads) == {0, 1}


def test_without_topic_ids_a_generation_is_told_by_an_end_below_the_head() -> None:
    """Law 7: and only by that, which `doctor` says."""
    world, policy = World(has_ids=False), Policy(records_per_range=10, max_age_seconds=0)
    world.grow(0, 10)
    tail = open_log(world, policy)
    world.recreate(1, 10)
    assert plan(tail, world.observe(tail), policy, world.now_ms) is None
    world.recreate(1, 9)
    step = plan(tail, world.observe(tail), policy, world.now_ms)
    assert step is not None
    assert step.ranges == (OffsetRange(1, 0, 0, 9),)


def test_a_log_begun_without_a_topic_id_takes_the_first_it_sees() -> None:
    """Law 7, AC4: else an upgraded broker's topic could be recreated unnoticed for ever."""
    world, policy = World(has_ids=False), Policy(records_per_range=10, max_age_seconds=0)
    world.grow(0, 10)
    tail = open_log(world, policy)
    world.has_ids = True
    adopted = plan(tail, world.observe(tail), policy, world.now_ms)
    assert adopted is not None
    assert (adopted.generation, adopted.topic_id, adopted.links) == (0, "id-0", ())
    assert plan(adopted.tail, world.observe(adopted.tail), policy, world.now_ms) is None
    world.recreate(1, 10)
    step = plan(adopted.tail, world.observe(adopted.tail), policy, world.now_ms)
    assert step is not None
    assert step.generation == 1


def test_a_broker_that_stops_giving_ids_does_not_open_a_generation() -> None:
    """Control of law 7: an id that is not told is not another id."""
    world, policy = World(), Policy(max_age_seconds=0)
    world.grow(0, 3)
    tail = open_log(world, policy)
    world.has_ids = False
    assert plan(tail, world.observe(tail), policy, world.now_ms) is None


@given(scripts())
def test_a_generation_opens_exactly_for_another_id_or_an_end_below_the_head(script: Script) -> None:
    """[R-9] Law 7: generations grow by one, and a partition that disappears from sight keeps its head."""
    for tick in script.play():
        heads = tick.before.heads
        ids = {tick.before.topic_id, tick.state.topic_id}
        another = tick.before.seq > 0 and len(ids - {None}) == 2
        below = any(p in heads and s.watermarks.end < heads[p].offset for p, s in tick.state.partitions.items())
        assert tick.after.generation == tick.before.generation + (another or below)
        if not (another or below):
            assert heads.keys() <= tick.after.heads.keys()


def test_a_record_of_the_world_is_what_it_says() -> None:
    """Control of these tests: the world shows the timestamp at the head, and no more than a broker would."""
    world = World()
    world.grow(0, 2)
    world.wait(10)
    world.grow(0, 1, "none")
    tail = Tail(1, 0, "id-0", {0: Head(1, 0)})
    assert world.observe(tail).partitions[0] == PartitionState(Watermarks(0, 3), EPOCH_MS)
    assert world.partitions[0].records[2] == Record(EPOCH_MS + 10_000, None)
    assert world.observe(replace(tail, heads={0: Head(2, 0)})).partitions[0].oldest_ms is None
