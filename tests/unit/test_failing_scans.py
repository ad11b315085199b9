"""Scans over Kafka and Spark in memory: what fails takes no other range along, nor another topic of the same jobs."""

import errno
import hashlib
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import DEFAULT, Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.engine import scan_failed
from pipeline_defs.adapters.store import object_store
from pipeline_defs.core import errors
from pipeline_defs.core.errors import OffsetlakeError
from pipeline_defs.core.landing.scans import Scan
from pipeline_defs.core.landing.verdicts import Outcome, Verdict, violations_by_range
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.landing import landing
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import check_published
from pipeline_defs.landing.landing import land, land_topics
from pipeline_defs.landing.staging import ENGINE_TRIES
from tests.support.fake_log import TOPIC, FakeKafka, FakeSpark, fake_tools, kafka_with, plan_all
from tests.support.interleaving import assert_all_is_in_order, beside
from tests.support.lakes import again, open_lake
from tests.support.strategies import EPOCH_MS

STARTS = [0, 4, 8]
Said = dict[tuple[str, int], Outcome]
Ended = list[tuple[str, OffsetlakeError]]


class Cluster(FakeSpark):
    """Spark that reads topics of one cluster, and fails at some offsets; tells which topics each job read, and where to.

    It is not there for `absent` asks, and gone in the middle of `dying` jobs.
    """

    def __init__(self, *topics: str, records: int = 10, absent: int = 0, dying: int = 0) -> None:
        self.kafkas = {topic: kafka_with(records, topic) for topic in topics}
        super().__init__(next(iter(self.kafkas.values())), lambda step, **_: None)
        self.poison: set[tuple[str, int]] = set()
        self.error: OffsetlakeError = errors.ScanFailed("a record cannot be read")
        self.absent, self.dying = absent, dying
        self.jobs: list[tuple[str, ...]] = []
        self.folders: list[str] = []

    def kafka_of(self, topic: str) -> FakeKafka:
        return self.kafkas[topic]

    def open(self) -> None:
        self.absent -= 1
        if self.absent >= 0:
            raise errors.EngineUnavailable("no Spark answers")

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        self.jobs.append(scan.topics)
        self.folders.append(folder)
        self.dying -= 1
        if self.dying >= 0:
            Path(folder).mkdir(parents=True)
            raise errors.EngineUnavailable("Spark went away")
        if any(topic == each.topic and offset in each.offsets for each in scan.ranges for topic, offset in self.poison):
            raise self.error
        super().stage(scan, isolation_level, folder)


def land_each(
    lake: Lake, spark: Cluster, attempt: str | Attempt = "a", **changes: dict[str, Any]
) -> tuple[dict[tuple[str, int], Verdict], Ended]:
    """Plan and land everything of all topics, and tell what became of each range, and the topics that an error ended.

    `changes` are of a topic's tools.
    """
    policy = Policy(records_per_range=4, max_age_seconds=0)
    tools, keys = {}, {}
    for topic, kafka in spark.kafkas.items():
        plan_all(lake, kafka, policy, topic)
        tools[topic] = fake_tools(**{"lake": lake, "spark": spark, "kafka": kafka, **changes.get(topic, {})})
        keys[topic] = [offsets.key for offsets in lake.coverage(topic).log.ranges]
    told = list(land_topics(keys, attempt if isinstance(attempt, Attempt) else Attempt(attempt, "run", "test"), tools))
    verdicts = {(topic, each.offsets.start): each for topic, each in told if isinstance(each, Verdict)}
    ended = [(topic, each) for topic, each in told if isinstance(each, OffsetlakeError)]
    assert len(verdicts) + len(ended) == len(told)
    return verdicts, ended


def land_and_hear(lake: Lake, spark: Cluster, attempt: str | Attempt = "a", **changes: dict[str, Any]) -> tuple[Said, Ended]:
    """The same, of each range its outcome alone."""
    verdicts, ended = land_each(lake, spark, attempt, **changes)
    return {place: verdict.outcome for place, verdict in verdicts.items()}, ended


