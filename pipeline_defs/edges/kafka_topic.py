"""A topic as the leaders of its Kafka partitions have it: its id, watermarks and leader epochs, of one moment.

Any broker tells metadata, and one that lags tells those of a topic that is gone; who leads a partition knows what it
leads. kafka-python's admin client asks whom it likes, so its connection manager is used here (docs/design/0003).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.protocol.metadata import MetadataRequest

from ..core.plan_step import Watermarks

_NO_ID = str(UUID(int=0))  # what brokers before 2.8 are taken to say
NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Description:
    """What some broker tells of a topic: its id, none where it is too old for one, and who leads each Kafka partition.

    `replicas` is the number of copies of the Kafka partition that has the fewest.
    """

    topic_id: str | None
    leaders: Mapping[int, int]
    replicas: int

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Description:
        """Return the description in an answer of kafka-python's admin client."""
        leaders = {part["partition_index"]: part["leader_id"] for part in answer["partitions"]}
        replicas = min((len(part.get("replica_nodes", ())) for part in answer["partitions"]), default=0)
        return cls(_known_id(answer.get("topic_id")), dict(sorted(leaders.items())), replicas)


@dataclass(frozen=True, slots=True)
class Observation:
    """Id, watermarks and leader epochs of a topic, all of the same incarnation of it; an epoch may not be known."""

    topic_id: str | None
    watermarks: Mapping[int, Watermarks]
    leader_epochs: Mapping[int, int | None]


def read_ids_of_leaders(admin: KafkaAdminClient, leaders: Mapping[str, Iterable[int]]) -> dict[str, set[str | None]]:
    """Return the ids that topics have to those who lead their Kafka partitions; one that does not know a topic says none.

    `leaders` is by topic. Each broker is asked once, for all that it leads.
    """
    led: dict[int, list[str]] = {}
    for topic, nodes in leaders.items():
        for node in {*nodes} - {NO_LEADER}:
            led.setdefault(node, []).append(topic)
    ids: dict[str, set[str | None]] = {topic: set() for topic in leaders}

    async def ask() -> None:
        for node, topics in sorted(led.items()):
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            for answer in (await admin._manager.send(request, node_id=node)).topics:
                ids[answer.name].add(None if answer.error_code else _known_id(answer.topic_id))

    admin._manager.run(ask)
    return ids


def _known_id(topic_id: object) -> str | None:
    return None if topic_id in {None, UUID(int=0)} or str(topic_id) == _NO_ID else str(topic_id)
