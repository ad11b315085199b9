"""A server that answers what a test says, where a Schema Registry should be: other people's pages, broken schemas, anything."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = "application/vnd.schemaregistry.v1+json"
NOT_THERE = {"error_code": 40403, "message": "Schema not found"}


@dataclass(frozen=True)
class Answer:
    """What is answered at one path: bytes as they are, anything else as JSON."""

    body: Any
    status: int = 200
    kind: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class FakeRegistry:
    """The server while it runs; `answers` by path may change at any time, and `asked` are the paths that were asked for."""

    url: str
    answers: dict[str, Answer]
    asked: list[str]

    def put(self, schema_id: int, text: Any, kind: str = "AVRO", *, references: Any = (), **more: Any) -> None:
        answer = {"schema": text, "schemaType": kind, "references": references, **more}
        self.answers[f"/schemas/ids/{schema_id}"] = Answer(answer)

    def put_version(self, subject: str, version: int | str, schema_id: int, text: Any, kind: str = "AVRO", **more: Any) -> None:
        answer = {"subject": subject, "id": schema_id, "version": version, "schema": text, "schemaType": kind, **more}
        self.answers[f"/subjects/{subject}/versions/{version}"] = Answer(answer)


class Answering(BaseHTTPRequestHandler):
    """Answers, and tells nobody."""

    def told(self) -> Any:
        """Return the JSON that it was sent."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, body: bytes = b"", kind: str = JSON, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # who asked has heard enough
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[Answering], context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[int]:
    """Serve on a port of loopback, any or this one, while the context is open."""
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def recording(path: str, status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """Take what is posted to a path while the context is open; give host and port, and what was told."""
    told: list[Any] = []

    class Handler(Answering):
        def do_POST(self) -> None:
            assert self.path == path
            told.append(self.told())
            self.answer(status)

    with serving(Handler) as port:
        yield f"127.0.0.1:{port}", told


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """Run the server while the context is open; it has nothing at first, and says so as a registry does."""
    answers: dict[str, Answer] = {}
    asked: list[str] = []

    class Handler(Answering):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            answer = answers.get(path, answers.get("*", Answer(NOT_THERE, 404)))
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.answer(answer.status, body, answer.kind, answer.headers)

    with serving(Handler) as port:
        yield FakeRegistry(f"http://127.0.0.1:{port}", answers, asked)
