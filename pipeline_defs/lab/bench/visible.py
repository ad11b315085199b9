"""From the last acknowledged record to every row seen by a DuckDB glob, with Dagster already up."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .measurement import Bench, Tell, repeat
from .rounds import Load, spread
from .watched import watching

LOAD = Load(1_000, 100_000, 25_000)  # a range for each of its Kafka partitions, and no tail
TOPIC = "bench-visible"

# what each part of the time is, and the mark that ends it
_PARTS: Mapping[str, str] = {
    "tick_and_plan": "tick_requested",
    "launch_of_the_run": "find",
    "check_of_broker_and_lake": "scan",
    "scan": "stage",
    "verify_commit_publish": "publish",
}


def measure_visible(bench: Bench, repeats: int, tell: Tell) -> dict[str, Any]:
    """Produce a load to a topic that Dagster watches; return seconds, and what they were spent on.

    The first time is a warm-up, which starts what is started once, and counts nowhere.
    """
    tell("time to visible: starting Dagster")
    with watching(bench, TOPIC, LOAD) as watched:

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
