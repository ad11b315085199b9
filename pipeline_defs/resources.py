"""The adapters as one Dagster resource: lake, Kafka and Spark, opened on first use and shared within a process.

Tests pass their own. Only `operate/reader.py` (a lake that its caller names) and `lab` open a lake or client elsewhere.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from .adapters.kafka.access import OPEN, Access, read_access
from .adapters.kafka.kafka import Kafka
from .adapters.lake.lake import Lake
from .adapters.lake.lake_memory import LakeMemory
from .adapters.spark.engine import Engine
from .adapters.spark.remote_engine import RemoteEngine
from .adapters.spark.spark import Spark, spark_config
from .adapters.spark.spark_files import SparkFiles
from .adapters.spark.spark_liveness import without_parameters
from .adapters.spark.spark_server import find_server, fingerprint_of, replace_spent, start_server, stop_stuck
from .adapters.spark.spark_serving import end_here, find_here, open_here
from .adapters.system.jars import read_pins, resolve_jars
from .adapters.system.java import archive_options, use_java
from .adapters.system.outage import Outage
from .adapters.tables.decodings import Decodings
from .adapters.telemetry.openlineage import Sender
from .core.decode.decoders import Decode
from .core.errors import BadSetting, OffsetlakeError
from .core.login.client_properties import ANYBODY, RegistryLogin, check_addresses
from .core.setting_values import check_plain, check_remote, remote_parameters
from .core.steps import StepWatcher, no_step
from .landing.attempt import Tools
from .landing.planner import Planner
from .landing.staging_places import staging_of
from .settings import IN_PROCESS, Settings, code_version
from .tables.decoded_staging import DecodeTools
from .tables.latest import LatestTools
from .topics import Topic

if TYPE_CHECKING:
    from dagster import AssetKey
    from dagster_pyspark import LazyPySparkResource

    from .core.landing.progress import Told
    from .core.log.coverage import Coverage

REMOTE = "spark.remote"  # of the `pyspark` resource's configuration
DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"


@dataclass
class Adapters:
    """Adapters that the settings name. `watch_step` is called at each protocol step; fault tests stop a process there."""

    settings: Settings
    watch_step: StepWatcher = no_step
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    kafka_timeout_seconds: float = 20.0
    servers_said_by: str = "OFFSETLAKE_BOOTSTRAP_SERVERS"  # what set the brokers in the settings
    spark_log: Path | None = None  # what the JVM of an in-process engine prints; none where Dagster captures it
    _lake: Lake | None = field(default=None, init=False)
    _decodings: Decodings | None = field(default=None, init=False)
    opened_ms: int = field(init=False)  # when this was made
    compared: dict[AssetKey, Any] = field(default_factory=dict, init=False)  # the state when Dagster knew all of an asset
    told_lag: dict[str, tuple[str, Told | None]] = field(default_factory=dict, init=False)  # by topic, with the database
    mirrored: dict[str, tuple[Coverage, int]] = field(default_factory=dict, init=False)  # where its group went, when (ms)
    slow_topics: dict[str, OffsetlakeError] = field(default_factory=dict, init=False)  # a tick's last wait in vain, by topic
    planned_at: dict[str, float] = field(default_factory=dict, init=False)  # by topic, its last turn in a tick, `monotonic`
    derived_at: dict[str, float] = field(default_factory=dict, init=False)  # the last turn of its derived tables
    tick_turn: Lock = field(default_factory=Lock, init=False)  # held by the tick at work
    tick_began: float = field(default=0.0, init=False)  # when it began, `monotonic`
    silent_clusters: dict[str, Any] = field(default_factory=dict, init=False)  # clusters that do not answer, by servers
    _lineage_outage: Outage = field(default_factory=Outage, init=False)
    _engines: dict[tuple[tuple[str, str], ...], Engine] = field(default_factory=dict, init=False)
    _kafka: dict[str, Kafka] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.opened_ms = self.now_ms()

    @property
    def lake(self) -> Lake:
        """The lake; the immutable objects that it has read stay in memory for the life of the process."""
        if self._lake is None:
            self._lake = Lake(self.settings.lake, LakeMemory(self.settings.dagster_home, self.settings.lake))
        return self._lake

    def forget_lake(self) -> None:
        """Drop what was read of the lake, for callers that read the whole histories of many topics in turn."""
        self._lake = self._decodings = None

    def bootstrap_servers(self, topic: Topic | None = None) -> str:
        """Return the topic's own address, else the machine's, else the embedded broker's where it runs, else the default.

        Raise `BadSetting` where it is no list of `host:port`: every client would print a login in an address.
        """
        told = self._told(topic)
        if told:
            try:
                return check_addresses(told)
            except ValueError as error:
                raise BadSetting(f"{self._named_by(topic)}: {error}; no broker was asked") from error
        from .adapters.testbed.broker import read_broker

        broker = read_broker(self.settings.broker)
        return broker.bootstrap_servers if broker else DEFAULT_BOOTSTRAP_SERVERS

    def is_told(self, topic: Topic | None = None) -> bool:
        """Return whether defs.yaml or the settings name the brokers; else they are the embedded one, or the default."""
        return bool(self._told(topic))

    def _told(self, topic: Topic | None) -> str | None:
        return (topic.bootstrap_servers if topic is not None else None) or self.settings.bootstrap_servers

    def _named_by(self, topic: Topic | None) -> str:
        """Return what set the address that `bootstrap_servers` returns, for a person whose broker does not answer."""
        if topic is not None and topic.bootstrap_servers:
            # one client serves all topics of a cluster, so none of them is named
            return "bootstrap_servers in the defs.yaml of the topics of this cluster, or of the pattern that they match"
        if self.settings.bootstrap_servers:
            return self.servers_said_by
        return "OFFSETLAKE_BOOTSTRAP_SERVERS, or `offsetlake broker start` for the embedded broker"

    def access(self, topic: Topic | None = None) -> Access:
        """Return the login to the topic's cluster, from the properties file; the embedded broker needs none."""
        path = self.settings.kafka_properties
        if path is None:
            return OPEN
        if not self.is_told(topic):
            from .adapters.testbed.broker import read_broker

            if read_broker(self.settings.broker):
                return OPEN
        return read_access(path)

    def kafka(self, topic: Topic | None = None) -> Kafka:
        """Return a client of the topic's cluster."""
        servers, access = self.bootstrap_servers(topic), self.access(topic)
        found = self._kafka.get(servers)
        if found is None or found.access is not access:  # a login was edited
            found = self._kafka[servers] = self.open_kafka(topic)
        return found

    def open_kafka(self, topic: Topic | None = None) -> Kafka:
        """Return a new client of the topic's cluster that is shared with nobody; the caller closes it."""
        return Kafka(
            self.bootstrap_servers(topic),
            timeout_seconds=self.kafka_timeout_seconds,
            access=self.access(topic),
            named_by=self._named_by(topic),
        )

    def spark_conf(self) -> dict[str, str]:
        """Derive the configuration of the Spark session, without starting or fetching anything."""
        settings = self.settings
        if settings.spark_remote is not None:
            return {REMOTE: without_parameters(settings.spark_remote)}  # Dagster shows this, and a parameter may be a token
        cache = settings.jars.resolve()  # homes that share it have the same configuration
        jars = [cache / "spark" / name for name in sorted(read_pins("spark"))]
        options = " ".join(f'"{option}"' for option in archive_options(cache, "spark"))
        return spark_config(settings.spark_master, jars, driver_memory=settings.spark_driver_memory, java_options=options)

    def pyspark(self) -> LazyPySparkResource:
        """Return the `pyspark` resource of definitions and commands."""
        from dagster_pyspark import LazyPySparkResource

        return LazyPySparkResource(spark_config=self.spark_conf())

    def planner(self, topic: Topic, name: str, kafka: Kafka | None = None, *, may_return: bool = True) -> Planner:
        """Return the planner of a topic, under a unique name that begins with `name` and that its steps carry."""
        broker = kafka or self.kafka(topic)
        unique = f"{name} {uuid.uuid4().hex[:8]}"
        return Planner(topic.name, topic.policy, self.lake, broker, self.now_ms, unique, self.watch_step, may_return)

    def tools(self, topic: Topic, pyspark: LazyPySparkResource, log_step: StepWatcher = no_step) -> Tools:
        """Return the tools of one landing run; Spark is looked for, or started, at the first scan."""
        engine = self.engine(pyspark)
        return Tools(
            lake=self.lake,
            kafka=self.kafka(topic),
            spark=Spark(engine, self.bootstrap_servers(topic), self.access(topic), topic.delivery),
            files=SparkFiles(engine),
            group=topic.group,
            now_ms=self.now_ms,
            isolation_level=topic.policy.isolation_level,
            on_loss=topic.on_loss,
            delivery=topic.delivery,
            on_step=self._watched(log_step),
            open_staging=staging_of(engine, self.lake),
            has_raw_table=self.settings.has_raw_table,
        )

    def engine(self, pyspark: LazyPySparkResource) -> Engine:
        """Return the engine that the `pyspark` resource is configured for.

        | `spark_config` | engine |
        |---|---|
        | with `spark.remote`, as OFFSETLAKE_SPARK_REMOTE sets it | that Spark Connect server |
        | else, `OFFSETLAKE_ENGINE=in-process` | a server in this process's JVM |
        | else | the warm server of the home, started with that configuration |
        """
        config = {name: str(value) for name, value in pyspark.spark_config.items()}
        key = tuple(sorted(config.items()))
        if key not in self._engines:
            remote, own = config.get(REMOTE), self.settings.spark_remote
            if remote is not None:
                remote = own if own is not None and remote == without_parameters(own) else _check_shown_remote(remote)
            self._engines[key] = (
                Engine(lambda: self._find_url(config), self._end_stuck, self._replace_spent)
                if remote is None
                else RemoteEngine(remote)
            )
        return self._engines[key]

    def _end_stuck(self, url: str) -> None:
        self.watch_step("spark_stuck")
        if self.settings.engine == IN_PROCESS:
            end_here(url)
        else:
            stop_stuck(self.settings.engine_folder, url)

    def _replace_spent(self, url: str) -> bool:
        return self.settings.engine != IN_PROCESS and replace_spent(self.settings.engine_folder, url)

    def _find_url(self, config: Mapping[str, str]) -> str:
        """Find the server of a configuration, or start it, after a check of Java and jars, as Spark's own errors say less."""
        settings = self.settings
        is_here = settings.engine == IN_PROCESS
        fingerprint = fingerprint_of(config, code_version())
        found = find_here() if is_here else find_server(settings.engine_folder, fingerprint)
        if found is None:
            use_java()
            resolve_jars("spark", settings.jars)
            self.watch_step("start_spark")
            if is_here:
                found = open_here(config, fingerprint, settings.home / "spark", self.spark_log)
            else:
                found = start_server(settings.engine_folder, config, fingerprint)
            self.watch_step("spark_started")
        return found.url

    @property
    def decodings(self) -> Decodings:
        """Decoded tables of the lake's topics."""
        if self._decodings is None:
            self._decodings = Decodings(self.lake)
        return self._decodings

    def decode_tools(self, decode: Decode, pyspark: LazyPySparkResource, log_step: StepWatcher = no_step) -> DecodeTools:
        """Return the tools of one decoding run; Spark is looked for, or started, at the first range that is read."""
        from .adapters.formats.spark_decoding import SparkDecoder  # late: loads every format's library

        return DecodeTools(
            decodings=self.decodings,
            decode=decode,
            decoder=cache(lambda: SparkDecoder(self.engine(pyspark), decode, self.registry_login())),
            now_ms=self.now_ms,
            on_step=self._watched(log_step),
            open_staging=staging_of(self.engine(pyspark), self.lake),
        )

    def latest_tools(self, log_step: StepWatcher = no_step) -> LatestTools:
        """Return the tools of one update of a latest table."""
        return LatestTools(self.decodings, self.now_ms, self._watched(log_step))

    def registry_login(self) -> RegistryLogin:
        """Return the login to schema registries, from the properties file."""
        path = self.settings.kafka_properties
        return read_access(path).properties.registry if path else ANYBODY

    def _watched(self, log_step: StepWatcher) -> StepWatcher:
        def on_step(step: str, **fields: object) -> None:
            log_step(step, **fields)
            self.watch_step(step, **fields)

        return on_step

    def lineage(self) -> Sender | None:
        """Return the sender of OpenLineage events on what a run lands or derives; none where no receiver is configured."""
        return Sender(self._lineage_outage) if self.settings.lineage else None

    def check_lake(self, topic: str | None = None) -> None:
        """Refuse to start work on a lake that has gone missing or cannot be written; `topic` is that of the work, if any."""
        if not self.settings.lake:
            raise BadSetting("OFFSETLAKE_LAKE is empty; set it to a path or a URL")
        self.lake.check_present(topic)
        self.lake.store.check_writable(f"staging/probe-{uuid.uuid4().hex}")


def _check_shown_remote(url: str) -> str:
    """Return a `spark.remote` of the resource's configuration, which Dagster stores and shows; refuse a token in it."""
    try:
        check_remote(check_plain(url))
    except ValueError as error:
        raise BadSetting(
            f"{REMOTE} of the `pyspark` resource cannot be used: {error}; nothing was started; correct it"
        ) from None
    told = sorted(remote_parameters(url).keys() - {"use_ssl"})
    if told:
        raise BadSetting(
            f"{REMOTE} of the `pyspark` resource has the parameter {', '.join(told)} (not shown), expected none but use_ssl: "
            "Dagster stores and shows what is configured there; nothing was started; take it out, delete it from Dagster's "
            "database if it is a secret, and set the whole URL as OFFSETLAKE_SPARK_REMOTE"
        )
    return url
