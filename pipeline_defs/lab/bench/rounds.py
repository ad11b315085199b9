"""Rounds: in which order systems take turns, and what their times say: medians and ratios.

Pure. Invariant: a ratio is of medians over the same rounds; above 1 means that ours is faster, except for bytes, where
below 1 means that ours are fewer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

OURS = "offsetlake"
OTHERS = ("bare_spark", "spark_no_sink", "structured_streaming", "hand_written_loop")
THROUGH_DAGSTER = "offsetlake_through_dagster"
BYTES_TO = "structured_streaming"

# value bytes -> ratio -> what it is to be at least; bytes at most
TARGETS: Mapping[int, Mapping[str, float]] = {
    100: {"to_bare_spark": 0.9, "to_spark_no_sink": 0.8, "to_structured_streaming": 1.3, "to_hand_written_loop": 2.0},
    1_000: {
        "to_bare_spark": 0.9,
        "to_spark_no_sink": 0.5,
        "to_structured_streaming": 1.15,
        "to_hand_written_loop": 2.0,
        "bytes_to_structured_streaming": 0.6,
    },
    10_000: {"to_bare_spark": 0.9, "to_spark_no_sink": 0.5, "to_structured_streaming": 1.0, "to_hand_written_loop": 1.4},
}


@dataclass(frozen=True, slots=True)
class Load:
    """What a topic has: so many records of one value size, over Kafka partitions of equal length, cut at a grid."""

    topic: str
    value_bytes: int
    records: int
    records_per_range: int
    kafka_partitions: int = 4

    @property
    def ranges_text(self) -> str:
        """In words what is landed of it."""
        count = self.records // self.records_per_range
        return f"{count} ranges of {self.records_per_range:,} records of {self.value_bytes:,} B"


@dataclass(frozen=True, slots=True)
class Taken:
    """What something took: CPU seconds of this process, which delta-rs is a part of, and of Spark's JVM; their peaks."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    jvm_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One timed run of one system; `bytes` is 0 where it writes none. Round 0 is the warm-up and counts nowhere."""

    system: str
    round: int
    taken: Taken
    rows: int
    bytes: int
    files: int
    steps: Mapping[str, float]


def order_of(systems: Sequence[str], number: int) -> list[str]:
    """Rotate the systems by one per round, so that none always runs after the same other."""
    shift = number % len(systems) if systems else 0
    return [*systems[shift:], *systems[:shift]]


def medians(turns: Sequence[Turn], of: Callable[[Turn], float]) -> dict[str, float]:
    """Return the median of a figure over the rounds that count, by system."""
    found: dict[str, list[float]] = {}
    for turn in turns:
        if turn.round > 0:
            found.setdefault(turn.system, []).append(of(turn))
    return {system: median(values) for system, values in found.items()}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return median, least, greatest and all of some figures, in the order in which they were taken."""
    figures = {"median": median(values), "least": min(values), "greatest": max(values)}
    return {**{name: round(value, 3) for name, value in figures.items()}, "all": [round(value, 3) for value in values]}


def p95(values: Sequence[float]) -> float:
    """Return the figure that 95 of 100 are not above."""
    return sorted(values)[int(len(values) * 0.95)]


def ratios(load: Load, turns: Sequence[Turn]) -> dict[str, float | int | None]:
    """Hold our median against each other's; none where one of the two did not run."""
    seconds, sizes = medians(turns, lambda turn: turn.taken.seconds).get, medians(turns, lambda turn: turn.bytes).get
    line: dict[str, float | int | None] = {"value_bytes": load.value_bytes}
    line |= {f"to_{system}": over(seconds(system), seconds(OURS)) for system in OTHERS}
    line["without_dagster_to_through_dagster"] = over(seconds(THROUGH_DAGSTER), seconds(OURS))
    line[f"bytes_to_{BYTES_TO}"] = over(sizes(OURS), sizes(BYTES_TO))
    return line


def missed_targets(lines: Sequence[Mapping[str, float | int | None]]) -> list[str]:
    """Name the ratios that miss what they are to reach; what was not measured is not named."""
    missed = []
    for line in lines:
        size = int(line["value_bytes"] or 0)
        for name, target in TARGETS.get(size, {}).items():
            found = line.get(name)
            if found is None:
                continue
            is_at_most = name.startswith("bytes_")
            if (found > target) if is_at_most else (found < target):
                missed.append(f"{name} at {size} B: {found}, to be at {'most' if is_at_most else 'least'} {target}")
    return missed


def missed_aims(medians: Mapping[str, Any], aims: Mapping[str, float]) -> list[str]:
    """Name the figures that are above their aim."""
    return [
        f"{name}: {medians[name]}, to be at most {aim:g}"
        for name, aim in aims.items()
        if name in medians and medians[name] > aim
    ]


def section(figures: Mapping[str, Mapping[str, Any]], details: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as a part reports them: each one's median under its name, their spread, and what they come from."""
    return {**{name: each["median"] for name, each in figures.items()}, "spread": figures, "details": details}


def summary(load: Load, turns: Sequence[Turn]) -> dict[str, object]:
    """Return what each system did with the load: its raw times, their median, rate, bytes and peak memory."""
    systems = dict.fromkeys(turn.system for turn in turns)
    return {
        "value_bytes": load.value_bytes,
        "records": load.records,
        "kafka_partitions": load.kafka_partitions,
        "records_per_range": load.records_per_range,
        "systems": {name: _system(load, [turn for turn in turns if turn.system == name]) for name in systems},
    }


def _system(load: Load, turns: Sequence[Turn]) -> dict[str, object]:
    counted = [turn for turn in turns if turn.round > 0]
    seconds = median(turn.taken.seconds for turn in counted) if counted else None
    steps = dict.fromkeys(name for turn in counted for name in turn.steps)
    return {
        "seconds": [round(turn.taken.seconds, 3) for turn in counted],
        "warm_up_seconds": [round(turn.taken.seconds, 3) for turn in turns if turn.round == 0],
        "median_seconds": seconds and round(seconds, 3),
        "records_per_second": seconds and round(load.records / seconds),
        "cpu_seconds": round(median(turn.taken.cpu_seconds for turn in counted), 3) if counted else None,
        "rows": turns[-1].rows,
        "bytes": turns[-1].bytes,
        "files": turns[-1].files,
        "peak_driver_jvm_bytes": max(turn.taken.jvm_peak_bytes for turn in turns),
        "peak_python_bytes": max(turn.taken.peak_bytes for turn in turns),
        "step_seconds": {name: round(median(turn.steps.get(name, 0.0) for turn in counted), 3) for name in steps},
    }


def over(numerator: float | None, denominator: float | None) -> float | None:
    """Return their ratio; none where there is none, as of CPU seconds where the system does not count them."""
    return None if numerator is None or not denominator else round(numerator / denominator, 3)