def land_all(lake: Lake, spark: Cluster, attempt: str | Attempt = "a", **changes: dict[str, Any]) -> Said:
    """The same, where no error ends a topic."""
    said, ended = land_and_hear(lake, spark, attempt, **changes)
    assert ended == []
    return said


def test_a_topic_whose_plan_went_after_its_ranges_were_chosen_ends_alone(tmp_path: Path) -> None:
    """[R-15] Somebody deletes it, or restores another: of a run that has chosen them already."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")
    for topic, kafka in spark.kafkas.items():
        plan_all(lake, kafka, Policy(records_per_range=4, max_age_seconds=0), topic)
    keys = {topic: [offsets.key for offsets in lake.coverage(topic).log.ranges] for topic in spark.kafkas}
    shutil.rmtree(Path(lake.store.url("plan/a")))
    tools = {topic: fake_tools(lake=Lake(str(tmp_path)), spark=spark, kafka=kafka) for topic, kafka in spark.kafkas.items()}
    told = [*land_topics(keys, Attempt("a", "run", "test"), tools)]
    assert [(topic, type(each)) for topic, each in told if isinstance(each, OffsetlakeError)] == [("a", errors.BadKey)]
    assert {each.outcome for topic, each in told if topic == "b" and isinstance(each, Verdict)} == {Outcome.LANDED}


def all_of(outcome: Outcome, *topics: str, starts: Sequence[int] = STARTS) -> Said:
    return {(topic, start): outcome for topic in topics for start in starts}


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("Caused by: java.io.IOException: No space left on device", "the disk of the lake, or of Spark's temporary files, and"),
        ("Caused by: java.io.FileNotFoundError: /lake/staging/a (Read-only file system)", "mount the disk of the lake, or"),
        ("Caused by: java.io.IOException: Disk quota exceeded", "make room on the disk of the lake"),
    ],
)
def test_a_full_disk_is_no_ranges_fault(tmp_path: Path, cause: str, says: str) -> None:
    """[R-15] All ranges of the scan fail with that error at once; another error is looked for in halves, the control."""
    spark, lake = Cluster("a", records=64), Lake(str(tmp_path))
    spark.poison = {("a", offset) for offset in range(64)}

    def violations_of(cause: str) -> set[str]:
        said = f"An error occurred while calling o1.parquet.\n: org.apache.spark.SparkException: Job aborted\n{cause}"
        spark.error = scan_failed("land 16 ranges", RuntimeError(said), "nothing became visible")
        verdicts, _ = land_each(lake, spark)
        assert [verdict.outcome for verdict in verdicts.values()] == [Outcome.FAILED] * 16
        return {violation for verdict in verdicts.values() for violation in verdict.violations}

    (violation,) = violations_of(cause)
    assert says in violation and len(spark.jobs) == 1
    violations_of("Caused by: java.io.IOException: Connection reset")
    assert len(spark.jobs) > 1 + 16


@pytest.mark.parametrize("delivery", Delivery)
def test_a_range_that_cannot_be_read_takes_no_other_of_its_union_along(tmp_path: Path, delivery: Delivery) -> None:
    """[R-15] Under `at_most_once` what fails is abandoned, so its ranges are read in jobs of their own; else in halves."""
    spark, lake = Cluster("a", records=0), Lake(str(tmp_path))
    for number in range(10):
        spark.kafkas["a"].now.partitions[0].append([SpanKind.DATA] * (3 + number * 5 % 7), "v", EPOCH_MS)
        plan_all(lake, spark.kafkas["a"], Policy(records_per_range=1000, max_age_seconds=0), "a")
    starts = [offsets.start for offsets in lake.coverage("a").log.ranges]
    spark.poison = {("a", starts[4])}
    said = land_all(lake, spark, a={"delivery": delivery})
    assert said == {**all_of(Outcome.LANDED, "a", starts=starts), ("a", starts[4]): Outcome.FAILED}
    assert len(spark.jobs) == len(starts) if delivery is Delivery.AT_MOST_ONCE else 1 < len(spark.jobs) < len(starts)


def test_a_range_that_nobody_leads_takes_no_other_along(tmp_path: Path) -> None:
    """[R-4] It lands once somebody does."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", records=4)
    kafka = spark.kafkas["a"]
    kafka.add_partition()
    kafka.now.partitions[1].append([SpanKind.DATA] * 4, "v", EPOCH_MS)
    plan_all(lake, kafka, Policy(records_per_range=4, max_age_seconds=0), "a")
    kafka.lose_leader(0)
    (led,) = [each for each in lake.coverage("a").log.ranges if each.partition]

    def land_both() -> dict[OffsetRange, Verdict]:
        tools = fake_tools(lake=again(lake), spark=spark, kafka=kafka)
        return {each.offsets: each for each in land("a", ["0-0-4", led.key], Attempt("a", "run", "test"), tools)}

    (failed,) = [each for offsets, each in land_both().items() if offsets != led]
    assert failed.violations == (
        "range a/0 [0, 4): no broker that answers us leads its partition; nothing was written; start one that has it",
    )
    assert again(lake).coverage("a").pending() == [failed.offsets]
    kafka.elect()
    assert {each.outcome for each in land_both().values()} == {Outcome.LANDED, Outcome.ALREADY_LANDED}
    kafka.lose_leader(0)
    tools = fake_tools(lake=again(lake), spark=spark, kafka=kafka)
    (again_read,) = land("a", ["0-0-4"], Attempt("b", "run", "test", redo=True), tools)
    assert again_read.outcome is Outcome.FAILED, "nothing of it has expired"


