"""CPU seconds of a client of the warm Spark without Dagster, a process of its own: import, session, one scan, its write."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from subprocess import PIPE
from tempfile import TemporaryDirectory

from ....adapters.system.processes import last_lines
from ...processes import NotMeasured, plain_environment
from ..measurement import Bench, Tell, count_rows, repeat
from ..rounds import Load, spread
from ..usage import timed
from . import client

LOAD = Load(1_000, 2_000, 1_000, 2)
TOPIC = "bench-client"


def run_client(
    what: str, module: Sequence[str], folder: Path, environment: Mapping[str, str], given: bytes = b""
) -> tuple[int, bytes]:
    """Run a module with its arguments in a folder, knowing no settings but these; return its process id, and what it printed.

    `given` is its standard input. Raise `NotMeasured` where it fails, with the end of what it said.
    """
    own = {**plain_environment(), "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    log, command = folder / "client.log", [sys.executable, "-m", *module]
    with (
        log.open("ab") as errors,
        subprocess.Popen(command, cwd=folder, env=own, stdin=PIPE, stdout=PIPE, stderr=errors) as process,
    ):
        printed, _ = process.communicate(given)
    if process.returncode:
        raise NotMeasured(f"{what} ended with {process.returncode}: {' '.join(last_lines(log, 2))}")
    return process.pid, printed


def measure_client(bench: Bench, rounds: int, tell: Tell) -> dict[str, object]:
    """Have clients stage the same ranges one after another; return their CPU seconds. The first one counts nowhere."""
    tell("a client's CPU: producing")
    bench.fill(TOPIC, LOAD)
    found = repeat(lambda _: _take_turn(bench), "a client's CPU", rounds, tell)
    cpu_seconds, seconds = zip(*found[1:], strict=True)
    return {
        "measured": (
            f"a Python process that imports Spark, opens a session of the warm server, and stages {LOAD.kafka_partitions} "
            f"ranges of {LOAD.records_per_range:,} records of {LOAD.value_bytes:,} B as files: user and system time of that "
            "process, without the server's"
        ),
        "cpu_seconds": spread(cpu_seconds),
        "seconds": spread(seconds),
    }


def _take_turn(bench: Bench) -> tuple[float, float]:
    """Return CPU and wall seconds of one client process."""
    with TemporaryDirectory(dir=bench.folder) as out:
        task = {
            "url": bench.edges.engine(bench.pyspark).url,
            "bootstrap_servers": bench.edges.bootstrap_servers(),
            "topic": TOPIC,
            "ranges": [(0, partition, 0, LOAD.records_per_range) for partition in range(LOAD.kafka_partitions)],
            "folder": f"{out}/staged",
        }
        act = partial(run_client, "a client", [client.__name__], bench.folder, {}, json.dumps(task).encode())
        before = getrusage(RUSAGE_CHILDREN)  # of those that have ended: only the client does meanwhile
        seconds, after = timed(act), getrusage(RUSAGE_CHILDREN)
        rows = count_rows(Path(out))
    if rows != LOAD.records:
        raise NotMeasured(f"a client wrote {rows:,} rows of {LOAD.records:,} records of {TOPIC}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds
