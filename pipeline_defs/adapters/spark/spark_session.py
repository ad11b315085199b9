"""One session of a Spark Connect server: how it is opened, cut and ended; nobody else opens a channel to a server.

Invariant: the token of a server of ours goes to 127.0.0.1 alone, and nothing here waits without a limit.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .spark_liveness import DIRECTLY, is_ours, is_tls
from .spark_server import CONNECT_MODE

if TYPE_CHECKING:
    import grpc
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

# 2 s; by Spark's default a client waits minutes for a dead server
RETRIES: Mapping[str, Any] = {"max_retries": 4, "max_backoff": 1000}
# what is said by a client that is done, or has a job stopped: nobody waits long for an answer
FAREWELLS = ("ReleaseSession", "ReleaseExecute", "Interrupt")
FAREWELL_SECONDS = 5.0

# gRPC reads it when it is imported; else it prints a line for each try at a server that does not speak TLS
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def open_session(url: str) -> SparkSession:
    """Return a new session of the server at a URL, which is not asked for anything yet."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.logging import logger
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error that comes with it is told
    # errors are raised as well; at DEBUG the first logs all plans, logins included, and the others what records say
    for speaker in (logger, *map(PySparkLogger.getLogger, ("SQLQueryContextLogger", "DataFrameQueryContextLogger"))):
        speaker.setLevel(logging.CRITICAL)
    os.environ[CONNECT_MODE] = "1"  # as pyspark's own builder does, which takes no channel
    # its types are those of the classic one
    opened: Any = ConnectSession.builder.channelBuilder(_channel_to(url)).create()
    opened.client.set_retry_policies([DefaultPolicy(**RETRIES)])
    stub = opened.client._stub  # noqa: SLF001 (a channel with an interceptor crashes the process where it was cut)
    for each in FAREWELLS:
        setattr(stub, each, partial(getattr(stub, each), timeout=FAREWELL_SECONDS))
    session: SparkSession = opened
    return session


def failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return what a client raises when a server fails: Spark's errors, gRPC's, its `ValueError` for a cut connection."""
    import grpc
    from pyspark.errors import PySparkException

    return PySparkException, grpc.RpcError, ValueError, *more


def _channel_to(url: str) -> DefaultChannelBuilder:
    """Return how a URL is connected to: as pyspark does, except for the token, and for a server of ours.

    pyspark gives the token to gRPC as call credentials, which are Python that gRPC calls under a lock of its own. Whoever
    closes a channel waits for that lock while holding Python's: a deadlock. And pyspark sends a token in the clear to the
    name `localhost` only, which is ::1 as well, where another account may listen.
    """
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    class OwnChannel(DefaultChannelBuilder):
        def metadata(self) -> list[tuple[str, str]]:
            token = [] if self.token is None else [("authorization", f"Bearer {self.token}")]
            return [*super().metadata(), *token]

        def toChannel(self) -> grpc.Channel:  # noqa: N802 (its name in pyspark)
            import grpc

            if not (self.secure or is_ours(url)):
                return self._insecure_channel(self.endpoint)
            credentials = grpc.ssl_channel_credentials() if is_tls(url) else grpc.local_channel_credentials()
            channel: grpc.Channel = self._secure_channel(self.endpoint, credentials)
            return channel

    return OwnChannel(url, list(DIRECTLY) if is_ours(url) else None)


def set_up(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Configure a session; a server that lets nobody in says so now."""
    for name, value in conf.items():
        session.conf.set(name, value)
    str(session.version)  # asks


def end(session: SparkSession, *, is_told: bool) -> None:
    """End a session for good; if `is_told`, tell its server, which takes some seconds at most."""
    own: Any = session
    if is_told:
        with suppress(*failures()):
            own.client.release_session()
    own.release_session_on_close = False
    own.stop()
    # a garbage-collected session closes its client once more, and waits for threads of all sessions to end: if it is collected
    # in one of these threads, for ever
    own.client.close = lambda: None


def cut(session: SparkSession) -> None:
    """Close the connection of a session: what waits for it, for ever otherwise, fails."""
    own: Any = session
    own.client._channel.close()  # noqa: SLF001 (it has no other way that asks nobody)


def is_known(session: SparkSession) -> bool:
    """Return whether the server still knows a session: one that was started anew, or forgets what is idle, does not."""
    own: Any = session
    try:
        own.client.get_configs("spark.app.name")
    except failures():
        return False
    return True


def is_ended(session: SparkSession) -> bool:
    """Return whether a session was ended here, by another thread say."""
    own: Any = session
    return bool(own.is_stopped)


def make_active(session: SparkSession) -> None:
    """Make this the session that pyspark itself picks: otherwise the process's first, perhaps of a server long gone."""
    own: Any = type(session)
    own._active_session.session = session  # noqa: SLF001 (it has no other way)
