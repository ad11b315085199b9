"""A TCP proxy on loopback that counts the bytes of each process that goes through it, in both directions together."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from types import TracebackType

import psutil

HOST = "127.0.0.1"


class CountingProxy:
    """Listens at `port` and passes all on to a port of this machine while the context is open; `bytes` are by process id."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self._guard = threading.Lock()
        self.port: int = self._listener.getsockname()[1]
        self.bytes: Counter[int] = Counter()

    def __enter__(self) -> CountingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    @property
    def url(self) -> str:
        """Address for whoever speaks HTTP through it."""
        return f"http://{HOST}:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                client, (_, port) = self._listener.accept()
            except OSError:
                return  # closed
            pid = _process_at(port)
            server = socket.create_connection((HOST, self._target))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each small answer waits for 40 ms
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, pid), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, pid: int) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._guard:
                    self.bytes[pid] += len(data)
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other one


def _process_at(port: int) -> int:
    """Return the id of the process whose end of a connection is at a port; 0 where it is gone again."""
    found = psutil.net_connections("tcp")
    return next((each.pid or 0 for each in found if each.laddr and each.laddr.port == port and each.raddr), 0)
