"""What brokers' answers mean: which errors pass, which say no, and what of an answer is of one topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.errors import AuthorizationError, KafkaError, NoError, UnknownTopicOrPartitionError, for_code

from ..core.errors import UnknownTopic


def is_retriable(error: Exception) -> bool:
    """Says whether Kafka calls an error retriable; that there is no such topic is not waited for."""
    return isinstance(error, KafkaError) and error.retriable and not isinstance(error, UnknownTopicOrPartitionError)


def raise_forbidden(description: Any) -> Any:
    """Raises where the broker does not let us see a topic; it says so in its answer, other than of what it does not do."""
    error = for_code(description["error_code"])
    if issubclass(error, AuthorizationError):
        raise error
    return description


def unknown_topic(topic: str, bootstrap_servers: str) -> UnknownTopic:
    """Is what a person is told where a topic does not exist."""
    return UnknownTopic(
        f"topic {topic} does not exist on the broker at {bootstrap_servers}; nothing was written; create the topic, or "
        "correct `topic` in its defs.yaml",
        topic=topic,
    )


def read_refusals(answers: Mapping[TopicPartition, type[KafkaError]]) -> dict[int, str]:
    """Reads from the answers of a group's coordinator which Kafka partitions it refused; raises what may pass."""
    refused = {}
    for tp, answer in sorted(answers.items()):
        if answer is not NoError:
            if is_retriable(answer()):
                raise answer
            refused[tp.partition] = answer.__name__
    return refused


def find_replicas(brokers: list[Mapping[str, Any]], topic: str) -> Iterator[Mapping[str, Any]]:
    """Yields what each broker's log directories say of a topic's Kafka partitions."""
    for broker in brokers:
        for log_dir in broker["log_dirs"]:
            for found in log_dir["topics"]:
                if found["name"] == topic:
                    yield from found["partitions"]
