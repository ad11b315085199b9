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
from ..core.log.cutting import Policy
from ..core.log.plan_step import LogState, PlanStep
from ..core.log.planning import SkipAhead, plan
from ..core.log.topic_state import TopicState, find_shrunk, is_proven, may_be_older, refuse_return
from ..core.offsets import OffsetRange
from ..core.steps import StepWatcher, no_step

SETTLE_SECONDS = 20.0  # how long a log that may only seem to have shrunk is read again


class _Unproven(Exception):
    """A broker too old for leader epochs shows a log that ends below its head."""

    def __init__(self, state: TopicState) -> None:
        super().__init__()
        self.state = state


@dataclass(frozen=True, slots=True)
class Planner:
    """The planner of a topic, with its policy, broker and lake; `name` is written into its steps.

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
        """Decide the next plan step, or with `skip` the one that skips ahead, without writing it; none where none is due.

        `known` is the coverage where the caller has just read it. Raises `BrokenPlanLog`.
        """
        coverage = known or self.lake.recent(self.topic)  # refuses a log that has lost its newest step
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
        """Commit the next plan step, or with `skip` the one that skips ahead; raise `BrokenPlanLog`.

        However many planners race, each boundary is decided once. Right before a step is written, the previous step is checked:
        while Kafka was asked, it may have been deleted, or replaced by another planner.
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
            known = None  # another planner was first, or the log that it was decided from has changed


def _read_settled(topic: str, log_state: LogState, policy: Policy, kafka: Kafka, now_ms: int) -> TopicState:
    """Read what planning needs; an answer that may be of a broker that lags is asked for again, and believed in the end."""
    try:
        for attempt in stamina.retry_context(on=_Unproven, timeout=SETTLE_SECONDS, attempts=None, wait_max=2):
            with attempt:
                state = kafka.read_topic_state(topic, log_state, policy, now_ms)
                if may_be_older(log_state, state):  # it may be the look that all topics share that is older, or the answer
                    kafka.look_again(topic)
                    state = kafka.read_topic_state(topic, log_state, policy, now_ms)
                if not is_proven(log_state, state, find_shrunk(log_state, state)):
                    raise _Unproven(state)
                return state
    except _Unproven as last:
        return last.state
    raise AssertionError("a retry context ends by returning or raising")


def reopen(ranges: Sequence[OffsetRange], coverage: Coverage, lake: Lake, now_ms: int, *, planner: str) -> PlanStep:
    """Announce in the plan log that landed ranges are about to be replaced, so that no frontier document sums them up.

    `coverage` must have the ranges. Return the announcing step; raise `BrokenPlanLog`.
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
