"""The engine: Spark as everything here reaches it, through Spark Connect, whoever runs it and wherever.

Nothing else opens a session. Sessions are made anew when the server that had them is gone, so a caller that is told
`EngineUnavailable` may simply ask again.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core.errors import DiskRefuses, EngineLost, EngineUnavailable, ScanFailed
from .disk import errno_in, mend
from .spark_knock import is_answering, is_listening, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED = re.compile(r'status = StatusCode\.(\w+)\s+details = "(.*)"')
_CLASS_ALONE = re.compile(r"\s*(\([\w.$]+\))?\s*")
SILENT_SECONDS = (
    60.0  # a server that is stopped, or whose machine swaps, still listens: by itself a client waits for ever
)
WATCH_SECONDS = 10.0
POLL_SECONDS = 0.1
RETRIES: Mapping[str, Any] = {
    "max_retries": 4,
    "max_backoff": 1000,
}  # 2 s; by Spark's default a client waits minutes for a dead server


class Engine:
    """Sessions of one Spark Connect server, one for each configuration that is asked for.

    `find_url` finds or starts the server and returns its `sc://` URL; it raises `EngineUnavailable`. It is asked before each
    job, so that a server that has died or was replaced meanwhile costs nothing but its successor's start. `end_stuck` ends
    the server of a URL, which listens and answers nobody any more; what waits for it is told then.
    """

    def __init__(self, find_url: Callable[[], str], end_stuck: Callable[[str], None] = lambda url: None) -> None:
        self._find_url = find_url
        self._end_stuck = end_stuck
        self._url: str | None = None
        self._version: str | None = None
        self._sessions: dict[tuple[tuple[str, str], ...], SparkSession] = {}
        self._guard = threading.RLock()  # threads verify ranges side by side
        atexit.register(self.close)

    @property
    def version(self) -> str:
        """Version of the Spark that answers, or that answered last."""
        return self._version or str(self.session({}).version)

    def session(self, conf: Mapping[str, str]) -> SparkSession:
        """Return the session with this configuration; raise `EngineUnavailable` where no server answers."""
        from pyspark.errors import PySparkException

        key = tuple(sorted(conf.items()))
        with self._guard:
            url = self._find_url()
            if url != self._url:
                self._forget()
                self._url = url
            if key not in self._sessions:
                try:
                    if not self._answers(url):  # by itself a client would try for minutes to reach nobody
                        raise ConnectionRefusedError("nobody answers there")
                    self._sessions[key] = _open_session(url, conf)
                except (PySparkException, ConnectionRefusedError) as error:
                    self._forget()
                    raise EngineUnavailable(
                        f"Spark does not answer at {place_of(url)}: {first_cause(error)}; nothing became visible; what was to "
                        "be done is tried again"
                    ) from error
                self._version = str(self._sessions[key].version)
            return self._sessions[key]

    @contextmanager
    def job(self, conf: Mapping[str, str], what: str, consequence: str, **fields: object) -> Iterator[SparkSession]:
        """Have one job done with the session of a configuration; all that is asked of Spark is asked in here.

        What Spark raises becomes `EngineLost` where the server is gone, and `ScanFailed` elsewhere. Its words do not
        tell the two apart: the server is asked whether it still does anything. `what` says what was to be done, such as `land
        3 ranges of flights`.
        """
        from pyspark.errors import PySparkException

        session = self.session(conf)
        url = str(self._url)
        _make_active(session)
        try:
            with self._watched(url):
                yield session
        except PySparkException as error:
            if not self._works(url):
                self._forget()
                raise EngineLost(
                    f"Spark could not {what}: the server at {place_of(url)} went away; {consequence}", **fields
                ) from error
            raise scan_failed(what, error, consequence, **fields) from error

    @contextmanager
    def _watched(self, url: str) -> Iterator[None]:
        """Have the server of a job asked now and then whether it still answers, while the job waits for it."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(WATCH_SECONDS) and self._answers(url):
                pass

        threading.Thread(target=watch, name="offsetlake-engine-watch", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _works(self, url: str) -> bool:
        """Return whether the server still does what it is asked: one that is about to end answers, and does nothing more."""
        from pyspark.errors import PySparkException

        if not self._answers(url):
            return False
        try:
            probe = _open_session(url, {})
            try:
                return probe.range(1).count() == 1
            finally:
                probe.stop()
        except PySparkException:
            return False

    def _answers(self, url: str) -> bool:
        """Return whether the server answers: false at once where nobody listens, and after a minute where it is stuck.

        One that is stuck is ended then, where it is ours.
        """
        deadline = time.monotonic() + SILENT_SECONDS
        while is_listening(url):
            if is_answering(url):
                return True
            if time.monotonic() > deadline:
                self._end_stuck(url)
                return False
            time.sleep(POLL_SECONDS)
        return False

    def close(self) -> None:
        """Give all sessions back; the next one that is asked for is new."""
        with self._guard:
            if self._url is not None and is_listening(self._url):
                for session in self._sessions.values():
                    session.stop()
                self._sessions.clear()
            self._forget()

    def _forget(self) -> None:
        """Close all sessions without a word to their server, which is gone: it would be waited for."""
        with self._guard:
            for session in self._sessions.values():
                session.release_session_on_close = False  # type: ignore[attr-defined]
                session.stop()
            self._url = None
            self._sessions.clear()


def _open_session(url: str, conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.logging import logger

    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # the error that comes with it is told
    logger.setLevel(logging.CRITICAL)  # errors are raised as well; at DEBUG it writes down all plans, logins among them
    session: Any = SparkSession.builder.remote(url).create()  # its types are those of the classic one
    session.client.set_retry_policies([DefaultPolicy(**RETRIES)])
    for name, value in conf.items():
        session.conf.set(name, value)
    str(session.version)  # asks: a server that lets nobody in is told now
    opened: SparkSession = session
    return opened


def _make_active(session: SparkSession) -> None:
    """Have pyspark ask this session where it asks one by itself: the first of the process may be of a server long gone."""
    own: Any = type(session)
    own._active_session.session = session  # noqa: SLF001 (it has no other way)


def scan_failed(what: str, error: Exception, consequence: str, **fields: object) -> ScanFailed:
    """Return the error of a Spark job; it is `DiskRefuses` where the disk is full or read-only, as the JVM says."""
    cause = first_cause(error)
    step = mend(errno_in(cause))
    if step is None:
        return ScanFailed(f"Spark could not {what}: {cause}; {consequence}", **fields)
    return DiskRefuses(f"Spark could not {what}: {cause}; {consequence}; {step}", **fields)


def first_cause(error: Exception) -> str:
    """Return the innermost `Caused by` of a Java error in one line, or the first line that says more than its class.

    Of an error of gRPC itself, that nobody is let in, say, it is its status and what comes with that.
    """
    if refused := _REFUSED.search(str(error)):
        return f"{refused[1]}: {refused[2]}"
    lines = [line.strip() for line in str(error).splitlines() if not _CLASS_ALONE.fullmatch(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else lines[0] if lines else type(error).__name__
