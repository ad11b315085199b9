"""The mirror: the consumer group of a topic, moved to the frontier, so that Kafka's own lag tools show what is not landed.

Invariant: nothing reads it; moving or deleting it changes nothing that is landed or asked for.
"""

from collections.abc import Mapping

from ..adapters.kafka.kafka import Kafka
from ..adapters.lake.lake import Lake
from ..core.log.topic_state import refuse_recreated


def mirror_frontier(topic: str, group: str, lake: Lake, kafka: Kafka) -> Mapping[int, int]:
    """Move the consumer group to the frontier, and return the frontier.

    Raise `BrokerUnavailable`, and `UnknownTopic`, `TopicRecreated` or `OtherCluster` where the landed topic no longer exists.

    The lake is read again after each move: of two concurrent moves the last leaves the group at the newer frontier.
    """
    moved: Mapping[int, int] = {}
    refuse_recreated(topic, lake.recent(topic).log.state, *kafka.read_ids(topic))
    while (frontier := _frontier(topic, lake)) != moved:
        kafka.move_group(topic, frontier, group)
        moved = frontier
    return moved


def _frontier(topic: str, lake: Lake) -> Mapping[int, int]:
    coverage = lake.recent(topic)
    return coverage.frontier(coverage.log.generation)
