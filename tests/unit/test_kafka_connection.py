"""One connection of many threads: what one of them does to it costs no other its answer."""

from __future__ import annotations

import pytest
from kafka.errors import UnsupportedVersionError

from pipeline_defs.adapters.kafka import kafka_connection
from pipeline_defs.adapters.kafka.kafka_connection import Connection
from pipeline_defs.core.errors import BrokerUnavailable

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
