"""The consumer group of a topic, moved to where everything is landed, so that Kafka's own lag tools show what is not.

Invariant: nothing reads it; wherever it is moved or deleted, what is landed and asked for stays the same.
"""

from collections.abc import Mapping

from ..adapters.kafka.kafka import Kafka
from ..adapters.lake.lake import Lake
from ..core.log.topic_state import refuse_recreated


def mirror_frontier(topic: str, group: str, lake: Lake, kafka: Kafka) -> Mapping[int, int]:
    """Move the consumer group to where everything is landed, and return that.

    Raise `BrokerUnavailable`, and `UnknownTopic`, `TopicRecreated` or `OtherCluster` where the topic that is landed is not
    there any more.

    The lake is read again after the group was moved: of two that move it at once, whoever is last leaves it where the newer
    one of both had it.
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
