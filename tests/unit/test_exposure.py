"""What is said to be deleted soon is something that the broker has still."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.plan_step import Tail, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.orchestration.runs.exposure import check_expiry, read_endangered
from pipeline_defs.topics import Topic
from tests.support.strategies import EPOCH_MS, TOPIC, World, decide

ORDERS = Topic(TOPIC, Policy())


def endangered_offset(earliest: int) -> tuple[int, str]:
    """Return which offset of a planned topic of 20 is named, and what is said of it, where nothing is landed."""
    topic = World()
    topic.grow(0, 20)
    step = decide(Tail(), topic.observe(Tail()), Policy(records_per_range=20), EPOCH_MS)
    kafka = SimpleNamespace(
        read_config=lambda topic: {"retention.ms": "60000", "cleanup.policy": "delete"},
        read_timestamp=lambda topic, partition, offset, level: EPOCH_MS,
        read_sizes=lambda topic, partitions: dict.fromkeys(partitions, 0),
    )
    edges = SimpleNamespace(kafka=lambda topic: kafka, now_ms=lambda: EPOCH_MS + 59_000)
    coverage = Coverage(PlanLog(TOPIC, (step,)), {}, {})
    (found,) = read_endangered(ORDERS, coverage, {0: Watermarks(earliest, 20)}, cast("Any", edges))
    finding = check_expiry(ORDERS, [found])
    return found.offset, finding.violations[0]


def test_the_oldest_record_that_is_there_still_is_named() -> None:
    """[R-43] What the broker has deleted is a loss, accepted or not: it is not to be landed soon, and not deleted again."""
    at, said = endangered_offset(7)
    assert at == 7 and f"{TOPIC}/0: offset 7 is not landed and may be deleted in" in said
    at, said = endangered_offset(0)
    assert at == 0 and f"{TOPIC}/0: offset 0 is not landed" in said, "the control"
