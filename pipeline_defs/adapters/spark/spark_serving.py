"""Spark with a Connect server in it: as the process that `spark_server.py` starts, or in the JVM of this process.

The process ends by itself: when nobody has used it for a while, when it is old, when another server has taken its place, or
when its JVM is gone. Invariant: it leaves neither a process nor a file behind but its log, even where it was killed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ...core.errors import EngineUnavailable
from ..system.processes import end_group, free_ports, placed, read_process, stop_process
from .spark_liveness import LOOPBACK
from .spark_server import (
    CONNECT_MODE,
    START_SECONDS,
    STATE,
    TOKEN,
    WORK,
    Limits,
    Server,
    begin_anew_if_long,
    is_of,
    telling_folder,
    withdraw,
    write_private,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WATCH_SECONDS = 0.5
JVM_END_SECONDS = 10
HANG_SECONDS = 60.0  # a JVM that is stopped answers nobody; one whose machine swaps may take its time
EXIT_WHEN_FULL = "-XX:+ExitOnOutOfMemoryError"  # a JVM that lacks memory serves nobody well; another one is started

PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"  # by which a session has a Connect server in it
# a client that was killed leaves its job running; by Spark's defaults for up to seven minutes
CONNECT_CONF: Mapping[str, str] = {
    "spark.connect.grpc.binding.address": LOOPBACK,
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "10s",
    "spark.connect.execute.manager.detachedTimeout": "30s",  # a client on a busy machine may be late by some seconds
    "spark.connect.execute.manager.maintenanceInterval": "3s",
    "spark.scheduler.mode": "FAIR",  # a small scan does not wait for a large one of another client
}


_here: list[Server] = []  # the one of this process, once there is one


def find_here() -> Server | None:
    """Return the server in this process's own JVM, whatever its configuration: a process has one JVM."""
    return _here[0] if _here else None


def end_here(url: str) -> None:
    """End the JVM of this process's server if that is the one at a URL; whatever waits for it fails."""
    for server in _here:
        if server.url == url:
            stop_process(server.jvm, 0)


def open_here(config: Mapping[str, str], fingerprint: str, work: Path, log: Path | None) -> Server:
    """Start a server in this process's own JVM, which ends with it.

    `work` is where Spark makes its folder `artifacts`; what the JVM prints goes to `log`, if one is given. Raises
    `EngineUnavailable`.
    """
    os.environ[TOKEN] = os.environ.get(TOKEN) or secrets.token_hex(32)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers are the first `python3`, which need not have our packages
    os.environ.pop(CONNECT_MODE, None)  # what is started now is no client
    with telling_folder(work):
        work.mkdir(parents=True, exist_ok=True)
    options = f'{config.get("spark.driver.extraJavaOptions", "")} "-Duser.dir={work}"'.strip()
    config = {**config, "spark.driver.extraJavaOptions": options, **_user_conf(work)}
    _start_jvm(config, log)
    session, port = _open_port(config)
    _here.append(_describe(session, port, fingerprint))
    return _here[0]


def _start_jvm(config: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM of this process's Spark; what it prints goes to a log, if there is one.

    A JVM that does not tell in time where it listens is ended, and so is one whose caller is interrupted: pyspark would wait
    for it for ever, or leave it behind.
    """
    from unittest.mock import patch

    from pyspark import SparkConf, SparkContext, java_gateway

    conf = SparkConf(loadDefaults=False)
    for name, value in config.items():
        conf.set(name, value)
    says = f"; what it says itself is in {log}" if log is not None else ""
    jvms: list[subprocess.Popen[bytes]] = []
    gateways: list[object] = []
    failures: list[Exception] = []

    # pyspark tells nobody which process it has started
    class KeptPopen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            jvms.append(self)

    def launch() -> None:  # in a thread: signals interrupt the main one alone
        from pyspark.errors import PySparkException

        try:
            popen = {"stdout": output, "stderr": output, "start_new_session": True}
            gateways.append(java_gateway.launch_gateway(conf, popen_kwargs=popen))  # type: ignore[no-untyped-call]
        except (PySparkException, OSError) as error:
            failures.append(error)

    with ExitStack() as opened:
        output = opened.enter_context(_open_log(log)) if log is not None else None
        opened.enter_context(patch.object(java_gateway, "Popen", KeptPopen))
        launcher = threading.Thread(target=launch, name="offsetlake-spark-start", daemon=True)
        launcher.start()
        try:
            launcher.join(START_SECONDS)
        finally:
            if not gateways:
                for jvm in jvms:
                    end_group(jvm.pid)
                    jvm.communicate()
    if not gateways:
        why = str(failures[0]) if failures else f"it did not say where it listens within {START_SECONDS:g} s"
        raise EngineUnavailable(f"Spark's JVM does not start: {why}; nothing became visible{says}")
    SparkContext._ensure_initialized(gateway=gateways[0])  # noqa: SLF001 (takes the JVM instead of launching one)


def _open_log(log: Path) -> BinaryIO:
    with telling_folder(log.parent):
        log.parent.mkdir(parents=True, exist_ok=True)
        begin_anew_if_long(log)
        return log.open("ab")


def _open_port(config: Mapping[str, str]) -> tuple[SparkSession, int]:
    """Start Spark in this process's JVM with a Connect server in it; return its session and the port."""
    from pyspark.sql import SparkSession

    (port,) = free_ports(1)
    builder = SparkSession.builder
    own = {**CONNECT_CONF, "spark.plugins": PLUGIN, "spark.connect.grpc.binding.port": str(port)}
    for name, value in {**config, **own}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate(), port


def serve(folder: Path, request: str) -> None:
    """Run the server that a request in `folder` asks for, until nobody needs it any more or SIGTERM comes."""
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: ended.set())
    asked = json.loads((folder / request).read_text())
    (folder / request).unlink()
    with ExitStack() as at_last:  # an error of one step keeps none of the others
        at_last.callback(_leave, folder)
        at_last.callback(_end_jvm)
        work = _make_work(folder)
        os.chdir(work)  # where Spark makes its folder `artifacts`
        session, port = _open_port({**asked["config"], **_local_conf(work, asked["config"])})
        at_last.callback(_stop, session)
        server = _describe(session, port, asked["fingerprint"])
        at_last.callback(withdraw, folder, server)
        write_private(folder / STATE, placed(asdict(server), folder / STATE))
        _watch(folder, server, session, ended, Limits(**asked["limits"]))


