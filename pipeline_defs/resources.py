"""The edges as one Dagster resource: lake, Kafka and Spark, opened when first used and shared by a process.

Tests pass their own; nothing else in `pipeline_defs` constructs an edge.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .attempt import Tools
from .core.client_properties import ANYBODY, RegistryLogin, check_addresses
from .core.days import Days
from .core.decoders import Decode
from .core.errors import BadSetting
from .days import DayTools
from .decoded_staging import DecodeTools
from .edges.access import OPEN, Access, read_access
from .edges.days import DayFiles
from .edges.decodings import Decodings
from .edges.jars import read_pins, resolve_jars
from .edges.java import archive_options, use_java
from .edges.kafka import Kafka
from .edges.lake import Lake
from .edges.lake_memory import LakeMemory
from .edges.latest_files import LatestFiles
from .edges.openlineage import Sender
from .edges.spark import Spark, spark_config, start_jvm
from .edges.spark_days import SparkDays
from .edges.spark_decoding import SparkDecoder
from .edges.spark_files import SparkFiles
from .edges.spark_latest import SparkLatest
from .latest import LatestTools
from .settings import Settings
from .steps import StepWatcher, no_step
from .topics import Topic

if TYPE_CHECKING:
    from dagster_pyspark import LazyPySparkResource
    from pyspark.sql import SparkSession

DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"


@dataclass
class Edges:
    """Opens what the settings name. `watch_step` is told each protocol step; fault tests stop a process there."""

    settings: Settings
    watch_step: StepWatcher = no_step
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    kafka_timeout_seconds: float = 20.0
    spark_log: Path | None = None  # what a command's JVM prints; none where Dagster captures it
    _lake: Lake | None = field(default=None, init=False)
    _decodings: Decodings | None = field(default=None, init=False)
    _latest_files: LatestFiles | None = field(default=None, init=False)
    _day_files: DayFiles | None = field(default=None, init=False)
    _kafka: dict[str, Kafka] = field(default_factory=dict, init=False)

    @property
    def lake(self) -> Lake:
        """Is the lake; what it read of immutable objects is kept for the life of the process."""
        if self._lake is None:
            self._lake = Lake(self.settings.lake, LakeMemory(self.settings.dagster_home, self.settings.lake))
        return self._lake

    def bootstrap_servers(self, topic: Topic | None = None) -> str:
        """Return the topic's own address, else the machine's, else the embedded broker's where it runs.

        Raise `BadSetting` where it is no list of `host:port`; an address with a login would be printed by every client.
        """
        told = self._told(topic)
        if told:
            try:
                return check_addresses(told)
            except ValueError as error:
                raise BadSetting(f"{self._named_by(topic)}: {error}; no broker was asked") from error
        from .edges.broker import read_broker

        broker = read_broker(self.settings.broker)
        return broker.bootstrap_servers if broker else DEFAULT_BOOTSTRAP_SERVERS

    def is_told(self, topic: Topic | None = None) -> bool:
        """Return whether anybody has said which brokers are meant; else they are the embedded one, or the default."""
        return bool(self._told(topic))

    def _told(self, topic: Topic | None) -> str | None:
        return (topic.bootstrap_servers if topic is not None else None) or self.settings.bootstrap_servers

    def _named_by(self, topic: Topic | None) -> str:
        """Return where the address that `bootstrap_servers` gives was said, for a person whose broker does not answer."""
        if topic is not None and topic.bootstrap_servers:
            return f"bootstrap_servers in the defs.yaml of topic {topic.name}"
        if self.settings.bootstrap_servers:
            return "OFFSETLAKE_BOOTSTRAP_SERVERS"
        return "OFFSETLAKE_BOOTSTRAP_SERVERS, or `offsetlake broker start` for the embedded broker"

    def access(self, topic: Topic | None = None) -> Access:
        """Is how the topic's cluster is entered: as the properties file says; the embedded broker is open to this machine."""
        path = self.settings.kafka_properties
        if path is None:
            return OPEN
        if not self.is_told(topic):
            from .edges.broker import read_broker

            if read_broker(self.settings.broker):
                return OPEN
        return read_access(path)

    def kafka(self, topic: Topic | None = None) -> Kafka:
        """Is a client of the topic's cluster."""
        servers = self.bootstrap_servers(topic)
        if servers not in self._kafka:
            access = self.access(topic)
            named_by = self._named_by(topic)
            self._kafka[servers] = Kafka(
                servers, timeout_seconds=self.kafka_timeout_seconds, access=access, named_by=named_by
            )
        return self._kafka[servers]

    def spark_conf(self) -> dict[str, str]:
        """Derives the configuration of the Spark session, without starting or fetching anything."""
        settings = self.settings
        jars = [settings.jars / "spark" / name for name in sorted(read_pins("spark"))]
        work = f"-Duser.dir={settings.home / 'spark'}"  # where Spark makes its folder `artifacts`, whoever starts it
        options = " ".join(f'"{option}"' for option in [work, *archive_options(settings.jars, "spark")])
        return spark_config(
            settings.spark_master, jars, driver_memory=settings.spark_driver_memory, java_options=options
        )

    def tools(self, topic: Topic, pyspark: LazyPySparkResource, log_step: StepWatcher = no_step) -> Tools:
        """Are the tools of one landing run; checks Java and jars before Spark would fail with less to say."""
        use_java()
        resolve_jars("spark", self.settings.jars)
        return Tools(
            lake=self.lake,
            kafka=self.kafka(topic),
            spark=Spark(lambda: self.session(pyspark), self.bootstrap_servers(topic), self.access(topic)),
            files=self.spark_files(pyspark),
            now_ms=self.now_ms,
            isolation_level=topic.policy.isolation_level,
            on_loss=topic.on_loss,
            delivery=topic.delivery,
            on_step=self._watched(log_step),
        )

    def session(self, pyspark: LazyPySparkResource) -> SparkSession:
        """Return the session, which is started when first asked for; a command says so, and keeps what the JVM prints."""
        if self.spark_log is not None:
            self.watch_step("start_spark")
        start_jvm(pyspark.spark_config, self.spark_log)
        session: SparkSession = pyspark.spark_session
        if self.spark_log is not None:
            self.watch_step("spark_started")
        return session

    def spark_files(self, pyspark: LazyPySparkResource) -> SparkFiles:
        """Is what merges landed files and cuts sealed ones; Spark starts at the first of them."""

        def start() -> SparkSession:
            use_java()
            resolve_jars("spark", self.settings.jars)
            return self.session(pyspark)

        return SparkFiles(start)

    @property
    def decodings(self) -> Decodings:
        """Is what is decoded of the lake's topics."""
        if self._decodings is None:
            self._decodings = Decodings(self.lake)
        return self._decodings

    def decode_tools(
        self, decode: Decode, pyspark: LazyPySparkResource, log_step: StepWatcher = no_step
    ) -> DecodeTools:
        """Are the tools of one decoding run; Spark starts at the first range that is read."""
        use_java()
        resolve_jars("spark", self.settings.jars)
        return DecodeTools(
            decodings=self.decodings,
            decode=decode,
            decoder=cache(lambda: SparkDecoder(self.session(pyspark), decode, self.registry_login())),
            now_ms=self.now_ms,
            on_step=self._watched(log_step),
        )

    @property
    def latest_files(self) -> LatestFiles:
        """Are the files of the latest states of the lake's topics."""
        if self._latest_files is None:
            self._latest_files = LatestFiles(self.lake)
        return self._latest_files

    def latest_tools(self, pyspark: LazyPySparkResource, log_step: StepWatcher = no_step) -> LatestTools:
        """Are the tools of one update of a latest state; Spark starts where anything is due."""
        use_java()
        resolve_jars("spark", self.settings.jars)
        return LatestTools(
            decodings=self.decodings,
            files=self.latest_files,
            spark=cache(lambda: SparkLatest(self.session(pyspark))),
            now_ms=self.now_ms,
            on_step=self._watched(log_step),
        )

    def registry_login(self) -> RegistryLogin:
        """Is how schema registries are entered: as the properties file says."""
        path = self.settings.kafka_properties
        return read_access(path).properties.registry if path else ANYBODY

    @property
    def day_files(self) -> DayFiles:
        """Are the event days of the lake's topics."""
        if self._day_files is None:
            self._day_files = DayFiles(self.lake)
        return self._day_files

    def day_tools(self, days: Days, pyspark: LazyPySparkResource, log_step: StepWatcher = no_step) -> DayTools:
        """Are the tools of one run that brings days up to date; Spark starts at the first day that is due."""
        use_java()
        resolve_jars("spark", self.settings.jars)
        return DayTools(
            files=self.day_files,
            decodings=self.decodings,
            days=days,
            spark=cache(lambda: SparkDays(self.session(pyspark))),
            now_ms=self.now_ms,
            on_step=self._watched(log_step),
        )

    def _watched(self, log_step: StepWatcher) -> StepWatcher:
        def on_step(step: str, **fields: object) -> None:
            log_step(step, **fields)
            self.watch_step(step, **fields)

        return on_step

    def lineage(self) -> Sender | None:
        """Is who tells OpenLineage of what a run lands; none where nobody has configured a receiver."""
        return Sender() if self.settings.lineage else None

    def check_lake(self, topic: str | None = None) -> None:
        """Refuse to start work, on a topic where one was asked for, on a lake that has gone missing or cannot be written."""
        if not self.settings.lake:
            raise BadSetting("OFFSETLAKE_LAKE is empty; set it to a path or a URL")
        self.lake.check_present(topic)
        self.lake.store.check_writable(f"staging/probe-{os.getpid()}")
