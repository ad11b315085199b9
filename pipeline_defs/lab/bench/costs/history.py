"""What a long history costs: a topic with so many landed ranges, laid out exactly as real ones, and who has to read it.

Plan steps are the planner's own, manifests and files are written at once, without waiting for the disk. The raw table has all
of them, but for the newest in compacted files. Dagster has no keys of them (`max_keys: 1`). Each figure is of a process of its
own, with that process's peak of memory.
"""

import hashlib
import io
import os
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ....adapters.lake.lake import Lake
from ....adapters.lake.layout import data_path, manifest_path
from ....adapters.lake.parquet import RAW_SCHEMA
from ....adapters.tables.delta_log import raw_table_log
from ....core.log.cutting import Policy
from ....core.log.latency import WINDOW_MS
from ....core.log.manifest import Manifest, Provenance, StagedFile
from ....core.log.plan_step import LogState, PlanStep
from ....core.log.planning import plan
from ....core.offsets import OffsetRange
from ....core.raw_columns import RAW_COLUMNS
from ....core.steps import no_step
from ....core.tables.delta import Commit
from ....core.tables.raw_table import COLUMNS, SETTLED, compacted_file, compacted_name
from ....landing.appending import append_landed, write_checkpoint_if_due
from ....orchestration.home.project import COMPONENT, plan_project, write_project
from ...processes import variables_of
from ..measurement import Bench, Tell
from ..rounds import Load
from . import clients
from .client_cost import run_client

PARTITIONS = 8
NEW_RANGES = 10  # that the run lands
TOPIC = "bench-history"
RANGE_OF = 1  # offsets: a range costs the same, whatever is in it
POLICY = Policy(records_per_range=RANGE_OF, budget=200)
VALUE_BYTES = 10
STEPS_PER_FRONTIER = 50
COMPACTED_AT = 10_000  # ranges of the table; a topic with fewer has a file of each


def measure_history(bench: Bench, ranges: int, tell: Tell) -> dict[str, Any]:
    """Measure one topic with so many landed ranges; return seconds, and the largest peak of a process in MB."""
    bench.fill(Load(TOPIC, VALUE_BYTES, ranges + NEW_RANGES, RANGE_OF, PARTITIONS), tell)
    tell(f"{ranges:,} ranges: writing them as landed")
    write_history(bench, ranges)
    os.sync()  # else whoever waits for the disk next waits for all of it
    project = _write_project(bench)
    found: dict[str, Any] = {"ranges": ranges}
    peaks = []
    for figures, act in {
        ("open_seconds",): partial(run_client, clients.open_history, name=TOPIC),
        ("planning_tick_seconds", "tick_seconds"): partial(run_client, clients.tick_twice, name=TOPIC),
        ("run_seconds",): partial(run_client, clients.run_pending, name=TOPIC),
        ("status_seconds",): partial(run_client, clients.run_command, words=["status", TOPIC, "--json"]),
        ("trace_seconds",): partial(run_client, clients.run_command, words=["trace", TOPIC, "0", "0", "--json"]),
    }.items():
        tell(f"{ranges:,} ranges: {figures[-1]}")
        began = time.monotonic()
        _, (seconds, peak_bytes) = act(folder=project, environment=variables_of(bench.adapters.settings))
        seconds = seconds or [time.monotonic() - began]
        tell(f"{ranges:,} ranges: {figures[-1]} {seconds[-1]:.2f}, {peak_bytes / 1e6:.0f} MB")
        found |= {figure: round(each, 2) for figure, each in zip(figures, seconds, strict=True)}
        peaks.append(peak_bytes)
    return {**found, "peak_mb": round(max(peaks) / 1e6)}


