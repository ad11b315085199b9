"""A TCP proxy on loopback that counts, on demand, the bytes of each process, in both directions together."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from urllib.parse import urlsplit

import psutil

from ....adapters.spark.spark_knock import LOOPBACK


class CountingProxy:
    """Listens at `port` and passes all on to a server of this machine, by its URL, while the context is open.

    Whose a connection is takes longer to find out than most connections take, so it only passes on until it is to count.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url).port
        self._listener = socket.create_server((LOOPBACK, 0))
        self._guard = threading.Lock()
        self.port: int = self._listener.getsockname()[1]
        self._processes: dict[int, int] = {}  # of each connection, by the port of who made it
        self._counted: Counter[int] | None = None  # bytes by process id, while they are counted

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()

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

    def _accept(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:
                return  # closed
            with self._guard:
                self._processes[port] = 0 if self._counted is None else _processes_at({port})[port]
            server = socket.create_connection((LOOPBACK, self._target))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each small answer waits for 40 ms
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, port), daemon=True).start()

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
        source.close()  # the other direction closes the other one


def _processes_at(ports: Collection[int]) -> dict[int, int]:
    """Return the id of the process whose end of a connection is at each port; 0 where it is gone again."""
    found = {each.laddr.port: each.pid or 0 for each in psutil.net_connections("tcp") if each.laddr and each.raddr}
    return {port: found.get(port, 0) for port in ports}
