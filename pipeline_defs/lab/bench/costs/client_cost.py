"""CPU seconds of a client of the warm Spark without Dagster, a process of its own: import, session, one scan, its write."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any

from ....adapters.system.processes import last_lines
from ...processes import NotMeasured, plain_environment
from ..measurement import Bench, Tell, check_rows, count_rows, repeat
from ..rounds import Load, spread
from ..usage import timed
from . import clients

LOAD = Load("bench-client", 1_000, 2_000, 1_000, 2)


def run_client(act: Callable[..., Any], folder: Path, environment: Mapping[str, str] = {}, **given: object) -> tuple[int, Any]:
    """Have a process do a function of `clients.py` in a folder, knowing no settings but these; return its id, and the answer.

    Raise `NotMeasured` where it fails, with the end of what it said.
    """
    own = {**plain_environment(), "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    log, command = folder / "client.log", [sys.executable, "-m", clients.__name__, act.__name__]
    with (
        log.open("ab") as errors,
        subprocess.Popen(command, cwd=folder, env=own, stdin=PIPE, stdout=PIPE, stderr=errors) as process,
    ):
        printed, _ = process.communicate(json.dumps(given).encode())
    if process.returncode:
        raise NotMeasured(f"the process of {act.__name__} ended with {process.returncode}: {' '.join(last_lines(log, 2))}")
    return process.pid, json.loads(printed.splitlines()[-1])


def measure_client(bench: Bench, rounds: int, tell: Tell) -> dict[str, object]:
    """Have clients stage the same ranges one after another; return their CPU seconds. The first one counts nowhere."""
    bench.fill(LOAD, tell)
    found = repeat(lambda _: _take_turn(bench), "a client's CPU", rounds, tell)[1:]
    return {
        "measured": (
            f"a Python process that imports Spark, opens a session of the warm server, and stages {LOAD.ranges_text} as files: "
            "user and system time of that process, without the server's"
        ),
        "cpu_seconds": spread([cpu for cpu, _ in found]),
        "seconds": spread([seconds for _, seconds in found]),
    }


def _take_turn(bench: Bench) -> tuple[float, float]:
    """Return CPU and wall seconds of one client process."""
    with TemporaryDirectory(dir=bench.folder) as out:
        act = partial(
            run_client,
            clients.stage,
            bench.folder,
            url=bench.adapters.engine(bench.pyspark).url,
            bootstrap_servers=bench.adapters.bootstrap_servers(),
            topic=LOAD.topic,
            ranges=[(0, partition, 0, LOAD.records_per_range) for partition in range(LOAD.kafka_partitions)],
            out=f"{out}/staged",
        )
        before = getrusage(RUSAGE_CHILDREN)  # of those that have ended: only the client does meanwhile
        seconds, after = timed(act), getrusage(RUSAGE_CHILDREN)
        check_rows("a client", count_rows(Path(out)), LOAD)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds
