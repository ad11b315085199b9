"""The embedded broker keeps its data, is found and stopped by any process, and nobody else is stopped in its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.processes import Process, read_process
from pipeline_defs.adapters.testbed.broker import Broker, read_broker, start_broker, stop_broker
from pipeline_defs.adapters.testbed.broker_properties import Node, plan_properties
from pipeline_defs.core.errors import BadSetting, BrokerUnavailable

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def jars() -> tuple[Path, ...]:
    return resolve_jars("broker", ROOT / os.environ.get("OFFSETLAKE_HOME", ".offsetlake") / "jars")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Is a directory for a broker, stopped afterwards whatever the test did."""
    directory = tmp_path / "broker with ünusual name"
    yield directory
    stop_broker(directory)


def create_topic(broker: Broker, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        admin.create_topics({topic: {"num_partitions": 1}})


def produce(broker: Broker, topic: str, values: list[bytes]) -> None:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap_servers, acks="all")) as producer:
        for value in values:
            producer.send(topic, value, partition=0).get(timeout=30)


def read_all(broker: Broker, topic: str) -> list[bytes]:
    partition = TopicPartition(topic, 0)
    values: list[bytes] = []
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                values += [record.value for record in records]
    return values


def kill(pid: int) -> None:
    """Kills `pid` and returns when it is gone."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_stopped_broker_started_again_has_its_data_and_its_address(directory: Path, jars: tuple[Path, ...]) -> None:
    first = start_broker(directory, jars=jars)
    create_topic(first, "orders")
    produce(first, "orders", [b"a", b"b"])
    assert read_broker(directory) == first
    assert stop_broker(directory)
    assert read_broker(directory) is None
    assert not stop_broker(directory)

    second = start_broker(directory, jars=jars)
    assert second.bootstrap_servers == first.bootstrap_servers
    assert second.pid != first.pid
    assert read_all(second, "orders") == [b"a", b"b"]


def test_a_broker_killed_by_sigkill_recovers_what_it_acknowledged(directory: Path, jars: tuple[Path, ...]) -> None:
    killed = start_broker(directory, jars=jars)
    create_topic(killed, "orders")
    produce(killed, "orders", [b"a", b"b", b"c"])
    kill(killed.pid)
    assert read_broker(directory) is None

    recovered = start_broker(directory, jars=jars)
    assert read_all(recovered, "orders") == [b"a", b"b", b"c"]


def test_a_running_broker_is_returned_by_a_second_start_and_stopped_by_another_process(
    directory: Path, jars: tuple[Path, ...]
) -> None:
    broker = start_broker(directory, jars=jars)
    assert start_broker(directory, jars=jars, port=1) == broker
    stop = (
        "import pathlib, sys; from pipeline_defs.adapters.testbed.broker import stop_broker;"
        "print(stop_broker(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", stop, directory]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert read_broker(directory) is None  # although we, its parent, have not asked for its exit code
    assert not stop_broker(directory)


def test_the_broker_has_its_own_session_and_listens_on_127_0_0_1_only(directory: Path, jars: tuple[Path, ...]) -> None:
    """So a terminal's Ctrl-C, which goes to the session's foreground group, reaches its owner and not the broker."""
    broker = start_broker(directory, jars=jars)
    assert os.getsid(broker.pid) == broker.pid != os.getsid(0)
    listening = [c.laddr for c in psutil.Process(broker.pid).net_connections("inet") if c.status == "LISTEN"]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert len(listening) == 2


def test_topics_are_not_made_by_asking_for_them(directory: Path, jars: tuple[Path, ...]) -> None:
    broker = start_broker(directory, jars=jars)
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)) as consumer:
        assert not consumer.partitions_for_topic("typo")
        assert consumer.topics() == set()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Is a process that runs and is no broker."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def test_a_process_that_only_has_the_pid_of_the_state_file_is_neither_trusted_nor_stopped(
    directory: Path, jars: tuple[Path, ...], bystander: subprocess.Popen[bytes]
) -> None:
    killed = start_broker(directory, jars=jars)
    kill(killed.pid)
    state_path = directory / "broker.json"
    state_path.write_text(json.dumps(json.loads(state_path.read_text()) | {"pid": bystander.pid}))

    assert read_broker(directory) is None
    assert not stop_broker(directory)
    assert bystander.poll() is None
    assert start_broker(directory, jars=jars).pid != bystander.pid
    assert bystander.poll() is None


def test_a_process_is_itself_by_pid_and_start_time(bystander: subprocess.Popen[bytes]) -> None:
    """Control: with its own start time the same process is running."""
    process = read_process(bystander.pid)
    assert process is not None
    assert process.is_running()
    assert not Process(process.pid, "another time").is_running()


def test_a_broker_that_ends_early_is_reported_with_its_last_log_lines(directory: Path, jars: tuple[Path, ...]) -> None:
    bad = {"log.cleaner.threads": "-1"}
    with pytest.raises(BrokerUnavailable, match=r"storage in .* could not be formatted; its last log lines \(") as caught:
        start_broker(directory, jars=jars, properties=bad)
    assert "Invalid value -1 for configuration log.cleaner.threads" in str(caught.value)

    start_broker(directory, jars=jars)
    stop_broker(directory)
    with pytest.raises(BrokerUnavailable, match=r"ended before it was ready; its last log lines \(") as caught:
        start_broker(directory, jars=jars, properties=bad)
    assert "Invalid value -1 for configuration log.cleaner.threads" in str(caught.value)
    assert read_broker(directory) is None


def test_a_broker_that_is_not_ready_in_time_is_not_left_running(
    directory: Path, jars: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline_defs.adapters.testbed.broker.START_SECONDS", 0)
    with pytest.raises(BrokerUnavailable, match="was not ready in time"):
        start_broker(directory, jars=jars)
    pid = json.loads((directory / "broker.json").read_text())["pid"]
    assert read_process(pid) is None


def test_a_taken_port_is_refused_before_anything_starts(directory: Path, jars: tuple[Path, ...]) -> None:
    other = start_broker(directory, jars=jars)
    port = int(other.bootstrap_servers.rpartition(":")[2])
    with pytest.raises(BrokerUnavailable, match=rf"port {port} of 127.0.0.1 is taken"):
        start_broker(directory / "second", jars=jars, port=port)
    assert not (directory / "second" / "data").exists()


def test_the_caller_overrides_what_the_broker_does_not_depend_on() -> None:
    planned = plan_properties(Path("/b"), Node(1, 1, 2), {"log.retention.ms": "5", "message.max.bytes": "7"})
    assert planned["log.retention.ms"] == "5"
    assert planned["message.max.bytes"] == "7"
    assert plan_properties(Path("/b"), Node(1, 1, 2), {})["log.retention.ms"] == "-1"
    with pytest.raises(BadSetting, match=r"broker properties listeners, node.id cannot be set"):
        plan_properties(Path("/b"), Node(1, 1, 2), {"node.id": "2", "listeners": "PLAINTEXT://0.0.0.0:1"})
