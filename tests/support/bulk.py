"""A topic of very many ranges, all landed: planned by the real planner, and then written at once, not one by one.

Each range is one record on the broker, one manifest and one tiny Parquet file in the lake, one key and one materialisation
in Dagster's database: what landing would have left behind, in minutes instead of hours.
"""

import hashlib
import io
import sqlite3
import timeit
from collections.abc import Callable, Iterable
from contextlib import closing
from statistics import median

import pyarrow as pa
import pyarrow.parquet

from pipeline_defs.adapters.lake.layout import data_path, manifest_path
from pipeline_defs.core.log.manifest import Manifest, Provenance, StagedFile
from pipeline_defs.core.log.plan_step import PlanStep
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.orchestration.pulse.ticking import landed_event
from pipeline_defs.orchestration.runs.projection import register_keys
from tests.support.world import World

PARTITIONS = 4
STEPS_OF = 10_000  # what one planning step may add
REPEATS = 3


def fill(world: World, ranges: int) -> None:
    """Produces, plans and writes as landed so many ranges of one record; then gives Dagster their keys and events."""
    world.create_topic(PARTITIONS)
    world.with_policy(records_per_range=1, budget=min(ranges, STEPS_OF))
    for partition in range(PARTITIONS):
        world.operations.send(world.name, ({"partition": partition, "value": b"v"} for _ in range(ranges // PARTITIONS)))
    world.plan()
    planned = world.coverage.log.ranges
    assert len(planned) == ranges
    _write_landed(world, planned.items())
    register_keys(world.instance, world.topic, world.coverage)
    _write_events(world, [*planned])


def _write_landed(world: World, planned: Iterable[tuple[OffsetRange, PlanStep]]) -> None:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"value": [b"v"]}), buffer)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    root = world.lake_folder
    for offsets, step in planned:
        at_ms = step.planned_at_ms
        file = StagedFile(f"staging/bulk/{offsets.key}", len(content), digest, 1, offsets.start, offsets.start, at_ms, at_ms)
        provenance = Provenance("bulk", "no-run", "test", "test", step.seq, step.topic_id, at_ms, 0.1)
        manifest = Manifest(world.name, offsets, file, (), provenance)
        for path, data in (
            (data_path(world.name, offsets), content),
            (manifest_path(world.name, offsets, 0), manifest.to_json()),
        ):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)


def _write_events(world: World, ranges: list[OffsetRange]) -> None:
    """Reports the first range as ever, and the others by copies of its rows in Dagster's own database."""
    coverage, first = world.coverage, ranges[0]
    world.instance.report_runless_asset_event(landed_event(world.topic, first, coverage, world.edges))
    (index,) = world.settings.dagster_home.rglob("index.db")
    with closing(sqlite3.connect(index)) as database, database:
        columns = "run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition"
        find = f"SELECT id, {columns} FROM event_logs WHERE partition = ? ORDER BY id DESC"
        number, run_id, event, *middle, _ = database.execute(find, (first.key,)).fetchone()
        tags = database.execute(
            "SELECT asset_key, key, value, event_timestamp FROM asset_event_tags WHERE event_id = ?", (number,)
        ).fetchall()
        (last,) = database.execute("SELECT max(id) FROM event_logs").fetchone()
        copies = list(enumerate(ranges[1:], start=last + 1))
        database.executemany(
            f"INSERT INTO event_logs (id, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            ((at, run_id, event.replace(f'"{first.key}"', f'"{offsets.key}"'), *middle, offsets.key) for at, offsets in copies),
        )
        database.executemany(
            "INSERT INTO asset_event_tags (event_id, asset_key, key, value, event_timestamp) VALUES (?, ?, ?, ?, ?)",
            ((at, *tag) for at, _ in copies for tag in tags),
        )
    assert world.materialized() == {offsets.key for offsets in ranges}


def measure_beside(act: Callable[[], object], control: Callable[[], object]) -> tuple[float, float]:
    """Return the medians in seconds of what is measured and of its control, taken in turns after one each that warms up."""
    act()
    control()
    times = [(timeit.timeit(act, number=1), timeit.timeit(control, number=1)) for _ in range(REPEATS)]
    return median(each for each, _ in times), median(each for _, each in times)
