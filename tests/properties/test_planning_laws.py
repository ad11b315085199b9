"""Laws of plan and plan log, over random histories: links tile, the grid, the tail, a budget that is fair, epochs."""

import re
import time
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog, NoLeader
from pipeline_defs.core.log import cutting
from pipeline_defs.core.log.cutting import Policy, grid_of
from pipeline_defs.core.log.plan_step import ALL_HEADS_EVERY, Head, Link, LinkKind, LogState, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.log.topic_state import PartitionState, TopicState
from pipeline_defs.core.offsets import OffsetRange
from tests.support import strategies
from tests.support.strategies import EPOCH_MS, TOPIC, Script, World, decide, logs, open_log, planned, scripts, step_of


def refusal(*steps: PlanStep) -> str:
    with pytest.raises(BrokenPlanLog) as caught:
        PlanLog(TOPIC, steps)
    return str(caught.value)


def refusal_of(log: PlanLog, at: int, **changes: Any) -> str:
    """Return what is said of a log of which one step was changed."""
    return refusal(*log.steps[:at], replace(log.steps[at], **changes), *log.steps[at + 1 :])


@dataclass(frozen=True)
class Spot:
    """One link of a log, in one of its steps."""

    log: PlanLog
    at: int
    number: int

    @property
    def link(self) -> Link:
        return self.log.steps[self.at].links[self.number]

    def refusal_of(self, *instead: Link) -> str:
        """Return what is said where other links stand in its place."""
        links = self.log.steps[self.at].links
        return refusal_of(self.log, self.at, links=(*links[: self.number], *instead, *links[self.number + 1 :]))


@st.composite
def spots(draw: st.DrawFn) -> Spot:
    log = draw(logs())
    places = [(at, number) for at, step in enumerate(log.steps) for number in range(len(step.links))]
    assume(places)
    return Spot(log, *draw(st.sampled_from(places)))


@given(spots())
def test_a_link_that_is_dropped_doubled_or_of_another_generation_is_refused_and_its_offsets_are_named(spot: Spot) -> None:
    """[R-2] Also the very first link of a partition, and the last; what is doubled would be landed twice."""
    link, here = spot.link, spot.link.offsets
    assert {str(here.start), str(here.end)} <= set(re.findall(r"\d+", spot.refusal_of()))
    assert f"overlap [{here.start}, {here.end}) before {here.text(TOPIC)}" in spot.refusal_of(link, link)
    wrong = replace(here, generation=here.generation + 1)
    assert wrong.text(TOPIC) in spot.refusal_of(replace(link, offsets=wrong))


@given(spots(), st.sampled_from(["start", "end"]), st.sampled_from([-1, 1]))
def test_a_link_shifted_by_one_at_one_end_is_refused(spot: Spot, end: str, by: int) -> None:
    """[R-2] The message has the offset where it should be and where it is."""
    right = spot.link.offsets
    offset = getattr(right, end)
    assume(offset + by >= 0)
    assume(len(right) > 1 or (end, by) not in {("start", 1), ("end", -1)})
    message = spot.refusal_of(replace(spot.link, offsets=replace(right, **{end: offset + by})))
    assert {str(offset), str(offset + by)} <= set(re.findall(r"\d+", message))


@given(logs())
def test_reordered_links_of_a_partition_are_refused(log: PlanLog) -> None:
    neighbours = [
        (at, one, other)
        for at, step in enumerate(log.steps)
        for one, a in enumerate(step.links)
        for other, b in enumerate(step.links)
        if a.offsets.partition == b.offsets.partition and a.offsets.end == b.offsets.start
    ]
    assume(neighbours)
    at, one, other = neighbours[-1]
    links = list(log.steps[at].links)
    links[one], links[other] = links[other], links[one]
    late, early = links[one].offsets, links[other].offsets
    assert f"gap [{early.start}, {late.start}) before {late.text(TOPIC)}" in refusal_of(log, at, links=tuple(links))


