"""A lake with six planned ranges of one topic, landed, compacted and dropped over real files without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import LogState
from pipeline_defs.core.log.planning import Policy, plan
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionOutcome, CompactionVerdict
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.tables.compaction import compact
from pipeline_defs.tables.dropping import DropVerdict, drop_range_files, plan_dropping
from tests.support.arrow_files import ArrowFiles
from tests.support.fake_log import fake_tools
from tests.support.redecoding import land_rows
from tests.support.strategies import EPOCH_MS, TOPIC, World

R = [OffsetRange(0, 0, start, start + 10) for start in range(0, 60, 10)]


def planned(folder: Path) -> Lake:
    lake, topic = Lake(str(folder)), World()
    topic.grow(0, 60)
    step = plan(LogState(), topic.observe(LogState()), Policy(records_per_range=10), EPOCH_MS)
    assert step is not None and step.ranges == tuple(R)
    lake.commit_step(step)
    return lake


def land(lake: Lake, offsets: OffsetRange, revision: int = 0, value: bytes = b"v") -> Manifest:
    return land_rows(lake, offsets, [value] * len(offsets), revision)


def land_each(lake: Lake, ranges: Iterable[OffsetRange]) -> list[Manifest]:
    return [land(lake, offsets) for offsets in ranges]


def run_compact(lake: Lake, on_step: StepWatcher = no_step, at_ms: int = EPOCH_MS) -> list[CompactionVerdict]:
    tools = fake_tools(lake, None, None, files=ArrowFiles(), now_ms=lambda: at_ms, on_step=on_step)
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
    land_rows(lake, manifest.offsets, [], 1)
