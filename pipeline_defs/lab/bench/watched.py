"""A Dagster of the benchmark that is up and watches one topic, and the time until a DuckDB glob shows what was produced to it.

A real `dagster dev`: its daemon ticks the topic's sensor, its queue launches each run in a new process, which uses the warm
Spark.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb

from ...core.log.cutting import Policy
from ...orchestration.home.dagster_server import DagsterServer
from ...topics import Topic
from ..processes import wait_until
from .location import read_marks, write_location
from .measurement import Bench, Tell, produce, repeat
from .rounds import Load, spread

LOAD = Load("bench-visible", 1_000, 100_000, 25_000)  # a range for each of its Kafka partitions, and no tail
# what each part of the time is, and the mark that ends it
_PARTS: Mapping[str, str] = {
    "tick_and_plan": "tick_requested",
    "launch_of_the_run": "find",
    "check_of_broker_and_lake": "scan",
    "scan": "stage",
    "verify_commit_publish": "publish",
}


@dataclass
class Watched:
    """The topic that Dagster watches: `pid` is that of `dagster dev`, `rows` how many records were produced so far."""

    bench: Bench
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
        produce(self.bench.adapters.bootstrap_servers(), self.load)
        self.rows += self.load.records
        return time.time()

    def await_rows(self) -> float:
        """Wait until a DuckDB glob shows all that was produced, and return when it did."""
        folder = Path(self.bench.adapters.settings.lake) / "data" / self.load.topic
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
def watching(bench: Bench, load: Load) -> Iterator[Watched]:
    """Create the topic of a load and have a Dagster watch it while the context is open, from its sensor's first tick on."""
    settings = bench.adapters.settings
    bench.adapters.kafka().create_topic(load.topic, load.kafka_partitions)
    folder = bench.folder / f"location-{load.topic}"
    workspace = write_location(folder, settings, Topic(load.topic, Policy(records_per_range=load.records_per_range)))
    with DagsterServer(bench.folder / "server", settings.dagster_home, workspace) as server:
        watched = Watched(bench, load, folder, server.pid)
        watched.await_step("tick_requested")
        yield watched


def measure_visible(bench: Bench, repeats: int, tell: Tell) -> dict[str, Any]:
    """Produce a load to a topic that Dagster watches; return seconds, and what they were spent on.

    The first time is a warm-up, which starts what is started once, and counts nowhere.
    """
    tell("time to visible: starting Dagster")
    with watching(bench, LOAD) as watched:

        def see(_: int) -> dict[str, float]:
            produced_at = watched.produce()
            seen_at = watched.await_rows()
            watched.await_step("report", produced_at)
            return split_seconds(watched.marks, produced_at, seen_at)

        warm_up, *found = repeat(see, "time to visible", repeats, tell)
    return {
        "measured": (
            "dagster dev with its daemon up and ticking every 5 s; a run is a new process with a session of the warm Spark; "
            "from the last acknowledged record to a count over the glob in DuckDB that has them all, asked 10 times a second"
        ),
        "records": LOAD.records,
        "value_bytes": LOAD.value_bytes,
        "records_per_range": LOAD.records_per_range,
        "median_seconds": spread([each["total"] for each in found])["median"],
        "repeats": found,
        "warm_up": warm_up,
    }


def split_seconds(marks: Sequence[Mapping[str, Any]], produced_at: float, seen_at: float) -> dict[str, float]:
    """Split the time at the marks of the last run that began before the rows were seen; the parts add up to the total."""
    ends, asked = [seen_at], [line for line in marks if line["step"] != "tick_requested" or int(line["runs"]) > 0]
    for step in reversed([*_PARTS.values()]):
        times = [float(line["at"]) for line in asked if line["step"] == step and line["at"] <= ends[0]]
        ends.insert(0, times[-1] if times else ends[0])
    bounds = [produced_at, *(max(produced_at, end) for end in ends)]
    seconds = {"total": seen_at - produced_at}
    seconds |= {name: end - start for name, (start, end) in zip((*_PARTS, "seen_by_glob"), pairwise(bounds), strict=True)}
    return {name: round(value, 3) for name, value in seconds.items()}
