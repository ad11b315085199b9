"""What a long history costs: a topic with so many landed ranges, laid out exactly as real ones, and who has to read it.

Plan steps are the planner's own, manifests and files are written at once, without waiting for the disk. Dagster has no keys of
them (`max_keys: 1`), and the lake has no tables. Each figure is of a process of its own, with that process's peak of memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ..core.latency import WINDOW_MS
from ..core.manifest import Manifest, Provenance, StagedFile
from ..core.offsets import OffsetRange
from ..core.plan_step import PlanStep, Tail
from ..core.planning import Policy, plan
from ..edges.layout import data_path, manifest_path
from ..edges.parquet import RAW_SCHEMA
from ..project import COMPONENT, plan_project, write_project
from . import history_client
from .client_cost import ClientFailed
from .data import produce
from .measurement import Bench, Tell
from .rounds import Load

PARTITIONS = 8
NEW_RANGES = 10  # that the run lands
TOPIC = "bench-history"
RANGE_OF = 1  # offsets: a range costs the same, whatever is in it
POLICY = Policy(records_per_range=RANGE_OF, budget=200)
VALUE_BYTES = 10
STEPS_PER_FRONTIER = 50
LINKS_OF_A_FILE = 10_000  # a file system bounds how many names a file may have


def measure_history(bench: Bench, ranges: int, tell: Tell) -> dict[str, Any]:
    """Measure one topic with so many landed ranges; return seconds, and the largest peak of a process in MB."""
    load = Load(VALUE_BYTES, ranges + NEW_RANGES, RANGE_OF, PARTITIONS)
    tell(f"{ranges:,} ranges: producing")
    bench.edges.kafka().create_topic(TOPIC, PARTITIONS)
    produce(bench.edges.bootstrap_servers(), TOPIC, load)
    tell(f"{ranges:,} ranges: writing them as landed")
    write_history(bench, ranges)
    os.sync()  # else whoever waits for the disk next waits for all of it
    project = _write_project(bench)
    found: dict[str, Any] = {"ranges": ranges}
    peaks = []
    for figure, command in {
        "open_seconds": [history_client.__name__, "open", TOPIC],
        "tick_seconds": [history_client.__name__, "tick", TOPIC],
        "run_seconds": [history_client.__name__, "run", TOPIC],
        "status_seconds": ["pipeline_defs.cli", "status", TOPIC, "--json"],
        "trace_seconds": ["pipeline_defs.cli", "trace", TOPIC, "0", "0", "--json"],
    }.items():
        tell(f"{ranges:,} ranges: {figure}")
        seconds, peak_bytes = _measure(bench, project, command)
        found[figure] = round(seconds, 2)
        peaks.append(peak_bytes)
    return {**found, "peak_mb": round(max(peaks) / 1e6)}


def write_history(bench: Bench, ranges: int) -> None:
    """Write a plan log and as many landed ranges as it plans."""
    root = Path(bench.edges.settings.lake)
    now_ms, tail, planned = bench.edges.now_ms() - 2 * WINDOW_MS, Tail(), 0
    lake = bench.edges.lake
    state = bench.edges.kafka().read_topic_state(TOPIC, tail, POLICY, now_ms)
    content = _file_of_one_row()
    source = root / "staging" / "history"
    source.mkdir(parents=True)
    folders: set[Path] = set()
    while planned < ranges:
        policy = Policy(records_per_range=RANGE_OF, budget=min(POLICY.budget, ranges - planned))
        step = plan(tail, state, policy, now_ms, planner="bench")
        assert step is not None
        _write(root / f"plan/{TOPIC}/{step.seq:020d}.json", step.to_json(), folders)
        for number, offsets in enumerate(step.ranges, start=planned):
            file = source / f"{number // LINKS_OF_A_FILE}.parquet"
            if not file.exists():
                file.write_bytes(content)
            path = root / data_path(TOPIC, offsets)
            _write(root / manifest_path(TOPIC, offsets, 0), _manifest(offsets, step, content).to_json(), folders)
            _make_folder(path.parent, folders)
            os.link(file, path)
        tail, planned = step.tail, planned + len(step.ranges)
        if step.seq % STEPS_PER_FRONTIER == 0 or planned == ranges:
            lake.move_frontier(lake.recent(TOPIC), now_ms, 0)


def _file_of_one_row() -> bytes:
    """Return the file of the first range; all others have its bytes, which nobody reads."""
    row = {"topic": TOPIC, "generation": 0, "partition": 0, "offset": 0, "timestamp": datetime(2020, 1, 1, tzinfo=UTC)}
    row |= {"timestamp_type": 0, "key": b"k", "value": b"v" * VALUE_BYTES, "headers": []}
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row], RAW_SCHEMA), buffer)
    return buffer.getvalue()


def _manifest(offsets: OffsetRange, step: PlanStep, content: bytes) -> Manifest:
    at_ms = step.planned_at_ms
    digest = hashlib.sha256(content).hexdigest()
    path = f"staging/00000000-00000000/{offsets.key}.parquet"
    file = StagedFile(path, len(content), digest, 1, offsets.start, offsets.start, at_ms, at_ms)
    provenance = Provenance("bench", "0" * 36, "bench", "bench", step.seq, step.topic_id, at_ms, 0.1)
    return Manifest(TOPIC, offsets, file, (), provenance, schema={each.name: str(each.type) for each in RAW_SCHEMA})


def _write(path: Path, data: bytes, folders: set[Path]) -> None:
    _make_folder(path.parent, folders)
    path.write_bytes(data)


def _make_folder(folder: Path, made: set[Path]) -> None:
    if folder not in made:
        folder.mkdir(parents=True, exist_ok=True)
        made.add(folder)


def _write_project(bench: Bench) -> Path:
    """Write a project with the topic, as its commands find it."""
    project = bench.folder / "project"
    attributes = {"topic": TOPIC, "records_per_range": RANGE_OF, "max_keys": 1, "max_age_seconds": 0}
    document = {"type": COMPONENT, "attributes": attributes}
    files = plan_project(project, [TOPIC], None)
    write_project({**files, **{path: yaml.safe_dump(document) for path in files if path.name == "defs.yaml"}})
    return project


def _measure(bench: Bench, project: Path, command: Sequence[str]) -> tuple[float, int]:
    """Run a module in the project; return its seconds, its own where it prints them, and its peak of resident bytes."""
    log, began = bench.folder / "history.log", time.monotonic()
    with log.open("ab") as errors, (bench.folder / "history.out").open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=project, env=_environment(bench), stdout=printed, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - began
    said = (bench.folder / "history.out").read_text()
    if process.returncode:
        lines = log.read_text(errors="replace").splitlines()[-2:]
        raise ClientFailed(f"{' '.join(command)} ended with {process.returncode}: {' '.join(lines)}")
    if command[0] == history_client.__name__:
        seconds = json.loads(said)["seconds"]
    return seconds, usage.ru_maxrss * 1024


def _environment(bench: Bench) -> Mapping[str, str]:
    settings = bench.edges.settings
    others = {name: value for name, value in os.environ.items() if not name.startswith(("OFFSETLAKE_", "DAGSTER_"))}
    return {
        **others,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OFFSETLAKE_HOME": str(settings.home),
        "DAGSTER_HOME": str(settings.dagster_home),
        "OFFSETLAKE_LAKE": settings.lake,
        "OFFSETLAKE_BOOTSTRAP_SERVERS": bench.edges.bootstrap_servers(),
        "OFFSETLAKE_RAW_TABLE": "off",
    }
