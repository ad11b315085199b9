"""The plan log refuses what does not tile, names the offsets, and reads back what it wrote.

It says where each log ended when partitions were added, so that a range is of one epoch.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.log.plan_step import ALL_HEADS_EVERY, Head, Link, LinkKind, LogState, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from tests.support.strategies import TOPIC, Script, log_of, logs, scripts, step_of


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


# ---- what is refused


@given(spots())
def test_a_dropped_link_is_refused_and_its_offsets_are_named(spot: Spot) -> None:
    """[R-2] Also the very first link of a partition, and the last."""
    gone = spot.link.offsets
    assert {str(gone.start), str(gone.end)} <= set(re.findall(r"\d+", spot.refusal_of()))


@given(spots())
def test_a_doubled_link_is_refused_and_its_offsets_are_named(spot: Spot) -> None:
    """[R-2] Its offsets would be landed twice."""
    twice = spot.link.offsets
    message = f"overlap [{twice.start}, {twice.end}) before {twice.text(TOPIC)}"
    assert message in spot.refusal_of(spot.link, spot.link)


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


@given(spots())
def test_a_link_of_another_generation_is_refused(spot: Spot) -> None:
    wrong = replace(spot.link.offsets, generation=spot.link.offsets.generation + 1)
    assert wrong.text(TOPIC) in spot.refusal_of(replace(spot.link, offsets=wrong))


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


# ---- what is not


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
    """Is what checking a log of so many steps of 200 ranges costs: CPU time of this thread, whoever else is at work."""
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


# ---- growths


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
    log = log_of(script.play())
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


# ---- JSON


@given(logs())
def test_a_step_reads_back_as_it_was_written(log: PlanLog) -> None:
    """The same step gives the same bytes, so that a write of unknown outcome can be settled by comparing."""
    for step in log.steps:
        data = step.to_json()
        again = PlanStep.from_json(data, "plan/orders/0.json")
        assert again == step
        assert again.to_json() == data
