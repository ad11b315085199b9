"""Scans that fail, over Kafka and Spark in memory: a range that nobody can read takes no other along."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.engine import scan_failed
from pipeline_defs.core.errors import EngineLost, EngineUnavailable, ScanFailed
from pipeline_defs.core.landing.scans import Scan
from pipeline_defs.core.landing.verdicts import Outcome, violations_by_range
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.landing import land
from tests.support.fake_log import TOPIC, FakeKafka, FakeSpark, fake_tools, kafka_with, plan_all
from tests.support.strategies import EPOCH_MS

BY_FOUR = Policy(records_per_range=4, max_age_seconds=0)


class Stumbling(FakeSpark):
    """Spark that cannot read one record; counts its jobs."""

    def __init__(self, kafka: FakeKafka, poison: int) -> None:
        super().__init__(kafka, lambda step, **_: None)
        self.poison = poison
        self.jobs = 0

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        self.jobs += 1
        if any(self.poison in each.offsets for each in scan.ranges):
            raise ScanFailed("a record cannot be read")
        super().stage(scan, isolation_level, folder)


class Java(Exception):
    """What py4j raises, as Spark words it."""


class OnFullDisk(Stumbling):
    """Spark whose every job ends as Java says, by the error that adapters/spark/spark.py makes of that."""

    def __init__(self, kafka: FakeKafka, cause: str) -> None:
        super().__init__(kafka, -1)
        self.cause = cause

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        self.jobs += 1
        said = f"An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted\n{self.cause}"
        raise scan_failed(f"land {len(scan.ranges)} ranges", Java(said), "nothing became visible")


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("Caused by: java.io.IOException: No space left on device", "make room on that disk"),
        ("Caused by: java.io.FileNotFoundError: /lake/staging/a (Read-only file system)", "mount it writable"),
        ("Caused by: java.io.IOException: Disk quota exceeded", "make room on that disk"),
    ],
)
def test_a_full_disk_is_no_ranges_fault(tmp_path: Path, cause: str, says: str) -> None:
    """[R-15] All ranges of the scan fail with that error at once; another error is looked for in halves, the control."""
    kafka, lake = kafka_with(64), Lake(str(tmp_path))
    plan_all(lake, kafka, BY_FOUR)
    keys = [offsets.key for offsets in lake.coverage(TOPIC).log.ranges]
    assert len(keys) == 16

    def jobs_of(cause: str) -> tuple[int, list[str]]:
        spark = OnFullDisk(kafka, cause)
        tools = fake_tools(lake, kafka, spark)
        verdicts = list(land(TOPIC, keys, Attempt("a", "run", "test"), tools))
        assert [verdict.outcome for verdict in verdicts] == [Outcome.FAILED] * 16
        return spark.jobs, sorted({violation for verdict in verdicts for violation in verdict.violations})

    jobs, violations = jobs_of(cause)
    assert jobs == 1
    assert len(violations) == 1 and says in violations[0]
    assert jobs_of("Caused by: java.io.IOException: Connection reset")[0] > 16


@pytest.mark.parametrize("delivery", Delivery)
def test_a_range_that_cannot_be_read_takes_no_other_of_its_union_along(tmp_path: Path, delivery: Delivery) -> None:
    """[R-15] Under `at_most_once` what fails is abandoned, so its ranges are read in jobs of their own; else in halves."""
    kafka, lake = FakeKafka(1), Lake(str(tmp_path))
    policy = Policy(records_per_range=1000, max_age_seconds=0)
    for number in range(10):
        kafka.now.partitions[0].append([SpanKind.DATA] * (3 + number * 5 % 7), "v", EPOCH_MS)
        plan_all(lake, kafka, policy)
    ranges = list(lake.coverage(TOPIC).log.ranges)
    bad = ranges[4]
    spark = Stumbling(kafka, bad.start)
    tools = fake_tools(lake, kafka, spark, delivery=delivery)
    verdicts = list(land(TOPIC, [offsets.key for offsets in ranges], Attempt("a", "run", "test"), tools))
    assert [verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.FAILED] == [bad]
    assert {verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.LANDED} == {*ranges} - {bad}
    assert spark.jobs == len(ranges) if delivery is Delivery.AT_MOST_ONCE else 1 < spark.jobs < len(ranges)


def test_each_line_of_a_failed_run_names_its_range() -> None:
    """[R-15] What went wrong with a whole job names none; what names its range already is left as it is."""
    here, there = OffsetRange(0, 0, 0, 10), OffsetRange(0, 3, 10, 20)
    said = [line for each in (here, there) for line in violations_by_range("orders", each, ["Spark could not decode"])]
    assert said == ["range orders/0 [0, 10): Spark could not decode", "range orders/3 [10, 20): Spark could not decode"]
    assert violations_by_range("orders", here, [said[0], said[1]]) == [said[0], f"range orders/0 [0, 10): {said[1]}"]


class Absent(FakeSpark):
    """Spark that is not there for so many asks, and that is gone in the middle of so many jobs."""

    def __init__(self, kafka: FakeKafka, absent: int = 0, dying: int = 0) -> None:
        super().__init__(kafka, lambda step, **_: None)
        self.absent, self.dying = absent, dying
        self.folders: list[str] = []

    def open(self) -> None:
        self.absent -= 1
        if self.absent >= 0:
            raise EngineUnavailable("no Spark answers")

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        self.folders.append(folder)
        self.dying -= 1
        if self.dying >= 0:
            Path(folder).mkdir(parents=True)
            raise EngineUnavailable("Spark went away")
        super().stage(scan, isolation_level, folder)


def land_with(spark: Absent, kafka: FakeKafka, lake: Lake, delivery: Delivery) -> list[Outcome]:
    plan_all(lake, kafka, BY_FOUR)
    tools = fake_tools(lake, kafka, spark, delivery=delivery)
    keys = [offsets.key for offsets in lake.coverage(TOPIC).log.ranges]
    return [verdict.outcome for verdict in land(TOPIC, keys, Attempt(f"a{spark.absent}", "run", "test"), tools)]


def test_without_a_spark_nothing_is_claimed(tmp_path: Path) -> None:
    """[R-77] Else a Spark that does not start would have a whole backlog abandoned; one that dies at work does, the control."""
    for absent, dying, then in ((1, 0, Outcome.LANDED), (0, 1, Outcome.FAILED)):
        kafka, lake = kafka_with(8), Lake(str(tmp_path / f"{absent}"))
        spark = Absent(kafka, absent, dying)
        assert land_with(spark, kafka, lake, Delivery.AT_MOST_ONCE) == [Outcome.FAILED] * 2
        assert len(spark.folders) == dying, "no job is done twice"
        assert land_with(spark, kafka, lake, Delivery.AT_MOST_ONCE) == [then] * 2


@pytest.mark.parametrize("delivery", [Delivery.EFFECTIVELY_ONCE, Delivery.AT_LEAST_ONCE])
@pytest.mark.parametrize(("dying", "outcome"), [(2, Outcome.LANDED), (3, Outcome.FAILED)])
def test_a_job_is_done_again_elsewhere_where_spark_went_away(
    tmp_path: Path, delivery: Delivery, dying: int, outcome: Outcome
) -> None:
    """[R-77] In a folder of its own each time, and three times at most; no range is at fault, so none is tried alone."""
    kafka, lake = kafka_with(8), Lake(str(tmp_path))
    spark = Absent(kafka, dying=dying)
    assert land_with(spark, kafka, lake, delivery) == [outcome] * 2
    assert len(set(spark.folders)) == len(spark.folders) == 3


class Deadly(Stumbling):
    """Spark that dies of one record."""

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        try:
            super().stage(scan, isolation_level, folder)
        except ScanFailed:
            raise EngineLost("Spark went away") from None


def test_a_range_that_spark_dies_of_takes_no_other_along(tmp_path: Path) -> None:
    """[R-77] Each job with it is done three times, and then in halves, until it is alone."""
    kafka, lake = kafka_with(64), Lake(str(tmp_path))
    plan_all(lake, kafka, BY_FOUR)
    spark = Deadly(kafka, poison=21)
    tools = fake_tools(lake, kafka, spark)
    keys = [offsets.key for offsets in lake.coverage(TOPIC).log.ranges]
    verdicts = list(land(TOPIC, keys, Attempt("a", "run", "test"), tools))
    assert [v.offsets.start for v in verdicts if v.outcome is Outcome.FAILED] == [20]
    assert len(verdicts) == 16 and spark.jobs < 4 * 5
