"""The peers that are drilled beside Offsetlake: Structured Streaming's file sink, and a hand-written loop.

Each is run as its users would run it, and read as ours are: with a plain glob.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench.handwritten import read_and_write
from ..edges.operations import Operations
from ..settings import Settings
from ..topics import Topic
from .systems import Books, Watch, attach, count_visible, limit_files, remove_tree, start_session, unwatched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class StructuredStreaming:
    """Streams what is there (`availableNow`) into Spark's file sink, checkpointed, its options at their defaults.

    Its files are read with a plain glob, as ours are. Where the query refuses because of data loss, it is started again
    with `failOnDataLoss=false`, which is what its error says to do.
    """

    settings: Settings
    topic: Topic
    out: Path
    disk_bytes: int | None = None

    name = "structured_streaming"
    policy = "checkpoint and file sink"

    @property
    def folder(self) -> Path:
        """Is the sink's folder."""
        return self.out / "data"

    def run(self, watch: Watch) -> None:
        """Runs the query to the end of what is there; stands still, JVM and all, before a batch that wrote is committed."""
        attach()
        limit_files(self.disk_bytes)
        session = start_session(self.settings)
        ended = threading.Event()
        if watch is not unwatched:
            threading.Thread(target=self._freeze, args=(session, watch, ended), daemon=True).start()
        try:
            self._query(session, "true")
        except Exception as error:  # Spark raises its own streaming exception, of which only the text tells the cause
            if "failOnDataLoss" not in str(error):
                raise
            self._query(session, "false")
        finally:
            ended.set()

    def _query(self, session: SparkSession, fail_on_loss: str) -> None:
        stream = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.settings.bootstrap_servers)
            .option("subscribe", self.topic.name)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("failOnDataLoss", fail_on_loss)
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(self.folder))
            .option("checkpointLocation", str(self.out / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _freeze(self, session: SparkSession, watch: Watch, ended: threading.Event) -> None:
        """Stops the JVM as soon as a file stands in the sink, half or whole, that the sink's log does not name."""
        gateway = session.sparkContext._gateway  # noqa: SLF001 (its process is the JVM)
        assert gateway is not None
        seen = self._uncommitted()
        while not ended.is_set():
            if self._uncommitted() - seen:
                os.kill(gateway.proc.pid, signal.SIGSTOP)
                for step, path in sorted(self._uncommitted() - seen):
                    seen.add((step, path))
                    watch(step)
                os.kill(gateway.proc.pid, signal.SIGCONT)
            time.sleep(POLL_SECONDS)

    def _uncommitted(self) -> set[tuple[str, Path]]:
        logs = [path.read_text() for path in (self.folder / "_spark_metadata").glob("*") if path.name.isdigit()]
        files = [path for path in self.folder.glob("*.parquet") if not any(path.name in text for text in logs)]
        is_half = any(not path.read_bytes().endswith(b"PAR1") for path in files)
        return {("writing" if is_half else "written", path) for path in files}

    def books(self) -> Books:
        """Counts the rows that the sink shows; it says nothing of holes or losses."""
        return Books(count_visible(self.folder))

    def forget(self) -> None:
        """Deletes the checkpoint."""
        remove_tree(self.out / "checkpoint")


@dataclass(frozen=True, slots=True)
class HandWrittenLoop:
    """Consumes with confluent-kafka, writes with pyarrow, commits to its group after the file is closed."""

    settings: Settings
    topic: Topic
    out: Path
    disk_bytes: int | None = None

    name = "hand_written_loop"
    policy = "commit after write"

    @property
    def folder(self) -> Path:
        """Is where it writes."""
        return self.out / "data"

    def run(self, watch: Watch) -> None:
        """Reads on from the group's offsets to the end that there is now."""
        limit_files(self.disk_bytes)
        assert self.settings.bootstrap_servers is not None
        read_and_write(self.settings.bootstrap_servers, self.topic.name, self.folder, group=self._group, on_step=watch)

    def books(self) -> Books:
        """Counts the rows that its folder shows; it says nothing of holes or losses."""
        return Books(count_visible(self.folder))

    def forget(self) -> None:
        """Deletes its consumer group."""
        assert self.settings.bootstrap_servers is not None
        Operations(self.settings.bootstrap_servers).delete_group(self._group)

    @property
    def _group(self) -> str:
        return f"hand-written-{self.topic.name}"