def write_history(bench: Bench, ranges: int) -> None:
    """Write a plan log and as many landed ranges as it plans."""
    root = Path(bench.adapters.settings.lake)
    now_ms, log_state, planned = bench.adapters.now_ms() - 2 * WINDOW_MS, LogState(), 0
    lake = bench.adapters.lake
    state = bench.adapters.kafka().read_topic_state(TOPIC, log_state, POLICY, now_ms)
    uncompacted: list[OffsetRange] = []
    while planned < ranges:
        policy = Policy(records_per_range=RANGE_OF, budget=min(POLICY.budget, ranges - planned))
        step = plan(log_state, state, policy, now_ms)
        assert step is not None
        _write(root / f"plan/{TOPIC}/{step.seq:020d}.json", step.to_json())
        write_landed(root, TOPIC, step)
        log_state, planned, uncompacted = step.after(log_state), planned + len(step.ranges), [*uncompacted, *step.ranges]
        if len(uncompacted) >= COMPACTED_AT:
            _add_compacted(uncompacted, lake, now_ms)
            uncompacted = []
        if step.seq % STEPS_PER_FRONTIER == 0 or planned == ranges:
            lake.begin(lake.recent(TOPIC).log, [step])
            lake.move_frontier(lake.recent(TOPIC), now_ms, 0)
    append_landed(TOPIC, lake, lambda: now_ms)


def write_landed(root: Path, topic: str, step: PlanStep) -> None:
    """Write the ranges of a plan step as they are once they are landed, below a lake's folder: one file with many names."""
    content = _file_of(topic, [OffsetRange(0, 0, 0, RANGE_OF)])  # all others have its bytes, which nobody reads
    digest, at_ms = hashlib.sha256(content).hexdigest(), step.planned_at_ms
    source = root / "staging" / "history" / topic / f"{step.seq}.parquet"
    _write(source, content)
    for offsets in step.ranges:
        staged = f"staging/00000000-00000000/{offsets.key}.parquet"
        file = StagedFile(staged, len(content), digest, 1, offsets.start, offsets.start, at_ms, at_ms)
        provenance = Provenance("bench", "0" * 36, "bench", "bench", step.seq, step.topic_id, at_ms, 0.1)
        columns = {each.name: str(each.type) for each in RAW_SCHEMA}
        manifest = Manifest(topic, offsets, file, (), provenance, schema=columns)
        _write(root / manifest_path(topic, offsets, 0), manifest.to_json())
        path = root / data_path(topic, offsets)
        _make_folder(path.parent)
        os.link(source, path)


def _add_compacted(ranges: Sequence[OffsetRange], lake: Lake, now_ms: int) -> None:
    """Add ranges to the raw table as a compaction leaves them there: one file of each Kafka partition."""
    log = raw_table_log(TOPIC, lake.store)
    table = log.read_head()
    added, transactions = [], {SETTLED: table.transactions.get(SETTLED, 0) + len(ranges), COLUMNS: len(RAW_COLUMNS)}
    for partition in range(PARTITIONS):
        own = [each for each in ranges if each.partition == partition]
        offsets = OffsetRange(0, partition, own[0].start, own[-1].end)
        name, content = compacted_name(offsets, str(uuid.uuid4())), _file_of(TOPIC, own)
        lake.store.put_new(f"{log.folder}/{name}", content, "staging/history")
        at = name, len(content), hashlib.sha256(content).hexdigest(), len(own), offsets.start, offsets.end - 1
        added.append(compacted_file(name, offsets, StagedFile(*at, now_ms, now_ms), {}, now_ms, len(content)))
        transactions |= dict.fromkeys((f"g0/p{partition}", f"g0/p{partition}/end"), offsets.end)
    assert log.commit(Commit(added, {}, transactions), table, now_ms)
    write_checkpoint_if_due(TOPIC, log, table.version + 1, no_step)


def _file_of(topic: str, ranges: Sequence[OffsetRange]) -> bytes:
    """Return a file with the rows of some ranges."""
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    row = {"topic": topic, "generation": 0, "timestamp": moment, "timestamp_type": 0, "key": b"k"}
    row |= {"value": b"v" * VALUE_BYTES, "headers": []}
    rows = [{**row, "partition": each.partition, "offset": each.start} for each in ranges]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, RAW_SCHEMA), buffer)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    _make_folder(path.parent)
    path.write_bytes(data)


@cache
def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _write_project(bench: Bench) -> Path:
    """Write a project with the topic, as its commands find it."""
    project = bench.folder / "project"
    attributes = {"topic": TOPIC, "records_per_range": RANGE_OF, "max_keys": 1, "max_age_seconds": 0}
    document = {"type": COMPONENT, "attributes": attributes}
    files = plan_project(project, [TOPIC], None)
    write_project({**files, **{path: yaml.safe_dump(document) for path in files if path.name == "defs.yaml"}})
    return project
