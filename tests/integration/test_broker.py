"""JVMs that are started here: the embedded broker keeps its data, and is found and stopped by any process; class archives."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.operations import Operations
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.spark.spark_server import CONNECT_MODE, read_server
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.java import KEY, archive_options, class_archive, find_java
from pipeline_defs.adapters.system.processes import read_process
from pipeline_defs.adapters.testbed.broker import Broker, Node, plan_properties, read_broker, start_broker, stop_broker
from pipeline_defs.adapters.testbed.class_archive import make_archive
from pipeline_defs.core.errors import BadSetting, BrokerUnavailable
from pipeline_defs.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def jars() -> tuple[Path, ...]:
    return resolve_jars("broker", ROOT / os.environ.get("OFFSETLAKE_HOME", ".offsetlake") / "jars")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for a broker, stopped afterwards whatever the test did."""
    directory = tmp_path / "broker with ünusual name"
    yield directory
    stop_broker(directory)


def produce(broker: Broker, topic: str, values: list[bytes]) -> None:
    with Kafka(broker.bootstrap_servers) as kafka:
        kafka.create_topic(topic, 1)
    Operations(broker.bootstrap_servers).send(topic, [{"value": value} for value in values])


def read_all(broker: Broker, topic: str) -> list[bytes]:
    return [record.value for record in Operations(broker.bootstrap_servers).read_records(topic, 0)]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


@pytest.mark.scenario
def test_a_broker_that_was_stopped_by_anybody_or_killed_has_its_data_and_its_address(
    directory: Path, jars: tuple[Path, ...], bystander: subprocess.Popen[bytes]
) -> None:
    """A second start returns the one that runs; any process stops it; after SIGKILL it has what it acknowledged.

    Who only has the pid of the state file is neither trusted nor stopped; one that ends early is reported with its last log
    lines, as is a storage that cannot be formatted.
    """
    bad = {"log.cleaner.threads": "-1"}
    why = "Invalid value -1 for configuration log.cleaner.threads"
    with pytest.raises(BrokerUnavailable, match=r"storage in .* could not be formatted; its last log lines \(") as caught:
        start_broker(directory, jars=jars, properties=bad)
    assert why in str(caught.value)

    first = start_broker(directory, jars=jars)
    assert start_broker(directory, jars=jars, port=1) == read_broker(directory) == first
    produce(first, "orders", [b"a", b"b"])
    stop = (
        "import pathlib, sys; from pipeline_defs.adapters.testbed.broker import stop_broker;"
        "print(stop_broker(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", stop, directory]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert read_broker(directory) is None  # although we, its parent, have not asked for its exit code
    assert not stop_broker(directory)

    second = start_broker(directory, jars=jars)
    assert second.bootstrap_servers == first.bootstrap_servers
    assert second.pid != first.pid
    assert read_all(second, "orders") == [b"a", b"b"]
    produce(second, "payments", [b"a", b"b", b"c"])
    assert stop_broker(directory, 0), "by SIGKILL"
    assert read_broker(directory) is None
    state_path = directory / "broker.json"
    state_path.write_text(json.dumps(json.loads(state_path.read_text()) | {"pid": bystander.pid}))
    assert read_broker(directory) is None
    assert not stop_broker(directory)
    assert bystander.poll() is None

    recovered = start_broker(directory, jars=jars)
    assert recovered.pid != bystander.pid and bystander.poll() is None
    assert read_all(recovered, "payments") == [b"a", b"b", b"c"]
    assert stop_broker(directory)
    with pytest.raises(BrokerUnavailable, match=r"ended before it was ready; its last log lines \(") as caught:
        start_broker(directory, jars=jars, properties=bad)
    assert why in str(caught.value)
    assert read_broker(directory) is None


def test_the_broker_has_its_own_session_and_listens_on_127_0_0_1_only(broker: Broker) -> None:
    """So a terminal's Ctrl-C, which goes to the session's foreground group, reaches its owner and not the broker."""
    assert os.getsid(broker.pid) == broker.pid != os.getsid(0)
    listening = [c.laddr for c in psutil.Process(broker.pid).net_connections("inet") if c.status == "LISTEN"]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert len(listening) == 2


def test_topics_are_not_made_by_asking_for_them(broker: Broker) -> None:
    asks = closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_block_ms=1_000))
    with asks as producer, pytest.raises(KafkaTimeoutError, match="metadata"):
        producer.send("typo", b"x")


