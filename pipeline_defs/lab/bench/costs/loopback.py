"""Servers on loopback: one that is S3-compatible, with a bucket `lake`, and a TCP proxy that counts each process's bytes."""

import socket
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, Self
from urllib.parse import urlsplit

import psutil

from ....adapters.spark.spark_liveness import LOOPBACK
from ....adapters.system.processes import free_ports, spawn_process, stop_process
from ...processes import wait_until_ready

BUCKET = "lake"
KEY, SECRET = "someone", "secret"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Give the server's address while it runs, its log in a folder; raise `NotMeasured` where it does not."""
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    log = folder / "s3.log"
    moto = Path(sys.executable).with_name("moto_server")
    server = spawn_process([str(moto), "-H", LOOPBACK, "-p", str(port)], log=log)
    try:
        wait_until_ready(lambda: _make_bucket(url), server, log)
        yield url
    finally:
        stop_process(server, 5)


def _make_bucket(url: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=5):  # noqa: S310 (ours)
            return True
    except urllib.error.URLError:
        return False


def s3_environment(url: str) -> Mapping[str, str]:
    """Return what tells obstore where S3 is, as its users do: the environment."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def s3a_conf(url: str) -> Mapping[str, str]:
    """Return what tells the executors of a cluster where S3 is, as its operators do: the server's configuration."""
    return {
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }


class CountingProxy(ThreadingTCPServer):
    """Listens at `port` and passes all on to a server of this machine, by its URL, while the context is open.

    Whose a connection is takes longer to find out than most connections take, so it only passes on until it is to count.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url: str) -> None:
        super().__init__((LOOPBACK, 0), BaseRequestHandler)
        self._target = urlsplit(url).port
        self._guard = threading.Lock()
        self.port: int = self.socket.getsockname()[1]
        self._processes: dict[int, int] = {}  # of each connection, by the port of who made it
        self._counted: Counter[int] | None = None  # bytes by process id, while they are counted

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        """Address for whoever speaks HTTP through it."""
        return f"http://{LOOPBACK}:{self.port}"

    @contextmanager
    def counting(self) -> Iterator[Counter[int]]:
        """Count while the context is open, from zero, also what goes through connections that are there already."""
        counted: Counter[int] = Counter()
        with self._guard:
            self._counted = counted
            self._processes.update(_processes_at(self._processes))
        try:
            yield counted
        finally:
            with self._guard:
                self._counted = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Pass on what a client and the server say, until one of them has ended; called in a thread of its own."""
        port = client_address[1]
        with self._guard:
            self._processes[port] = 0 if self._counted is None else _processes_at({port})[port]
        with socket.create_connection((LOOPBACK, self._target)) as server:
            for each in (request, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each small answer waits for 40 ms
            back = threading.Thread(target=self._pass_on, args=(server, request, port), daemon=True)
            back.start()
            self._pass_on(request, server, port)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket, port: int) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._guard:
                    if self._counted is not None:
                        self._counted[self._processes[port]] += len(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _processes_at(ports: Collection[int]) -> dict[int, int]:
    """Return the id of the process whose end of a connection is at each port; 0 where it is gone again."""
    found = {each.laddr.port: each.pid or 0 for each in psutil.net_connections("tcp") if each.laddr and each.raddr}
    return {port: found.get(port, 0) for port in ports}
