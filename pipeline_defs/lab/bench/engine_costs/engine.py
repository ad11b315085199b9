"""The part `engine` of the benchmark: what a run, a client and a backlog cost, and when rows are seen.

All of it is of the warm Spark; the bytes that pass this machine are those where a cluster lands into a bucket.
Each figure is a median, with its spread, under the name that its aim has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ....settings import Settings
from .. import visible
from ..measurement import Tell, open_bench
from ..rounds import missed_aims, section, spread
from . import backlog, client_cost, driver_bytes, run_cost

AIMS: Mapping[str, float] = {  # at most
    "run_cpu_seconds": 4.0,
    "client_cpu_seconds": 1.0,
    "visible_seconds": 10.0,
    "driver_bytes_per_landed_byte": 0.05,
}


def measure_engine(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Measure all of it in one world; what was started is stopped and deleted."""
    with open_bench(settings, tell) as bench:
        details: dict[str, dict[str, Any]] = {
            "client": client_cost.measure_client(bench, rounds, tell),
            "backlog": backlog.measure_backlog(bench, rounds, tell),
            "run": run_cost.measure_run_cost(bench, rounds, tell),
            "visible": visible.measure_visible(bench, rounds, tell),
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
    return {"engine": found}, missed_aims(found, AIMS)
