"""Knocking at what is no Kafka broker: nothing is said, nothing is thrown, and time is kept."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pipeline_defs.adapters.kafka.access import OPEN, Access
from pipeline_defs.adapters.kafka.kafka_knock import knock
from pipeline_defs.core.login.client_properties import parse_client_properties
from tests.support.secured import jaas

SECRET = "hush-4711"
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("PLAIN", SECRET)}


@contextmanager
def answering(answer: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Listens while the context is open, answers all that comes alike, or never, and keeps what came."""
    heard: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):  # it is closed under us at the end
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    heard.append(connection.recv(65536))
                    if answer is None:
                        connection.recv(65536)  # until the other one gives up
                    else:
                        connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", heard
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


ANSWERS = {
    "nothing": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "short frame": b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x00",
    "empty frame": b"\x00\x00\x00\x00",
    "not ours": b"\x00\x00\x00\x06\x00\x00\x00\x09\x00\x00",
    "negative": b"\xff\xff\xff\xff",
}


@pytest.mark.parametrize("name", sorted(ANSWERS))
@pytest.mark.parametrize("login", [True, False])
def test_what_does_not_speak_like_kafka_refuses_nobody(name: str, login: bool) -> None:
    """kafka-python then says what it says of it; no login is sent before the other side has said what it speaks."""
    access = Access(parse_client_properties(LOGIN, "the file")) if login else OPEN
    with answering(ANSWERS[name]) as (server, heard):
        knock(server, access, 2)
    assert heard and not any(SECRET.encode() in each for each in heard)


def test_time_is_kept_where_nobody_answers() -> None:
    """With all servers of a list together."""
    patience, silent_servers = 1.0, 120
    with answering(None) as (silent, heard):
        started = time.monotonic()
        knock(",".join(["127.0.0.1:1", "nonsense", *[silent] * silent_servers]), OPEN, patience)
        assert time.monotonic() - started < patience * silent_servers / 2, "half of what each on its own would take"
    assert heard


def test_a_tls_alert_alone_is_not_taken_for_tls() -> None:
    """TLS is tried before it is said. The control, a port that speaks it, is in tests/integration/test_secured.py."""
    with answering(b"\x15\x03\x03\x00\x02\x02\x28") as (server, heard):
        knock(f"127.0.0.1:1,{server}", OPEN, 2)
    assert any(each.startswith(b"\x16\x03") for each in heard), "it was tried"