@pytest.mark.parametrize("has_untellable", [True, False])
def test_a_range_that_cannot_be_read_from_the_log_either_fails_alone(tmp_path: Path, has_untellable: bool) -> None:
    """[R-15] With the reason of the second reader, where a time may be what Spark failed at; else with Spark's own."""
    lake, spark = Lake(str(tmp_path)), Cluster("a")
    spark.poison = {("a", 5)}
    kafka = spark.kafkas["a"]
    kafka.has_untellable = lambda *_: has_untellable  # type: ignore[method-assign]
    kafka.read_records = Mock(side_effect=errors.BrokerUnavailable("the log cannot be read"))  # type: ignore[attr-defined]
    verdicts, _ = land_each(lake, spark)
    assert [verdict.outcome for _, verdict in sorted(verdicts.items())] == [Outcome.LANDED, Outcome.FAILED, Outcome.LANDED]
    assert verdicts["a", 4].violations[0].endswith("the log cannot be read" if has_untellable else "a record cannot be read")


def test_each_line_of_a_failed_run_names_its_range() -> None:
    """[R-15] What went wrong with a whole job names none; what names its range already is left as it is."""
    here, there = OffsetRange(0, 0, 0, 10), OffsetRange(0, 3, 10, 20)
    said = [line for each in (here, there) for line in violations_by_range("orders", each, ["Spark could not decode"])]
    assert said == ["range orders/0 [0, 10): Spark could not decode", "range orders/3 [10, 20): Spark could not decode"]
    assert violations_by_range("orders", here, [said[0], said[1]]) == [said[0], f"range orders/0 [0, 10): {said[1]}"]


