"""Planning against the real broker and lake: observe, decide, commit; the loser of a race plans again.

The decision itself is `core.planning.plan`. Invariant: a boundary is in the lake before any key is registered or any
record is read.
"""

from __future__ import annotations

from .core.planlog import PlanStep
from .core.planning import Policy, plan
from .edges.kafka import Kafka
from .edges.lake import Lake
from .steps import StepWatcher, no_step


def decide_step(
    topic: str, policy: Policy, lake: Lake, kafka: Kafka, now_ms: int, *, planner: str, through_end: bool = False
) -> PlanStep | None:
    """Decides the next plan step without writing it; none where there is nothing to decide."""
    tail = lake.read_tail(topic)
    state = kafka.read_topic_state(topic, tail, policy, now_ms)
    return plan(tail, state, policy, now_ms, planner=planner, through_end=through_end)


def commit_next_step(
    topic: str,
    policy: Policy,
    lake: Lake,
    kafka: Kafka,
    now_ms: int,
    *,
    planner: str,
    through_end: bool = False,
    on_step: StepWatcher = no_step,
) -> PlanStep | None:
    """Commits the next plan step; however many planners race, each boundary is decided once."""
    while True:
        step = decide_step(topic, policy, lake, kafka, now_ms, planner=planner, through_end=through_end)
        if step is None:
            return None
        on_step("plan_decided", topic=topic, seq=step.seq)
        if lake.commit_step(step):
            on_step("plan_committed", topic=topic, seq=step.seq)
            return step
