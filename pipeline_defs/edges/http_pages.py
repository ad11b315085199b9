"""A small HTTP server for `GET`: each known path is an application of its own, everything else is refused.

Built on wsgiref. Invariant: no stranger can make it hold more than `CONNECTIONS` threads, or one of them for longer than
`patience_seconds` before its request is whole; no page answers under a name that somebody else's DNS gave this machine.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from ..core.errors import OffsetlakeError, Refused

CONNECTIONS = 32
PATIENCE_SECONDS = 10.0
GONE = (TimeoutError, ConnectionError)  # what a client that does not read, or went away, is to a server
_LONGEST_REQUEST = 65_536
TEXT = "text/plain; charset=utf-8"
Application = Callable[[dict[str, Any], Any], Iterable[bytes]]  # WSGI's


@contextmanager
def serve_pages(
    host: str,
    port: int,
    pages: Mapping[str, Application],
    *,
    names: Collection[str] = (),
    patience_seconds: float = PATIENCE_SECONDS,
) -> Iterator[int]:
    """Answer at `host:port` while the context is open; yield the port, which is a free one where 0 is asked.

    A request must name this machine as an IP address, as localhost, as `host`, or by one of `names`.
    """
    try:
        server = _Server(host, port, patience_seconds)
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror or error}; nothing was started; give another "
            "`--listen [HOST:]PORT`"
        ) from error
    server.set_app(_guarded(pages, {each.lower() for each in (host, *names)}))
    thread = threading.Thread(target=server.serve_forever, name="offsetlake-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def html_page(make: Callable[[], str]) -> Application:
    """Return the application that answers with a page of HTML, made anew each time."""

    def answer(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = make().encode()
        start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def _guarded(pages: Mapping[str, Application], names: Collection[str]) -> Application:
    """Return the application that asks for host, method and path before any page is made."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def refuse(status: str, why: str, *headers: tuple[str, str]) -> Iterable[bytes]:
            start_response(status, [("Content-Type", TEXT), *headers])
            return [f"{why}\n".encode()]

        if not is_ours(environ.get("HTTP_HOST", ""), names):
            return refuse(
                "421 Misdirected Request",
                "this server does not answer under that name; ask by IP address, or say its name in OFFSETLAKE_PAGES_URL",
            )
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            return refuse("404 Not Found", f"expected one of {', '.join(sorted(pages))}")
        if environ["REQUEST_METHOD"] != "GET":
            return refuse("405 Method Not Allowed", "expected GET", ("Allow", "GET"))
        try:
            return page(environ, start_response)
        except OffsetlakeError as error:
            return refuse("503 Service Unavailable", f"{error.kind}: {error}")

    return answer


def is_ours(host: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header names this machine: DNS rebinding needs a name, and never an address."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.lower().rstrip(".")
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class _Answer(ServerHandler):
    def log_exception(self, exc_info: Any) -> None:
        """Say nothing of a client that went away or does not read; a fault of our own is printed whole."""
        if not isinstance(exc_info[1], GONE):
            super().log_exception(exc_info)


class _Handler(WSGIRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer one request as wsgiref does, which would print a traceback for each client that does not read."""
        self.raw_requestline = self.rfile.readline(_LONGEST_REQUEST + 1)
        if len(self.raw_requestline) > _LONGEST_REQUEST:
            self.requestline = self.request_version = self.command = ""
            self.send_error(414)
        elif self.parse_request():
            answer = _Answer(self.rfile, self.wfile, self.get_stderr(), self.get_environ())  # type: ignore[arg-type]
            answer.request_handler = self  # type: ignore[attr-defined]
            answer.run(self.server.get_app())  # type: ignore[arg-type]

    def setup(self) -> None:
        self.request.settimeout(self.server.patience_seconds)  # of each single read or write
        super().setup()

    def get_environ(self) -> dict[str, Any]:
        self.server.has_asked(self.request)
        return super().get_environ()

    def log_message(self, *_: Any) -> None:
        """Log nothing: stderr is for who has started the command."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # the default of 5 has others try again after a second

    def __init__(self, host: str, port: int, patience_seconds: float) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.patience_seconds = patience_seconds
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._asking: dict[socket.socket, float] = {}  # whose request is not whole yet, and since when
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._asking[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def has_asked(self, request: Any) -> None:
        self._asking.pop(request, None)

    def service_actions(self) -> None:
        """End the connections that send their request a byte at a time; called twice a second."""
        late = time.monotonic() - self.patience_seconds
        for request, since in list(self._asking.items()):
            if since < late:
                self.has_asked(request)
                with suppress(OSError):  # it has just gone by itself
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away or was too slow."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)
