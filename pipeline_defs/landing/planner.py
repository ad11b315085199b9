"""Planning against the real broker and lake: observe, decide, commit; the loser of a race plans again.

The decision itself is `core.log.planning.plan`. Invariant: a boundary is in the lake before any key is registered or any
record is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import stamina

from ..adapters.kafka.kafka import Kafka
from ..adapters.lake.lake import Lake
from ..core.errors import BrokenPlanLog
from ..core.log.coverage import Coverage
from ..core.log.plan_step import LogState, PlanStep
from ..core.log.planning import Policy, SkipAhead, plan
from ..core.log.topic_state import TopicState, find_shrunk, is_proven, may_be_older, refuse_return
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step

SETTLE_SECONDS = 20.0  # how long a log that only seems to have shrunk is looked at


class _Unproven(Exception):
    """What a broker too old for leader epochs shows: a log that ends below what was planned of it."""

    def __init__(self, state: TopicState) -> None:
        super().__init__()
        self.state = state


@dataclass(frozen=True, slots=True)
class Planner:
    """Who plans a topic, by which policy, from which broker into which lake; `name` is written into its steps.

    Only a person `may_return` it to a cluster that it was moved away from, or says that its cluster `is_restored`: each step
    then opens a generation.
    """

    topic: str
    policy: Policy
    lake: Lake
    kafka: Kafka
    now_ms: Callable[[], int]
    name: str
    on_step: StepWatcher = no_step
    may_return: bool = True
    is_restored: bool = False

    def decide(
        self, known: Coverage | None = None, *, through_end: bool = False, skip: SkipAhead | None = None
    ) -> PlanStep | None:
        """Decide the next plan step without writing it, or the one that skips ahead; none where there is nothing to decide.

        `known` is what was read of the lake just now; else it is read. Raises `BrokenPlanLog`.
        """
        coverage = known or self.lake.recent(self.topic)  # which refuses a log that has lost its newest step
        log_state, now_ms = coverage.log.state, self.now_ms()
        seen = _read_settled(self.topic, log_state, self.policy, self.kafka, now_ms)
        state = replace(seen, is_restored=self.is_restored)
        if not self.may_return and self.policy.cluster_id == state.cluster_id:
            refuse_return(log_state, state)
        skip = skip and replace(skip, pending=(*coverage.pending(),))
        step = plan(log_state, state, self.policy, now_ms, through_end=through_end, skip=skip)
        return step and replace(step, planner=self.name)

    def commit(
        self, known: Coverage | None = None, *, through_end: bool = False, skip: SkipAhead | None = None
    ) -> PlanStep | None:
        """Commit the next plan step, or the one that skips ahead; raise `BrokenPlanLog`.

        However many planners race, each boundary is decided once. A step is held against the one before it right before it
        is written: while Kafka was asked, that may have been deleted, or planned otherwise by another planner.
        """
        while True:
            known = known or self.lake.recent(self.topic)
            step = self.decide(known, through_end=through_end, skip=skip)
            if step is None:
                return None
            self.on_step("plan_decided", topic=self.topic, seq=step.seq)
            if self.lake.still_ends(known.log) and self.lake.commit_step(step):
                self.on_step("plan_committed", topic=self.topic, seq=step.seq)
                return step
            known = None  # another planner was there first, or what it was decided from is not there any more


def _read_settled(topic: str, log_state: LogState, policy: Policy, kafka: Kafka, now_ms: int) -> TopicState:
    """Read what planning needs; what may be the answer of a broker that lags is asked again, and believed after a while."""
    try:
        for attempt in stamina.retry_context(on=_Unproven, timeout=SETTLE_SECONDS, attempts=None, wait_max=2):
            with attempt:
                state = kafka.read_topic_state(topic, log_state, policy, now_ms)
                if may_be_older(log_state, state):  # the look that all topics share, or a broker's answer
                    kafka.look_again(topic)
                    state = kafka.read_topic_state(topic, log_state, policy, now_ms)
                if not is_proven(log_state, state, find_shrunk(log_state, state)):
                    raise _Unproven(state)
                return state
    except _Unproven as last:
        return last.state
    raise AssertionError("a retry context ends by returning or raising")


def reopen(ranges: Sequence[OffsetRange], coverage: Coverage, lake: Lake, now_ms: int, *, planner: str) -> PlanStep:
    """Say in the plan log that landed ranges are about to be replaced, before they are: no frontier document sums them up then.

    `coverage` is one that has the ranges. Return the step that says so; raise `BrokenPlanLog`.
    """
    reopened = tuple(sorted({coverage.log.ranges[offsets].seq for offsets in ranges}))
    while True:
        log = lake.recent(coverage.log.topic).log
        if not log.steps:
            raise BrokenPlanLog(
                f"the plan log of topic {coverage.log.topic} is gone since its ranges were read; nothing was written: restore "
                f"plan/{coverage.log.topic} from a backup of the lake"
            )
        step = replace(
            log.steps[-1],
            seq=log.state.seq,
            planned_at_ms=now_ms,
            watermarks={},
            links=(),
            heads=log.state.moved_by(log.generation, log.state.heads),
            planner=planner,
            skips=(),
            reopened=reopened,
        )
        if lake.still_ends(log) and lake.commit_step(step):
            lake.frontiers.forget_reopened(step)
            return step
