"""Scans that fail, over Kafka and Spark in memory: a range that nobody can read takes no other along."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pipeline_defs.attempt import Attempt, Tools
from pipeline_defs.core.delivery import Delivery
from pipeline_defs.core.errors import ScanFailed
from pipeline_defs.core.holes import SpanKind
from pipeline_defs.core.planning import Policy
from pipeline_defs.core.scans import Scan
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.lake import Lake
from pipeline_defs.landing import land
from pipeline_defs.planner import commit_next_step
from tests.support.fake_log import TOPIC, FakeKafka, FakeSpark
from tests.support.strategies import EPOCH_MS


class Stumbling(FakeSpark):
    """Spark that cannot read one record; counts its jobs."""

    def __init__(self, kafka: FakeKafka, poison: int) -> None:
        super().__init__(kafka, lambda step, **_: None)
        self.poison = poison
        self.jobs = 0

    def stage(self, topic: str, scan: Scan, isolation_level: str, folder: str) -> None:
        self.jobs += 1
        if any(self.poison in offsets for offsets in scan.ranges):
            raise ScanFailed("a record cannot be read")
        super().stage(topic, scan, isolation_level, folder)


@pytest.mark.parametrize("delivery", Delivery)
def test_a_range_that_cannot_be_read_takes_no_other_of_its_union_along(tmp_path: Path, delivery: Delivery) -> None:
    """[R-15] Under `at_most_once` what fails is abandoned, so its ranges are read in jobs of their own; else in halves."""
    kafka, lake = FakeKafka(1), Lake(str(tmp_path))
    policy = Policy(records_per_range=1000, max_age_seconds=0)
    for number in range(10):
        kafka.now.partitions[0].append([SpanKind.DATA] * (3 + number * 5 % 7), "v", EPOCH_MS)
        commit_next_step(TOPIC, policy, lake, cast("Any", kafka), EPOCH_MS, planner="test", through_end=True)
    ranges = list(lake.coverage(TOPIC).log.ranges)
    bad = ranges[4]
    spark = Stumbling(kafka, bad.start)
    tools = Tools(lake, cast("Any", kafka), cast("Any", spark), cast("Any", None), lambda: EPOCH_MS, delivery=delivery)
    verdicts = list(land(TOPIC, [offsets.key for offsets in ranges], Attempt("a", "run", "test"), tools))
    assert [verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.FAILED] == [bad]
    assert {verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.LANDED} == {*ranges} - {bad}
    assert spark.jobs == len(ranges) if delivery is Delivery.AT_MOST_ONCE else 1 < spark.jobs < len(ranges)
