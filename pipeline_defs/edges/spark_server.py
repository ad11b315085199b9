"""The warm Spark of one home: a Spark Connect server that outlives its clients and is found again by all of them.

Whoever needs it first starts it, in a process and a JVM of its own. It listens on loopback, wants a token that only the
home's owner can read, and ends by itself: when nobody has used it for a while, when it is old and idle, and when another
server has taken its place. It knows nothing of topics and lakes. Invariant: what is committed never depends on it; where it
dies, its clients' jobs fail, and the next client starts another one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import EngineUnavailable
from .broker import free_ports, locked
from .processes import Process, read_process, spawn_process, stop_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE = "server.json"
LOG = "server.log"
LOG_BYTES = 10_000_000  # a log that is longer is begun anew
CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"  # pyspark's own mark of a process that is a client
START_SECONDS = 120.0  # a start takes 5 s; on a machine that is busy with something else it takes longer
POLL_SECONDS = 0.1
WATCH_SECONDS = 1.0
LAST_CALL_SECONDS = 3.0  # who has read the state just now may still come
IDLE_SECONDS = 900.0
OLD_SECONDS = 4 * 3600.0  # each session leaves 0.23 MB of heap behind: a run each 10 s leaves 330 MB
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 (the name of Spark's variable)

# a client that was killed leaves its job running; by Spark's defaults for up to seven minutes
CONNECT_CONF: Mapping[str, str] = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "10s",
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "3s",
    "spark.scheduler.mode": "FAIR",  # a small scan does not wait for a large one of another client
}


@dataclass(frozen=True, slots=True)
class Server:
    """One server as it was found: where it listens, as which process, since when (Unix seconds), made of what."""

    port: int
    token: str
    process: Process
    since: float
    fingerprint: str
    spark: str

    @property
    def url(self) -> str:
        """Where clients find it, with the token: a secret. Spark sends a token in the clear to the name `localhost` only."""
        return f"sc://localhost:{self.port}/;token={self.token}"


def start_server(folder: Path, config: Mapping[str, str], code: str) -> Server:
    """Return the server of `folder`, started where there is none of this configuration and code.

    One of another configuration is left to finish what it does. Raises `EngineUnavailable`.
    """
    fingerprint = hashlib.sha256(json.dumps([sorted(config.items()), code, sys.executable]).encode()).hexdigest()
    found = read_server(folder)
    if found is not None and found.fingerprint == fingerprint:
        return found
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder):
        found = read_server(folder)
        if found is not None and found.fingerprint == fingerprint:
            return found
        (folder / STATE).unlink(missing_ok=True)  # by which one of another configuration knows that it may go
        return _spawn(folder, config, fingerprint)


def read_server(folder: Path) -> Server | None:
    """Return the server of `folder` if its process runs; none where there is no such server."""
    try:
        found = json.loads((folder / STATE).read_text())
        server = Server(**{**found, "process": Process(**found["process"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngineUnavailable(
            f"the state of the Spark server, {folder / STATE}, cannot be read: {error!r}; nothing was started; "
            "delete that file",
        ) from error
    return server if server.process.is_running() else None


def stop_server(folder: Path, timeout_seconds: float = 20) -> bool:
    """Stop the server of `folder` and say whether one ran; jobs that it has under way fail."""
    server = read_server(folder)
    (folder / STATE).unlink(missing_ok=True)
    return server is not None and stop_process(server.process, timeout_seconds)


def _spawn(folder: Path, config: Mapping[str, str], fingerprint: str) -> Server:
    log = folder / LOG
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.unlink()
    asked = {"config": dict(config), "fingerprint": fingerprint}
    request = folder / "request.json"
    request.write_text(json.dumps(asked))
    command = [sys.executable, "-m", __name__, str(folder)]
    # its Python workers are the Python that this is, and it is no client, whatever this process is
    environment = {**os.environ, TOKEN: secrets.token_hex(32), "PYSPARK_PYTHON": sys.executable}
    environment.pop(CONNECT_MODE, None)
    process = spawn_process(command, log=log, environment=environment)
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = read_server(folder)
        if found is not None and found.process == process:
            return found
        if not process.is_running() or time.monotonic() > deadline:
            stop_process(process, 1)
            lines = log.read_text("utf-8", errors="replace").splitlines()[-5:] if log.exists() else []
            raise EngineUnavailable(
                f"the Spark server of {folder} did not start: {' | '.join(lines)}; nothing became visible; {log} has all that "
                "it said; OFFSETLAKE_ENGINE=in-process does without a server"
            )
        time.sleep(POLL_SECONDS)


# ---- the server's own process


def open_port(config: Mapping[str, str]) -> tuple[SparkSession, int]:
    """Start Spark in this process's JVM with a Connect server in it; return its session and the port."""
    from pyspark.sql import SparkSession

    (port,) = free_ports(1)
    builder = SparkSession.builder
    for name, value in {**config, **CONNECT_CONF, "spark.connect.grpc.binding.port": str(port)}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate(), port


