"""Ranges of several topics in the same Spark jobs, over Kafka and Spark in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pipeline_defs.attempt import Attempt, Tools
from pipeline_defs.core.delivery import Delivery
from pipeline_defs.core.errors import LakeUnavailable, ScanFailed
from pipeline_defs.core.holes import SpanKind
from pipeline_defs.core.manifest import Manifest
from pipeline_defs.core.planning import Policy
from pipeline_defs.core.scans import Scan
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.lake import Lake
from pipeline_defs.landing import land_topics
from pipeline_defs.planner import commit_next_step
from tests.support.fake_log import FakeKafka, FakeSpark
from tests.support.strategies import EPOCH_MS

RECORDS, PER_RANGE = 10, 4
STARTS = [0, 4, 8]
Said = dict[tuple[str, int], Outcome]


class Cluster(FakeSpark):
    """Spark that reads topics of one cluster, and cannot read some offsets; tells which topics each job read."""

    def __init__(self, *topics: str) -> None:
        self.kafkas = {topic: FakeKafka(1) for topic in topics}
        for topic, kafka in self.kafkas.items():
            kafka.now.partitions[0].append([SpanKind.DATA] * RECORDS, topic, EPOCH_MS)
        super().__init__(next(iter(self.kafkas.values())), lambda step, **_: None)
        self.poison: set[tuple[str, int]] = set()
        self.jobs: list[tuple[str, ...]] = []

    def kafka_of(self, topic: str) -> FakeKafka:
        return self.kafkas[topic]

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        self.jobs.append(scan.topics)
        if any(topic == each.topic and offset in each.offsets for each in scan.ranges for topic, offset in self.poison):
            raise ScanFailed("a record cannot be read")
        super().stage(scan, isolation_level, folder)


class Elsewhere:
    """The same Spark as one that reads another cluster."""

    def __init__(self, spark: Cluster) -> None:
        self._spark, self.writer, self.source = spark, spark.writer, "another cluster"
        self.open, self.stage = spark.open, spark.stage


def land_all(lake: Lake, spark: Cluster, attempt: str = "a", **changes: dict[str, Any]) -> Said:
    """Plans and lands everything of all topics; `changes` are of a topic's tools."""
    policy = Policy(records_per_range=PER_RANGE, max_age_seconds=0)
    tools, keys = {}, {}
    for topic, kafka in spark.kafkas.items():
        while commit_next_step(topic, policy, lake, cast("Any", kafka), EPOCH_MS, planner="test", through_end=True):
            pass
        given = {"lake": lake, "spark": spark, **changes.get(topic, {})}
        tools[topic] = Tools(kafka=cast("Any", kafka), files=cast("Any", None), now_ms=lambda: EPOCH_MS, **given)
        keys[topic] = [offsets.key for offsets in lake.coverage(topic).log.ranges]
    verdicts = list(land_topics(keys, Attempt(attempt, "run", "test"), tools))
    said = {(topic, verdict.offsets.start): verdict.outcome for topic, verdict in verdicts}
    assert len(said) == len(verdicts)
    return said


def all_of(outcome: Outcome, *topics: str) -> Said:
    return {(topic, start): outcome for topic in topics for start in STARTS}


def test_what_is_pending_of_all_topics_is_read_by_one_job(tmp_path: Path) -> None:
    """[R-12] Each file is matched to its topic's range, though offsets and Kafka partitions are the same."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b", "c")
    assert land_all(lake, spark) == all_of(Outcome.LANDED, "a", "b", "c")
    assert spark.jobs == [("a", "b", "c")]
    for topic in spark.kafkas:
        assert all(manifest.topic == topic and manifest.rows for manifest in lake.coverage(topic).manifests.values())
        assert len(lake.coverage(topic).published) == len(STARTS)
    assert not [*(tmp_path / "staging").glob("*/**/*.parquet")]
    assert land_all(lake, spark, "again") == all_of(Outcome.ALREADY_LANDED, "a", "b", "c")


def test_one_topics_bad_record_takes_no_range_of_another_along(tmp_path: Path) -> None:
    """[R-15] A job that fails is halved, over topics too."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")
    spark.poison = {("b", 5)}
    assert land_all(lake, spark) == {**all_of(Outcome.LANDED, "a", "b"), ("b", 4): Outcome.FAILED}
    assert len(spark.jobs) > 1, "the fault: the first job failed"
    spark.poison = set()
    assert land_all(lake, spark, "again")["b", 4] is Outcome.LANDED


@pytest.mark.parametrize(
    "change",
    [{"delivery": Delivery.AT_MOST_ONCE}, {"isolation_level": "read_uncommitted"}, {"spark": "another cluster"}],
    ids=str,
)
def test_only_topics_that_are_read_alike_share_a_job(tmp_path: Path, change: dict[str, Any]) -> None:
    """[R-12] What `at_most_once` reads and fails is abandoned: another topic's record must never be the cause."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b", "c")
    if "spark" in change:
        change = {"spark": Elsewhere(spark)}
    spark.poison = {("a", 0)}
    said = land_all(lake, spark, b=change)
    assert said == {**all_of(Outcome.LANDED, "a", "b", "c"), ("a", 0): Outcome.FAILED}
    assert ("b",) in spark.jobs and not any("b" in job for job in spark.jobs if len(job) > 1)
    assert ("a", "c") in spark.jobs, "the control: these two are"


def test_what_one_topic_still_owes_is_not_swept_with_what_another_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-58] Both stage below the same attempt: a committed range whose publishing failed is rolled forward by the next run."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")
    publish = Lake.publish

    def fail(self: Lake, manifest: Manifest, *given: Any, **named: Any) -> Manifest | None:
        if manifest.topic == "a":
            raise LakeUnavailable("the disk of a is gone")
        return publish(self, manifest, *given, **named)

    with monkeypatch.context() as failing:
        failing.setattr(Lake, "publish", fail)
        assert land_all(lake, spark) == {**all_of(Outcome.FAILED, "a"), **all_of(Outcome.LANDED, "b")}
    spark.jobs.clear()
    again = land_all(Lake(str(tmp_path)), spark, "again")
    assert again == {**all_of(Outcome.ROLLED_FORWARD, "a"), **all_of(Outcome.ALREADY_LANDED, "b")}
    assert not spark.jobs, "nothing is read again"
