"""A lake that is read again and again: what has not changed is not worked out again, and every change is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.system import locks
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from tests.support.strategies import TOPIC, first_step, provenance, staged_file

FIRST, SECOND = OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Is a lake with two planned ranges."""
    lake, step = Lake(str(tmp_path)), first_step(20)
    assert step.ranges == (FIRST, SECOND)
    lake.commit_step(step)
    return lake


def stage(lake: Lake, offsets: OffsetRange, attempt: str = "a") -> Manifest:
    """Stages a file of a range, and returns the manifest that names it."""
    file = replace(staged_file(offsets, range(offsets.start, offsets.end)), path=f"staging/{attempt}/{offsets.key}.parquet")
    assert isinstance(lake.store, DiskStore)
    path = lake.store.folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"parquet")
    return Manifest(TOPIC, offsets, replace(file, bytes=len(b"parquet")), (), provenance(offsets))


def state(lake: Lake, offsets: OffsetRange = FIRST) -> State:
    return lake.coverage(TOPIC).states()[offsets]


def test_of_an_idle_topic_only_the_lists_are_read(lake: Lake) -> None:
    """[R-56] A tick with nothing to do costs next to nothing, however many ranges there are."""
    manifest = stage(lake, FIRST)
    lake.commit_manifest(manifest)
    lake.publish(manifest)
    assert lake.coverage(TOPIC) is lake.coverage(TOPIC)


def test_a_committed_range_whose_staged_file_goes_away_is_unfinished_no_longer(lake: Lake, tmp_path: Path) -> None:
    """No list tells that: so a coverage with unfinished ranges is never kept."""
    manifest = stage(lake, FIRST)
    lake.commit_manifest(manifest)
    assert lake.coverage(TOPIC).unfinished == {FIRST} and manifest.file is not None
    (tmp_path / manifest.file.path).unlink()
    assert lake.coverage(TOPIC).unfinished == set()


def test_a_manifest_that_another_took_the_place_of_is_seen_by_who_wrote_it(lake: Lake, tmp_path: Path) -> None:
    """[R-16] Somebody deletes it before the writer lists, and the next attempt's is as large."""
    mine, other = stage(lake, FIRST, "a"), stage(lake, FIRST, "b")
    assert lake.commit_manifest(mine) == mine
    path = tmp_path / manifest_path(TOPIC, FIRST, 0)
    size = path.stat().st_size
    path.unlink()
    Lake(str(tmp_path)).commit_manifest(other)
    assert path.stat().st_size == size, "the fault"
    assert lake.coverage(TOPIC).manifests == {FIRST: other}


def test_who_stands_still_with_the_lock_holds_nobody_up(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-60] What is published is published without it; else whoever waits is told, and publishes when it is gone."""
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.05)
    first, second = stage(lake, FIRST), stage(lake, SECOND)
    for manifest in (first, second):
        lake.commit_manifest(manifest)
    lake.publish(first)
    with locks.hold(tmp_path / manifest_path(TOPIC, FIRST, 0)), locks.hold(tmp_path / manifest_path(TOPIC, SECOND, 0)):
        assert lake.publish(first) == first
        with pytest.raises(LakeUnavailable, match=r"another process holds the lock of .* nothing is lost"):
            lake.publish(second)
        assert state(lake, SECOND) is State.PENDING
    assert lake.publish(second) == second and state(lake, SECOND) is State.LANDED
