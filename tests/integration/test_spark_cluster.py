"""Somebody else's Spark: a real cluster of two workers, with a lake on a disk that all of them share, or in a bucket."""

import dataclasses
import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from pipeline_defs.adapters.spark import engine as engine_adapter
from pipeline_defs.adapters.spark import remote_engine, spark_liveness
from pipeline_defs.adapters.spark.remote_engine import RemoteEngine
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import EngineLost, EngineUnfit
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.raw_columns import TIMES_TO_MS
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.lab.bench.costs.driver_bytes import LOAD, count_control, count_driver_bytes
from pipeline_defs.lab.bench.costs.loopback import CountingProxy
from pipeline_defs.lab.bench.costs.spark_cluster import SparkCluster
from pipeline_defs.lab.bench.measurement import Bench
from pipeline_defs.lab.processes import plain_environment
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.orchestration.upkeep.compacting import compact_tables
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.killing import run_module
from tests.support.world import World, sent_rows, shown_rows

pytestmark = pytest.mark.scenario

spark_version = version("pyspark")
EVENTS = "events"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster, with the jars of Spark's Kafka source; its server writes an event log, one file below `EVENTS`."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / EVENTS).mkdir()
    log = {"enabled": "true", "dir": str(folder / EVENTS), "compress": "false", "rolling.enabled": "false"}
    conf = {f"spark.eventLog.{name}": value for name, value in log.items()}
    with SparkCluster(folder, resolve_jars("spark", JARS), conf) as found:
        yield found


@pytest.fixture
def far(cluster: SparkCluster, settings: Settings, tmp_path: Path) -> Iterator[World]:
    """A world of a machine that has neither jars nor a Spark of its own."""
    own = dataclasses.replace(settings, home=tmp_path / "home", spark_remote=cluster.url)
    with World(own, tmp_path, f"t{uuid.uuid4().hex[:10]}") as world:
        yield world


