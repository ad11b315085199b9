"""A Dagster of the benchmark that is up and watches one topic, and what can be seen of it from outside.

A real `dagster dev`: its daemon ticks the topic's sensor, its queue launches each run in a new process, which uses the warm
Spark.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from ...core.log.planning import Policy
from ...orchestration.home.dagster_server import DagsterServer
from ...topics import Topic
from ..waiting import wait_until
from .data import produce
from .location import read_marks, write_location
from .measurement import Bench
from .rounds import Load


@dataclass
class Watched:
    """The topic that Dagster watches: `pid` is that of `dagster dev`, `rows` how many records were produced so far."""

    bench: Bench
    topic: str
    load: Load
    folder: Path
    pid: int
    rows: int = 0

    @property
    def marks(self) -> list[Mapping[str, Any]]:
        """Steps that the processes of this Dagster have passed."""
        return read_marks(self.folder)

    def produce(self) -> float:
        """Produce the load once more and return when the last record was acknowledged."""
        produce(self.bench.edges.bootstrap_servers(), self.topic, self.load)
        self.rows += self.load.records
        return time.time()

    def await_rows(self) -> float:
        """Wait until a DuckDB glob shows all that was produced, and return when it did."""
        folder = Path(self.bench.edges.settings.lake) / "data" / self.topic
        connection = duckdb.connect()
        query = f"SELECT count(*) FROM read_parquet('{folder}/**/*.parquet')"  # noqa: S608 (our own folder)

        def is_seen() -> bool:
            if not any(folder.rglob("*.parquet")):
                return False
            answer = connection.execute(query).fetchone()
            return answer is not None and int(answer[0]) >= self.rows

        wait_until(is_seen, f"a glob that shows {self.rows:,} rows")
        return time.time()

    def await_step(self, step: str, after: float = 0.0) -> None:
        """Wait until a process of this Dagster has passed a step after a moment."""
        wait_until(lambda: any(line["step"] == step and float(line["at"]) > after for line in self.marks), f"the step {step}")


@contextmanager
def watching(bench: Bench, topic: str, load: Load) -> Iterator[Watched]:
    """Create the topic of a load and have a Dagster watch it while the context is open, from its sensor's first tick on."""
    settings = bench.edges.settings
    bench.edges.kafka().create_topic(topic, load.kafka_partitions)
    folder = bench.folder / f"location-{topic}"
    workspace = write_location(folder, settings, Topic(topic, Policy(records_per_range=load.records_per_range)))
    with DagsterServer(bench.folder / "server", settings.dagster_home, workspace) as server:
        watched = Watched(bench, topic, load, folder, server.pid)
        watched.await_step("tick_requested")
        yield watched
