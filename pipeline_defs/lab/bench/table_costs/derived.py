"""The part `derived` of the benchmark: what the raw table, decoding and the latest table cost, on the warm Spark.

Each figure is a median, with its spread, under the name that its aim has; starting processes is in none of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....settings import Settings
from ..measurement import Tell, open_bench, report_part
from ..rounds import Load, missed_aims
from . import append_cost, decode_cost, upsert

AIMS: Mapping[str, float] = {  # at most
    "upsert.to_delta_rs": 1.5,
    "upsert.large_seconds": 30.0,
    "upsert.large_peak_bytes": 2e9,  # of this process, which delta-rs is a part of
    "derived.json_to_landing": 1.5,
    "derived.avro_to_landing": 1.2,
    "table.append_to_landing": 0.05,
}


@dataclass(frozen=True, slots=True)
class DerivedProfile:
    """How much is measured: rounds after the warm-up, and the loads."""

    rounds: int
    decoding: Load = decode_cost.LOAD
    append: Load = append_cost.LOAD
    updates: upsert.UpsertState = upsert.STATE
    large: upsert.UpsertState = upsert.LARGE


def run_derived_bench(settings: Settings, profile: DerivedProfile, tell: Tell) -> dict[str, Any]:
    """Measure all of it in one world and return the document; what was started is stopped and deleted."""
    load_before = os.getloadavg()
    with open_bench(settings, tell) as bench:
        append = append_cost.measure_append(bench, profile.rounds, tell, profile.append)
        decoding = decode_cost.measure_decoding(bench, profile.rounds, tell, profile.decoding)
        updates = upsert.measure_upsert(bench, profile.rounds, tell, profile.updates)
        large = upsert.measure_large(bench, tell, profile.large)
    report = {
        "upsert": _section(
            {"to_delta_rs": updates["to_delta_rs"], "large_seconds": large["seconds"], "large_peak_bytes": large["peak_bytes"]},
            {"updates": updates, "large": large},
        ),
        "derived": _section({name: decoding["ratios"][name] for name in ("json_to_landing", "avro_to_landing")}, decoding),
        "table": _section({"append_to_landing": append["append_to_landing"]}, append),
    }
    medians = {
        f"{section}.{name}": figure["median"] for section, found in report.items() for name, figure in found["spread"].items()
    }
    return report_part(settings, load_before, report, missed_aims(medians, AIMS), profile.rounds)


def _section(figures: Mapping[str, Mapping[str, Any]], details: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: each["median"] for name, each in figures.items()}, "spread": figures, "details": details}
