"""Skipping ahead: what waits before some offsets is left out by one step, by name, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog, Refused
from pipeline_defs.core.log.coverage import Coverage, State, tiling_violations
from pipeline_defs.core.log.losses import find_losses, find_skips, unrecorded_losses
from pipeline_defs.core.log.plan_step import LogState
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import Policy, plan_skip
from tests.support.strategies import EPOCH_MS, TOPIC, Script, World, covered, decide, landed, log_of, logs, scripts, skip_in

# up to the middle of a range, beside another partition
EXPIRED = [("grow", (0, 20)), ("add_partition", (20,)), ("expire", (0, 25))]


@given(scripts(), st.integers(0, 100), st.sets(st.integers(0, 40)), st.integers(1, 12))
@example(Script(Policy(10, max_age_seconds=0), True, EXPIRED), 100, set(), 10)
def test_what_waits_before_a_skip_is_left_out_and_nothing_else(
    script: Script, percent: int, numbers: set[int], grid: int
) -> None:
    """[R-92] Planned or not; what is landed stays so, what lies beyond waits as before, and nothing counts as lost."""
    ticks = script.play()
    log, state, now_ms = log_of(ticks), ticks[-1].state, ticks[-1].now_ms + 1
    before = covered(log, (landed(offsets, ()) for number, offsets in enumerate(log.ranges) if number in numbers))
    policy = Policy(records_per_range=grid)
    skip = skip_in(state, log.state, percent, before.pending())
    step = plan_skip(log.state, state, policy, now_ms, skip)
    marks = {p: seen.watermarks for p, seen in state.partitions.items()}
    seen = [o for o in before.pending() if o.generation == log.generation and o.partition in marks]
    waiting = [o for o in seen if o.start >= marks[o.partition].earliest]
    if step is None:
        assert not any(offsets.end <= skip.to[offsets.partition] for offsets in waiting)
        assert all(log.state.heads[p].offset >= at for p, at in skip.to.items())
        return
    after = Coverage(PlanLog(TOPIC, (*log.steps, step)), before.manifests, {})
    for offsets, kept in before.states().items():
        is_before = kept is State.PENDING and offsets in waiting and offsets.end <= skip.to[offsets.partition]
        assert after.states()[offsets] is (State.SKIPPED if is_before else kept)
    assert all(after.states()[o] is State.SKIPPED and o.end <= skip.to[o.partition] for o in step.ranges)
    assert {p: head.offset for p, head in step.after(log.state).heads.items()} == {
        p: max(head.offset, skip.to.get(p, 0)) for p, head in log.state.heads.items()
    }
    assert {*tiling_violations(after)} <= {*tiling_violations(before)}, "a gap that is left out is none"
    assert find_losses(after) == find_losses(before)
    assert unrecorded_losses(after, marks) == unrecorded_losses(before, marks), "what is lost waits for a person's word"
    listed = [(s.offsets.partition, at) for s in find_skips(after) for at in range(s.offsets.start, s.offsets.end)]
    skipped = [(o.partition, at) for o in after.skipped() for at in range(o.start, o.end)]
    assert sorted(listed) == sorted(skipped)
    again = replace(skip, pending=(*after.pending(),))
    assert plan_skip(step.after(log.state), state, policy, now_ms, again) is None, "nothing is decided twice"


@given(logs(), st.data())
def test_a_skip_that_is_not_over_whole_ranges_is_refused(log: PlanLog, data: st.DataObject) -> None:
    """[R-92] A step whose skip was shortened, moved or said of another generation is no step of the log."""
    steps = [step for step in log.steps if step.skips]
    assume(steps)
    step = data.draw(st.sampled_from(steps))
    link = step.skips[0]
    field, by = data.draw(st.sampled_from([("end", 1), ("partition", 9), ("generation", 1)]))
    wrong = replace(link.offsets, **{field: getattr(link.offsets, field) + by})
    assume(not any(o.place == wrong.place and o.end == wrong.end for o in log.ranges))  # over whole ranges all the same
    changed = replace(step, skips=(replace(link, offsets=wrong), *step.skips[1:]))
    with pytest.raises(BrokenPlanLog) as refused:
        PlanLog(TOPIC, tuple(changed if each is step else each for each in log.steps))
    assert wrong.text(TOPIC) in str(refused.value)


def test_a_skip_of_a_topic_that_was_recreated_meanwhile_is_refused() -> None:
    """[R-92] Where it goes was asked of the topic before."""
    world = World()
    world.grow(0, 10)
    policy = Policy(records_per_range=4)
    log_state = decide(LogState(), world.observe(LogState()), policy, EPOCH_MS).after(LogState())
    skip = skip_in(world.observe(log_state), log_state, 100)
    world.recreate(1, 10)
    with pytest.raises(Refused, match="deleted and created again"):
        plan_skip(log_state, world.observe(log_state), policy, EPOCH_MS, skip)


def test_what_was_skipped_of_a_topic_that_is_gone_cannot_be_landed() -> None:
    policy = Policy(records_per_range=4, max_age_seconds=0)
    log = log_of(Script(policy, True, [("grow", (0, 4)), ("skip", (100,)), ("recreate", (1, 4))]).play())
    before = PlanLog(TOPIC, log.steps[:-1])
    assert [each.is_landable for each in find_skips(Coverage(before, {}, {}))] == [True], "the control"
    assert [each.is_landable for each in find_skips(Coverage(log, {}, {}))] == [False]
