"""Spark: reads one scan of a topic through the official Kafka source and writes it as Parquet, unseen.

The options that boundaries, bytes and completeness rest on are set last and cannot be overridden. Nothing here
decides what is landed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..core.errors import DiskRefuses, ScanFailed
from ..core.scans import Read, Scan
from .access import OPEN, Access
from .disk import errno_in, mend

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logging.getLogger("py4j").setLevel(logging.INFO)  # below that it writes down all that Java is told, logins among it

RAW_COLUMNS: Mapping[str, str] = {
    "topic": "Kafka topic name",
    "generation": "incarnation of the topic: 0, and one more for each time it was recreated",
    "partition": "Kafka partition number",
    "offset": "offset of the record in its Kafka partition; with generation and partition the identity of a row",
    "timestamp": "record timestamp, UTC, to the millisecond as Kafka has it; null where it lies before 1900",
    "timestamp_type": "0: set by the producer (CreateTime), 1: set by the broker (LogAppendTime)",
    "key": "key bytes as produced, null where there is none",
    "value": "value bytes as produced, null for a tombstone",
    "headers": "headers in order: list of (key, value), a value may be null; null where there is none",
}

TIMES_FROM_MS = -2_208_988_800_000  # 1900-01-01

KAFKA_OPTIONS: Mapping[str, str] = {
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": str(16 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    # a fetch at the end of the log holds up what is asked behind it on the same connection, offsets before each poll:
    # Kafka's default of 500 ms costs each task that reads to the end as much, and a scan a second
    "kafka.fetch.max.wait.ms": "10",
    # how long a read waits for a record that the broker has: long enough for a new leader. Spark takes it from
    # spark.network.timeout otherwise, which is set for other reasons
    "kafkaConsumer.pollTimeoutMs": "120000",
}

_SIGNS_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")

ZSTD_LEVEL = 2  # at 1 KB 8 % fewer bytes than level 1 for 12-17 % more CPU; level 3 gains nothing more
# what costs time for every record and serves no reader: dictionaries of what does not repeat, minima of what is not
# sorted, histograms of repetition levels
PARQUET_OPTIONS: Mapping[str, str] = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": str(ZSTD_LEVEL),
    "parquet.compression.codec.zstd.bufferPool.enabled": "false",  # reusing its buffers costs more than new ones
    "parquet.enable.dictionary#key": "false",
    "parquet.enable.dictionary#value": "false",
    "parquet.enable.dictionary#offset": "false",
    "parquet.column.statistics.enabled#topic": "false",
    "parquet.column.statistics.enabled#key": "false",
    "parquet.column.statistics.enabled#value": "false",
    "parquet.size.statistics.enabled": "false",
    # staging is a local folder: no .crc file beside each file; pages have checksums, and the file has its digest
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
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

# huge pages, where the system lends them, are 10-20 % of the whole job; the last is for systems without that option
JAVA_OPTIONS = "-XX:+UseParallelGC -XX:+UseTransparentHugePages -XX:+IgnoreUnrecognizedVMOptions"

LOG_BYTES = 10_000_000  # a log that is longer is begun anew

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


def spark_config(
    master: str, jars: Sequence[Path], *, driver_memory: str = "4g", java_options: str = ""
) -> dict[str, str]:
    """Derives the configuration of our own session; a session that is handed in keeps its own.

    `java_options` are added to those of the driver's JVM.
    """
    return {
        **KAFKA_CACHE_CONF,
        "spark.master": master,
        "spark.app.name": "offsetlake",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {java_options}".strip(),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.speculation": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # else each column asks the JVM where it was written
        "spark.log.level": "ERROR",
    }


def start_jvm(config: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM of this process's Spark, where it does not run; what it prints goes to a log, if there is one.

    Raises `ScanFailed` where it does not start. Who is interrupted meanwhile is so when it has started: pyspark would leave
    one behind that has nobody to tell where it listens, and that never ends.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001 (where pyspark itself looks whether there is a JVM)
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in config.items():
        conf.set(name, value)
    with ExitStack() as opened:
        output = opened.enter_context(_open_log(log)) if log is not None else None
        launcher = opened.enter_context(ThreadPoolExecutor(1))  # signals interrupt the main thread alone
        try:
            launched = launcher.submit(launch_gateway, conf, popen_kwargs={"stdout": output, "stderr": output})
            gateway: object = launched.result()
        except (PySparkException, OSError) as error:
            says = f"; what it says itself is in {log}" if log is not None else ""
            raise ScanFailed(f"Spark's JVM does not start: {error}; nothing became visible{says}") from error
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 (takes the JVM instead of launching one)


def _open_log(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    is_long = log.exists() and log.stat().st_size > LOG_BYTES
    return log.open("wb" if is_long else "ab")


def scan_session(session: SparkSession) -> SparkSession:
    """Opens a SQL session for scans beside `session`: the same Spark, JVM and jars, a configuration of its own."""
    own = session.newSession()
    for name, value in SCAN_CONF.items():
        own.conf.set(name, value)
    return own


def kafka_options(
    bootstrap_servers: str, topic: str, read: Read, isolation_level: str, access: Access = OPEN
) -> dict[str, str]:
    """Derives the options of one read: `assign`, explicit bounds, one task per range, failing on any loss."""
    starts = {str(partition): start for partition, (start, _) in read.bounds.items()}
    ends = {str(partition): end for partition, (_, end) in read.bounds.items()}
    return {
        **KAFKA_OPTIONS,
        **access.spark(),
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": isolation_level,
        "assign": json.dumps({topic: sorted(read.bounds)}),
        "startingOffsets": json.dumps({topic: starts}),
        "endingOffsets": json.dumps({topic: ends}),
        "maxRecordsPerPartition": str(read.records_per_task),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
    }


class Spark:
    """Stages scans with one session, which is started at the first scan and shared by all of a run."""

    def __init__(self, session: Callable[[], SparkSession], bootstrap_servers: str, access: Access = OPEN) -> None:
        self._session = session
        self._access = access
        self._bootstrap_servers = bootstrap_servers

    @property
    def writer(self) -> str:
        """Names what wrote a file: equal bytes can be expected only from the same writer."""
        return f"spark {self._session().version} zstd-{ZSTD_LEVEL}"

    def stage(self, topic: str, scan: Scan, isolation_level: str, folder: str) -> None:
        """Writes one Parquet file per range of the scan below `folder`; raises `ScanFailed`, then nothing counts."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame

        session = scan_session(self._session())

        def rows_of(read: Read) -> DataFrame:
            options = kafka_options(self._bootstrap_servers, topic, read, isolation_level, self._access)
            return raw_columns(session.read.format("kafka").options(**options).load(), scan.generation)

        try:
            rows = reduce(DataFrame.union, map(rows_of, scan.reads))
            rows.write.mode("errorifexists").options(**PARQUET_OPTIONS).parquet(folder)
        except (PySparkException, Py4JError) as error:
            what = f"land {len(scan.ranges)} ranges of {topic}"
            consequence = "nothing became visible; the ranges stay planned and are tried again"
            raise scan_failed(what, error, consequence, topic=topic) from error


