"""Fixtures of the fast tests."""

import os
import socket
from collections.abc import Iterator

import dagster as dg
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
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what this machine's shell says of lakes and homes."""
    for name in [name for name in os.environ if name.startswith(("OFFSETLAKE_", "DAGSTER_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small worlds count, and may have end, each call of an object store."""
    watch_obstore(monkeypatch)
