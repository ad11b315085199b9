"""A real Schema Registry for the tests: Apicurio's, with Confluent's REST API, in a process of its own and in memory."""

from __future__ import annotations

import base64
import re
import shutil
import ssl
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.java import find_java
from tests.support.fake_registry import Answering, serving
from tests.support.world import PATIENCE_SECONDS, World

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
        """Registers a schema and returns its id; `references` are subject and version by the name that the text uses."""
        from confluent_kafka.schema_registry import Schema, SchemaReference

        named = [SchemaReference(name, *of) for name, of in references.items()]
        return self._client.register_schema(subject, Schema(text, kind, named))


@contextmanager
def running_registry(jars: Path) -> Iterator[RunningRegistry]:
    """Runs a registry while the context is open, once it answers; nothing is left of it."""
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
    """Runs a door before the registry while the context is open, and is its address: TLS, and who is not `user` gets 401."""
    expected = f"Basic {base64.b64encode(user.encode()).decode()}"
    behind = urlsplit(registry.url)

    class Door(Answering):
        def do_GET(self) -> None:  # noqa: N802 (as http.server names it)
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