@given(logs(), st.data())
def test_a_dropped_doubled_or_reordered_step_is_refused(log: PlanLog, data: st.DataObject) -> None:
    steps = list(log.steps)
    at = data.draw(st.integers(0, len(steps) - 1))
    assert f"expected plan step {at + 1}, found {at}" in refusal(*steps[: at + 1], *steps[at:])
    if at + 1 < len(steps):
        assert f"expected plan step {at}, found {at + 1}" in refusal(*steps[:at], *steps[at + 1 :])
        steps[at], steps[at + 1] = steps[at + 1], steps[at]
        assert f"expected plan step {at}, found {at + 1}" in refusal(*steps)


@given(logs(), st.data())
def test_a_dropped_or_shifted_head_is_refused(log: PlanLog, data: st.DataObject) -> None:
    """[R-2] The heads of the last step are all that planning reads: a wrong one would plan offsets twice, or never."""
    at = data.draw(st.integers(0, len(log.steps) - 1))
    step = log.steps[at]
    assume(step.heads)
    partition = data.draw(st.sampled_from(sorted(step.heads)))
    head = step.heads[partition]
    by = data.draw(st.sampled_from([-1, 1]))
    message = refusal_of(log, at, heads={**step.heads, partition: replace(head, offset=head.offset + by)})
    assert f"plan step {at} has head {head.offset + by} of {TOPIC}/{partition}, its links end at {head.offset}" in message
    dropped = {p: h for p, h in step.heads.items() if p != partition}
    assert f"plan step {at} has no head of {TOPIC}/{partition}" in refusal_of(log, at, heads=dropped)


@given(logs())
def test_a_step_carries_the_heads_that_it_moves_and_each_32nd_has_all(log: PlanLog) -> None:
    """[R-2] So does a generation's first."""
    log_state = LogState()
    for step in log.steps:
        after = step.after(log_state)
        is_whole = step.generation != log_state.generation or step.seq % ALL_HEADS_EVERY == 0
        assert step.heads == {p: h for p, h in after.heads.items() if is_whole or log_state.heads.get(p) != h}
        log_state = after


@pytest.mark.parametrize(
    ("generations", "said"),
    [([0, 1, 0], "from generation 1 to 0"), ([0, 2], "from generation 0 to 2"), ([1], "from generation 0 to 1")],
)
def test_generations_begin_at_0_and_grow_by_one(generations: list[int], said: str) -> None:
    """A closed generation is never written to again."""
    steps = [step_of(seq, head=0, generation=generation) for seq, generation in enumerate(generations)]
    assert f"plan step {len(steps) - 1} goes {said}" in refusal(*steps)


def test_a_step_of_another_topic_is_refused() -> None:
    assert f"plan step 0 is of topic flights, expected {TOPIC}" in refusal(replace(step_of(0, head=0), topic="flights"))


def test_a_partition_begins_where_the_log_found_it_and_a_later_one_at_0() -> None:
    """[R-8] The beginning cannot be shifted either."""
    found_at_5 = replace(step_of(0, (5, 10), head=10), watermarks={0: Watermarks(5, 10)})
    PlanLog(TOPIC, (found_at_5,))
    assert "gap [4, 5) before orders/0 [5, 10)" in refusal(replace(found_at_5, watermarks={0: Watermarks(4, 10)}))
    appeared = replace(step_of(1, head=10), watermarks={0: Watermarks(5, 10), 1: Watermarks(3, 3)})
    heads = {0: Head(10, 0), 1: Head(3, 0)}
    assert "has head 3 of orders/1, its links end at 0" in refusal(found_at_5, replace(appeared, heads=heads))


def test_all_violations_are_named_at_once() -> None:
    with pytest.raises(BrokenPlanLog) as caught:
        PlanLog(TOPIC, (step_of(0, (0, 10), (12, 20), (19, 30), head=29),))
    assert caught.value.violations == (
        "gap [10, 12) before orders/0 [12, 20) in plan step 0",
        "overlap [19, 20) before orders/0 [19, 30) in plan step 0",
        "plan step 0 has head 29 of orders/0, its links end at 30",
    )


@given(logs())
def test_what_the_planner_writes_is_a_log_and_so_is_each_beginning_of_it(log: PlanLog) -> None:
    """[R-2] Control: the refusals above are for the corruption, not for the log."""
    for length in range(len(log.steps) + 1):
        part = PlanLog(TOPIC, log.steps[:length])
        assert part.state == reduce(lambda log_state, step: step.after(log_state), log.steps[:length], LogState())
    assert log.links == tuple(link for step in log.steps for link in step.links)
    assert list(log.ranges) == [link.offsets for link in log.links if link.kind is LinkKind.RANGE]
    assert all(offsets in step.ranges for offsets, step in log.ranges.items())


