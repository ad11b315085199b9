"""A process that has imported everything and forks: each test's process starts at once, and is one of its own.

Importing Dagster takes seconds of CPU, for each of some fifty processes. What is forked has its own session, its own
environment, files and exit code, and dies by its own signals; no thread, JVM or connection is there before the fork.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO

from pipeline_defs.settings import PROJECT

_PRELOADED = ("pipeline_defs.cli", "tests.support.crash_child", "dagster_pyspark", "pyarrow.dataset")
_REQUEST_BYTES = 1 << 20


class Forked:
    """Is a process of our own that runs a module: like subprocess.Popen, as far as tests need it."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str], files: Sequence[IO[str]]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_start())
        request = json.dumps({"module": module, "arguments": list(arguments), "env": dict(env)}).encode()
        socket.send_fds(self._connection, [request], [file.fileno() for file in files])
        self.pid = int(self._read_line())
        self._code: int | None = None

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end; the code is negative for a signal, as in subprocess."""
        if self._code is None:
            self._connection.settimeout(timeout)
            self._code = int(self._read_line())
        return self._code

    def poll(self) -> int | None:
        """Is its exit code, none while it runs."""
        if self._code is None:
            try:
                return self.wait(0.0)
            except BlockingIOError:
                return None
        return self._code

    def _read_line(self) -> str:
        read = b""
        while not read.endswith(b"\n"):
            byte = self._connection.recv(1)
            assert byte, "the zygote is gone"
            read += byte
        return read.decode()


def run(module: str, *arguments: str, env: Mapping[str, str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs a module to its end and returns what it printed."""
    with (
        Path(os.devnull).open() as nothing,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        Forked(module, arguments, env, [nothing, out, err]) as process,
    ):
        try:
            code = process.wait(timeout)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([module, *arguments], code, out.read(), err.read())


@cache
def _start() -> str:
    folder = tempfile.TemporaryDirectory(prefix="zygote-")
    path = str(Path(folder.name) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.zygote", path], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )

    def stop() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(stop)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "READY\n"
    return path


def _serve(path: str) -> None:
    for module in _PRELOADED:
        __import__(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the attendants
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    print("READY", flush=True)
    while True:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            _attend(connection)
            return
        connection.close()


def _attend(connection: socket.socket) -> None:
    """Forks the process that was asked for, says its id, and when it has ended its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(request), files)
        return
    for file in files:
        os.close(file)
    connection.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    try:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)


def _become(request: Mapping[str, object], files: Sequence[int]) -> None:
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[arg-type,call-overload]
    os.chdir(PROJECT)
    sys.argv = [str(request["module"]), *request["arguments"]]  # type: ignore[misc]
    runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
