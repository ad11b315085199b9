"""CPU seconds of a client of the warm Spark without Dagster, a process of its own: import, session, one scan, its write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...waiting import NotMeasured
from ..data import produce
from ..measurement import Bench, Tell, count_rows
from ..rounds import Load, spread
from . import client

LOAD = Load(1_000, 2_000, 1_000, 2)
TOPIC = "bench-client"


def run_client(what: str, module: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, bytes]:
    """Run a module with its arguments in a folder, knowing no settings but these; return its process id, and what it printed.

    Raise `NotMeasured` where it fails, with the end of what it said.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith(("OFFSETLAKE_", "DAGSTER_"))}
    own = {**others, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    log, command = folder / "client.log", [sys.executable, "-m", *module]
    with (
        log.open("ab") as errors,
        subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        printed, _ = process.communicate()
    if process.returncode:
        said = log.read_text(errors="replace").splitlines()[-2:]
        raise NotMeasured(f"{what} ended with {process.returncode}: {' '.join(said)}")
    return process.pid, printed


def measure_client(bench: Bench, rounds: int, tell: Tell, load: Load = LOAD) -> dict[str, object]:
    """Have clients stage the same ranges one after another; return their CPU seconds. The first one counts nowhere."""
    tell("a client's CPU: producing")
    bench.edges.kafka().create_topic(TOPIC, load.kafka_partitions)
    produce(bench.edges.bootstrap_servers(), TOPIC, load)
    found = []
    for number in range(rounds + 1):
        tell(f"a client's CPU: {number or 'warm-up'} of {rounds}")
        found.append(_take_turn(bench, load, bench.folder / f"client-{number}"))
    cpu_seconds, seconds = zip(*found[1:], strict=True)
    return {
        "measured": (
            f"a Python process that imports Spark, opens a session of the warm server, and stages {load.kafka_partitions} "
            f"ranges of {load.records_per_range:,} records of {load.value_bytes:,} B as files: user and system time of that "
            "process, without the server's"
        ),
        "cpu_seconds": spread(cpu_seconds),
        "seconds": spread(seconds),
    }


def _take_turn(bench: Bench, load: Load, folder: Path) -> tuple[float, float]:
    """Return CPU and wall seconds of one client process."""
    url = bench.edges.engine(bench.pyspark).url
    task = {
        "url": url,
        "bootstrap_servers": bench.edges.bootstrap_servers(),
        "topic": TOPIC,
        "ranges": [(0, partition, 0, load.records_per_range) for partition in range(load.kafka_partitions)],
        "folder": str(folder),
    }
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", client.__name__], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    with process.stdin as pipe:
        json.dump(task, pipe)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    rows = count_rows(folder)
    if process.returncode or rows != load.records:
        raise NotMeasured(
            f"a client ended with {process.returncode} and wrote {rows:,} rows of {load.records:,} records of {TOPIC}"
        )
    return usage.ru_utime + usage.ru_stime, seconds