def seconds_to_check(steps: int) -> float:
    """Return what checking a log of so many steps of 200 ranges costs: CPU time of this thread, whoever else is at work."""
    ends = range(200, 200 * steps + 1, 200)
    log = [step_of(seq, *((at, at + 1) for at in range(end - 200, end)), head=end) for seq, end in enumerate(ends)]
    began = time.thread_time()
    checked = PlanLog(TOPIC, tuple(log))
    assert len(checked.ranges) == 200 * steps
    assert all(offsets in checked.ranges for offsets in list(checked.ranges))
    return time.thread_time() - began


def test_a_log_of_40_000_ranges_is_checked_in_one_pass() -> None:
    """[R-7] The cost of a tick is the new steps', so the check must be linear: ten times the log, not a hundred times."""
    tenth = min(seconds_to_check(20) for _ in range(3))
    assert seconds_to_check(200) < 40 * tenth


@given(scripts(budget=2))
def test_a_step_that_takes_in_partitions_says_where_each_log_ended(script: Script) -> None:
    """[R-86] Also of those that are new, and whatever of the backlog is planned."""
    for tick in script.play():
        if tick.step is None:
            continue
        is_same = tick.before.seq > 0 and tick.after.generation == tick.before.generation
        known = tick.before.growths if is_same else ()
        has_grown = is_same and tick.after.heads.keys() != tick.before.heads.keys()
        ends = {partition: seen.log_end for partition, seen in tick.state.partitions.items()}
        assert tick.after.growths == ((*known, ends) if has_grown else known)


@given(scripts(budget=2))
def test_all_records_of_a_range_are_of_one_epoch(script: Script) -> None:
    """[R-86] Epochs of a Kafka partition never fall along its offsets."""
    log = strategies.log_of(script.play())
    last: dict[tuple[int, int], int] = {}
    for offsets in log.ranges:
        growths = next(step.growths for step in reversed(log.steps) if step.generation == offsets.generation)
        epochs = {sum(growth.get(offsets.partition, 0) <= at for growth in growths) for at in range(offsets.start, offsets.end)}
        assert epochs == {log.epoch_of(offsets)}
        place = offsets.place
        assert log.epoch_of(offsets) >= last.get(place, 0)
        last[place] = log.epoch_of(offsets)


@given(logs(), st.data())
def test_growths_that_are_forgotten_made_up_or_not_whole_are_refused(log: PlanLog, data: st.DataObject) -> None:
    """[R-86] A range over a growth, too: it would be of two epochs."""
    with_growth = [at for at, step in enumerate(log.steps) if step.growths]
    assume(with_growth)
    at = data.draw(st.sampled_from(with_growth))
    step, last = log.steps[at], log.steps[at].growths[-1]
    some = data.draw(st.sampled_from(sorted(last)))
    wrong = [(), (*step.growths, last), (*step.growths[:-1], {p: end for p, end in last.items() if p != some})]
    wrong += [(*step.growths[:-1], {**last, each.partition: each.start + 1}) for each in step.ranges if len(each) > 1]
    for growths in wrong:
        with pytest.raises(BrokenPlanLog, match="growth"):
            PlanLog(log.topic, (*log.steps[:at], replace(step, growths=growths), *log.steps[at + 1 :]))


@given(logs())
def test_a_step_reads_back_as_it_was_written(log: PlanLog) -> None:
    """The same step gives the same bytes, so that a write of unknown outcome can be settled by comparing."""
    for step in log.steps:
        data = step.to_json()
        again = PlanStep.from_json(data, "plan/orders/0.json")
        assert again == step
        assert again.to_json() == data


@given(scripts())
def test_a_range_is_inside_the_watermarks_it_was_planned_from(script: Script) -> None:
    """[R-3] No range goes past the end that a reader may see, nor below the earliest offset."""
    for tick in script.play():
        for offsets in planned(tick):
            marks = tick.state.partitions[offsets.partition].watermarks
            assert marks.earliest <= offsets.start
            assert offsets.end <= marks.end
            assert tick.step is not None
            assert tick.step.watermarks[offsets.partition] == marks


