"""Somebody else's Spark: any Spark Connect server, of a cluster say, that is checked before anything is asked of it.

Nothing here starts, ends or configures a server. Invariant: no secret goes to another machine but through TLS, and no message
has the token.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...core.errors import BadSetting, EngineUnfit
from ...core.setting_values import is_this_machine
from ..system.locks import scratch
from .engine import POLL_SECONDS, Engine
from .spark import select_raw
from .spark_errors import innermost_cause
from .spark_liveness import QUIET, find_silence, is_listening, is_tls, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "OFFSETLAKE_SPARK_REMOTE"
PACKAGE = Path(__file__).parents[2]
REFUSED_SECONDS = 3.0  # a proxy whose server is being restarted refuses for a moment
WORKER_CODE = ("__init__.py", "core/**/*.py", "adapters/**/*.py")
REDACTION = "spark.sql.redaction.string.regex"
LOGINS = r"""(?s:["\[ ]kafka\..*)"""  # of Kafka's clients, which are among their options; what stands behind these goes too
UNION = "spark.sql.unionOutputPartitioning"
# packages that functions which decode in Python import, each with its module
WORKER_PACKAGES: Mapping[str, str] = {
    "pyarrow": "pyarrow",
    "pandas": "pandas",
    "protobuf": "google.protobuf",
    "ptars": "ptars",
    "jsonschema-rs": "jsonschema_rs",
}


class RemoteEngine(Engine):
    """Sessions of the server at a URL such as `sc://host:port/;use_ssl=true;token=...`."""

    is_remote = True
    write_options: Mapping[str, str] = {}
    advice = (
        f"{Engine.advice}; see that a Spark Connect server runs there, and that {VARIABLE} is its address, with ;use_ssl=true "
        "where it speaks TLS; where it does not, with ;use_ssl=false, and without a token for another machine: that goes "
        "through TLS alone"
    )

    def __init__(self, url: str) -> None:
        super().__init__(lambda: url)
        self._url_given = url
        self._ready: set[str] = set()

    @property
    def place(self) -> str:
        """Host and port, without the token."""
        return place_of(self._url_given)

    def _stop(self, url: str, session: SparkSession, tag: str) -> None:  # noqa: ARG002 (its server is somebody else's)
        """Ask the server to stop the jobs of a tag: its executors end workers of Python, and interrupt other tasks."""
        session.interruptTag(tag)

    def check_private(self, what: str) -> None:
        """Refuse to send a secret in the clear to another machine: it would travel with each plan."""
        is_here = is_this_machine(urlsplit(self._url_given).hostname or "localhost")
        if not (is_here or is_tls(self._url_given)):
            raise BadSetting(
                f"{what} would travel in the clear to the Spark at {self.place}, which is another machine; nothing was read or "
                f"written; have it speak TLS and add ;use_ssl=true to {VARIABLE}"
            )

    def _why_silent(self, url: str, *, is_patient: bool = False) -> str | None:
        """Return why a server does not answer: soon if what listens there refuses, as a web server or a broker does.

        Only one that says nothing at all may be a busy server, and is waited for.
        """
        deadline = time.monotonic() + REFUSED_SECONDS
        while not is_patient and is_listening(url):
            why = find_silence(url)
            if why is None:
                return None
            if why == QUIET:
                break
            if time.monotonic() > deadline:
                return why
            time.sleep(POLL_SECONDS)
        return super()._why_silent(url, is_patient=is_patient)

    def _connect(self, url: str, conf: Mapping[str, str]) -> SparkSession:
        """Open a session; hide the error of Spark's client for a URL that it refuses, as that quotes the URL."""
        from pyspark.errors import PySparkValueError

        try:
            return super()._connect(url, conf)
        except PySparkValueError:
            raise BadSetting(
                f"the URL of the Spark at {self.place} is not taken by Spark's client, whose words may have a token "
                f"and are not shown; nothing was read or written; correct {VARIABLE}"
            ) from None

    def _set_up(self, session: SparkSession, conf: Mapping[str, str]) -> None:
        """Configure a session; hide logins to Kafka on the server's UI and in its event log, beside what its operators hide."""
        super()._set_up(session, conf)
        theirs = session.conf.get(REDACTION, "")
        session.conf.set(REDACTION, f"(?:{theirs})|{LOGINS}" if theirs else LOGINS)

    def _greet(self, session: SparkSession, url: str) -> None:
        """Check version, Kafka source, Avro and the setting that makes each range a file; collect all that is wrong."""
        wrong = [*_wrong_version(session), *_wrong_source(session), *_wrong_avro(session), *_wrong_union(session)]
        if wrong:
            raise EngineUnfit(
                f"the Spark at {place_of(url)} cannot be used: {'; '.join(wrong)}; nothing was read or written; mend the "
                "server, or name another one; `offsetlake explain cluster` says what it needs"
            )

    def ready_workers(self, session: SparkSession) -> None:
        """Send the code that workers run, once per session, and have one of them import it with all that it needs."""
        from pyspark.errors import PySparkException
        from pyspark.sql.functions import udf

        own: Any = session
        if own.session_id in self._ready:
            return
        own.addArtifacts(str(worker_code()), pyfile=True)
        try:
            lacks = udf(_worker_probe(), "string", useArrow=False)("id").alias("lacks")
            rows = session.range(1, numPartitions=1).select(lacks).collect()
        except PySparkException as error:
            found = f"a worker cannot run Python of ours: {innermost_cause(error)}"
        else:
            found = str(rows[0]["lacks"])
        if found:
            raise EngineUnfit(
                f"the workers of the Spark at {self.place} cannot decode Protobuf, JSON or JSON Schema: {found}; nothing "
                f"became visible; install {', '.join(WORKER_PACKAGES)} for the Python that the server's PYSPARK_PYTHON names, "
                "of this machine's minor version; `offsetlake explain cluster` says more"
            )
        self._ready.add(own.session_id)


def _wrong_version(session: SparkSession) -> list[str]:
    """Return what is wrong with the server's major version, if it is not this client's; another minor one is tried."""
    from pyspark.version import __version__ as ours

    found, major = str(session.version), ours.split(".", maxsplit=1)[0]
    return [] if found.startswith(f"{major}.") else [f"it is Spark {found}, expected {major}.x"]


def _wrong_source(session: SparkSession) -> list[str]:
    """Have the server plan a read of Kafka, which asks no broker anything."""
    from pyspark.errors import PySparkException

    options = {"kafka.bootstrap.servers": "nobody:9", "assign": '{"nothing": [0]}', "includeHeaders": "true"}
    try:
        _ = select_raw(session.read.format("kafka").options(**options).load(), 0).columns
    except PySparkException as error:
        return [f"its Kafka source is not there, or lacks a column: {innermost_cause(error)}"]
    return []


def _wrong_avro(session: SparkSession) -> list[str]:
    """Have the server plan the reading of a datum; without spark-avro, who decodes later is told that the schema is wrong."""
    from pyspark.errors import PySparkException
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import col

    try:
        _ = session.range(0).select(from_avro(col("id").cast("string").cast("binary"), '"int"')).columns
    except PySparkException as error:
        return [f"its spark-avro is not there, or of another version: {innermost_cause(error)}"]
    return []


def _wrong_union(session: SparkSession) -> list[str]:
    from pyspark.errors import PySparkException

    try:
        session.conf.set(UNION, "false")
        found = session.conf.get(UNION)
    except PySparkException as error:
        return [f"it does not take {UNION}: {innermost_cause(error)}"]
    return [] if found == "false" else [f"{UNION} is {found}, expected false: ranges would share a file"]


def _worker_probe() -> Any:
    """Make the function that says what a worker lacks; it refers to nothing of ours, so it runs without our code."""
    packages = dict(WORKER_PACKAGES)

    def lacking(_: int) -> str:
        import importlib

        lacks = []
        for package, module in {**packages, "offsetlake": "pipeline_defs.adapters.formats.json_batches"}.items():
            try:
                importlib.import_module(module)
            except ImportError as error:
                lacks.append(f"{package} ({error})")
        return "; ".join(lacks)

    return lacking


@cache
def worker_code() -> Path:
    """Return a zip of the modules of this package that workers import, kept for the life of this process."""
    path = scratch() / "worker_code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for pattern in WORKER_CODE:
            for source in sorted(PACKAGE.glob(pattern)):
                archive.write(source, f"{PACKAGE.name}/{source.relative_to(PACKAGE).as_posix()}")
    return path
