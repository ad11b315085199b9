"""The warm Spark of one home: a Spark Connect server that outlives its clients and is found again by all of them.

Whoever needs it first starts it, in a process and a JVM of its own (`spark_serving.py`). It listens on loopback and wants a
token that only the home's owner can read. It knows nothing of topics and lakes. Invariant: what is committed never depends
on it; if it dies its clients' jobs fail, and the next client starts another one.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ...core.errors import EngineUnavailable
from ..store.disk import errno_in, mend
from ..system.java import take_all_letters
from ..system.locks import hold_start, try_start_lock
from ..system.processes import Process, end_group, read_placed, spawn_process, stop_process, too_few_files, wait_for
from .spark_liveness import LOOPBACK

STATE, LOG, WORK, SPENT = "server.json", "server.log", "work", "spent"
REQUESTS = "request-*.json"  # one for each start: a server whose starter was killed may still read its own
SERVING = "pipeline_defs.adapters.spark.spark_serving"  # run as a module, by name: not imported to look for a server
LOG_BYTES = 10_000_000  # a log that is longer is begun anew with the next server
LOG_LINES = 5  # the last ones, in an error
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(.*)\n?", re.MULTILINE)
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"  # pyspark's own mark of a process that is a client
START_SECONDS = 120.0  # a start takes 5 s; on a machine that is busy with something else it takes longer
STOP_SECONDS = 20.0
STUCK_SECONDS = 1.0  # what has not answered for a minute does not end when it is asked to
SPENT_SECONDS = 30.0  # a server that fails for good is replaced once it is older
AGAIN_SECONDS = 120.0  # between two that are replaced; the time of the last is that of the file `spent`
POLL_SECONDS = 0.1
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 (the name of Spark's variable)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a server ends by itself.

    A server that is idle or old is withdrawn: no new client finds it. It ends once nobody has used it for
    `last_call_seconds`, so that whoever found it just before is still served.
    """

    idle_seconds: float = 900.0
    old_seconds: float = 4 * 3600.0  # each session leaves 0.23 MB of heap behind: a run each 10 s leaves 330 MB
    last_call_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server as it was found: where it listens, as which process and JVM, since when (Unix seconds), made of what."""

    port: int
    token: str
    process: Process
    jvm: Process
    since: float
    fingerprint: str
    spark: str

    @property
    def url(self) -> str:
        """Where clients find it, with the token, a secret: it goes in the clear to 127.0.0.1 alone (`spark_session.py`)."""
        return f"sc://{LOOPBACK}:{self.port}/;use_ssl=false;token={self.token}"

    def is_running(self) -> bool:
        """Return whether it can still serve anybody: its process takes a moment to see that its JVM is gone."""
        return self.process.is_running() and self.jvm.is_running()

    @property
    def facts(self) -> dict[str, object]:
        """What may be shown of it: no token."""
        return {"port": self.port, "pid": self.process.pid, "since": self.since, "spark": self.spark}


def fingerprint_of(config: Mapping[str, str], code: str) -> str:
    """Return what tells servers apart: configuration, code and Python."""
    return hashlib.sha256(json.dumps([sorted(config.items()), code, sys.executable]).encode()).hexdigest()


def find_server(folder: Path, fingerprint: str) -> Server | None:
    """Return the server of `folder` if it runs and has this fingerprint; raise `EngineUnavailable` for an unreadable state."""
    found = read_server(folder)
    return found if found is not None and found.fingerprint == fingerprint else None


def start_server(folder: Path, config: Mapping[str, str], fingerprint: str, limits: Limits = Limits()) -> Server:
    """Return the server of `folder` with this fingerprint, started if there is none; raise `EngineUnavailable`.

    One with another fingerprint is left to finish what it does, then ends.
    """
    find = partial(find_server, folder, fingerprint)
    with telling_folder(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold_start(folder, find, START_SECONDS, EngineUnavailable) as found:
            if found is not None:
                return found
            _end_orphan(folder)
            (folder / STATE).unlink(missing_ok=True)  # by which one of another configuration knows that it may go
            return _spawn(folder, config, fingerprint, limits)


def _end_orphan(folder: Path) -> None:
    """End the JVM of a server whose process was killed: if it hangs it does not notice, and soon nobody knows of it."""
    found = read_state(folder)
    if found is not None and not found.process.is_running():
        stop_process(found.jvm, STUCK_SECONDS)


def read_server(folder: Path) -> Server | None:
    """Return the server of `folder` if it runs; none if there is no such server."""
    found = read_state(folder)
    return found if found is not None and found.is_running() else None


def read_state(folder: Path) -> Server | None:
    """Return the server that a folder's state names, running or not.

    A state that is torn, after a power cut say, is nobody's: a server that finds it so ends. Raises `EngineUnavailable`
    if it may not be read.
    """
    with telling_folder(folder):
        try:
            found = read_placed(folder / STATE)
            if found is None:
                return None
            server = Server(**{**found, **{name: Process(**found[name]) for name in ("process", "jvm")}})
            return server if 0 < server.port < 1 << 16 else None
        except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
            return None


@contextmanager
def telling_folder(folder: Path) -> Iterator[None]:
    """Turn the system's errors about a server's folder into `EngineUnavailable`: a full disk, another's folder, a file."""
    try:
        yield
    except OSError as error:
        raise EngineUnavailable(
            f"the folder of the Spark server, {folder}, cannot be used: {error}; nothing became visible; have it be a folder "
            "that this user can write, on a disk with room, or set OFFSETLAKE_HOME to one that is"
        ) from error


