"""The engine: everything here reaches Spark by it, through Spark Connect, whoever runs the server and wherever.

Nothing else opens a session. Sessions are made anew when the server that had them is gone, so after `EngineUnavailable` a
caller may simply ask again.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...core.errors import DiskRefuses, EngineLost, EngineUnavailable, EngineUnfit, JobStuck, ScanFailed
from ..store.disk import TOO_MANY_OPEN, errno_in, mend
from .spark_errors import find_cause, innermost_cause, is_jvm_spent
from .spark_liveness import NOBODY, Stillness, find_silence, is_listening, place_of
from .spark_session import cut, end, failures, is_ended, is_known, make_active, open_session, set_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# for a Spark of ours, which writes on this machine: no .crc file beside each file, as pages have checksums and the file its
# digest. Not for a Spark of others: it stays in the executors and would break what they write to S3
OWN_DISK: Mapping[str, str] = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
SILENT_SECONDS = 60.0  # a server that is stopped, or whose machine swaps, still listens, and a client would wait for ever
WATCH_SECONDS = 10.0
GREETING_SECONDS = 300.0  # a busy cluster takes its time, and a server that has done nothing by then never will
CLOSE_SECONDS = 5.0
POLL_SECONDS = 0.1


class CutOff(threading.Event):
    """Event of closing a job's connection, as its server was silent, or the job was still for too long.

    `error` is what went wrong as the server was asked or ended.
    """

    error: Exception | None = None

    def __init__(self, stillness: Stillness) -> None:
        super().__init__()
        self.stillness = stillness

    @property
    def told(self) -> str:
        """The error in words, to follow others; empty if there is none."""
        return "" if self.error is None else f" ({type(self.error).__name__} as it was looked after: {self.error})"


class Engine:
    """Sessions of one Spark Connect server, one for each configuration that is asked for.

    `find_url` finds or starts the server and returns its `sc://` URL; it raises `EngineUnavailable`. It is asked before each
    job, so that a server that has died or was replaced meanwhile costs nothing but its successor's start. `end_stuck` ends
    the server of a URL, which listens and answers nobody any more; whatever waits for it then fails. `replace_spent` has the
    next job get another server than that of a URL, which goes on with what it does; it returns whether that is so.
    """

    is_remote = False  # somebody else's server, which may be on another machine: `remote_engine.py`
    write_options: Mapping[str, str] = OWN_DISK  # beside those of the file
    advice = "`offsetlake engine status` says what runs"  # if the server does not answer

    def __init__(
        self,
        find_url: Callable[[], str],
        end_stuck: Callable[[str], None] = lambda url: None,
        replace_spent: Callable[[str], bool] = lambda url: False,
    ) -> None:
        self._find_url = find_url
        self._end_stuck = end_stuck
        self._replace_spent = replace_spent
        self._url: str | None = None
        self._version: str | None = None
        self._sessions: dict[tuple[tuple[str, str], ...], SparkSession] = {}
        self._users: Counter[int] = Counter()  # jobs that use a session, by its id()
        self._guard = threading.RLock()  # threads verify ranges side by side
        atexit.register(self.close)

    @property
    def version(self) -> str:
        """Version of the Spark that answers, or that answered last."""
        return self._version or str(self.session({}).version)

    @property
    def url(self) -> str:
        """The server's `sc://` URL, with its token: a secret; it is found, or started if there is none yet."""
        return self._find_url()

    def session(self, conf: Mapping[str, str]) -> SparkSession:
        """Return the session with this configuration, and make it the active one of this thread.

        Raises `EngineUnavailable` if no server answers.
        """
        with self._guard:
            self._find_session(conf)
            session = self._sessions[_key(conf)]
        make_active(session)
        return session

    def _find_session(self, conf: Mapping[str, str]) -> None:
        import grpc
        from pyspark.errors import PySparkException

        url = self._find_url()
        if url != self._url:
            self._let_go(self._url)
            self._url = url
        if _key(conf) in self._sessions:
            return
        try:
            why_silent = self._why_silent(url)
            if why_silent:  # by itself a client would try for minutes to reach nobody
                raise ConnectionRefusedError(why_silent)
            self._sessions[_key(conf)] = session = self._connect(url, conf)
        except EngineUnfit:
            self._let_go(url)
            raise
        except (PySparkException, ConnectionError, grpc.RpcError) as error:
            self._let_go(url)
            raise EngineUnavailable(
                f"Spark does not answer at {place_of(url)}: {innermost_cause(error)}; nothing became visible; {self.advice}"
            ) from error
        self._version = str(session.version)

    def _connect(self, url: str, conf: Mapping[str, str]) -> SparkSession:
        session = open_session(url)
        try:
            with self._watched(url, session, GREETING_SECONDS) as was_cut:
                try:
                    self._set_up(session, conf)
                    if not self._sessions:
                        self._greet(session, url)
                except failures(EngineUnfit) as error:
                    if not was_cut.is_set():
                        raise
                    raise ConnectionAbortedError("it listens, and does not do what it is asked") from error
        except BaseException:
            end(session, is_told=False)
            raise
        return session

    def _set_up(self, session: SparkSession, conf: Mapping[str, str]) -> None:
        set_up(session, conf)

    @contextmanager
    def job(
        self, conf: Mapping[str, str], what: str, consequence: str, still_seconds: float = math.inf, **fields: object
    ) -> Iterator[SparkSession]:
        """Run one job with the session of a configuration; whatever is asked of Spark is asked within.

        Spark's errors become `EngineLost` if the server is gone or replaced, `JobStuck` if the job was stopped as it finished
        no task for `still_seconds`, and otherwise `ScanFailed`. Their text does not tell whether the server is gone, so it is
        asked to do something. `what` says what was to be done, such as `land 3 ranges of flights`.
        """
        with self._lent(conf) as (url, session), self._watched(url, session, still_seconds=still_seconds) as was_cut:
            try:
                yield session
            except failures() as error:
                if was_cut.stillness.is_over:
                    self._let_go(url)
                    still = f"it finished no file for {still_seconds:.0f} s and was stopped"
                    raise JobStuck(f"Spark could not {what}: {still}; {consequence}", **fields) from error
                is_closed = was_cut.is_set() or is_ended(session)
                if isinstance(error, ValueError) and not is_closed:  # grpc's, for a connection that was closed
                    raise
                if not is_closed and self._works(url):
                    if is_jvm_spent(error) and self._replace_spent(url):
                        self._let_go(url)
                        why = f"its JVM would fail so again and is replaced: {find_cause(error)}"
                        raise EngineLost(f"Spark could not {what}: {why}; {consequence}", **fields) from error
                    if is_known(session):
                        raise scan_failed(what, error, consequence, **fields) from error
                    self._drop(session)
                else:
                    self._let_go(url)
                raise EngineLost(
                    f"Spark could not {what}: the server at {place_of(url)} went away{was_cut.told}; {consequence}", **fields
                ) from error

    @contextmanager
    def _lent(self, conf: Mapping[str, str]) -> Iterator[tuple[str, SparkSession]]:
        """Yield the URL of a server, and a session of it, for one job.

        Threads share sessions, and the server may be replaced meanwhile: whoever is the last to use a session that is not
        kept any more ends it.
        """
        with self._guard:
            session, url = self.session(conf), str(self._url)
            self._users[id(session)] += 1
        try:
            yield url, session
        finally:
            with self._guard:
                self._users[id(session)] -= 1
                is_last = not self._users[id(session)] and session not in self._sessions.values()
            if is_last:
                end(session, is_told=False)

    def check_private(self, what: str) -> None:
        """Refuse to send a secret in a plan that others could read on its way; nobody can on the way to a server of ours."""

    def ready_workers(self, session: SparkSession) -> None:
        """Make the workers of a session ready to run functions of ours; those of a server of ours already are."""

    def _greet(self, session: SparkSession, url: str) -> None:
        """Check a server before anything is asked of it; raise `EngineUnfit`. One of ours always fits."""

    @contextmanager
    def _watched(
        self, url: str, session: SparkSession, limit_seconds: float = math.inf, still_seconds: float = math.inf
    ) -> Iterator[CutOff]:
        """Ask a job's server every `WATCH_SECONDS` whether it still answers, while the job waits for it.

        If it does not, or after a limit, its connection is closed, so that the job fails, and the yielded event is set. So it
        is if the server cannot be asked or cannot be ended: nobody else would notice. A job that is still for too long is
        stopped first.
        """
        ended, deadline = threading.Event(), time.monotonic() + limit_seconds
        was_cut = CutOff(Stillness(session, still_seconds))

        def is_over() -> bool:
            try:
                if self._why_silent(url, is_patient=self.is_remote) or time.monotonic() > deadline:
                    return True
                if was_cut.stillness.look():
                    self._stop(url, session, was_cut.stillness.tag)
                    return True
                return False
            except Exception as error:  # noqa: BLE001 (whatever it is, the job must not wait for ever, and tells it)
                was_cut.error = error
                return True

        def watch() -> None:
            while not ended.wait(WATCH_SECONDS):
                if is_over() and not ended.is_set():
                    was_cut.set()
                    cut(session)
                    return

        threading.Thread(target=watch, name="offsetlake-engine-watch", daemon=True).start()
        try:
            with was_cut.stillness.noted():
                yield was_cut
        finally:
            ended.set()

    def _stop(self, url: str, session: SparkSession, tag: str) -> None:  # noqa: ARG002 (they are a remote server's)
        """Stop the jobs of a tag, and free what they hold: a task may ignore an interrupt, so a server of ours is ended."""
        self._end_stuck(url)

    def _works(self, url: str) -> bool:
        """Return whether the server still does what it is asked: one that is about to end answers, and does nothing more.

        One that has lost its folder is no better, for hours: one of ours is ended, and the next job starts another.
        """
        if self._why_silent(url):
            return False
        try:
            probe = open_session(url)
            try:
                with self._watched(url, probe, GREETING_SECONDS):
                    return probe.range(1).count() == 1
            finally:
                end(probe, is_told=True)
        except failures():
            if self._why_silent(url) is None:
                self._end_stuck(url)
            return False

    def _why_silent(self, url: str, *, is_patient: bool = False) -> str | None:
        """Return why a server does not answer, none if it does: at once if nobody listens, else after a minute.

        If `is_patient` always after a minute: a network may come back. A stuck server of ours is ended then.
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
        """End all sessions, within some seconds; the next one that is asked for is new."""
        if not self._guard.acquire(timeout=CLOSE_SECONDS):
            return  # a thread still waits for a server, and the process ends without it
        try:
            url, sessions = self._url, list(self._sessions.values())
            self._url = None
            self._sessions.clear()
        finally:
            self._guard.release()
        is_there = bool(sessions) and url is not None and is_listening(url) and find_silence(url) is None
        for session in sessions:
            end(session, is_told=is_there)

    def _let_go(self, url: str | None) -> None:
        """Keep no session of a server that is gone or was replaced; do not tell the server, as that would be waited for.

        A session in use is left to its users: a server that was replaced finishes what it does, and each of them notices one
        that is gone.
        """
        with self._guard:
            if url == self._url:
                self._url = None
                for session in list(self._sessions.values()):
                    self._drop(session)

    def _drop(self, session: SparkSession) -> None:
        """Keep a session no longer; end it, or leave that to its last user."""
        with self._guard:
            self._sessions = {key: each for key, each in self._sessions.items() if each is not session}
            if not self._users[id(session)]:
                end(session, is_told=False)


def _key(conf: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(conf.items()))


def scan_failed(what: str, error: Exception, consequence: str, **fields: object) -> ScanFailed:
    """Return the error of a Spark job: `DiskRefuses` if the JVM says that the disk is full or read-only."""
    cause = find_cause(error)
    number = errno_in(cause)
    step = mend(number, "the disk of the lake, or of Spark's temporary files")
    kind = ScanFailed if step is None or number in TOO_MANY_OPEN else DiskRefuses  # fewer ranges have fewer files open
    return kind(f"Spark could not {what}: {cause}; {consequence}{f'; {step}' if step else ''}", **fields)
