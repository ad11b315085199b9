"""CPU seconds of one small landing run as Dagster does it: from the first of its records to the end of its process.

Counted are the run's process and all it starts, code server, daemon, the rest of `dagster dev` and the engine; the broker and
the benchmark itself are not. What they use while nothing happens, the sensor's ticks included, is taken off.
"""

import time
from dataclasses import dataclass

from ....adapters.spark.spark_server import read_server
from ....adapters.system.processes import Process
from ...processes import NotMeasured, wait_until
from ..measurement import Bench, Tell, repeat
from ..rounds import Load, spread
from ..usage import ProcessUsage, read_tree, tree_seconds
from ..watched import Watched, watching

LOAD = Load("bench-run", 1_000, 2_000, 1_000, 2)  # two ranges
IDLE_SECONDS = 30.0  # six ticks of the sensor
_HELPER = "multiprocessing.resource_tracker"


@dataclass(frozen=True, slots=True)
class UsageLook:
    """CPU seconds used so far, seen at a moment (seconds of a clock that only ever goes on).

    `server` is the engine that was seen, none where it is in the run's own process.
    """

    at: float
    seconds: float
    server: Process | None = None


def measure_run_cost(bench: Bench, rounds: int, tell: Tell) -> dict[str, object]:
    """Produce one run's records `rounds` times to a topic that Dagster watches; return the CPU seconds of each run.

    The first time is a warm-up and counts nowhere.
    """
    tell("a run's CPU: starting Dagster")
    with watching(bench, LOAD) as watched:
        _take_run(watched)
        tell(f"a run's CPU: {IDLE_SECONDS:.0f} s of nothing")
        before = _look(watched)
        time.sleep(IDLE_SECONDS)
        after = _look(watched)
        idle = net_seconds(before, after, 0.0) / (after.at - before.at)

        def run(_: int) -> float:
            before = _look(watched)
            _take_run(watched)
            return net_seconds(before, _look(watched), idle)

        found = repeat(run, "a run's CPU", rounds, tell, warm_ups=0)
    return {
        "measured": (
            f"a landing run of {LOAD.ranges_text} through dagster dev and its real launcher, from before its records are "
            "produced to the end of its process: planning, tick, queue, launch, landing, checks and events"
        ),
        "cpu_seconds": spread(found),
        "idle_cpu_seconds_per_second": round(idle, 4),
    }


def net_seconds(before: UsageLook, after: UsageLook, idle: float) -> float:
    """Return what was used between two looks, less what would have been used while nothing happens.

    Raise `NotMeasured` where the looks are at two engines: the second one's start would be counted, the first one not.
    """
    if before.server != after.server:
        raise NotMeasured("the Spark server was replaced while a run was measured, so its CPU seconds mean nothing")
    return after.seconds - before.seconds - (after.at - before.at) * idle


def _is_code_server(each: ProcessUsage) -> bool:
    return " api grpc " in each.command or " code-server start " in each.command


def _take_run(watched: Watched) -> None:
    """Produce the records of a run and wait until its process has ended and its code server has taken note of it."""
    produced_at = watched.produce()
    watched.await_rows()
    watched.await_step("report", produced_at)
    wait_until(lambda: not _has_run(watched.pid), "the end of the run's process")


def _has_run(dagster: int) -> bool:
    found = read_tree(dagster)
    servers = {each.pid for each in found if _is_code_server(each)}
    return any(each.parent in servers and each.pid not in servers and _HELPER not in each.command for each in found)


def _look(watched: Watched) -> UsageLook:
    server = read_server(watched.bench.adapters.settings.engine_folder)
    used = tree_seconds(watched.pid, *([server.process.pid] if server else []))  # an engine may be below Dagster
    return UsageLook(time.monotonic(), used, server.process if server else None)