@given(scripts(budget=200), st.sets(st.integers(0, 3), min_size=1))
def test_kafka_partitions_without_a_leader_hold_up_no_other(script: Script, hidden: set[int]) -> None:
    """[R-4] Others are planned as if they had one; a beginning, a generation and a growth wait for each leader."""
    for tick in script.play():
        led = {p: seen for p, seen in tick.state.partitions.items() if p not in hidden}
        state = replace(tick.state, partitions=led, leaderless=(*sorted(tick.state.partitions.keys() & hidden),))
        same = (tick.before.generation, tick.before.growths) == (tick.after.generation, tick.after.growths)
        try:
            step = plan(tick.before, state, script.policy, tick.now_ms)
        except NoLeader:
            assert state.leaderless and (tick.before.seq == 0 or not same)
        else:
            is_cut_off = tick.before.generation < tick.after.generation and tick.before.topic_id == tick.after.topic_id
            assert not state.leaderless or (tick.before.seq > 0 and (same or is_cut_off)), "what is cut off may be hidden"
            whole = [link for link in (tick.step.links if tick.step else ()) if link.offsets.partition not in hidden]
            assert not same or {*(step.links if step else ())} == {*whole}


@given(scripts())
def test_a_lost_link_is_exactly_what_was_deleted_before_it_was_planned(script: Script) -> None:
    """[R-4] `[head, earliest)` with a cause; every partition that lost nothing gets no such link."""
    for tick in script.play():
        if tick.before.seq == 0:
            assert planned(tick, LinkKind.LOST) == []
            continue
        same = tick.after.generation == tick.before.generation
        is_cut_off = not same and len({tick.before.topic_id, tick.state.topic_id} - {None}) < 2
        expected = []
        for partition, seen in sorted(tick.state.partitions.items()):
            if is_cut_off and partition in tick.before.heads:  # it begins where it does: the rest was planned before
                continue
            head = tick.before.heads[partition].offset if same and partition in tick.before.heads else 0
            if seen.watermarks.earliest > head:
                expected.append(OffsetRange(tick.after.generation, partition, head, seen.watermarks.earliest))
        assert planned(tick, LinkKind.LOST) == expected
        if tick.step:
            assert all(link.cause for link in tick.step.links if link.kind is LinkKind.LOST)


def test_a_loss_in_a_partition_that_appears_with_a_truncation_is_recorded() -> None:
    """[R-4] What is missing of the log that was cut off was planned; of the new one nothing was."""
    log_state = LogState(1, 0, "id-0", {0: Head(10, 0)})
    seen = {0: PartitionState(Watermarks(0, 4)), 1: PartitionState(Watermarks(5, 8))}
    step = decide(log_state, TopicState(TOPIC, "id-0", seen), Policy(max_age_seconds=0), EPOCH_MS)
    assert [link.offsets.key for link in step.links] == ["1-0-5-g1", "0-0-4-g1", "1-5-8-g1"]
    assert [link.kind for link in step.links] == [LinkKind.LOST, LinkKind.RANGE, LinkKind.RANGE]


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


@given(scripts(events=[strategies.GROW, strategies.WAIT], budget=200))
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


# deletes the beginning of what waits, which must not put off the rest
RETENTION = [("grow", (0, 10)), ("wait", (60,)), ("grow", (0, 50)), ("wait", (50,)), ("expire", (0, 40)), ("wait", (30,))]


@given(scripts(budget=200))
@example(Script(Policy(records_per_range=100, max_age_seconds=60), True, RETENTION))
def test_no_record_waits_longer_than_max_age(script: Script) -> None:
    """[R-5] What a tick leaves unplanned arrived less than `max_age` ago, or says that it is that young.

    A timestamp that is later than the arrival can put a record off until `max_age` after that timestamp.
    """
    for tick in script.play():
        for record in tick.first_waiting.values():
            says = record.timestamp_ms
            believed = says if says is not None and record.arrived_ms < says <= tick.now_ms else record.arrived_ms
            assert tick.now_ms - believed < script.policy.max_age_seconds * 1000


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
    assert plan(step.after(log_state), state, policy, world.now_ms, through_end=True) is None, "where nothing waits"


