"""The part `engine` of the benchmark: what a run, a client and a backlog cost, and when rows are seen.

All of it is of the warm Spark; the bytes that pass this machine are those where a cluster lands into a bucket.
Each figure is a median, with its spread, under the name that its aim has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....settings import Settings
from .. import visible
from ..measurement import Tell, open_bench, report_part
from ..rounds import Load, missed_aims, spread
from . import backlog, client_cost, driver_bytes, run_cost

AIMS: Mapping[str, float] = {  # at most
    "run_cpu_seconds": 4.0,
    "client_cpu_seconds": 1.0,
    "visible_seconds": 10.0,
    "driver_bytes_per_landed_byte": 0.05,
}


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How much is measured: rounds after the warm-up, and the loads."""

    rounds: int
    idle_seconds: float = run_cost.IDLE_SECONDS
    run: Load = run_cost.LOAD
    client: Load = client_cost.LOAD
    visible: Load = visible.LOAD
    backlog_ranges: int = backlog.RANGES
    driver_bytes: Load = driver_bytes.LOAD


def run_engine_bench(settings: Settings, profile: EngineProfile, tell: Tell) -> dict[str, Any]:
    """Measure all of it in one world and return the document; what was started is stopped and deleted."""
    load_before = os.getloadavg()
    with open_bench(settings, tell) as bench:
        details: dict[str, dict[str, Any]] = {
            "client": client_cost.measure_client(bench, profile.rounds, tell, profile.client),
            "backlog": backlog.measure_backlog(bench, profile.rounds, tell, profile.backlog_ranges),
            "run": run_cost.measure_run_cost(bench, profile.rounds, tell, load=profile.run, idle_seconds=profile.idle_seconds),
            "visible": visible.measure_visible(bench, profile.rounds, tell, profile.visible),
            "driver_bytes": driver_bytes.measure_driver_bytes(bench, tell, profile.driver_bytes),
        }
    figures = {
        "run_cpu_seconds": details["run"]["cpu_seconds"],
        "client_cpu_seconds": details["client"]["cpu_seconds"],
        "visible_seconds": spread([each["total"] for each in details["visible"]["repeats"]]),
        "backlog_ranges_per_second": details["backlog"]["ranges_per_second"],
        "driver_bytes_per_landed_byte": details["driver_bytes"]["per_landed_byte"],
    }
    medians = {name: figure["median"] for name, figure in figures.items()}
    found = {"engine": {**medians, "spread": figures, "details": details}}
    return report_part(settings, load_before, found, missed_aims(medians, AIMS), profile.rounds)
