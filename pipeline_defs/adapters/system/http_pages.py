"""A small HTTP server for `GET`: each known path is a page made anew each time, everything else is refused.

Built on http.server. Invariant: no stranger can make it hold more than `CONNECTIONS` threads, or one of them for longer than
`PATIENCE_SECONDS` before its request is whole; no page answers under a name that somebody else's DNS gave this machine.
"""

import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...core.errors import OffsetlakeError, Refused

CONNECTIONS = 32
PATIENCE_SECONDS = 10.0
HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
Page = tuple[str, Callable[[], str]]
"""A content type, and what makes the text."""


@contextmanager
def serve_pages(host: str, port: int, pages: Mapping[str, Page], *, names: Collection[str] = ()) -> Iterator[int]:
    """Answer at `host:port` while the context is open; yield the port, which is a free one if 0 is asked for.

    A request must name this machine as an IP address, as localhost, as `host`, or by one of `names`.
    """
    try:
        server = _Server(host, port, pages, {each.lower() for each in (host, *names)})
    except OSError as error:
        raise Refused(
            f"cannot listen on {host}:{port}: {error.strerror or error}; nothing was started; give another "
            "`--listen [HOST:]PORT`"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="offsetlake-http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # the default of 5 has others try again after a second

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], names: Collection[str]) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        self.pages, self.names = pages, names
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
        late = time.monotonic() - PATIENCE_SECONDS
        for request, since in list(self._asking.items()):
            if since < late:
                self.has_asked(request)
                with suppress(OSError):  # it has just gone by itself
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away or was too slow; print a fault of our own whole."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def setup(self) -> None:
        self.request.settimeout(PATIENCE_SECONDS)  # of each single read or write
        super().setup()

    def parse_request(self) -> bool:
        """Read the request whole, then answer it: http.server itself would look for a method `do_GET`."""
        if super().parse_request():
            self.server.has_asked(self.request)
            self._answer(*self._find_answer())
        return False

    def _find_answer(self) -> tuple[int, str, str]:
        """Return status, content type and text; check host, path and method before any page is made."""
        pages = self.server.pages
        if not all(is_ours(each, self.server.names) for each in self.headers.get_all("Host", [""])):
            why = "this server does not answer under that name; ask by IP address, or say its name in OFFSETLAKE_PAGES_URL"
            return 421, TEXT, f"{why}\n"
        kind, make = pages.get(self.path.partition("?")[0], (TEXT, None))
        if make is None:
            return 404, TEXT, f"expected one of {', '.join(sorted(pages))}\n"
        if self.command != "GET":
            return 405, TEXT, "expected GET\n"
        try:
            return 200, kind, make()
        except OffsetlakeError as error:
            return 503, TEXT, f"{error.kind}: {error}\n"
        except Exception:
            self._answer(500, TEXT, "a fault of this server, which its stderr tells\n")
            raise

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 405:
            self.send_header("Allow", "GET")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: stderr is for whoever has started the command."""
