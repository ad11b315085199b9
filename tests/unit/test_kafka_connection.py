"""One connection of many threads: what one of them does to it costs no other its answer."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import StaleMetadata, UnsupportedVersionError
from kafka.structs import OffsetAndTimestamp

from pipeline_defs.adapters.kafka import kafka_connection
from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.kafka.kafka_connection import Connection
from pipeline_defs.adapters.kafka.kafka_glance import ISOLATION, Description, Glance, Observation, TopicGlance
from pipeline_defs.core.errors import BrokerUnavailable
from pipeline_defs.core.log.plan_step import Head, Tail, Watermarks
from pipeline_defs.core.log.planning import Policy

CLOSED = "NetworkSelector closed!"


class Admin:
    """A client that answers as kafka-python's does once it is closed."""

    opened: list[Admin]

    def __init__(self, **_: object) -> None:
        self.is_closed = False
        self.opened.append(self)

    def close(self) -> None:
        self.is_closed = True

    def answer(self) -> str:
        if self.is_closed:
            raise RuntimeError(CLOSED)
        return "yes"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Admin]:
    """Return the clients that were opened, in order."""
    Admin.opened = []
    monkeypatch.setattr(kafka_connection, "KafkaAdminClient", Admin)
    monkeypatch.setattr(kafka_connection, "knock", lambda *_: None)
    return Admin.opened


def test_a_thread_whose_connection_another_one_closes_asks_again(opened: list[Admin]) -> None:
    """[R-20] The other one had no answer from the broker, which says nothing of this one's."""
    connection = Connection("127.0.0.1:1", timeout_seconds=30)

    def ask(admin: Admin) -> str:
        if len(opened) == 1:
            connection.close()  # the other thread
        return admin.answer()

    assert connection._ask("orders", ask) == "yes"
    assert [each.is_closed for each in opened] == [True, False], "the fault, and the new one"


def test_who_gets_no_answer_closes_no_connection_but_its_own(opened: list[Admin]) -> None:
    """[R-20] Of two threads without an answer the later one finds that the first has opened another connection."""
    connection = Connection("127.0.0.1:1", timeout_seconds=30)

    def ask(admin: Admin) -> str:
        if len(opened) == 1:
            connection.close()
            assert connection._ask("orders", lambda other: other.answer()) == "yes"
        raise UnsupportedVersionError

    with pytest.raises(BrokerUnavailable):
        connection._ask("orders", ask)
    assert [each.is_closed for each in opened] == [True, False]


def test_another_error_of_a_client_is_not_asked_again_after(opened: list[Admin]) -> None:
    """The control."""
    connection = Connection("127.0.0.1:1", timeout_seconds=30)

    def ask(admin: Admin) -> str:
        raise RuntimeError("another one")

    with pytest.raises(RuntimeError, match="another one"):
        connection._ask("orders", ask)
    assert len(opened) == 1


def test_a_leader_that_moves_between_two_looks_costs_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-9] The look that all topics share is of before: this one is observed again, and its new leader asked."""
    kafka, asked = Kafka("nowhere:1"), list[int]()
    ends = [{0: OffsetAndTimestamp(100, -1, epoch)} for epoch in (5, 6)]
    kafka._glance = Glance({"t": TopicGlance("id", {0: 1}, {0: 0}, dict.fromkeys(ISOLATION, ends[0]), {})})

    def observe(topic: str, isolation_level: str) -> Observation:
        seen = kafka._glance.seen.get(topic)
        return seen.observation(isolation_level) if seen else Observation("id", {0: Watermarks(0, 100)}, {0: 6})

    def read_ends(*given: Any) -> dict[int, int]:
        ((_, now),) = given[-1].values()
        asked.append(now)
        if now != 6:
            raise StaleMetadata("fenced")
        return {0: 100}

    monkeypatch.setattr(kafka, "observe", observe)
    monkeypatch.setattr(kafka, "_connected", object)
    monkeypatch.setattr(kafka, "_describe", lambda _: Description("id", {0: 2}, 3))
    monkeypatch.setattr(kafka, "read_config", lambda _: {})
    monkeypatch.setattr("pipeline_defs.adapters.kafka.kafka.read_epoch_ends", read_ends)
    state = kafka.read_topic_state("t", Tail(3, 0, "id", {0: Head(100, 0, 4)}), Policy(records_per_range=1), 0)
    assert (asked, state.partitions[0].epoch_end) == ([5, 6], 100)
