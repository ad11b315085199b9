"""A topic is created once: a lost answer repeats the request, and what the repeated one finds there is its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, TopicAlreadyExistsError

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.core.errors import BrokerUnavailable, Refused

TOPIC = "orders"


@dataclass
class Admin:
    """Admin client of a broker that creates what it is asked for, and loses the answers to the first requests."""

    lost_answers: int = 0
    slow_looks: int = 0
    topics: set[str] = field(default_factory=set)

    def create_topics(self, wanted: dict[str, Any]) -> None:
        (name,) = wanted
        if name in self.topics:
            raise TopicAlreadyExistsError(name)
        self.topics.add(name)
        if self.lost_answers:
            self.lost_answers -= 1
            raise KafkaConnectionError("the answer was lost")

    def wait_for_topics(self, names: Sequence[str], timeout_ms: int = 0) -> None:
        assert self.topics.issuperset(names)
        if self.slow_looks:
            self.slow_looks -= 1
            raise KafkaTimeoutError("no leader yet")

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    """Return a connection that nobody listens to: its admin client is set by the test."""
    with Kafka("127.0.0.1:1", timeout_seconds=2) as found:
        yield found


@pytest.mark.parametrize("admin", [Admin(lost_answers=1), Admin(slow_looks=1)], ids=["lost answer", "slow leaders"])
def test_a_request_that_is_repeated_finds_its_own_topic(kafka: Kafka, admin: Admin) -> None:
    kafka._admin = cast("Any", admin)
    kafka.create_topic(TOPIC, 2)
    assert admin.topics == {TOPIC}
    assert (admin.lost_answers, admin.slow_looks) == (0, 0), "the fault"


def test_a_topic_that_was_there_before_is_refused(kafka: Kafka) -> None:
    kafka._admin = cast("Any", Admin(topics={TOPIC}))
    with pytest.raises(Refused, match=r"topic orders exists already .*; nothing was created"):
        kafka.create_topic(TOPIC, 2)


def test_leaders_that_never_answer_are_said(kafka: Kafka) -> None:
    kafka._admin = cast("Any", Admin(slow_looks=10**6))
    with pytest.raises(BrokerUnavailable, match="no leader yet"):
        kafka.create_topic(TOPIC, 2)
