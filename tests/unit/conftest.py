"""Fixtures of the fast tests."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.interleaving import watch_obstore


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return a socket that listens, as that of a frozen process does: the system goes on to accept for it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small worlds count, and may have end, each call of an object store."""
    watch_obstore(monkeypatch)
