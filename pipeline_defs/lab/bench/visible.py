"""From the last acknowledged record to every row seen by a DuckDB glob, with Dagster already up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .measurement import Bench, Tell
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


def measure_visible(bench: Bench, repeats: int, tell: Tell, load: Load = LOAD) -> dict[str, object]:
    """Produce the load to a topic that Dagster watches; return seconds, and what they were spent on.

    The first time is a warm-up, which starts what is started once, and counts nowhere.
    """
    found = []
    tell("time to visible: starting Dagster")
    with watching(bench, TOPIC, load) as watched:
        for number in range(repeats + 1):
            tell(f"time to visible: {number or 'warm-up'} of {repeats}")
            produced_at = watched.produce()
            seen_at = watched.await_rows()
            watched.await_step("report", produced_at)
            found.append(split_seconds(watched.marks, produced_at, seen_at))
    return {
        "measured": (
            "dagster dev with its daemon up and ticking every 5 s; a run is a new process with a session of the warm Spark; "
            "from the last acknowledged record to a count over the glob in DuckDB that has them all, asked 10 times a second"
        ),
        "records": load.records,
        "value_bytes": load.value_bytes,
        "records_per_range": load.records_per_range,
        "median_seconds": spread([each["total"] for each in found[1:]])["median"],
        "repeats": found[1:],
        "warm_up": found[0],
    }


def split_seconds(marks: Sequence[Mapping[str, Any]], produced_at: float, seen_at: float) -> dict[str, float]:
    """Split the time at the marks of the last run that began before the rows were seen; the parts add up to the total."""
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