def raw_columns(source: DataFrame, generation: int) -> DataFrame:
    """Select the raw columns, lossless and in their order, from Spark's Kafka source.

    The source reads times through a calendar that changes in 1582, and before 1900 through local times of places: what lies
    before is another moment there than in the record, so it is null and not wrong.
    """
    from pyspark.sql import functions as f

    is_right = f.col("timestamp") >= f.timestamp_millis(f.lit(TIMES_FROM_MS))
    return source.select(
        "topic",
        f.lit(generation).alias("generation"),
        "partition",
        "offset",
        f.when(is_right, f.col("timestamp")).alias("timestamp"),
        f.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
    )


def paths_of(files: Iterable[Path]) -> list[str]:
    """Return paths as Spark reads them, which takes each for a pattern: signs of patterns stand for themselves."""
    return [_SIGNS_OF_PATTERNS.sub(r"\\\g<0>", str(file)) for file in files]


def scan_failed(what: str, error: Exception, consequence: str, **fields: object) -> ScanFailed:
    """Return the error of a Spark job; it is `DiskRefuses` where the disk is full or read-only, as the JVM says."""
    cause = first_cause(error)
    step = mend(errno_in(cause))
    if step is None:
        return ScanFailed(f"Spark could not {what}: {cause}; {consequence}", **fields)
    return DiskRefuses(f"Spark could not {what}: {cause}; {consequence}; {step}", **fields)


def first_cause(error: Exception) -> str:
    """Returns the innermost `Caused by` of a Java error in one line, or the first line of what there is."""
    lines = str(error).splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1] if causes else lines[0] if lines else type(error).__name__).strip()