def open_here(config: Mapping[str, str]) -> str:
    """Start a server in this process's own JVM, which ends with it; return its URL."""
    os.environ[TOKEN] = os.environ.get(TOKEN) or secrets.token_hex(32)
    os.environ.pop(CONNECT_MODE, None)  # what is started now is no client
    _, port = open_port(config)
    return f"sc://localhost:{port}/;token={os.environ[TOKEN]}"


def serve(folder: Path, *, idle_seconds: float = IDLE_SECONDS, old_seconds: float = OLD_SECONDS) -> None:
    """Be the server of `folder`, until nobody wants it any more or SIGTERM comes."""
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: ended.set())
    asked = json.loads((folder / "request.json").read_text())
    process = read_process(os.getpid())
    assert process is not None, "this process runs"
    work = folder / "work" / str(os.getpid())
    for old in work.parent.glob("*"):
        if not (old.name.isdigit() and read_process(int(old.name))):
            shutil.rmtree(old, ignore_errors=True)  # what a server that was killed left
    work.mkdir(parents=True)
    os.chdir(work)  # where Spark makes its folder `artifacts`
    local = {"spark.local.dir": str(work), "spark.sql.warehouse.dir": str(work / "warehouse")}
    session, port = open_port({**asked["config"], **local})
    server = Server(port, os.environ[TOKEN], process, time.time(), asked["fingerprint"], session.version)
    _write(folder, server)
    try:
        _watch(folder, server, session, ended, idle_seconds, old_seconds)
    finally:
        if _is_alive(session):
            session.stop()
        os.chdir(folder.parent)
        shutil.rmtree(work, ignore_errors=True)


def _write(folder: Path, server: Server) -> None:
    fresh = folder / f".{STATE}"
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(server), file)
    fresh.replace(folder / STATE)


def _watch(
    folder: Path, server: Server, session: SparkSession, ended: threading.Event, idle_seconds: float, old_seconds: float
) -> None:
    """Wait until the server is to end; its state is gone then, and nobody new finds it."""
    service = session.sparkContext._jvm.org.apache.spark.sql.connect.service.SparkConnectService  # type: ignore[union-attr]  # noqa: SLF001
    used, seen, is_going = time.monotonic(), "", False
    while not ended.wait(WATCH_SECONDS) and _is_alive(session):
        active = service.listActiveExecutions()
        now, mark = time.monotonic(), active.toString()
        if active.isRight() or mark != seen:
            used, seen = now, mark
        if not is_going:
            is_spent = now - used > idle_seconds or time.time() - server.since > old_seconds
            is_going = (is_spent and now - used > LAST_CALL_SECONDS) or not _is_of(folder, server)
            if is_going:
                _withdraw(folder, server)
                used = now  # whoever has read the state just now may still come
        elif now - used > LAST_CALL_SECONDS:
            return
    _withdraw(folder, server)


def _is_alive(session: SparkSession) -> bool:
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001 (its process is the JVM)
    return gateway.proc.poll() is None


def _is_of(folder: Path, server: Server) -> bool:
    found = read_server(folder)
    return found is not None and found.process == server.process


def _withdraw(folder: Path, server: Server) -> None:
    """Take the state away where it is this server's, so that nobody finds it any more."""
    if folder.is_dir():
        with locked(folder):
            if _is_of(folder, server):
                (folder / STATE).unlink(missing_ok=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