def test_without_a_spark_nothing_is_claimed(tmp_path: Path) -> None:
    """[R-77] Else a Spark that does not start would have a whole backlog abandoned; one that dies at work does, the control."""
    failed, landed = Outcome.FAILED, Outcome.LANDED
    # one whose start fails, as somebody else took its port, say, is started again before
    cases = ((ENGINE_TRIES, 0, failed, landed), (0, 1, failed, failed), (ENGINE_TRIES - 1, 0, landed, Outcome.ALREADY_LANDED))
    for absent, dying, first, then in cases:
        spark, lake = Cluster("a", records=8, absent=absent, dying=dying), Lake(str(tmp_path / f"{absent}"))
        tools = {"delivery": Delivery.AT_MOST_ONCE}
        assert land_all(lake, spark, a=tools) == all_of(first, "a", starts=[0, 4])
        assert len(spark.folders) == dying + (first is landed), "no job is done twice"
        assert land_all(lake, spark, "again", a=tools) == all_of(then, "a", starts=[0, 4])


@pytest.mark.parametrize("delivery", [Delivery.EFFECTIVELY_ONCE, Delivery.AT_LEAST_ONCE])
@pytest.mark.parametrize(("dying", "outcome"), [(2, Outcome.LANDED), (3, Outcome.FAILED)])
def test_a_job_is_done_again_where_spark_went_away(tmp_path: Path, delivery: Delivery, dying: int, outcome: Outcome) -> None:
    """[R-77] In a folder of its own each time, and three times at most; no range is at fault, so none is tried alone."""
    spark = Cluster("a", records=8, dying=dying)
    assert land_all(Lake(str(tmp_path)), spark, a={"delivery": delivery}) == all_of(outcome, "a", starts=[0, 4])
    assert len(set(spark.folders)) == len(spark.folders) == 3


def test_a_range_that_spark_dies_of_takes_no_other_along(tmp_path: Path) -> None:
    """[R-77] Each job with it is done three times, and then in halves, until it is alone."""
    spark = Cluster("a", records=64)
    spark.poison, spark.error = {("a", 21)}, errors.EngineLost("Spark went away")
    said = land_all(Lake(str(tmp_path)), spark)
    assert said == {**all_of(Outcome.LANDED, "a", starts=range(0, 64, 4)), ("a", 20): Outcome.FAILED}
    assert len(spark.jobs) < 4 * 5


@pytest.mark.parametrize("place", ["disk", *["bucket"] * 5])  # threads upload at once, so one time may say nothing
def test_what_is_pending_of_all_topics_is_read_by_one_job(tmp_path: Path, place: str) -> None:
    """[R-12] Each file is matched to its topic's range, and uploaded under a name of its own, though the keys are the same."""
    lake, spark = open_lake(place, tmp_path), Cluster("a", "b", "c", "d")
    assert land_all(lake, spark) == all_of(Outcome.LANDED, *spark.kafkas)
    assert spark.jobs == [(*spark.kafkas,)]
    for topic in spark.kafkas:
        assert all(manifest.topic == topic and manifest.rows for manifest in lake.coverage(topic).manifests.values())
        paths = [path for path in lake.store.list(f"data/{topic}") if path.endswith(".parquet")]
        assert len(lake.coverage(topic).published) == len(paths) == len(STARTS)
        for path in paths:
            assert set(pq.read_table(pa.BufferReader(lake.store.get(path)))["topic"].to_pylist()) == {topic}
    assert not [*(tmp_path / "staging").glob("*/**/*.parquet")]
    assert land_all(lake, spark, "again") == all_of(Outcome.ALREADY_LANDED, *spark.kafkas)


