"""The embedded cluster: some Kafka brokers on this machine, each also a controller, so that one can be lost.

Starts, finds and stops its nodes, and says who leads; each node is a broker of `broker.py` in a directory of its own.
Invariant: a node keeps its id, its ports and its data for ever, whatever becomes of its process.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stamina
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from ...core.errors import BadSetting, BrokerUnavailable
from ..system.locks import hold_start
from ..system.processes import free_ports, wait_for
from .broker import QUICK_JAVA, START_SECONDS, Broker, new_cluster_id, read_broker, start_broker, stop_broker
from .broker_properties import HOST, Node, data_directory, replicated

_STATE = "cluster.json"
_POLL_SECONDS = 0.02
_KILL_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Replicas:
    """Where one Kafka partition is: the node that leads it, none while there is none, and who is in sync."""

    leader: int | None
    in_sync: frozenset[int]
    all: frozenset[int]


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
        """Return a node that runs, ready or not; raise `BrokerUnavailable` where it does not."""
        broker = read_broker(_node_directory(self.directory, node_id))
        if broker is None:
            raise BrokerUnavailable(f"node {node_id} of the cluster in {self.directory} does not run", node_id=node_id)
        return broker

    def start(self, node_id: int) -> Broker:
        """Start a node that was stopped or killed, unless it runs; return once the cluster counts it as alive."""
        return start_broker(
            _node_directory(self.directory, node_id),
            jars=self.jars,
            properties=replicated(len(self.nodes)),
            node=self.nodes[node_id],
            java_options=("-Xmx256m", *QUICK_JAVA),
        )

    def kill(self, node_id: int) -> None:
        """Kill a node by SIGKILL, as a machine that goes dark; return when it is gone."""
        directory = _node_directory(self.directory, node_id)
        os.kill(self.broker(node_id).pid, signal.SIGKILL)
        if not wait_for(lambda: read_broker(directory) is None, _KILL_SECONDS, _POLL_SECONDS):
            raise TimeoutError(f"node {node_id} still runs {_KILL_SECONDS} seconds after SIGKILL")

    @contextmanager
    def paused(self, node_ids: Iterable[int]) -> Iterator[None]:
        """Have nodes stand still by SIGSTOP: their connections stay open, and nobody answers. Then they go on."""
        pids = [self.broker(node).pid for node in sorted(node_ids)]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def log_bytes(self, node_id: int, topic: str, partition: int) -> int:
        """Return the size of a Kafka partition's log on a node's own disk, which says what it has whoever else answers."""
        folder = data_directory(_node_directory(self.directory, node_id)) / f"{topic}-{partition}"
        return sum(segment.stat().st_size for segment in folder.glob("*.log"))

    def read_replicas(self, topic: str, partition: int) -> Replicas:
        """Ask the cluster who leads a Kafka partition; ask again where the node that was asked is down."""
        described = self._describe(topic)
        found = next(part for part in described["partitions"] if part["partition_index"] == partition)
        leader = found["leader_id"] if found["leader_id"] >= 0 else None
        return Replicas(leader, frozenset(found["isr_nodes"]), frozenset(found["replica_nodes"]))

    @stamina.retry(on=KafkaError, timeout=30, attempts=None, wait_max=0.5)
    def _describe(self, topic: str) -> Any:
        with closing(KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5000)) as admin:
            return admin.describe_topics([topic])[0]


def start_cluster(directory: Path, *, jars: Sequence[Path], brokers: int = 3) -> Cluster:
    """Return the cluster of `directory`, all of its nodes running; those that do not run yet are started, at once.

    Each node is broker and controller, so a majority must run for anything to be decided. Everything is replicated to
    all of them, and two must have a record before `acks=all` is answered. A start that fails leaves no process that it
    has started. Raises what `start_broker` raises, and BadSetting for another number of brokers than there are.
    """
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    with hold_start(directory, lambda: None, START_SECONDS, BrokerUnavailable):
        cluster = Cluster(directory, _read_or_choose_nodes(directory, brokers), jars)
        before = {node for node in cluster.nodes if read_broker(_node_directory(directory, node)) is not None}
        ready = False
        try:
            with ThreadPoolExecutor(brokers) as pool:  # together: none is ready before a majority is
                list(pool.map(cluster.start, cluster.nodes))
            ready = True
        finally:
            if not ready:
                for node in set(cluster.nodes) - before:
                    stop_broker(_node_directory(directory, node), timeout_seconds=0)
        return cluster


def stop_cluster(directory: Path, timeout_seconds: float = 30) -> int:
    """Stop all nodes of `directory` at once and say how many ran; SIGKILL for those that take longer.

    The last nodes have no majority to say good-bye to and may take all of the time.
    """
    directories = sorted(directory.absolute().glob("node*"))
    with ThreadPoolExecutor(max(1, len(directories))) as pool:
        return sum(pool.map(lambda node: stop_broker(node, timeout_seconds), directories))


def _node_directory(directory: Path, node_id: int) -> Path:
    return directory / f"node{node_id}"


def _read_or_choose_nodes(directory: Path, brokers: int) -> dict[int, Node]:
    """Return the nodes as they were chosen when the cluster was first started, else new ones, written down."""
    path = directory / _STATE
    if not path.exists():
        ports = free_ports(2 * brokers)
        scratch = directory / f".{_STATE}"
        scratch.write_text(
            json.dumps({"cluster_id": new_cluster_id(), "ports": ports[:brokers], "controller_ports": ports[brokers:]})
        )
        scratch.replace(path)
    state = json.loads(path.read_text("utf-8"))
    if len(state["ports"]) != brokers:
        raise BadSetting(
            f"the cluster in {directory} has {len(state['ports'])} brokers, {brokers} are asked for; nothing was started; "
            "take another directory",
            directory=directory,
        )
    voters = dict(enumerate(state["controller_ports"], 1))
    return {node: Node(node, port, voters[node], voters, state["cluster_id"]) for node, port in enumerate(state["ports"], 1)}