def stop_server(folder: Path, timeout_seconds: float = STOP_SECONDS) -> bool:
    """Stop the server of `folder` and return whether one ran; jobs that it has under way fail."""
    with telling_folder(folder):
        server = read_state(folder)
        with ExitStack() as at_last:  # a disk that is read-only by now keeps nothing running
            if server is not None:
                # last: one that is stuck does not see that it is to end
                at_last.callback(stop_process, server.jvm, timeout_seconds)
                at_last.callback(stop_process, server.process, timeout_seconds)
            ran = server is not None and (server.process.is_running() or server.jvm.is_running())
            if folder.is_dir():
                (folder / STATE).unlink(missing_ok=True)
        return ran


def stop_stuck(folder: Path, url: str) -> None:
    """Stop the server of `folder` if it still is the one at a URL: whoever notices first does."""
    server = read_server(folder)
    if server is not None and server.url == url:
        stop_server(folder, STUCK_SECONDS)


def is_of(folder: Path, server: Server) -> bool:
    """Return whether the state of a folder is this server's; true if it cannot be read for a moment: it is asked again."""
    try:
        found = read_state(folder)
    except EngineUnavailable:
        return True
    return found is not None and found.process == server.process


def withdraw(folder: Path, server: Server) -> bool:
    """Delete a folder's state if it is this server's, so that nobody finds it any more; return whether nobody does.

    A process that is starting another server may be stopped, so it is not waited for. It deletes the state itself.
    """
    if not folder.is_dir() or not is_of(folder, server):
        return True
    with try_start_lock(folder) as is_held:
        if is_held and is_of(folder, server):
            (folder / STATE).unlink(missing_ok=True)
        return is_held


def replace_spent(folder: Path, url: str) -> bool:
    """Withdraw the server of `folder` if it still is the one at a URL; return whether the next job gets another one.

    One that has just started stays, and so does one whose predecessor was withdrawn just now, or jobs that fail so on each
    server would start one after another. A folder that cannot be written keeps its server: the job's own error is told.
    """
    last = folder / SPENT
    try:
        server = read_server(folder)
        if server is None or server.url != url:
            return True
        ages = (server.since, SPENT_SECONDS), (last.stat().st_mtime if last.exists() else 0.0, AGAIN_SECONDS)
        if any(0 <= time.time() - moment < least for moment, least in ages):
            return False
        last.touch()
        return withdraw(folder, server)
    except (EngineUnavailable, OSError):
        return False


def write_private(path: Path, document: object) -> None:
    """Write a document that its owner alone can read, whole or not at all."""
    fresh = path.with_name(f".{path.name}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(document, file)
    fresh.replace(path)


def begin_anew_if_long(log: Path) -> None:
    """Rename a log that is too long to `server.log.1`, over the one before: why a server ended may be in it."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))


def _spawn(folder: Path, config: Mapping[str, str], fingerprint: str, limits: Limits) -> Server:
    log = folder / LOG
    begin_anew_if_long(log)
    asked = {"config": dict(config), "fingerprint": fingerprint, "limits": asdict(limits)}
    _delete_requests(folder)  # of starters that were killed
    request = REQUESTS.replace("*", secrets.token_hex(8))
    write_private(folder / request, asked)
    # its workers run the Python that this is, and it is no client, whatever this process is
    environment = {**os.environ, TOKEN: secrets.token_hex(32), "PYSPARK_PYTHON": sys.executable}
    environment.pop(CONNECT_MODE, None)
    take_all_letters(environment)
    said_before = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-m", SERVING, str(folder), request]
    process = spawn_process(command, log=log, environment=environment)
    find = partial(find_server, folder, fingerprint)  # not one of a starter that was killed, of something else
    found = None
    try:
        wait_for(lambda: find() is not None or not process.is_running(), START_SECONDS, POLL_SECONDS)
        found = find()
        if found is None:
            raise EngineUnavailable(
                f"the Spark server of {folder} did not start: {_why(log, said_before)}; nothing became visible; "
                f"{log} has all that it said; OFFSETLAKE_ENGINE=in-process does without a server"
            )
    finally:
        if found is None:  # Ctrl-C included: nobody else knows of this process
            stop_process(process, 1)
            end_group(process.pid)  # a JVM that never came to listen to it
            _delete_requests(folder)
    return found


def _delete_requests(folder: Path) -> None:
    for each in (*folder.glob(REQUESTS), *folder.glob(f".{REQUESTS}")):
        each.unlink(missing_ok=True)


def _why(log: Path, said_before: int) -> str:
    """Return why a server ended, by its log from a byte on: the last lines, without stacks of Python and Java.

    Python's stack says only that there is no JVM; its last line is told if there is nothing else. For a disk that is full or
    read-only, advice is added; the log is on it, too, and may be empty for that reason.
    """
    with log.open("rb") as file:
        file.seek(said_before)
        text = file.read(LOG_BYTES).decode(errors="replace")
    lines = [line for line in map(str.strip, _TRACEBACK.sub("", text).splitlines()) if line and not line.startswith("at ")]
    told = (lines or [match[1] for match in _TRACEBACK.finditer(text)])[-LOG_LINES:]
    step = mend(errno_in(text) if shutil.disk_usage(log.parent).free else errno.ENOSPC)
    return "; ".join(filter(None, [" | ".join(told) or "it said nothing", step, too_few_files()]))