def test_a_broker_not_ready_in_time_is_ended(directory: Path, jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline_defs.adapters.testbed.broker.START_SECONDS", 0)
    with pytest.raises(BrokerUnavailable, match="was not ready in time"):
        start_broker(directory, jars=jars)
    pid = json.loads((directory / "broker.json").read_text())["pid"]
    assert read_process(pid) is None


def test_a_taken_port_is_refused_before_anything_starts(broker: Broker, directory: Path, jars: tuple[Path, ...]) -> None:
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(BrokerUnavailable, match=rf"port {port} of 127.0.0.1 is taken"):
        start_broker(directory, jars=jars, port=port)
    assert not (directory / "data").exists()


def test_the_caller_overrides_what_the_broker_does_not_depend_on() -> None:
    planned = plan_properties(Path("/b"), Node(1, 1, 2), {"log.retention.ms": "5", "message.max.bytes": "7"})
    assert planned["log.retention.ms"] == "5"
    assert planned["message.max.bytes"] == "7"
    assert plan_properties(Path("/b"), Node(1, 1, 2), {})["log.retention.ms"] == "-1"
    with pytest.raises(BadSetting, match=r"broker properties listeners, node.id cannot be set"):
        plan_properties(Path("/b"), Node(1, 1, 2), {"node.id": "2", "listeners": "PLAINTEXT://0.0.0.0:1"})


@pytest.fixture
def warm(engine: Engine, settings: Settings) -> psutil.Process:
    """The JVM of the tests' warm Spark."""
    assert engine.session({}).version
    server = read_server(settings.engine_folder)
    assert server is not None
    return psutil.Process(server.jvm.pid)


def run_java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_java(), *options, "-version"], capture_output=True, text=True, check=False)


def test_each_jvm_starts_with_its_archive_which_is_made_once(warm: psutil.Process, broker: Broker, settings: Settings) -> None:
    for what, jvm in (("spark", warm), ("broker", psutil.Process(broker.pid))):
        archive = class_archive(settings.jars, what).resolve()
        assert archive.is_file(), "make setup makes it"
        assert str(archive) in {found.path for found in jvm.memory_maps()}
        before = archive.stat()
        assert not make_archive(settings.jars, what)
        assert archive.stat() == before
    assert Path(warm.cwd()).is_relative_to(settings.engine_folder.resolve()), "U12: also where one lands from the project"


def test_an_archive_that_is_not_right_changes_nothing(settings: Settings, tmp_path: Path) -> None:
    """Another JVM's archive is passed over without a word; one that a power cut has cut short would end any JVM."""
    archive = class_archive(tmp_path, "spark")
    assert archive_options(tmp_path, "spark") == [], "the control: there is none"
    plain = run_java()
    archive.write_bytes(os.urandom(10_000))
    archive.with_suffix(KEY).write_text("10000\nanother JVM")
    options = archive_options(tmp_path, "spark")
    with_it = run_java(*options)
    assert options and (with_it.returncode, with_it.stdout) == (0, plain.stdout)
    assert with_it.stderr == plain.stderr.replace(", sharing", ""), "not a word but that none is in use"

    whole = class_archive(settings.jars, "broker")
    archive.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    archive.with_suffix(KEY).write_text(whole.with_suffix(KEY).read_text())
    assert run_java(*options, "-XX:ErrorFile=/dev/null").returncode != 0, "the fault"
    assert archive_options(tmp_path, "spark") == []
    assert archive_options(settings.jars, "broker"), "the control: whole"
    archive.with_suffix(KEY).write_text("")
    assert archive_options(tmp_path, "spark") == [], "and where the power cut took that"


@pytest.mark.long
def test_making_the_archives_leaves_nothing_in_the_folder_it_is_done_in(settings: Settings, tmp_path: Path) -> None:
    """U12: `make setup` is run in the project's root, where Spark would make a folder `artifacts`."""
    jars, folder = tmp_path / "jars", tmp_path / "project"
    jars.mkdir()
    folder.mkdir()
    for what in ("spark", "broker"):
        (jars / what).symlink_to(settings.jars / what)
    command = [sys.executable, "-W", "ignore", "-m", "pipeline_defs.adapters.testbed.class_archive", str(jars)]
    plain = {name: value for name, value in os.environ.items() if name != CONNECT_MODE}  # which other tests have set
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=plain)
    assert archive_options(jars, "spark") and archive_options(jars, "broker"), "the control: they were made"
    assert [each.name for each in folder.iterdir()] == []
