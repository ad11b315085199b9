"""The embedded Kafka broker: one real KRaft broker in one JVM, in a directory of its own, on 127.0.0.1 only.

Starts, finds and stops it; creates no topic and reads no record. It runs in its own session, so Ctrl-C in a terminal reaches
its owner and not the broker. Invariants: what its identity and addresses depend on is set last and cannot be overridden; a
process is signalled only when its pid and its start time are those written down when it was started.
"""

import base64
import json
import os
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import javaproperties
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from ...core.errors import BadSetting, BrokerUnavailable, cause_of
from ..system.java import archive_options, find_java
from ..system.locks import hold_start
from ..system.processes import Process, free_ports, last_lines, placed, read_placed, spawn_process, stop_process, wait_for

HOST = "127.0.0.1"

_DEFAULTS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # after SIGKILL the controller waits this long before it lets the same broker in again (Kafka's own: 9 s)
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_STATE = "broker.json"
_LOG = "broker.log"
_POLL_SECONDS = 0.1
_LOG4J = Path(__file__).with_name("log4j2.xml")
START_SECONDS = 120.0  # a start that takes longer has failed
QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # for a JVM that lives shortly or has little to do


@dataclass(frozen=True, slots=True)
class Node:
    """Which broker of which cluster a broker is; a single one is a cluster of one.

    `voters` has the controller port of each node of the cluster, by id; none for a cluster of one. `secured` has the
    ports of listeners beside PLAINTEXT, by protocol: SSL, SASL_SSL, SASL_PLAINTEXT.
    """

    id: int
    port: int
    controller_port: int
    voters: Mapping[int, int] | None = None
    cluster_id: str | None = None
    secured: Mapping[str, int] = field(default_factory=dict)


