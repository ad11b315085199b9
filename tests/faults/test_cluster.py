"""Brokers that die, stall, come back, lose a topic, or lose what they acknowledged: nothing is landed short or twice."""

import dataclasses
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline_defs.adapters.kafka.producer import Acks, Guarantees
from pipeline_defs.adapters.spark import spark as spark_adapter
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.processes import paused
from pipeline_defs.adapters.testbed.broker import Broker, read_broker, start_broker, stop_broker
from pipeline_defs.adapters.testbed.cluster import Cluster, run_cluster
from pipeline_defs.core.errors import BrokerUnavailable, UnknownTopic
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.losses import CLOSED
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.lab.drills.acks import RECORDS as RECORDS_SENT
from pipeline_defs.lab.drills.acks import lose_leader
from pipeline_defs.orchestration.runs.ledger import read_ledger
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.killing import Striker, staged
from tests.support.world import World

pytestmark = pytest.mark.scenario

RECORDS, RECORD_BYTES = 8_000, 5_000
POLL_SECONDS = 2.0  # where a test shortens what a read waits for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three brokers; each test leaves all of them running and in sync."""
    with run_cluster(tmp_path_factory.mktemp("cluster"), jars=resolve_jars("broker", JARS)) as found:
        yield found


@pytest.fixture
def on_cluster(cluster: Cluster, settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    own = dataclasses.replace(settings, bootstrap_servers=cluster.bootstrap_servers)
    with World(own, tmp_path) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a broker of this file alone, which may be stopped and killed."""
    folder = tmp_path_factory.mktemp("lone")
    yield folder
    stop_broker(folder)


def start(lone: Path) -> Broker:
    """Return the broker, which is started unless it runs."""
    return start_broker(lone, jars=resolve_jars("broker", JARS))


@pytest.fixture(scope="module")
def large(lone: Path, settings: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A topic of 40 MB on the lone broker, which takes a while to read."""
    own = dataclasses.replace(settings, bootstrap_servers=start(lone).bootstrap_servers)
    with World(own, tmp_path_factory.mktemp("large"), "large") as world:
        world.create_topic()
        send_large(world)
        yield world


@pytest.fixture
def unlanded(lone: Path, large: World, visible_growth: None) -> World:
    """The large topic with an empty lake."""
    start(lone)
    large.lake_afresh()
    return large


@pytest.fixture
def visible_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Spark fetch and write in small steps, where it would keep 128 MiB, so that a read is seen to be under way."""
    monkeypatch.setitem(spark_adapter.PARQUET_OPTIONS, "parquet.block.size", str(1 << 18))  # type: ignore[arg-type]
    monkeypatch.setitem(spark_adapter.KAFKA_OPTIONS, "kafka.max.partition.fetch.bytes", str(1 << 20))  # type: ignore[arg-type]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a read wait for two seconds where it would wait for minutes."""
    for name in ("kafkaConsumer.pollTimeoutMs", "kafka.request.timeout.ms", "kafka.default.api.timeout.ms"):
        monkeypatch.setitem(spark_adapter.KAFKA_OPTIONS, name, str(int(POLL_SECONDS * 1000)))  # type: ignore[arg-type]


def send_large(world: World, records: int = RECORDS) -> None:
    with closing(world.operations.producer(batch_size=1 << 19)) as producer:
        world.send(({"partition": 0, "value": os.urandom(RECORD_BYTES)} for _ in range(records)), producer)


def striker_of(world: World, strike: Callable[[], None]) -> Striker:
    """Return what strikes when a record is staged: a file of nothing but its first four bytes holds none yet."""
    return Striker(world, strike, RECORD_BYTES)


def assert_struck_in_the_middle(striker: Striker, records: int = RECORDS) -> None:
    """Prove the fault: it has happened, and after the read had begun and long before it could have ended."""
    striker.join()
    assert striker.struck_at and 0 < striker.at_bytes < records * RECORD_BYTES / 2


def outcomes(verdicts: list[Verdict]) -> set[Outcome]:
    return {verdict.outcome for verdict in verdicts}


def assert_landed_whole(world: World) -> None:
    """Hold the glob against what was sent, and each manifest against its range: no range is short."""
    world.assert_all_landed_once()
    for offsets, manifest in world.coverage.manifests.items():
        assert manifest.rows == len(offsets)


def land_until_landed(world: World, on_step: StepWatcher = no_step) -> None:
    """Land through a fault, no range in part, and ask once more for what failed by name, as the sensor would."""
    try:
        verdicts = world.land(on_step=on_step)
    except BrokerUnavailable:
        assert world.pending == sorted(world.coverage.log.ranges)
    else:
        assert outcomes(verdicts) <= {Outcome.LANDED, Outcome.FAILED}
        assert set(world.pending) == {verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.FAILED}
    assert len(world.rows()) == sum(len(offsets) for offsets in world.coverage.manifests)
    if world.pending:
        assert outcomes(world.land()) == {Outcome.LANDED}
    assert_landed_whole(world)


@pytest.mark.long
def test_a_cluster_that_does_not_come_up_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline_defs.adapters.testbed.broker.START_SECONDS", 0)
    with (
        pytest.raises(BrokerUnavailable, match="was not ready in time"),
        run_cluster(tmp_path, jars=resolve_jars("broker", JARS)),
    ):
        raise AssertionError("it came up")
    assert [read_broker(node) for node in sorted(tmp_path.glob("node*"))] == [None] * 3


def test_a_leader_that_dies_during_a_read_costs_no_row(cluster: Cluster, on_cluster: World, visible_growth: None) -> None:
    """[R-51] Another broker leads, and what is landed is whole. The control is the same ranges read again in quiet."""
    world, records = on_cluster, RECORDS // 2
    world.create_topic(replicas=3)
    send_large(world, records)
    world.with_policy(records_per_range=records // 4)
    world.plan()
    leader = cluster.read_replicas(world.name, 0).leader
    assert leader is not None
    fault = striker_of(world, lambda: cluster.kill(leader))
    land_until_landed(world, fault.on_step)
    assert_struck_in_the_middle(fault, records)
    after = cluster.read_replicas(world.name, 0)
    assert after.leader not in {None, leader} and leader not in after.in_sync, "the fault: another leads"
    keys = [offsets.key for offsets in world.coverage.manifests]
    assert outcomes(world.land(keys, redo=True)) == {Outcome.UNCHANGED}, "the control"
    cluster.start(leader)
    world.wait_until(lambda: cluster.read_replicas(world.name, 0).in_sync == frozenset(cluster.nodes))


@pytest.mark.long
def test_a_broker_that_is_killed_and_comes_back_costs_no_row(lone: Path, unlanded: World) -> None:
    """[R-51] SIGKILL in the middle of the read and a new start, which recovers its log; every record is landed once."""
    world = unlanded
    world.with_policy(records_per_range=RECORDS // 4)
    world.plan()
    killed = start(lone).pid

    def restart() -> None:
        stop_broker(lone, 0)
        assert start(lone).bootstrap_servers == world.settings.bootstrap_servers, "it comes back where its clients look for it"

    fault = striker_of(world, restart)
    land_until_landed(world, fault.on_step)
    assert_struck_in_the_middle(fault)
    assert start(lone).pid != killed, "the fault: it is another process"


def land_through_a_stall(lone: Path, world: World) -> tuple[Verdict, int]:
    """Have the broker stand still in the middle of the one range, of which nothing is half visible, and then go on.

    What is staged is looked at in the second half of the stall, and returned: what was fetched before is written by then.
    """
    seen, pid = list[int](), start(lone).pid
    world.with_policy(records_per_range=RECORDS)
    world.plan()

    def stall() -> None:
        with paused([pid]):
            end = time.monotonic() + 3 * POLL_SECONDS
            world.wait_until(lambda: time.monotonic() > end - 1.5 * POLL_SECONDS)
            while time.monotonic() < end:
                seen.append(sum(staged(world)))
            assert world.rows() == []

    fault = striker_of(world, stall)
    (verdict,) = world.land(on_step=fault.on_step)
    assert_struck_in_the_middle(fault)
    assert max(seen) < RECORDS * RECORD_BYTES / 2, "the fault: the read was under way and went no further"
    return verdict, max(seen)


@pytest.mark.long
def test_a_long_stall_fails_the_range_by_name_and_lands_nothing_short(lone: Path, unlanded: World, impatient: None) -> None:
    """[R-52] The broker stands still in the middle of the range; a reader sees nothing of it, and the retry lands it whole."""
    world = unlanded
    verdict, _ = land_through_a_stall(lone, world)
    assert verdict.outcome is Outcome.FAILED
    assert "Spark could not land 1 ranges of large" in verdict.violations[0]
    assert world.rows() == [] and not world.coverage.manifests
    assert outcomes(world.land()) == {Outcome.LANDED}
    assert_landed_whole(world)


@pytest.mark.long
def test_a_stall_shorter_than_the_poll_time_out_is_waited_for(lone: Path, unlanded: World) -> None:
    """[R-52] With the time-outs as they are, the same stall ends, the read goes on, and the range is whole."""
    verdict, staged = land_through_a_stall(lone, unlanded)
    assert verdict.outcome is Outcome.LANDED and staged > 0
    assert_landed_whole(unlanded)


@pytest.mark.long
def test_a_stall_without_end_ends_the_run_by_name(lone: Path, unlanded: World, impatient: None) -> None:
    """[R-52] The scan is bounded: it ends while the broker still stands still, and says so; then it lands whole."""
    world = unlanded
    world.with_policy(records_per_range=RECORDS)
    world.adapters.kafka_timeout_seconds = POLL_SECONDS
    world.plan()
    pid = start(lone).pid
    fault = striker_of(world, lambda: os.kill(pid, signal.SIGSTOP))
    try:
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            world.land(on_step=fault.on_step)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert_struck_in_the_middle(fault)
    assert world.rows() == [] and not world.coverage.manifests
    assert outcomes(world.land()) == {Outcome.LANDED}
    assert_landed_whole(world)


def test_a_topic_deleted_while_ranges_wait_is_one_clear_error_and_nothing_is_forgotten(world: World) -> None:
    """[R-53] The plan log keeps what waits; a topic of that name opens a generation."""
    world.fill(150)
    world.plan()
    assert outcomes(world.land(["0-0-100"])) == {Outcome.LANDED}, "the control"
    landed, before = world.rows(), world.files()
    waiting = world.pending
    world.delete_topic()
    world.wait_until(lambda: world.name not in world.adapters.kafka().list_topics())
    with pytest.raises(UnknownTopic, match=f"topic {world.name} does not exist on the broker .* nothing was written"):
        world.land()
    with pytest.raises(UnknownTopic, match=f"topic {world.name} does not exist"):
        world.plan()
    (run,) = world.try_launch()
    assert not run.succeeded and f"topic {world.name} does not exist" in run.reason
    assert world.files() == before
    assert world.pending == waiting and world.rows() == landed

    world.fill(30)
    world.plan()
    assert {offsets.generation for offsets in world.pending} == {1}
    assert outcomes(world.land()) == {Outcome.LANDED}
    assert len(world.rows()) == 100 + 30
    (loss,) = read_ledger(world.topic, world.adapters)
    assert (loss.key, loss.offsets.start, loss.offsets.end, loss.cause) == ("0-100-150", 100, 150, CLOSED)


@pytest.mark.long
def test_a_topic_deleted_in_the_middle_of_a_read_lands_nothing_of_it(
    lone: Path, large: World, spark: SparkSession, visible_growth: None, impatient: None, tmp_path: Path
) -> None:
    """[R-53] What was read of it stays unseen, the run ends by name; the next generation lands."""
    with World(large.settings, tmp_path, "deleted") as world:
        world.create_topic()
        send_large(world)
        world.with_policy(records_per_range=RECORDS)
        world.plan()
        fault = striker_of(world, world.delete_topic)
        with pytest.raises(UnknownTopic, match="topic deleted does not exist"):
            world.land(on_step=fault.on_step)
        assert_struck_in_the_middle(fault)
        assert world.rows() == [] and not world.coverage.manifests
        world.sent.clear()
        world.fill(30)
        world.plan()
        assert outcomes(world.land()) == {Outcome.LANDED}
        assert_landed_whole(world)
        (loss,) = read_ledger(world.topic, world.adapters)
        assert (loss.key, loss.cause) == (f"0-0-{RECORDS}", CLOSED)


@pytest.mark.long
@pytest.mark.parametrize(
    ("acks", "idempotence", "loses", "doubles"),
    [("0", False, True, False), ("1", False, True, False), ("all", False, False, True), ("all", True, False, False)],
    ids=["acks=0", "acks=1", "acks=all", "acks=all, idempotent"],
)
def test_what_a_producer_loses_or_doubles_with_its_leader_is_not_landing_s(
    cluster: Cluster, on_cluster: World, acks: Acks, idempotence: bool, loses: bool, doubles: bool
) -> None:
    """[R-54] The schedule is the same for all, so each is the other's control; the lake has exactly what the log has."""
    world = on_cluster
    produced = lose_leader(cluster, world.name, Guarantees(acks, idempotence))
    assert bool(produced.lost) is loses, produced
    times = Counter(produced.log)
    assert (times.total() > len(times)) is doubles, produced
    quiet = {*range(RECORDS_SENT // 3), *range(2 * RECORDS_SENT // 3, RECORDS_SENT)}
    assert {times[number] for number in quiet} == {1}, "the control: what was sent before and after is there, once"
    assert produced.acknowledged == frozenset(range(RECORDS_SENT))
    world.plan()
    assert outcomes(world.land()) == {Outcome.LANDED}
    assert tuple(int(row[3] or b"") for row in world.rows()) == produced.log