def _local_conf(work: Path, config: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, besides the configured ones, that keep Spark to this server's own folder."""
    own = f'"-Djava.io.tmpdir={work}"'  # a system that is read-only has no /tmp
    java = f"{own} {config.get('spark.driver.extraJavaOptions', '')} {EXIT_WHEN_FULL}"
    return {
        **_user_conf(work),
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.driver.extraJavaOptions": java,
    }


def _user_conf(work: Path) -> dict[str, str]:
    """Return the settings for this process's user: a place for what Spark keeps below a home, and the umask.

    In a container a user may have no home. Hadoop does not ask for the umask: by its own, 022, all may read what Spark writes.
    """
    os.umask(mask := os.umask(0o077))
    return {"spark.jars.ivy": str(work / "ivy"), "spark.hadoop.fs.permissions.umask-mode": f"{mask:03o}"}


def _describe(session: SparkSession, port: int, fingerprint: str) -> Server:
    process, jvm = read_process(os.getpid()), read_process(_jvm_process(session).pid)
    assert process is not None, "this process runs"
    assert jvm is not None, "and has just started its JVM"
    return Server(port, os.environ[TOKEN], process, jvm, time.time(), fingerprint, session.version)


def _work_of(folder: Path) -> Path:
    return folder / WORK / str(os.getpid())


def _leave(folder: Path) -> None:
    """Delete this server's own folder."""
    os.chdir("/")
    shutil.rmtree(_work_of(folder), ignore_errors=True)


def _make_work(folder: Path) -> Path:
    """Make this server's own folder, and delete those of servers that were killed."""
    for old in (folder / WORK).glob("*"):
        if not (old.name.isdigit() and read_process(int(old.name))):
            shutil.rmtree(old, ignore_errors=True)
    work = _work_of(folder)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return work


def _watch(folder: Path, server: Server, session: SparkSession, ended: threading.Event, limits: Limits) -> None:
    """Wait until the server is to end."""
    from py4j.protocol import Py4JError

    service = session.sparkContext._jvm.org.apache.spark.sql.connect.service.SparkConnectService  # type: ignore[union-attr]  # noqa: SLF001
    jvm = _jvm_process(session)
    used, seen, is_going = time.monotonic(), "", False
    while not ended.wait(WATCH_SECONDS) and jvm.poll() is None:
        try:
            with _limited(jvm, HANG_SECONDS):
                active = service.listActiveExecutions()
                is_used, mark = active.isRight(), active.toString()
        except (Py4JError, OSError):
            return  # the JVM is about to be gone
        now = time.monotonic()
        if is_used or mark != seen:
            used, seen = now, mark
        if not is_going:
            is_idle_or_old = now - used > limits.idle_seconds or time.time() - server.since > limits.old_seconds
            is_going = (is_idle_or_old or not is_of(folder, server)) and withdraw(folder, server)
            if is_going:
                used = now  # whoever has read the state just now may still come
        elif now - used > limits.last_call_seconds:
            return


def _jvm_process(session: SparkSession) -> Any:
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001 (its process is the JVM)
    return gateway.proc


@contextmanager
def _limited(jvm: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """Kill a JVM that keeps a caller waiting for so long, as one that is stopped does: py4j waits for ever."""
    killer = threading.Timer(seconds, jvm.kill)
    killer.daemon = True
    killer.start()
    try:
        yield
    finally:
        killer.cancel()


def _stop(session: SparkSession) -> None:
    """End Spark; one that hangs is ended with its JVM."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError), _limited(_jvm_process(session), JVM_END_SECONDS):  # the JVM may have died
        session.stop()


def _end_jvm() -> None:
    """End the JVM of this process, if it has one, and return when that is gone."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway  # noqa: SLF001 (its process is the JVM)
    if gateway is None:
        return
    jvm = gateway.proc
    jvm.stdin.close()  # by which it ends
    try:
        jvm.wait(JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


if __name__ == "__main__":
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # inherited ones: a lock or a pipe among them would be held for hours
    serve(Path(sys.argv[1]).absolute(), sys.argv[2])
