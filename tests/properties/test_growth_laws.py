"""Growth of a topic in the plan log: where each log ended when partitions were added, so that a range is of one epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.log.planlog import PlanLog
from tests.support.strategies import Script, log_of, logs, scripts


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