def plan_properties(directory: Path, node: Node, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the broker's server.properties: quick to start, no data deleted by itself, no topic made by a typo.

    | set by | properties |
    |---|---|
    | here, the caller may override | waits, internal topics, retention, topic creation |
    | here, last                    | roles, ids, addresses, directories: BadSetting when the caller gives one |
    """
    address, controller = f"{HOST}:{node.port}", f"{HOST}:{node.controller_port}"
    voters = node.voters or {node.id: node.controller_port}
    listeners = {"PLAINTEXT": address, "CONTROLLER": controller}
    listeners |= {protocol: f"{HOST}:{port}" for protocol, port in node.secured.items()}
    at = ",".join(f"{name}://{where}" for name, where in listeners.items())
    protocols = {name: "PLAINTEXT" if name == "CONTROLLER" else name for name in listeners}
    ours = {
        "process.roles": "broker,controller",
        "node.id": str(node.id),
        "controller.quorum.voters": ",".join(f"{voter}@{HOST}:{voters[voter]}" for voter in sorted(voters)),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "listeners": at,
        "advertised.listeners": at,
        "log.dirs": str(data_directory(directory)),
    }
    taken = sorted(set(ours) & set(properties))
    if taken:
        raise BadSetting(
            f"broker properties {', '.join(taken)} cannot be set: the broker of {directory} depends on them; "
            f"leave them out, and choose the port by `port`",
            properties=taken,
        )
    return _DEFAULTS | dict(properties) | ours


def data_directory(directory: Path) -> Path:
    """Return where the broker of `directory` keeps its logs; Kafka writes `meta.properties` there once it is formatted."""
    return directory / "data"


@dataclass(frozen=True, slots=True)
class Broker:
    """One running broker, as `broker.json` keeps it: its process, and the ports, which outlive it."""

    directory: Path
    process: Process
    port: int
    controller_port: int
    node_id: int = 1

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find it."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of its JVM."""
        return self.process.pid

    @property
    def log_path(self) -> Path:
        """What it prints."""
        return self.directory / _LOG


def start_broker(
    directory: Path,
    *,
    jars: Sequence[Path],
    port: int | None = None,
    properties: Mapping[str, str] = {},
    node: Node | None = None,
    java_options: Sequence[str] = ("-Xmx1g",),
) -> Broker:
    """Return the broker of `directory`, running and able to create topics; started unless it runs already.

    `directory` keeps everything: a later start finds the data of an earlier one, also after SIGKILL, and its port if
    that is free and `port` is None. `properties` are Kafka's own names and override everything here but what the
    broker's identity and addresses depend on. `node` is given by a cluster (`cluster.py`), whose nodes keep their ports
    whatever happens. A start that fails leaves no process. Raises BrokerUnavailable with the
    broker's last log lines, BadSetting for a property that is not the caller's, JavaUnusable.
    """
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    with hold_start(directory, lambda: None, START_SECONDS, BrokerUnavailable):
        earlier = _read_state(directory)
        if earlier is not None and earlier.process.is_running():
            _await_ready(earlier)
            return earlier
        if node is None:
            node = Node(1, *_choose_ports(port, earlier))
        else:
            _require_free(node.port, node.controller_port)
        settings = plan_properties(directory, node, properties)
        config = directory / "server.properties"
        config.write_text(javaproperties.dumps(settings, timestamp=None), "ascii")
        java = [str(find_java()), "-XX:+ExitOnOutOfMemoryError", *java_options]
        java += archive_options(jars[0].parent.parent, "broker")
        java += [f"-Dlog4j2.configurationFile={_LOG4J}", "-cp", os.pathsep.join(str(jar.resolve()) for jar in jars)]
        _format(directory, java, config, node.cluster_id or new_cluster_id())
        process = spawn_process([*java, "kafka.Kafka", str(config)], log=directory / _LOG)
        broker = Broker(directory, process, node.port, node.controller_port, node.id)
        try:
            _write_state(broker)
            _await_ready(broker)
        except BaseException:  # Ctrl-C included: nobody else knows of this process
            stop_process(process, timeout_seconds=10)
            raise
        return broker


def read_broker(directory: Path) -> Broker | None:
    """Return the broker of `directory` if its process runs, ready or not; a process that only reuses its pid is not it."""
    broker = _read_state(directory.absolute())
    return broker if broker is not None and broker.process.is_running() else None


def stop_broker(directory: Path, timeout_seconds: float = 30) -> bool:
    """Stop the broker of `directory` and say whether one ran: SIGTERM, and SIGKILL after the time-out.

    Any process may call it, any number of times. After a SIGKILL the next start recovers the log.
    """
    broker = _read_state(directory.absolute())
    return broker is not None and stop_process(broker.process, timeout_seconds)


def new_cluster_id() -> str:
    """Return an id for a new cluster, as Kafka writes them."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _format(directory: Path, java: Sequence[str], config: Path, cluster_id: str) -> None:
    """Format the storage of `directory` once; Kafka writes meta.properties last, so half a format is done again."""
    if (data_directory(directory) / "meta.properties").exists():
        return
    tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config", str(config))
    command = [*java, *QUICK_JAVA, *tool]
    with (directory / _LOG).open("ab") as log:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise _unavailable(directory, f"storage in {data_directory(directory)} could not be formatted")


def _await_ready(broker: Broker) -> None:
    """Return once the broker accepts a topic (asked with validate_only); raise when it is gone or time is up."""
    is_running = broker.process.is_running
    is_over = wait_for(lambda: _accepts_topics(broker) or not is_running(), START_SECONDS, _POLL_SECONDS)
    if not is_running():
        raise _unavailable(broker.directory, f"broker at {broker.bootstrap_servers} ended before it was ready")
    if not is_over:
        raise _unavailable(broker.directory, f"broker at {broker.bootstrap_servers} was not ready in time")


def _accepts_topics(broker: Broker) -> bool:
    """Return whether the broker would create a topic now: it answers, is unfenced and has a controller.

    In a cluster another broker may take the topic, so this one must be among those that its cluster counts as alive.
    """
    try:
        socket.create_connection((HOST, broker.port), timeout=1).close()
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers, request_timeout_ms=5000)
    except (OSError, KafkaError):
        return False
    try:
        if broker.node_id not in {each["broker_id"] for each in admin.describe_cluster()["brokers"]}:
            return False
        admin.create_topics({f"offsetlake-probe-{uuid.uuid4()}": {"num_partitions": 1}}, validate_only=True)
    except KafkaError:
        return False
    finally:
        admin.close()
    return True


def _unavailable(directory: Path, what: str) -> BrokerUnavailable:
    log = directory / _LOG
    return BrokerUnavailable("\n".join([f"{what}; its last log lines ({log}):", *last_lines(log)]), log=log)


def _choose_ports(port: int | None, earlier: Broker | None) -> tuple[int, int]:
    """Return the ports for clients and for the controller: the given one, else the earlier ones, else free ones."""
    if port is not None:
        _require_free(port)
    free, free_for_controller = free_ports(2)
    if earlier is None:
        return port or free, free_for_controller
    wanted = port or (earlier.port if _is_free(earlier.port) else free)
    reusable = earlier.controller_port != wanted and _is_free(earlier.controller_port)
    return wanted, earlier.controller_port if reusable else free_for_controller


def _require_free(*ports: int) -> None:
    for port in ports:
        if not _is_free(port):
            raise BrokerUnavailable(f"port {port} of {HOST} is taken: stop what listens there or choose another", port=port)


def _is_free(port: int) -> bool:
    """Return whether nobody listens on a port, and we may: a listener that shares it would let us bind it too."""
    with socket.socket() as probe, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return probe.connect_ex((HOST, port)) != 0


def _read_state(directory: Path) -> Broker | None:
    try:
        document = read_placed(directory / _STATE)
        if document is None:
            return None
        return Broker(directory, Process(document.pop("pid"), document.pop("started")), **document)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokerUnavailable(
            f"broker state {directory / _STATE} cannot be read: {cause_of(error)}; see whether a broker of {directory} still "
            f"runs, stop it, and remove that file"
        ) from error


def _write_state(broker: Broker) -> None:
    ports = {"port": broker.port, "controller_port": broker.controller_port, "node_id": broker.node_id}
    scratch = broker.directory / f".{_STATE}"
    scratch.write_text(json.dumps(placed(asdict(broker.process) | ports, broker.directory / _STATE)), "utf-8")
    scratch.replace(broker.directory / _STATE)