def land_redo_and_decode(world: World, last_time_ms: int = 0) -> list[str]:
    """Land what is produced, again too, and decode it as a schema says that one record is not of; return the ranges' keys."""
    world.create_topic(2, message_timestamp_after_max_ms=str(2**63 - 1))
    good = [{"partition": n % 2, "key": b"k%d" % n, "value": json.dumps({"n": n}).encode()} for n in range(350)]
    *_, place = world.send([*good, {"partition": 0, "key": b"x", "value": b'{"n": "no number"}', "timestamp_ms": last_time_ms}])
    if last_time_ms > TIMES_TO_MS:  # its range is read from the log
        world.sent[place] = world.sent[place]._replace(timestamp_ms=None)
    world.plan()
    assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
    world.assert_all_landed_once()
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    assert {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    side = Side(Format.JSON_SCHEMA, schema=json.dumps(schema))
    world.topic = dataclasses.replace(world.topic, decode=Decode(Side(Format.STRING), side))
    said = world.decode()
    assert {verdict.outcome for verdict in said} == {Decided.DECODED}, said
    duck = Duck(world.adapters.lake, [world.name])
    assert duck.query(f'SELECT "value"."n" FROM decoded."{world.name}" ORDER BY ALL')[1] == [(n,) for n in range(350)]
    assert duck.query(f'SELECT error_class FROM dead_letters."{world.name}"')[1] == [("schema_violated",)]
    assert not [path for path in world.adapters.lake.store.list("staging") if path.endswith(".parquet")]
    return keys


def test_a_topic_lands_is_redone_and_decoded_by_a_cluster_and_nothing_of_spark_is_needed_here(
    far: World, cluster: SparkCluster, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-79] [R-19] The same bytes as of a Spark on this machine, which is the control; workers get our code with the job."""
    steps = []
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    far.adapters.watch_step = lambda step, **_: steps.append(step)
    assert cluster.token not in str(far.adapters.pyspark().spark_config), "Dagster shows it"
    land_redo_and_decode(far)
    assert not (far.settings.home / "engine").exists() and not (far.settings.home / "jars").exists()
    assert not any(step.startswith(("start_spark", "spark_")) for step in steps)
    monkeypatch.undo()
    (tmp_path / "here").mkdir()
    with World(settings, tmp_path / "here", far.name) as here:
        here.plan_and_land()
        assert here.digests == far.digests


@pytest.mark.long
def test_a_topic_lands_is_redone_decoded_and_compacted_in_a_bucket(remote: World) -> None:
    """[R-80] Digests are those of the bytes in the bucket; a redo finds equal rows; what was staged is gone."""
    keys = land_redo_and_decode(remote, last_time_ms=2**62)
    remote.assert_proven()
    assert {verdict.outcome for verdict in remote.decode(keys, redo=True)} == {Decided.UNCHANGED}
    adapters = dataclasses.replace(remote.adapters, settings=dataclasses.replace(remote.adapters.settings, has_raw_table=True))
    verdicts = [*compact_tables(remote.topic, "test", remote.tools(), adapters, every=True)]
    assert {verdict.outcome for verdict in verdicts} == {CompactionOutcome.COMPACTED}, verdicts
    assert len(verdicts) == 3, "the raw table's two Kafka partitions, and the decoded rows"
    assert check_table(remote.name, remote.adapters.lake).violations == ()
    assert shown_rows(remote) == sent_rows(remote)
    assert {verdict.outcome for verdict in remote.decode(keys, redo=True)} == {Decided.UNCHANGED}, "out of one file"
    left = remote.adapters.lake.store.list("staging").values()
    assert not any(left), "but for the empty marks of folders that S3A makes where a scan failed"


def test_a_server_unable_to_do_what_is_asked_is_refused_at_once(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-79] One error with all that is wrong, before anything is read; the control is the same server as it is."""
    engine = RemoteEngine(cluster.url)
    assert engine.version == spark_version
    with engine.job({}, "look", "nothing") as session:
        engine.ready_workers(session)
        monkeypatch.setattr(remote_engine, "WORKER_PACKAGES", {"a-package": "no.such.module"})
        monkeypatch.setattr(engine, "_ready", set())
        with pytest.raises(EngineUnfit, match=r"cannot decode Protobuf, JSON or JSON Schema: a-package \(No module named"):
            engine.ready_workers(session)
    monkeypatch.setattr(remote_engine, "UNION", "spark.sql.warehouse.dir")
    monkeypatch.setattr("pyspark.version.__version__", "9.1.0")
    with pytest.raises(EngineUnfit) as caught:
        RemoteEngine(cluster.url).session({})
    message = str(caught.value)
    assert f"it is Spark {spark_version}, expected 9.x; " in message and "spark.sql.warehouse.dir" in message
    assert cluster.token not in message and "nothing was read or written" in message


def test_a_frozen_server_holds_no_client_for_ever(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-79] It is not ours to end, so the client lets go; the control is the same client once the server goes on."""
    monkeypatch.setattr(engine_adapter, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(spark_liveness, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(engine_adapter, "WATCH_SECONDS", 0.5)
    engine = RemoteEngine(cluster.url)
    pid = cluster.processes["server"].pid
    with pytest.raises(EngineLost, match="went away; all is well"):
        count(engine, lambda: os.kill(pid, signal.SIGSTOP))
    os.kill(pid, signal.SIGCONT)
    assert count(engine) == 3


def count(engine: RemoteEngine, harm: Callable[[], object] = lambda: None) -> int:
    with engine.job({}, "count", "all is well") as session:
        harm()
        return session.range(3).count()


def test_an_event_log_has_no_login_to_kafka(far: World, cluster: SparkCluster) -> None:
    """[R-79] Nor has Spark's UI, which shows the same events; what operators hide stays hidden. The control: without ours."""
    far.create_topic(1)
    far.send([{"partition": 0, "value": b"one"}])
    theirs = "THEIRS[0-9]+"

    def events_of(password: str) -> str:
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{password}";'
        options = {
            "kafka.bootstrap.servers": far.settings.bootstrap_servers,
            "kafka.sasl.jaas.config": login,
            "subscribe": far.name,
        }
        with RemoteEngine(cluster.url).job({remote_engine.REDACTION: theirs}, "count", "") as session:
            rows = session.read.format("kafka").options(**options).load()
            rows.createOrReplaceTempView("shown")
            assert (rows.count(), session.range(1).selectExpr("1 AS THEIRS4711").count()) == (1, 1)
        return "".join(path.read_text() for path in (cluster.folder / EVENTS).iterdir())

    with pytest.MonkeyPatch.context() as without:
        without.setattr(remote_engine, "LOGINS", theirs)
        assert "K7-control" in events_of("K7-control")
    events = events_of("K7-secret")
    assert "K7-secret" not in events and "(redacted)" in events and "THEIRS4711" not in events


def test_commands_name_the_spark_and_end_none_of_others(cluster: SparkCluster, settings: Settings, tmp_path: Path) -> None:
    """[R-79] Without Java, without jars, and without the token."""
    plain = plain_environment()
    environment = plain | {
        "OFFSETLAKE_HOME": str(tmp_path / "home"),
        "OFFSETLAKE_SPARK_REMOTE": cluster.url,
        "OFFSETLAKE_BOOTSTRAP_SERVERS": str(settings.bootstrap_servers),
        "JAVA_HOME": "/nowhere",
    }
    place = cluster.url.split("/")[2]
    shown = {
        arguments: run_module("pipeline_defs.cli", *arguments, env=environment)
        for arguments in (("engine", "status", "--json"), ("engine", "stop"), ("engine", "restart"), ("doctor", "--json"))
    }
    assert json.loads(shown["engine", "status", "--json"].stdout) == {"running": True, "remote": place, "spark": spark_version}
    for what in ("stop", "restart"):
        done = shown["engine", what]
        said = " ".join(done.stderr.split())
        assert done.returncode == 2 and f"the Spark at {place}, which was not started here" in said
    answers = {each["what"]: each for each in json.loads(shown["doctor", "--json"].stdout)}
    assert answers["spark"]["found"] == f"Spark {spark_version}, that of {place} (OFFSETLAKE_SPARK_REMOTE)"
    assert answers["spark"]["ok"] and not {"java", "jars"} & answers.keys()
    assert cluster.processes["server"].is_running()
    assert not any(cluster.token in done.stdout + done.stderr for done in shown.values())


@pytest.mark.long
def test_a_cluster_sends_no_data(settings: Settings, s3_cluster: SparkCluster, s3_seen: CountingProxy, tmp_path: Path) -> None:
    """[R-80] A twentieth of what is landed at most; the control, a Spark in the run's own process, uploads each byte."""
    (tmp_path / "jars").symlink_to(JARS)
    adapters = Adapters(settings)
    bench = Bench(adapters, adapters.pyspark(), tmp_path, 0.0, 0.0, os.getpid())
    bench.fill(LOAD, print)
    assert count_driver_bytes(bench, s3_cluster, s3_seen) <= 0.05
    assert count_control(bench, s3_seen) >= 1
