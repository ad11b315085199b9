"""Spark: reads one scan, of one topic or many, through the official Kafka source and writes it as Parquet, unseen.

The options that boundaries, bytes and completeness rest on are set last and cannot be overridden. Nothing here
decides what is landed.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.landing.scans import Read, Scan
from ...core.log.delivery import Delivery
from ...core.raw_columns import RAW_COLUMNS, TIMES_FROM_MS
from ..kafka.access import OPEN, Access
from ..store.remote_file import RemoteFile
from .engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logging.getLogger("py4j").setLevel(logging.INFO)  # below that it logs all that Java is sent, logins included

KAFKA_OPTIONS: Mapping[str, str] = {
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": str(16 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    # a fetch at the end of the log holds up later requests on its connection, such as for offsets before each poll:
    # Kafka's default of 500 ms costs each task that reads to the end as much, and a scan a second
    "kafka.fetch.max.wait.ms": "10",
    # how long a read waits for a record that the broker has: long enough for a new leader. Spark takes it from
    # spark.network.timeout otherwise, which is set for other reasons
    "kafkaConsumer.pollTimeoutMs": "120000",
}

# what becomes of ranges whose scan fails, in an error's words
TRIED_AGAIN = "nothing became visible; the ranges stay planned and are tried again"
ABANDONED = (
    "nothing became visible; what was claimed for this scan is abandoned, as at_most_once has it (`offsetlake losses` lists it)"
)

_GLOB_CHARACTERS = re.compile(r"[{}\[\]*?\\]")

ZSTD_LEVEL = 2  # at 1 KB 8 % fewer bytes than level 1 for 12-17 % more CPU; level 3 gains nothing more
_LEVEL = "parquet.compression.codec.zstd.level"
# what costs time for every record and serves no reader: dictionaries of what does not repeat, minima of what is not
# sorted, histograms of repetition levels. One set for all that is written: writers of one JVM share one factory of
# encoders, which has the dictionary options of whoever opened a file last (parquet-java #3497; docs/design/0002)
PARQUET_OPTIONS: Mapping[str, str] = {
    "compression": "zstd",
    _LEVEL: str(ZSTD_LEVEL),
    "parquet.compression.codec.zstd.bufferPool.enabled": "false",  # reusing its buffers costs more than new ones
    "parquet.enable.dictionary": "false",
    **{f"parquet.enable.dictionary#{column.name}": "true" for column in RAW_COLUMNS if column.has_dictionary},
    **{f"parquet.column.statistics.enabled#{column.name}": "false" for column in RAW_COLUMNS if not column.has_statistics},
    "parquet.size.statistics.enabled": "false",
    "maxRecordsPerFile": "0",
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}

# Spark keeps what a task polled past its end, and the task's consumer, for later tasks of the same query. Its defaults of
# five minutes fill the heap with records that no other query can use: 2.3 million of them, and half the time in full GC
KAFKA_CACHE_CONF: Mapping[str, str] = {
    "spark.kafka.consumer.fetchedData.cache.timeout": "1s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
    "spark.kafka.consumer.cache.timeout": "5s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "1s",
}

# huge pages, where the system lends them, are 10-20 % of the whole job. Each query brings code of its own: with the default
# room for what is compiled, 48 to 240 MB, the JVM stops compiling once it is full, and jobs fail for want of it; room that is
# not used costs nothing. The last is for systems that lack an option
JAVA_OPTIONS = "-XX:+UseParallelGC -XX:+UseTransparentHugePages -XX:ReservedCodeCacheSize=512m -XX:+IgnoreUnrecognizedVMOptions"

# a length is read before its data: without these limits, six bad bytes of Avro ask for 2 GB and end Spark
AVRO_LIMITS: Mapping[str, int] = {
    "org.apache.avro.limits.string.maxLength": 64 << 20,
    "org.apache.avro.limits.bytes.maxLength": 64 << 20,
    "org.apache.avro.limits.collectionItems.maxLength": 16 << 20,
}

# of the SQL session that scans run in, never of the user's
SCAN_CONF: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Spark reads Kafka in batches through its old interface unless Kafka is struck from this list: each record becomes a
    # Row with a java.sql.Timestamp and back again, a tenth to a fifth of the whole job
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # from Spark 4.1 on, which has this on, a union of reads of one task each is one task: all ranges in one file
    "spark.sql.unionOutputPartitioning": "false",
}


def spark_config(master: str, jars: Sequence[Path], *, driver_memory: str = "4g", java_options: str = "") -> dict[str, str]:
    """Derive the configuration of our own session; a session that is handed in keeps its own.

    `java_options` are added to those of the driver's JVM.
    """
    return {
        **KAFKA_CACHE_CONF,
        "spark.master": master,
        "spark.app.name": "offsetlake",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": " ".join(
            [JAVA_OPTIONS, *(f"-D{name}={limit}" for name, limit in AVRO_LIMITS.items()), java_options]
        ).strip(),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # else each column asks the JVM where it was written
        "spark.log.level": "ERROR",
    }


def kafka_options(
    bootstrap_servers: str, read: Read, isolation_level: str, access: Access = OPEN, *, group: str
) -> dict[str, str]:
    """Derive the options of one read: `assign`, explicit bounds, one task per range, failing on any loss.

    Reads of one `group` share consumers and what these polled: a group is of one job, so that nothing is older than the job.
    """
    bounds = {topic: dict(sorted(of_topic.items())) for topic, of_topic in sorted(read.bounds.items())}
    starts, ends = (
        {topic: {str(partition): each[side] for partition, each in of_topic.items()} for topic, of_topic in bounds.items()}
        for side in (0, 1)
    )
    return {
        **KAFKA_OPTIONS,
        **access.spark(),
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": isolation_level,
        "kafka.group.id": group,
        "assign": json.dumps({topic: list(of_topic) for topic, of_topic in bounds.items()}),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "maxRecordsPerPartition": str(read.records_per_task),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


class Spark:
    """Staging of scans; `delivery` is that of their topics, by which an error says what becomes of the ranges."""

    def __init__(
        self, engine: Engine, bootstrap_servers: str, access: Access = OPEN, delivery: Delivery = Delivery.EFFECTIVELY_ONCE
    ) -> None:
        if access.has_secrets:
            engine.check_private("the Kafka login")
        self._engine = engine
        self._access = access
        self._bootstrap_servers = bootstrap_servers
        self._consequence = ABANDONED if delivery is Delivery.AT_MOST_ONCE else TRIED_AGAIN

    @property
    def writer(self) -> str:
        """Name of what writes a file: equal bytes can be expected only from the same writer, with the same columns."""
        return f"spark {self._engine.version} zstd-{ZSTD_LEVEL}"

    def open(self) -> None:
        """Make Spark ready; raise `EngineUnavailable` if there is none."""
        self._engine.session(SCAN_CONF)

    @property
    def source(self) -> tuple[str, frozenset[tuple[str, str]]]:
        """What is read and with which login: one job may read several topics of one source."""
        return self._bootstrap_servers, frozenset(self._access.spark().items())

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        """Write one Parquet file per range of the scan below `folder`.

        Raises `ScanFailed` or `EngineUnavailable`; then nothing counts.
        """
        from pyspark.sql import DataFrame

        group = f"offsetlake-{uuid.uuid4()}"

        def rows_of(session: SparkSession, read: Read) -> DataFrame:
            options = kafka_options(self._bootstrap_servers, read, isolation_level, self._access, group=group)
            return select_raw(session.read.format("kafka").options(**options).load(), scan.generation)

        what = f"land {scan.text}"
        with self._engine.job(SCAN_CONF, what, self._consequence) as session:
            rows = reduce(DataFrame.union, (rows_of(session, read) for read in scan.reads))
            write_parquet(rows, self._engine, folder)


def write_parquet(rows: DataFrame, engine: Engine, folder: str, zstd_level: int = ZSTD_LEVEL) -> None:
    """Write rows below a folder that is not there yet, with the options of all files of a lake."""
    options = {**PARQUET_OPTIONS, _LEVEL: str(zstd_level), **engine.write_options}
    rows.write.mode("error").options(**options).parquet(folder)


def select_raw(source: DataFrame, generation: int) -> DataFrame:
    """Select the raw columns in their order from Spark's Kafka source, unchanged except for times that they cannot hold.

    The source reads times through a calendar that changes in 1582, and before 1900 through local times of places: an earlier
    time comes out as another moment than the record has, so it is null and not wrong.
    """
    from pyspark.sql import functions as f

    is_right = f.col("timestamp") >= f.timestamp_millis(f.lit(TIMES_FROM_MS))
    made = {
        "generation": f.lit(generation),
        "timestamp": f.when(is_right, f.col("timestamp")),
        "timestamp_type": f.col("timestampType"),
    }
    return source.select(*(made.get(each.name, f.col(each.name)).alias(each.name) for each in RAW_COLUMNS))


def paths_of(files: Iterable[Path | RemoteFile | str]) -> list[str]:
    """Return paths with the signs of patterns escaped: Spark takes each path for a pattern."""
    return [_GLOB_CHARACTERS.sub(r"\\\g<0>", str(file)) for file in files]
