"""The part `derived` of the benchmark: what the raw table, decoding and the latest table cost, on the warm Spark.

Each figure is a median, with its spread, under the name that its aim has; starting processes is in none of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ....settings import Settings
from ..measurement import Tell, open_bench
from ..rounds import missed_aims, section
from . import append_cost, decode_cost, upsert

AIMS: Mapping[str, float] = {  # at most
    "upsert.to_delta_rs": 1.5,
    "upsert.large_seconds": 30.0,
    "upsert.large_peak_bytes": 2e9,  # of this process, which delta-rs is a part of
    "derived.json_to_landing": 1.5,
    "derived.avro_to_landing": 1.2,
    "table.append_to_landing": 0.05,
}


def measure_derived(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Measure all of it in one world; what was started is stopped and deleted."""
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
    return report, missed_aims(medians, AIMS)
