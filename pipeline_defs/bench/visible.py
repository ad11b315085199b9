"""From the last acknowledged record to every row seen by a DuckDB glob, with Dagster already up.

A real `dagster dev`: its daemon ticks the sensor, its queue launches the run in a new process, which uses the warm Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb

from ..core.errors import OffsetlakeError
from ..core.planning import Policy
from ..dagster_server import DagsterServer
from ..topics import Topic
from .data import produce
from .location import read_marks, write_location
from .measurement import Bench, Tell
from .rounds import Load

LOAD = Load(1_000, 100_000, 25_000)
TOPIC = "bench-visible"
WAIT_SECONDS = 240
_POLL_SECONDS = 0.1

# what each part of the time is, and the mark that ends it
_PARTS: Mapping[str, str] = {
    "tick_and_plan": "tick_requested",
    "launch_of_the_run": "find",
    "check_of_broker_and_lake": "scan",
    "scan": "stage",
    "verify_commit_publish": "publish",
}


class NothingSeen(OffsetlakeError):
    """Says that Dagster did not land in time what was produced."""

    kind = "bench_nothing_seen"


def measure_visible(bench: Bench, repeats: int, tell: Tell) -> dict[str, object]:
    """Produces the load `repeats` times to a topic that Dagster watches; returns seconds, and what they were spent on."""
    topic = Topic(TOPIC, Policy(records_per_range=LOAD.records_per_range))
    settings = bench.edges.settings
    bench.edges.kafka().create_topic(TOPIC, LOAD.kafka_partitions)
    folder = bench.folder / "visible"
    workspace = write_location(folder, settings, topic)
    tell("time to visible: starting Dagster")
    found = []
    with DagsterServer(bench.folder / "server", settings.dagster_home, workspace):
        _wait(lambda: any(line["step"] == "tick_requested" for line in read_marks(folder)), "a first tick")
        for number in range(1, repeats + 1):
            tell(f"time to visible: {number} of {repeats}")
            produce(settings.bootstrap_servers or "", TOPIC, LOAD)
            produced_at = time.time()
            seen_at = _await_rows(Path(settings.lake) / "data" / TOPIC, number * LOAD.records)
            _await_report(folder, produced_at)
            found.append(split_seconds(read_marks(folder), produced_at, seen_at))
    return {
        "measured": (
            "dagster dev with its daemon up and ticking every 5 s; a run is a new process with a session of the warm Spark; "
            "from the last acknowledged record to a count over the glob in DuckDB that has them all, asked 10 times a second"
        ),
        "records": LOAD.records,
        "value_bytes": LOAD.value_bytes,
        "records_per_range": LOAD.records_per_range,
        "median_seconds": median(each["total"] for each in found),
        "repeats": found,
    }


def split_seconds(marks: Sequence[Mapping[str, Any]], produced_at: float, seen_at: float) -> dict[str, float]:
    """Splits the time at the marks of the last run that began before the rows were seen; the parts add up to the total."""
    cuts = {"total": seen_at}
    at = seen_at
    for part, step in reversed(list(_PARTS.items())):
        times = [float(line["at"]) for line in marks if line["step"] == step and line["at"] <= at and _asks(line)]
        at = times[-1] if times else at
        cuts[part] = at
    cuts = {part: max(produced_at, moment) for part, moment in cuts.items()}
    parts = list(_PARTS)
    seconds = {"total": seen_at - produced_at, parts[0]: cuts[parts[0]] - produced_at}
    for before, after in zip(parts, [*parts[1:], "total"], strict=True):
        name = after if after != "total" else "seen_by_glob"
        seconds[name] = cuts[after] - cuts[before]
    return {name: round(value, 3) for name, value in seconds.items()}


def _asks(line: Mapping[str, Any]) -> bool:
    return line["step"] != "tick_requested" or int(line["runs"]) > 0


def _is(line: Mapping[str, Any], step: str, after: float) -> bool:
    return line["step"] == step and float(line["at"]) > after


def _await_rows(folder: Path, rows: int) -> float:
    connection = duckdb.connect()
    query = f"SELECT count(*) FROM read_parquet('{folder}/**/*.parquet')"  # noqa: S608 (our own folder)

    def is_seen() -> bool:
        if not any(folder.rglob("*.parquet")):
            return False
        answer = connection.execute(query).fetchone()
        return answer is not None and int(answer[0]) >= rows

    _wait(is_seen, f"{rows:,} rows")
    return time.time()


def _await_report(folder: Path, produced_at: float) -> None:
    _wait(lambda: any(_is(line, "report", produced_at) for line in read_marks(folder)), "the run's end")


def _wait(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise NothingSeen(f"the benchmark's Dagster did not show {what} within {WAIT_SECONDS} s")
        time.sleep(_POLL_SECONDS)
