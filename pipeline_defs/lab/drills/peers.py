"""The peers that are drilled beside Offsetlake: Structured Streaming's file sink, a hand-written loop, a tutorial's consumer.

Each is run as its users would run it, and read as ours are: with a plain glob.
"""

import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ...adapters.kafka.kafka import Kafka
from ...adapters.spark.spark_server import CONNECT_MODE
from ...core.steps import StepWatcher, no_step
from ...resources import Adapters
from ..bench.handwritten import read_and_write
from ..bench.systems import stream_to_parquet
from .systems import LOOP, STREAMING, TUTORIAL, System, limit_files

POLL_SECONDS = 0.002
COMMIT_POLL_SECONDS = 0.1
BATCH_RECORDS = 1_000


@dataclass(frozen=True, slots=True)
class StructuredStreaming(System):
    """Streams what is there (`availableNow`) into Spark's file sink, checkpointed, its options at their defaults.

    Its files are read with a plain glob, as ours are. Where the query refuses because of data loss, it is started again
    with `failOnDataLoss=false`, which is what its error says to do.
    """

    name = STREAMING
    policy = "checkpoint and file sink"

    def run(self, watch: StepWatcher) -> None:
        """Run the query to the end of what is there; stands still, JVM and all, before a batch that wrote is committed."""
        limit_files(self.disk_bytes)
        with _no_client_of_spark():
            self._stream(watch)

    def _stream(self, watch: StepWatcher) -> None:
        session: SparkSession = Adapters(self.settings).pyspark().spark_session
        servers = self.settings.bootstrap_servers or ""
        ended = threading.Event()
        if watch is not no_step:
            threading.Thread(target=self._freeze, args=(session, watch, ended), daemon=True).start()
        try:
            stream_to_parquet(session, servers, self.topic.name, self.out)
        except Exception as error:  # Spark raises its own streaming exception, of which only the text tells the cause
            if "failOnDataLoss" not in str(error):
                raise
            stream_to_parquet(session, servers, self.topic.name, self.out, failOnDataLoss="false")
        finally:
            ended.set()

    def _freeze(self, session: SparkSession, watch: StepWatcher, ended: threading.Event) -> None:
        """Stand still where a file is in the sink, half or whole, that the sink's log does not name.

        The JVM is stopped while it is looked at, so that a slow look misses no more than a fast one.
        """
        gateway = session.sparkContext._gateway  # noqa: SLF001 (its process is the JVM)
        assert gateway is not None
        seen = self._uncommitted()
        while not ended.wait(POLL_SECONDS):
            os.kill(gateway.proc.pid, signal.SIGSTOP)
            for step, path in sorted(self._uncommitted() - seen):
                seen.add((step, path))
                watch(step)
            os.kill(gateway.proc.pid, signal.SIGCONT)

    def _uncommitted(self) -> set[tuple[str, Path]]:
        folder = Path(self.folder)
        logs = [path.read_text() for path in (folder / "_spark_metadata").glob("*") if path.name.isdigit()]
        files = [path for path in folder.glob("*.parquet") if not any(path.name in text for text in logs)]
        is_half = any(not path.read_bytes().endswith(b"PAR1") for path in files)
        return {("writing" if is_half else "written", path) for path in files}

    def forget(self) -> None:
        """Delete the checkpoint."""
        shutil.rmtree(self.out / "checkpoint", ignore_errors=True)


@contextmanager
def _no_client_of_spark() -> Iterator[None]:
    """Have pyspark start a Spark of its own in a process that may be a client of ours, which Offsetlake has made it."""
    mark = os.environ.pop(CONNECT_MODE, None)
    try:
        yield
    finally:
        if mark is not None:
            os.environ[CONNECT_MODE] = mark


@dataclass(frozen=True, slots=True)
class HandWrittenLoop(System):
    """Consumes with confluent-kafka, writes with pyarrow, commits to its group after the file is closed."""

    name = LOOP
    policy = "commit after write"

    def run(self, watch: StepWatcher) -> None:
        """Read on from the group's offsets to the end that there is now."""
        limit_files(self.disk_bytes)
        assert self.settings.bootstrap_servers is not None
        read_and_write(self.settings.bootstrap_servers, self.topic.name, Path(self.folder), group=self.group, on_step=watch)


@dataclass(frozen=True, slots=True)
class TutorialConsumer(System):
    """The consumer of most tutorials: it subscribes, its client commits by itself, and it writes a file per batch.

    `enable.auto.commit` is the client's default: offsets are committed every five seconds and at `close`, as soon as their
    records were polled, whatever became of them. All other settings are defaults too, but for reading from the beginning,
    and for being told where the topic ends.
    """

    name = TUTORIAL
    policy = "auto-commit"

    def run(self, watch: StepWatcher) -> None:
        """Read on from the group's offsets to the end that there is now."""
        from confluent_kafka import Consumer, KafkaError

        limit_files(self.disk_bytes)
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        consumer = Consumer(
            {
                "bootstrap.servers": self.settings.bootstrap_servers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "enable.partition.eof": True,
            }
        )
        consumer.subscribe([self.topic.name])
        batch: list[Any] = []
        ended: set[int | None] = set()
        try:
            while not ended or ended < {place.partition for place in consumer.assignment()}:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    batch.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (its only name)
                    ended.add(message.partition())
                else:
                    raise RuntimeError(str(error))
                if len(batch) == BATCH_RECORDS:
                    self._write(batch, watch)
                    batch = []
            if batch:
                self._write(batch, watch)
        finally:
            consumer.close()

    def _write(self, batch: list[Any], watch: StepWatcher) -> None:
        if watch is not no_step:
            self._await_auto_commit(batch)
            watch("auto_committed")
        rows = [{"partition": m.partition(), "offset": m.offset(), "key": m.key(), "value": m.value()} for m in batch]
        pq.write_table(pa.Table.from_pylist(rows), Path(self.folder, f"{uuid.uuid4()}.parquet"))
        watch("written")

    def _await_auto_commit(self, batch: list[Any]) -> None:
        """Wait as long as a slow write would: until the client has committed what is not written yet."""
        read: Mapping[int, int] = {message.partition(): message.offset() + 1 for message in batch}
        with Kafka(self.settings.bootstrap_servers or "") as kafka:
            while not read.items() <= kafka.read_group(self.topic.name, self.group).items():
                time.sleep(COMMIT_POLL_SECONDS)