@given(st.floats(1e-3, 1e9), st.integers(1, 2**40))
def test_the_auto_grid_is_the_power_of_two_at_or_just_below_the_target(bytes_per_record: float, target: int) -> None:
    """[R-6] A range is between half of the target and the target, where the bounds allow it."""
    grid = grid_of(Policy(target_file_bytes=target), bytes_per_record)
    assert grid.bit_count() == 1
    assert 1 <= grid <= cutting.AUTO_RECORDS_MAX
    if grid < cutting.AUTO_RECORDS_MAX:
        assert (grid * 2) * bytes_per_record > target * 0.999999
    if grid > 1:
        assert grid * bytes_per_record <= target * 1.000001


@pytest.mark.parametrize("unknown", [None, 0.0, -1.0])
def test_the_auto_grid_has_a_default_where_nothing_is_known_and_a_number_is_taken_as_it_is(unknown: float | None) -> None:
    """[R-6] Before the first record nobody knows a size."""
    assert grid_of(Policy(), unknown) == cutting.AUTO_RECORDS_DEFAULT
    assert grid_of(Policy(records_per_range=37), 10.0) == 37


@given(scripts())
def test_the_same_inputs_give_the_same_step_and_after_it_nothing(script: Script) -> None:
    """[R-7] Two planners that race write the same boundaries; where the budget was used up, more ranges come after them."""
    for tick in script.play():
        step = plan(tick.before, tick.state, script.policy, tick.now_ms)
        assert (step and step.to_json()) == (tick.step and tick.step.to_json())
        again = plan(tick.after, tick.state, script.policy, tick.now_ms)
        if len(planned(tick)) < script.policy.budget:
            assert again is None
        elif again is not None:
            assert {link.kind for link in again.links} == {LinkKind.RANGE}


@given(scripts())
def test_the_budget_bounds_a_step_and_is_shared_fairly(script: Script) -> None:
    """[R-7] A partition gets a second range more than another only when that one has no more to cut."""
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
    """[R-4] A budget bounds the ranges of a step, not what must be said."""
    log_state = LogState(1, 0, "id-0", {p: Head(0, 0) for p in range(5)})
    state = TopicState(TOPIC, "id-0", {p: PartitionState(Watermarks(10, 30)) for p in range(5)})
    step = decide(log_state, state, Policy(records_per_range=10, budget=1), EPOCH_MS)
    assert [link.kind for link in step.links] == [LinkKind.LOST] * 5 + [LinkKind.RANGE]


@given(st.lists(st.sampled_from(["now", "past", "future", "none"]), min_size=2, max_size=6))
def test_no_partition_is_starved_whatever_the_timestamps_of_the_others(kinds: list[strategies.Kind]) -> None:
    """[R-56] With a budget of one and a record everywhere at each tick, each partition has its turn."""
    policy = Policy(records_per_range=1000, max_age_seconds=0, budget=1)
    world = World()
    for _ in kinds[1:]:
        world.add_partition(0)
    log_state = open_log(world, policy)
    turns = dict.fromkeys(range(len(kinds)), 0)
    for _ in range(4 * len(kinds)):
        for partition, kind in enumerate(kinds):
            world.grow(partition, 1, kind)
        world.wait(5)
        step = decide(log_state, world.observe(log_state), policy, world.now_ms)
        turns[step.ranges[0].partition] += 1
        log_state = step.after(log_state)
    assert min(turns.values()) >= 1


@pytest.mark.timeout(120)  # it takes a fraction of a second; cutting the whole backlog would take hours
def test_a_backlog_of_a_million_ranges_is_cut_only_as_far_as_the_budget() -> None:
    """[R-7] Cuts are made lazily, so a step costs its budget, not the backlog."""
    log_state = LogState(1, 0, "id-0", {p: Head(0, 0) for p in range(100)})
    state = TopicState(TOPIC, "id-0", {p: PartitionState(Watermarks(0, 2**62)) for p in range(100)})
    step = decide(log_state, state, Policy(records_per_range=1, budget=5_000), EPOCH_MS)
    assert len(step.ranges) == 5_000
    assert {o.end for o in step.ranges if o.partition == 42} == set(range(1, 51))
