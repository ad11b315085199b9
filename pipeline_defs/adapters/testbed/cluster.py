"""The embedded cluster: some Kafka brokers on this machine, each also a controller, so that one can be lost.

Starts, finds and stops its nodes, and says who leads; each node is a broker of `broker.py` in a directory of its own.
Invariant: a node keeps its id, its ports and its data for ever, whatever becomes of its process.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import stamina
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from ...core.errors import BrokerUnavailable
from ..system.processes import free_ports, stop_process
from .broker import HOST, QUICK_JAVA, Broker, Node, data_directory, new_cluster_id, read_broker, start_broker, stop_broker

NODES = 3
_STOP_SECONDS = 1
# a copy of everything on each node, acknowledged by two
_REPLICATED = {
    "default.replication.factor": str(NODES),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(NODES),
    "transaction.state.log.replication.factor": str(NODES),
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": str(NODES),
    "share.coordinator.state.topic.min.isr": "2",
}


@dataclass(frozen=True, slots=True)
class Replicas:
    """Where one Kafka partition is: the node that leads it, none while there is none, and who is in sync.

    The first of `all` that is in sync and answers leads next.
    """

    leader: int | None
    in_sync: frozenset[int]
    all: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster on this machine and how its nodes are started; some of them may be down."""

    directory: Path
    nodes: Mapping[int, Node]
    jars: Sequence[Path]

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients: all nodes."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes.values())

    def broker(self, node_id: int) -> Broker:
        """Return a node that runs, ready or not; raise `BrokerUnavailable` if it does not run."""
        broker = read_broker(_node_directory(self.directory, node_id))
        if broker is None:
            raise BrokerUnavailable(f"node {node_id} of the cluster in {self.directory} does not run", node_id=node_id)
        return broker

    def start(self, node_id: int) -> Broker:
        """Start a node that was stopped or killed, unless it runs; return once the cluster counts it as alive."""
        return start_broker(
            _node_directory(self.directory, node_id),
            jars=self.jars,
            properties=_REPLICATED,
            node=self.nodes[node_id],
            java_options=("-Xmx256m", *QUICK_JAVA),
        )

    def kill(self, node_id: int) -> None:
        """Kill a node by SIGKILL, as a machine that goes dark; return when it is gone."""
        stop_process(self.broker(node_id).process, 0)

    def log_bytes(self, node_id: int, topic: str, partition: int) -> int:
        """Return the bytes of a Kafka partition's log on a node's own disk: what it has, whatever other nodes answer."""
        folder = data_directory(_node_directory(self.directory, node_id)) / f"{topic}-{partition}"
        return sum(segment.stat().st_size for segment in folder.glob("*.log"))

    @stamina.retry(on=KafkaError, timeout=30, attempts=None, wait_max=0.5)
    def read_replicas(self, topic: str, partition: int) -> Replicas:
        """Ask the cluster who leads a Kafka partition; ask again if the node that was asked is down or does not know it."""
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5000)) as admin:
            parts = admin.describe_topics([topic])[0]["partitions"]
        found = next((part for part in parts if part["partition_index"] == partition), None)
        if found is None:
            raise UnknownTopicOrPartitionError(f"{topic}/{partition} is not known to the node that was asked, yet")
        leader = found["leader_id"] if found["leader_id"] >= 0 else None
        return Replicas(leader, frozenset(found["isr_nodes"]), tuple(found["replica_nodes"]))


@contextmanager
def run_cluster(directory: Path, *, jars: Sequence[Path]) -> Iterator[Cluster]:
    """Run a new cluster of three nodes in a directory of its own while the context is open.

    Each node is broker and controller, so a majority must run for anything to be decided. Everything is replicated to
    all of them, and two must have a record before `acks=all` is answered. Raises what `start_broker` raises; no node
    runs afterwards, even if the start fails.
    """
    directory = directory.absolute()
    cluster_id, ports = new_cluster_id(), free_ports(2 * NODES)
    voters = dict(enumerate(ports[NODES:], 1))
    nodes = {number: Node(number, port, voters[number], voters, cluster_id) for number, port in enumerate(ports[:NODES], 1)}
    cluster = Cluster(directory, nodes, jars)
    try:
        with ThreadPoolExecutor(NODES) as pool:  # together: none is ready before a majority is
            list(pool.map(cluster.start, nodes))
        yield cluster
    finally:  # together: the last ones have no majority to say good-bye to, and take all of the time
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(lambda node: stop_broker(_node_directory(directory, node), _STOP_SECONDS), nodes))


def _node_directory(directory: Path, node_id: int) -> Path:
    return directory / f"node{node_id}"
