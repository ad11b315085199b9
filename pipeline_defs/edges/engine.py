"""The engine: Spark as everything here reaches it, through Spark Connect, whoever runs it and wherever.

Nothing else opens a session. Sessions are made anew when the server that had them is gone, so a caller that is told
`EngineUnavailable` may simply ask again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..core.errors import DiskRefuses, EngineUnavailable, ScanFailed
from .disk import errno_in, mend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PORT = 15002
ANSWER_SECONDS = 5.0
RETRIES = {"max_retries": 4, "max_backoff": 1000}  # 2 s; by Spark's default a client waits minutes for a dead server


class Engine:
    """Sessions of one Spark Connect server, one for each configuration that is asked for.

    `find_url` finds or starts the server and returns its `sc://` URL; it raises `EngineUnavailable`.
    """

    def __init__(self, find_url: Callable[[], str]) -> None:
        self._find_url = find_url
        self._url: str | None = None
        self._sessions: dict[tuple[tuple[str, str], ...], SparkSession] = {}

    @property
    def version(self) -> str:
        """Version of the Spark that answers."""
        return str(self.session({}).version)

    def session(self, conf: Mapping[str, str]) -> SparkSession:
        """Return the session with this configuration; raise `EngineUnavailable` where no server answers."""
        from pyspark.errors import PySparkException

        key = tuple(sorted(conf.items()))
        if key not in self._sessions:
            self._url = self._url or self._find_url()
            try:
                self._sessions[key] = _open_session(self._url, conf)
            except PySparkException as error:
                self._forget()
                raise EngineUnavailable(
                    f"Spark does not answer at {_place(self._url)}: {first_cause(error)}; nothing became visible; what was "
                    "to be done is tried again"
                ) from error
        return self._sessions[key]

    @contextmanager
    def told(self, what: str, consequence: str, **fields: object) -> Iterator[None]:
        """Turn what Spark raises into `EngineUnavailable` where the server is gone, and into `ScanFailed` elsewhere.

        `what` says what was to be done, such as `land 3 ranges of flights`.
        """
        from pyspark.errors import PySparkException
        from pyspark.errors.exceptions.base import RetriesExceeded

        try:
            yield
        except PySparkException as error:
            if isinstance(error, RetriesExceeded) or not _answers(self._url):
                place = _place(self._url)
                self._forget()
                raise EngineUnavailable(
                    f"Spark could not {what}: the server at {place} went away; {consequence}", **fields
                ) from error
            raise scan_failed(what, error, consequence, **fields) from error

    def _forget(self) -> None:
        self._url = None
        self._sessions.clear()


def _open_session(url: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session: SparkSession = SparkSession.builder.remote(url).create()
    session.client.set_retry_policies([DefaultPolicy(**RETRIES)])
    for name, value in conf.items():
        session.conf.set(name, value)
    str(session.version)  # asks: a server that is not there, or lets nobody in, is told now
    return session


def _answers(url: str | None) -> bool:
    """Return whether anybody listens where the server was."""
    place = urlsplit(url or "")
    with (
        suppress(OSError),
        closing(
            socket.create_connection(
                (place.hostname or "localhost", place.port or DEFAULT_PORT), timeout=ANSWER_SECONDS
            )
        ),
    ):
        return True
    return False


def _place(url: str | None) -> str:
    """Return host and port of a server's URL, without the token."""
    place = urlsplit(url or "")
    return f"{place.hostname}:{place.port or DEFAULT_PORT}"


def scan_failed(what: str, error: Exception, consequence: str, **fields: object) -> ScanFailed:
    """Return the error of a Spark job; it is `DiskRefuses` where the disk is full or read-only, as the JVM says."""
    cause = first_cause(error)
    step = mend(errno_in(cause))
    if step is None:
        return ScanFailed(f"Spark could not {what}: {cause}; {consequence}", **fields)
    return DiskRefuses(f"Spark could not {what}: {cause}; {consequence}; {step}", **fields)


def first_cause(error: Exception) -> str:
    """Return the innermost `Caused by` of a Java error in one line, or the first line of what there is."""
    lines = str(error).splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0] if lines else type(error).__name__).strip()