@pytest.mark.parametrize(
    "change",
    [{"delivery": Delivery.AT_MOST_ONCE}, {"isolation_level": "read_uncommitted"}, {"spark": "another cluster"}],
    ids=str,
)
def test_only_topics_that_are_read_alike_share_a_job(tmp_path: Path, change: dict[str, Any]) -> None:
    """[R-12] What `at_most_once` reads and fails is abandoned: another topic's record must never be the cause."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b", "c")
    if "spark" in change:
        elsewhere = {"source": "another cluster", "writer": spark.writer, "open": spark.open, "stage": spark.stage}
        change = {"spark": SimpleNamespace(**elsewhere)}
    spark.poison = {("a", 0)}
    assert land_all(lake, spark, b=change) == {**all_of(Outcome.LANDED, "a", "b", "c"), ("a", 0): Outcome.FAILED}
    assert ("b",) in spark.jobs and not any("b" in job for job in spark.jobs if len(job) > 1)
    assert ("a", "c") in spark.jobs, "the control: these two are"


def test_what_one_topic_owes_is_not_swept_with_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-58] Both stage below the same attempt: a committed range whose publishing failed is rolled forward by the next run."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")

    def fail(lake: Lake, manifest: Manifest, *_: Any, **__: Any) -> None:
        if manifest.topic == "a":
            raise errors.LakeUnavailable("the disk of a is gone")

    with monkeypatch.context() as failing:
        beside(failing, Lake, "publish", fail)
        assert land_all(lake, spark) == {**all_of(Outcome.FAILED, "a"), **all_of(Outcome.LANDED, "b")}
    spark.jobs.clear()
    said = land_all(again(lake), spark, "again")
    assert said == {**all_of(Outcome.ROLLED_FORWARD, "a"), **all_of(Outcome.ALREADY_LANDED, "b")}
    assert not spark.jobs, "nothing is read again"


def broken_kafka(kafka: FakeKafka, method: str, nth: int, error: Exception) -> Mock:
    """Return Kafka of one topic of which one method fails, from its nth call on."""
    found = Mock(wraps=kafka)
    getattr(found, method).side_effect = chain([DEFAULT] * nth, repeat(error))
    return found


QUESTIONS = [("observe", 0), ("read_ids", 0), ("read_ids", 1), ("is_compacted", 0)]


@pytest.mark.parametrize(("method", "nth"), QUESTIONS)
@pytest.mark.parametrize("broken", ["a", "ab", "b"])
def test_a_topic_whose_broker_fails_ends_alone(tmp_path: Path, broken: str, method: str, nth: int) -> None:
    """[R-15] At each question that is asked of it, by each error; the others land, it is told, and the next run lands it."""
    ended = [errors.UnknownTopic("gone"), errors.BrokerUnavailable("down"), errors.StaleAnswer("lags")]
    error = ended[(len(broken) + ord(broken[-1]) + QUESTIONS.index((method, nth))) % 3]
    lake, spark = Lake(str(tmp_path)), Cluster("a", "ab", "b")
    said, told = land_and_hear(lake, spark, **{broken: {"kafka": broken_kafka(spark.kafkas[broken], method, nth, error)}})
    others = [topic for topic in spark.kafkas if topic != broken]
    assert said == all_of(Outcome.LANDED, *others)
    assert told == [(broken, error)], "the fault"
    assert all(lake.coverage(topic).pending() == [] for topic in others)
    assert len(lake.coverage(broken).pending()) == len(STARTS)
    assert land_all(lake, spark, "again") == {**all_of(Outcome.ALREADY_LANDED, *others), **all_of(Outcome.LANDED, broken)}


@pytest.mark.parametrize(("at", "nth"), [("observe", 0), ("read_ids", 1), ("is_compacted", 0), ("finish_known", 0)])
def test_a_fault_that_nobody_foresaw_ends_one_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, nth: int) -> None:
    """[R-15] Also while what is committed is finished. It is told by type and line; its words are not told."""
    spark, fault = Cluster("a", "b"), RuntimeError("a record has hush-4711")
    kafka = spark.kafkas["a"]
    if at == "finish_known":
        failing = Mock(side_effect=fault)
        beside(monkeypatch, landing, at, lambda work, _: work.topic == "a" and failing())
    else:
        kafka = cast("FakeKafka", broken_kafka(kafka, at, nth, fault))
    said, ((topic, error),) = land_and_hear(Lake(str(tmp_path)), spark, a={"kafka": kafka})
    assert said == all_of(Outcome.LANDED, "b")
    assert (topic, error.kind, "hush" in str(error)) == ("a", "unforeseen", False)
    assert "topic a: RuntimeError was raised at mock.py, line " in str(error)


def test_a_fault_that_nobody_foresaw_fails_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-15] While it is decided: the other ranges of the topic land too."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")

    def fail(_: Lake, manifest: Manifest) -> None:
        if (manifest.topic, manifest.offsets.start) == ("a", 4):
            raise KeyError("a record has hush-4711")

    with monkeypatch.context() as failing:
        beside(failing, Lake, "commit_manifest", fail)
        said = land_all(lake, spark)
    assert said == {**all_of(Outcome.LANDED, "a", "b"), ("a", 4): Outcome.FAILED}
    assert land_all(lake, spark, "again")["a", 4] is Outcome.LANDED


@pytest.mark.parametrize(("on_change", "outcome"), [("keep", Outcome.FAILED), ("replace", Outcome.REPLACED)])
def test_a_landed_file_on_a_bad_sector_is_told_and_costs_no_other_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_change: str, outcome: Outcome
) -> None:
    """[R-15] The audit names it, a redo fails at it alone, and `replace` puts the same rows in its place [R-21]."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")
    land_all(lake, spark)
    (path,) = (path for path in lake.store.list("data/a") if path.endswith("0000000000000000004.parquet"))
    before = (tmp_path / path).read_bytes()

    def fail(file: Any, _: str) -> None:
        if str(file.name).endswith(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        beside(broken, hashlib, "file_digest", fail)
        (violation,) = check_published("a", lake).violations
        said = land_all(lake, spark, Attempt("redo", "run", "test", redo=True, on_change=on_change))
    assert path in violation and "Input/output error" in violation
    at = 0 if path.rsplit("-", 1)[0].endswith("00000") else 4
    assert said == {**all_of(Outcome.UNCHANGED, "a", "b"), ("a", at): outcome}
    assert (tmp_path / path).read_bytes() == before


def test_no_room_for_the_copy_of_an_object_fails_its_range_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-15] A lake in a bucket is read by copies, in a folder that may be full."""
    lake, spark = open_lake("bucket", tmp_path), Cluster("a", "b")
    land_all(lake, spark)
    for path in [each for each in lake.store.list("manifests/a") if "/00000000000000000000-" in each]:
        lake.store.delete(path)
    with monkeypatch.context() as full:
        full_disk = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        full.setattr(object_store.tempfile, "NamedTemporaryFile", Mock(side_effect=full_disk))
        said = land_all(again(lake), spark, "again")
    assert said == {**all_of(Outcome.ALREADY_LANDED, "a", "b"), ("a", 0): Outcome.FAILED}


def test_a_topic_that_ended_claims_and_asks_nothing_more(tmp_path: Path) -> None:
    """[R-15] What `at_most_once` claims and does not read is abandoned; the control is the scan in which it ended."""
    lake, spark = Lake(str(tmp_path)), Cluster("a")
    kafka = broken_kafka(spark.kafkas["a"], "read_ids", 0, errors.BrokerUnavailable("down"))
    said, ended = land_and_hear(lake, spark, a={"kafka": kafka, "delivery": Delivery.AT_MOST_ONCE})
    assert (said, len(ended)) == ({}, 1)
    states = {offsets.start: state for offsets, state in lake.coverage("a").states().items()}
    assert states == {0: State.PENDING, 4: State.PENDING, 8: State.CLAIMED}, "the small read is scanned first"


def test_a_topic_whose_group_cannot_be_moved_is_landed_all_the_same(tmp_path: Path) -> None:
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")
    kafka = broken_kafka(spark.kafkas["a"], "move_group", 0, errors.UnknownTopic("gone"))
    assert land_and_hear(lake, spark, a={"kafka": kafka}) == (all_of(Outcome.LANDED, "a", "b"), [])


def test_a_topic_whose_part_of_the_lake_is_broken_ends_alone(tmp_path: Path) -> None:
    """[R-15] Nothing of it is touched, and what is staged stays for whoever mends it."""
    lake, spark = Lake(str(tmp_path)), Cluster("a", "b")
    broken = SimpleNamespace(coverage_of=Mock(side_effect=errors.BrokenManifest("a")), store=lake.store)
    said, ended = land_and_hear(lake, spark, a={"lake": broken})
    assert said == all_of(Outcome.LANDED, "b")
    assert [(topic, error.kind) for topic, error in ended] == [("a", "broken_manifest")]


AT_ONCE, LANDED_BEFORE = 20, 4
WELL = {Outcome.LANDED, Outcome.SUPERSEDED, Outcome.ROLLED_FORWARD, Outcome.UNCHANGED, Outcome.ALREADY_LANDED}


def test_twenty_landings_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """All see the same ranges as not landed and read them; each range is landed once, and each file stays.

    [R-57] The control is the check at the end: the same selections once more, one landing, change nothing.
    """
    kafka, lake = FakeKafka(2), Lake(str(tmp_path))
    for log, count in zip(kafka.now.partitions, (120, 110), strict=True):
        log.append([SpanKind.DATA] * count, "v", EPOCH_MS)
    plan_all(lake, kafka, Policy(records_per_range=20, max_age_seconds=0))
    keys = [offsets.key for offsets in lake.coverage(TOPIC).log.ranges]
    assert len(keys) == 12

    def run(name: str, chosen: list[str], *, redo: bool = False, on_step: StepWatcher = no_step) -> list[Verdict]:
        """Land as another process does, which has read nothing yet."""
        tools = fake_tools(Lake(str(tmp_path)), kafka, FakeSpark(kafka, no_step), on_step=on_step)
        return list(land(TOPIC, chosen, Attempt(name, "no-run", "test", redo=redo), tools))

    def files() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_ino, path.read_bytes()) for path in (tmp_path / "data").rglob("*.parquet")}

    def meet(step: str, **_: object) -> None:
        if step == "find":  # everybody has seen the lake as it is now
            everybody.wait(120)

    run("before", keys[:LANDED_BEFORE])
    before = files()
    assert len(before) == LANDED_BEFORE
    draw, everybody = random.Random(11), threading.Barrier(AT_ONCE)
    selections = [draw.sample(keys, draw.randint(3, 6)) for _ in range(AT_ONCE - 1)] + [keys]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [
            pool.submit(run, f"at-once-{number}", chosen, redo=number % 2 == 0, on_step=meet)
            for number, chosen in enumerate(selections)
        ]
        verdicts = [future.result() for future in futures]

    assert [sorted(v.offsets.key for v in each) for each in verdicts] == [sorted(each) for each in selections]
    outcomes = Counter(verdict.outcome for each in verdicts for verdict in each)
    assert set(outcomes) <= WELL, outcomes
    fresh = sum(key not in keys[:LANDED_BEFORE] for chosen in selections for key in chosen)
    assert outcomes[Outcome.LANDED] <= len(keys) - LANDED_BEFORE < fresh, "the fault: ranges were read by many at once"
    after = files()
    assert len(after) == len(keys)
    assert {path: after[path] for path in before} == before, "what was landed before is the very same file"
    assert_all_is_in_order(Lake(str(tmp_path)))
    tables = (pq.read_table(path, columns=["partition", "offset"]).to_pylist() for path in after)
    places = sorted((row["partition"], row["offset"]) for table in tables for row in table)
    assert places == [*((0, at) for at in range(120)), *((1, at) for at in range(110))], "every row once"
    assert not list((tmp_path / "staging").rglob("*.parquet"))
    assert {verdict.outcome for verdict in run("again", keys, redo=True)} == {Outcome.UNCHANGED}
    assert files() == after
