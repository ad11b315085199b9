"""The embedded broker's configuration: a pure function from its directory and ports to server.properties.

Opens nothing and asks nobody. Invariant: what the broker's identity and addresses depend on is set last and cannot be
overridden; everything listens on 127.0.0.1 only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import BadSetting

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
