"""The whole benchmark, all systems in one world; and the parts that can be measured alone, with what each is to reach.

Each figure is a median, with its spread, under the name that its aim has; starting processes is in none of them. `ratios` is
what is asked of us; beside it stand the raw times that they are made of. What was started is stopped and deleted.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import BadSetting
from ...settings import Settings
from ..bench import DERIVED, ENGINE, PULSE, TOPICS
from ..bench.costs import append_cost, backlog, client_cost, decode_cost, driver_bytes, run_cost, upsert
from ..bench.costs.history import measure_history
from ..bench.costs.topics_cost import measure_topics
from ..bench.measurement import Part, Tell, environment, measure, open_bench
from ..bench.rounds import Load, Turn, missed_aims, missed_targets, p95, ratios, section, spread, summary
from ..bench.systems import SYSTEMS
from ..bench.watched import measure_visible

KAFKA_PARTITIONS = 4
RANGES = 16  # on the grid: each Kafka partition is cut in four
RECORDS: Mapping[int, int] = {100: 3_000_000, 1_000: 800_000, 10_000: 120_000}  # several seconds on two cores
TURN_BYTES = 640_000_000  # for other sizes
ENGINE_AIMS: Mapping[str, float] = {  # at most
    "run_cpu_seconds": 4.0,
    "client_cpu_seconds": 1.0,
    "visible_seconds": 10.0,
    "driver_bytes_per_landed_byte": 0.05,
}
DERIVED_AIMS: Mapping[str, float] = {
    "upsert.to_delta_rs": 1.5,
    "upsert.large_seconds": 30.0,
    "upsert.large_peak_bytes": 2e9,  # of this process, which delta-rs is a part of
    "derived.json_to_landing": 1.5,
    "derived.avro_to_landing": 1.2,
    "table.append_to_landing": 0.05,
}
PULSE_AIMS: Mapping[str, float] = {
    "visible_seconds": 8.0,
    # at the longest history, which is to be as quick as the shortest
    "tick_seconds": 1.0,
    "peak_mb": 300.0,
    "status_seconds": 2.0,
    "trace_seconds": 3.0,
}
HISTORIES = (1_000, 10_000, 100_000, 1_000_000)  # ranges that are landed


def choose_loads(sizes: str, records: int | None) -> list[Load]:
    """Read value sizes as they were typed; records are rounded up so that all ranges are of one length."""
    loads = []
    for text in sizes.split(","):
        if not text.strip().isdecimal() or not 40 <= int(text) <= 1_000_000:
            raise BadSetting(f"value size {text!r} is not a number of bytes from 40 to 1000000; nothing was started")
        size = int(text)
        per_range = math.ceil((records or RECORDS.get(size) or TURN_BYTES // (size + 200)) / RANGES)
        loads.append(Load(f"bench-{size}", size, per_range * RANGES, per_range, KAFKA_PARTITIONS))
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


def measure_engine(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Measure what a run, a client and a backlog cost, when rows are seen, and which bytes pass this machine."""
    with open_bench(settings, tell) as bench:
        details: dict[str, dict[str, Any]] = {
            "client": client_cost.measure_client(bench, rounds, tell),
            "backlog": backlog.measure_backlog(bench, rounds, tell),
            "run": run_cost.measure_run_cost(bench, rounds, tell),
            "visible": measure_visible(bench, rounds, tell),
            "driver_bytes": driver_bytes.measure_driver_bytes(bench, tell),
        }
    figures = {
        "run_cpu_seconds": details["run"]["cpu_seconds"],
        "client_cpu_seconds": details["client"]["cpu_seconds"],
        "visible_seconds": spread([each["total"] for each in details["visible"]["repeats"]]),
        "backlog_ranges_per_second": details["backlog"]["ranges_per_second"],
        "driver_bytes_per_landed_byte": details["driver_bytes"]["per_landed_byte"],
    }
    found = section(figures, details)
    return {"engine": found}, missed_aims(found, ENGINE_AIMS)


def measure_derived(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Measure what the raw table, decoding and the latest table cost."""
    with open_bench(settings, tell) as bench:
        append = append_cost.measure_append(bench, rounds, tell)
        decoding = decode_cost.measure_decoding(bench, rounds, tell)
        updates = upsert.measure_upsert(bench, rounds, tell)
        large = upsert.measure_large(bench, tell)
    report = {
        "upsert": section(
            {"to_delta_rs": updates["to_delta_rs"], "large_seconds": large["seconds"], "large_peak_bytes": large["peak_bytes"]},
            {"updates": updates, "large": large},
        ),
        "derived": section({name: decoding["ratios"][name] for name in ("json_to_landing", "avro_to_landing")}, decoding),
        "table": section({"append_to_landing": append["append_to_landing"]}, append),
    }
    medians = {f"{part}.{name}": figure["median"] for part, found in report.items() for name, figure in found["spread"].items()}
    return report, missed_aims(medians, DERIVED_AIMS)


def measure_pulse(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Measure from produced to visible under a Dagster that is up, and each long history in a world of its own."""
    with open_bench(settings, tell) as bench:
        visible = measure_visible(bench, rounds, tell)
    totals = [each["total"] for each in visible["repeats"]]
    history = []
    for ranges in HISTORIES:
        with open_bench(settings, tell) as bench:
            history.append(measure_history(bench, ranges, tell))
    found = {
        **section({"visible_seconds": spread(totals)}, {"visible": visible}),
        "visible_p95_seconds": p95(totals),
        "history": history,
    }
    slow = [f"{each['ranges']:,} ranges: {text}" for each in history for text in missed_aims(each, PULSE_AIMS)]
    return {"pulse": found}, [*missed_aims(found, PULSE_AIMS), *slow]


PARTS: Mapping[str, Part] = {ENGINE: measure_engine, DERIVED: measure_derived, TOPICS: measure_topics, PULSE: measure_pulse}
