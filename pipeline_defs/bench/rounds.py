"""Rounds: in which order systems take turns, and what their times say: medians and ratios.

Pure. Invariant: a ratio is of medians over the same rounds; above 1 means that ours is faster, except for bytes, where
below 1 means that ours are fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

OURS = "offsetlake"
RATIOS: Mapping[str, str] = {
    "to_bare_spark": "bare_spark",
    "to_spark_no_sink": "spark_no_sink",
    "to_structured_streaming": "structured_streaming",
    "to_hand_written_loop": "hand_written_loop",
    "through_dagster_to_bare_spark": "offsetlake_through_dagster",
}
BYTES_TO = "structured_streaming"


@dataclass(frozen=True, slots=True)
class Load:
    """Is what is read: so many records of one value size, over Kafka partitions of equal length, cut at a grid."""

    value_bytes: int
    records: int
    records_per_range: int
    kafka_partitions: int = 4

    @property
    def topic(self) -> str:
        """Is the topic that holds this load."""
        return f"bench-{self.value_bytes}"


@dataclass(frozen=True, slots=True)
class Turn:
    """Is one timed run of one system; `bytes` is 0 where it writes none. Round 0 is the warm-up and counts nowhere."""

    system: str
    round: int
    seconds: float
    rows: int
    bytes: int
    files: int
    jvm_peak_bytes: int
    python_peak_bytes: int
    cpu_seconds: float
    steps: Mapping[str, float]


def order_of(systems: Sequence[str], number: int) -> list[str]:
    """Rotates the systems by one per round, so that none always runs after the same other."""
    shift = number % len(systems) if systems else 0
    return [*systems[shift:], *systems[:shift]]


def median_seconds(turns: Sequence[Turn], system: str) -> float | None:
    """Is the median over the rounds that count; none where the system did not run."""
    seconds = [turn.seconds for turn in turns if turn.system == system and turn.round > 0]
    return median(seconds) if seconds else None


def ratios(load: Load, turns: Sequence[Turn]) -> dict[str, float | int | None]:
    """Holds our median against each other's; none where one of the two did not run."""
    ours = median_seconds(turns, OURS)
    line: dict[str, float | int | None] = {"value_bytes": load.value_bytes}
    for name, system in RATIOS.items():
        if name == "through_dagster_to_bare_spark":
            line[name] = _over(median_seconds(turns, "bare_spark"), median_seconds(turns, system))
        else:
            line[name] = _over(median_seconds(turns, system), ours)
    line[f"bytes_to_{BYTES_TO}"] = _over(_bytes(turns, OURS), _bytes(turns, BYTES_TO))
    return line


def summary(load: Load, turns: Sequence[Turn]) -> dict[str, object]:
    """Is what each system did with the load: its raw times, their median, rate, bytes and peak memory."""
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
    seconds = median(turn.seconds for turn in counted) if counted else None
    return {
        "seconds": [round(turn.seconds, 3) for turn in counted],
        "warm_up_seconds": [round(turn.seconds, 3) for turn in turns if turn.round == 0],
        "median_seconds": seconds and round(seconds, 3),
        "records_per_second": seconds and round(load.records / seconds),
        "cpu_seconds": round(median(turn.cpu_seconds for turn in counted), 3) if counted else None,
        "rows": turns[-1].rows,
        "bytes": turns[-1].bytes,
        "files": turns[-1].files,
        "peak_driver_jvm_bytes": max(turn.jvm_peak_bytes for turn in turns),
        "peak_python_bytes": max(turn.python_peak_bytes for turn in turns),
        "step_seconds": _steps(counted),
    }


def _steps(turns: Sequence[Turn]) -> dict[str, float]:
    names = dict.fromkeys(name for turn in turns for name in turn.steps)
    return {name: round(median(turn.steps.get(name, 0.0) for turn in turns), 3) for name in names}


def _bytes(turns: Sequence[Turn], system: str) -> float | None:
    sizes = [turn.bytes for turn in turns if turn.system == system and turn.bytes]
    return median(sizes) if sizes else None


def _over(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else round(numerator / denominator, 3)
