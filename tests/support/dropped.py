"""A lake with six planned ranges of one topic, landed, compacted and dropped over real files without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.footer import canonicalize
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.manifest import Drop, Manifest
from pipeline_defs.core.log.plan_step import LogState
from pipeline_defs.core.log.planning import Policy, plan
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionOutcome, CompactionVerdict
from pipeline_defs.landing.attempt import Attempt, Tools
from pipeline_defs.landing.staging import stage_empty
from pipeline_defs.tables.compaction import compact
from pipeline_defs.tables.dropping import DropVerdict, drop_range_files, plan_dropping
from tests.support.arrow_files import ArrowFiles
from tests.support.strategies import EPOCH_MS, TOPIC, World, provenance

R = [OffsetRange(0, 0, start, start + 10) for start in range(0, 60, 10)]


def planned(folder: Path) -> Lake:
    """Plans six ranges of a topic in a new lake."""
    lake, topic = Lake(str(folder)), World()
    topic.grow(0, 60)
    step = plan(LogState(), topic.observe(LogState()), Policy(records_per_range=10), EPOCH_MS)
    assert step is not None and step.ranges == tuple(R)
    lake.commit_step(step)
    return lake


def land(lake: Lake, offsets: OffsetRange, revision: int = 0, value: bytes = b"v") -> Manifest:
    """Lands ten rows, as a revision."""
    count = len(offsets)
    at = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
    rows = pa.table(
        {
            "topic": [TOPIC] * count,
            "generation": pa.array([offsets.generation] * count, pa.int32()),
            "partition": pa.array([offsets.partition] * count, pa.int32()),
            "offset": range(offsets.start, offsets.end),
            "timestamp": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "value": pa.array([value] * count, pa.binary()),
        }
    )
    staged = f"staging/land{revision}-{offsets.key}/part.parquet"
    path = root(lake) / staged
    path.parent.mkdir(parents=True)
    pq.write_table(rows, path)
    canonicalize(path)
    part = parquet.read_part(path)
    assert part is not None
    file = parquet.staged_file(part, staged)
    manifest = Manifest(
        TOPIC, offsets, file, (), provenance(offsets), revision, schema=part.schema, drop=last_drop(lake, offsets)
    )
    assert lake.commit_manifest(manifest) == manifest and lake.publish(manifest) == manifest
    return manifest


def land_each(lake: Lake, ranges: Iterable[OffsetRange]) -> list[Manifest]:
    return [land(lake, offsets) for offsets in ranges]


def last_drop(lake: Lake, offsets: OffsetRange) -> Drop | None:
    """Return what the newest manifest of a range says of a drop, as the next one has to."""
    newest = another(lake).read_manifests(TOPIC).get(offsets)
    return newest.drop if newest else None


def run_compact(lake: Lake, on_step: StepWatcher = no_step, at_ms: int = EPOCH_MS) -> list[CompactionVerdict]:
    tools = Tools(
        lake, cast("Any", None), cast("Any", None), cast("Any", ArrowFiles()), "group", lambda: at_ms, on_step=on_step
    )
    return list(compact(TOPIC, Attempt(f"compact-{uuid.uuid4().hex[:6]}", "no-run", "test"), tools, 10**9, every=True))


def drop(lake: Lake, on_step: StepWatcher = no_step) -> list[DropVerdict]:
    return list(drop_range_files(TOPIC, lake, plan_dropping(TOPIC, lake, 2**53, 0), EPOCH_MS, on_step))


def view(lake: Lake) -> list[int]:
    """Are the offsets that a view shows that is opened now."""
    rows = Duck(another(lake), [TOPIC]).query(f'SELECT "offset" FROM "{TOPIC}" ORDER BY ALL')[1]
    return [offset for (offset,) in rows]


def root(lake: Lake) -> Path:
    assert isinstance(lake.store, DiskStore)
    return lake.store.folder


def another(lake: Lake) -> Lake:
    """Is the lake as another process has it, which has read nothing yet."""
    return Lake(str(root(lake)))


def compacted(lake: Lake, count: int = 3) -> tuple[list[Manifest], Path]:
    """Has the first ranges landed and compacted to one file; returns where that is, too."""
    manifests = land_each(lake, R[:count])
    (verdict,) = run_compact(lake)
    assert verdict.outcome is CompactionOutcome.COMPACTED and verdict.file is not None
    return manifests, root(lake) / raw_table_log(TOPIC, lake.store).folder / verdict.file.path


def dropped(lake: Lake, count: int = 3) -> tuple[list[Manifest], Path]:
    """Has the first ranges landed, compacted and dropped."""
    manifests, path = compacted(lake, count)
    assert drop(lake) == [DropVerdict(offsets) for offsets in R[:count]]
    return manifests, path


def shown(lake: Lake) -> list[str]:
    """Are the names of what a plain glob finds."""
    return sorted(path.name.split("-")[0].lstrip("0") or "0" for path in (root(lake) / "data").rglob("*.parquet"))


def damage(path: Path) -> None:
    before = path.read_bytes()
    path.write_bytes(before[:-9] + b"x" + before[-8:])


def replace_by_nothing(lake: Lake, manifest: Manifest) -> None:
    """Has a range land as one that Kafka has no record of any more: its file is one without rows."""
    attempt = Attempt("empty", "no-run", "test")
    file = stage_empty(manifest.offsets.key, manifest.offsets, attempt, lake)
    holes = (Interval(manifest.offsets.start, manifest.offsets.end, Cause.COMPACTED),)
    place = provenance(manifest.offsets)
    drop = last_drop(lake, manifest.offsets)
    newer = Manifest(TOPIC, manifest.offsets, file, holes, place, 1, schema=manifest.schema, drop=drop)
    assert lake.commit_manifest(newer) == newer and lake.publish(newer) == newer
