"""The engine: Spark as everything here reaches it, through Spark Connect, whoever runs it and wherever.

Nothing else opens a session. Sessions are made anew when the server that had them is gone, so a caller that is told
`EngineUnavailable` may simply ask again.
"""

from __future__ import annotations

import atexit
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import DiskRefuses, EngineLost, EngineUnavailable, EngineUnfit, ScanFailed
from .disk import errno_in, mend
from .spark_knock import NOBODY, find_silence, is_listening, place_of
from .spark_session import cut, end, is_known, make_active, open_session, set_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSED = re.compile(r'status = StatusCode\.(\w+)\s+details = "(.*)"')
_CLASS_ALONE = re.compile(r"\s*(\([\w.$]+\))?\s*")
# files are written on this machine by a Spark that is ours: no .crc file beside each; pages have checksums, and the file has
# its digest. It stays in the executors, where it would break what others write to S3
OWN_DISK: Mapping[str, str] = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
SILENT_SECONDS = (
    60.0  # a server that is stopped, or whose machine swaps, still listens: by itself a client waits for ever
)
WATCH_SECONDS = 10.0
POLL_SECONDS = 0.1


class Engine:
    """Sessions of one Spark Connect server, one for each configuration that is asked for.

    `find_url` finds or starts the server and returns its `sc://` URL; it raises `EngineUnavailable`. It is asked before each
    job, so that a server that has died or was replaced meanwhile costs nothing but its successor's start. `end_stuck` ends
    the server of a URL, which listens and answers nobody any more; what waits for it is told then.
    """

    is_remote = False  # somebody else's server, which may be on another machine: `remote_engine.py`
    write_options: Mapping[str, str] = OWN_DISK  # beside those of the file

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

    @property
    def url(self) -> str:
        """The server's `sc://` URL, with its token: a secret; it is found or started where there is none yet."""
        return self._find_url()

    def session(self, conf: Mapping[str, str]) -> SparkSession:
        """Return the session with this configuration; raise `EngineUnavailable` where no server answers."""
        import grpc
        from pyspark.errors import PySparkException

        key = tuple(sorted(conf.items()))
        with self._guard:
            url = self._find_url()
            if url != self._url:
                self._forget()
                self._url = url
            if key not in self._sessions:
                try:
                    why_silent = self._why_silent(url)
                    if why_silent:  # by itself a client would try for minutes to reach nobody
                        raise ConnectionRefusedError(why_silent)
                    self._sessions[key] = self._connect(url, conf)
                except EngineUnfit:
                    self._forget()
                    raise
                except (PySparkException, ConnectionRefusedError, grpc.RpcError) as error:
                    self._forget()
                    raise EngineUnavailable(
                        f"Spark does not answer at {place_of(url)}: {first_cause(error)}; nothing became visible; what was to "
                        "be done is tried again"
                    ) from error
                self._version = str(self._sessions[key].version)
            return self._sessions[key]

    def _connect(self, url: str, conf: Mapping[str, str]) -> SparkSession:
        session = open_session(url)
        try:
            with self._watched(url, session):
                set_up(session, conf)
                if not self._sessions:
                    self._greet(session, url)
        except BaseException:
            end(session, is_told=False)
            raise
        return session

    @contextmanager
    def job(self, conf: Mapping[str, str], what: str, consequence: str, **fields: object) -> Iterator[SparkSession]:
        """Have one job done with the session of a configuration; all that is asked of Spark is asked in here.

        What Spark raises becomes `EngineLost` where the server is gone, and `ScanFailed` elsewhere. Its words do not
        tell the two apart: the server is asked whether it still does anything. `what` says what was to be done, such as `land
        3 ranges of flights`.
        """
        import grpc
        from pyspark.errors import PySparkException

        session = self.session(conf)
        url = str(self._url)
        make_active(session)
        with self._watched(url, session) as was_cut:
            try:
                yield session
            except (PySparkException, grpc.RpcError, ValueError) as error:
                if isinstance(error, ValueError) and not was_cut.is_set():  # grpc's, for a connection that was closed
                    raise
                if was_cut.is_set() or not self._works(url) or not is_known(session):
                    self._forget()
                    raise EngineLost(
                        f"Spark could not {what}: the server at {place_of(url)} went away; {consequence}", **fields
                    ) from error
                raise scan_failed(what, error, consequence, **fields) from error

    def check_private(self, what: str) -> None:
        """Refuse to send a secret in a plan where others may read it on its way: never to a server of ours."""

    def ready_workers(self, session: SparkSession) -> None:
        """Have the workers of a session ready to run functions of ours: those of a server of ours are."""

    def _greet(self, session: SparkSession, url: str) -> None:
        """Look at a server before anything is asked of it; raise `EngineUnfit`. One of ours was made to fit."""

    @contextmanager
    def _watched(self, url: str, session: SparkSession) -> Iterator[threading.Event]:
        """Have the server of a job asked now and then whether it still answers, while the job waits for it.

        Where it does not, its connection is closed, so that the job fails; the event that is given says so.
        """
        ended, was_cut = threading.Event(), threading.Event()

        def watch() -> None:
            while not ended.wait(WATCH_SECONDS):
                if self._why_silent(url, is_patient=self.is_remote) and not ended.is_set():
                    was_cut.set()
                    cut(session)
                    return

        threading.Thread(target=watch, name="offsetlake-engine-watch", daemon=True).start()
        try:
            yield was_cut
        finally:
            ended.set()

    def _works(self, url: str) -> bool:
        """Return whether the server still does what it is asked: one that is about to end answers, and does nothing more."""
        from pyspark.errors import PySparkException

        if self._why_silent(url):
            return False
        try:
            probe = open_session(url)
            try:
                return probe.range(1).count() == 1
            finally:
                end(probe, is_told=True)
        except PySparkException:
            return False

    def _why_silent(self, url: str, *, is_patient: bool = False) -> str | None:
        """Return why a server does not answer, none where it does: at once where nobody listens, else after a minute.

        After a minute for who `is_patient`, too: a network may come back. One that is stuck is ended then, where it is ours.
        """
        deadline = time.monotonic() + SILENT_SECONDS
        while True:
            listens = is_listening(url)
            why = find_silence(url) if listens else NOBODY
            if why is None or not (listens or is_patient):
                return why
            if time.monotonic() > deadline:
                if listens:
                    self._end_stuck(url)
                return why
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Give all sessions back; the next one that is asked for is new."""
        with self._guard:
            if self._sessions and self._url is not None and is_listening(self._url) and find_silence(self._url) is None:
                for session in self._sessions.values():
                    end(session, is_told=True)
                self._sessions.clear()
            self._forget()

    def _forget(self) -> None:
        """Close all sessions without a word to their server, which is gone: it would be waited for."""
        with self._guard:
            for session in self._sessions.values():
                end(session, is_told=False)
            self._url = None
            self._sessions.clear()


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
