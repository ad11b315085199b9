"""Schema Registries: a real one, Apicurio's, in a process of its own; and servers that answer what a test says, anything."""

import base64
import json
import re
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.java import find_java
from tests.support.world import PATIENCE_SECONDS, World

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


LISTENING = re.compile(r"Listening on: http://127\.0\.0\.1:(\d+)")
API = "apis/ccompat/v7"
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


class RunningRegistry:
    def __init__(self, url: str) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self.url = url
        self._client = SchemaRegistryClient({"url": url, "timeout": 30})

    def close(self) -> None:
        self._client.close()

    def register(self, subject: str, text: str, kind: str = "AVRO", **references: tuple[str, int]) -> int:
        """Register a schema and return its id; `references` are subject and version by the name that the text uses."""
        from confluent_kafka.schema_registry import Schema, SchemaReference

        named = [SchemaReference(name, *of) for name, of in references.items()]
        return self._client.register_schema(subject, Schema(text, kind, named))


@contextmanager
def running_registry(jars: Path) -> Iterator[RunningRegistry]:
    """Run a registry while the context is open, once it answers; nothing is left of it."""
    (archive,) = resolve_jars("registry", jars)
    options = ("-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port=0")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        shutil.unpack_archive(archive, folder, **safely)
        (program,) = folder.glob("*-runner.jar")
        log = folder / "registry.log"
        with log.open("w") as output:
            command = [find_java(), *QUICK, *options, "-jar", program]
            process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            World.wait_until(lambda: process.poll() is not None or LISTENING.search(log.read_text()) is not None)
            said = LISTENING.search(log.read_text())
            assert said, log.read_text()
            running = RunningRegistry(f"http://127.0.0.1:{said[1]}/{API}")
            yield running
            running.close()
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


@contextmanager
def guarded(registry: RunningRegistry, user: str, certificate: Path) -> Iterator[str]:
    """Run a door before the registry while the context is open, and give its address: TLS, and who is not `user` gets 401."""
    expected = f"Basic {base64.b64encode(user.encode()).decode()}"
    behind = urlsplit(registry.url)

    class Door(Answering):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != expected:
                return self.answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
            with closing(HTTPConnection(behind.netloc, timeout=30)) as inner:
                inner.request("GET", self.path)
                answer = inner.getresponse()
                return self.answer(answer.status, answer.read())

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(Door, context) as port:
        yield f"https://127.0.0.1:{port}{behind.path}"
