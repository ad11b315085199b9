"""The whole benchmark: which loads and systems, one world for all of them, and the document that comes out.

`ratios` is what is asked of us; beside it stand the raw times that they are made of. See docs for what is compared.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import BadSetting
from ...settings import Settings
from .measurement import Tell, environment, measure, open_bench
from .rounds import Load, Turn, missed_targets, ratios, summary
from .systems import SYSTEMS
from .visible import measure_visible

KAFKA_PARTITIONS = 4
RANGES = 16  # on the grid: each Kafka partition is cut in four
RECORDS: Mapping[int, int] = {100: 3_000_000, 1_000: 800_000, 10_000: 120_000}  # several seconds on two cores
TURN_BYTES = 640_000_000  # for other sizes


def choose_loads(sizes: str, records: int | None) -> list[Load]:
    """Read value sizes as they were typed; records are rounded up so that all ranges are of one length."""
    loads = []
    for text in sizes.split(","):
        if not text.strip().isdecimal() or not 40 <= int(text) <= 1_000_000:
            raise BadSetting(f"value size {text!r} is not a number of bytes from 40 to 1000000; nothing was started")
        size = int(text)
        per_range = math.ceil((records or RECORDS.get(size) or TURN_BYTES // (size + 200)) / RANGES)
        loads.append(Load(size, per_range * RANGES, per_range, KAFKA_PARTITIONS))
    return loads


def choose_systems(names: str | None) -> list[str]:
    """Read system names as they were typed; where none are, all."""
    chosen = [*SYSTEMS] if names is None else [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in SYSTEMS]
    if unknown:
        raise BadSetting(f"system {unknown[0]!r} is not one of {', '.join(SYSTEMS)}; nothing was started")
    return chosen


def run_bench(
    settings: Settings, loads: Sequence[Load], systems: Sequence[str], rounds: int, visible: int, tell: Tell
) -> dict[str, Any]:
    """Measure everything in one world and return the document; what was started is stopped and deleted."""
    turns: dict[Load, list[Turn]] = {}
    with open_bench(settings, tell) as bench:
        for load in loads:
            turns[load] = list(measure(bench, load, systems, rounds, tell))
        seen = measure_visible(bench, visible, tell) if visible else None
        start = {"session_seconds": round(bench.session_seconds, 3), "first_job_seconds": round(bench.first_job_seconds, 3)}
    lines = [ratios(load, turns[load]) for load in loads]
    return {
        "ratios": lines,
        "missed_targets": missed_targets(lines),
        "loads": [summary(load, turns[load]) for load in loads],
        "rounds": rounds,
        "start_up": start,
        "time_to_visible": seen,
        "environment": environment(settings),
    }
