"""A lake that is read again and again: what has not changed is not worked out again, and every change is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path
from pipeline_defs.adapters.system import locks
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.offsets import OffsetRange
from tests.support.interleaving import SmallWorld
from tests.support.redecoding import land_rows
from tests.support.strategies import TOPIC, first_step, landed

FIRST, SECOND = OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Is a lake with two planned ranges."""
    lake, step = Lake(str(tmp_path)), first_step(20)
    assert step.ranges == (FIRST, SECOND)
    lake.commit_step(step)
    return lake


def test_of_an_idle_topic_only_the_lists_are_read(lake: Lake) -> None:
    """[R-56] A tick with nothing to do costs next to nothing, however many ranges there are."""
    land_rows(lake, FIRST, [b"v"] * len(FIRST))
    assert lake.coverage(TOPIC) is lake.coverage(TOPIC)


@pytest.mark.usefixtures("watched")
def test_a_committed_range_whose_staged_file_goes_away_is_unfinished_no_longer(tmp_path: Path) -> None:
    """No list tells that: so a coverage with unfinished ranges is never kept."""
    world = SmallWorld(tmp_path, "disk", records=3, grid=3)
    world.die("commit")
    assert world.coverage.unfinished == {world.first.offsets}
    world.drop_staging()
    assert world.coverage.unfinished == set()


def test_a_manifest_that_another_took_the_place_of_is_seen_by_who_wrote_it(lake: Lake, tmp_path: Path) -> None:
    """[R-16] Somebody deletes it before the writer lists, and the next attempt's is as large."""
    mine, other = landed(FIRST, attempt="a"), landed(FIRST, attempt="b")
    assert lake.commit_manifest(mine) == mine
    path = tmp_path / manifest_path(TOPIC, FIRST, 0)
    size = path.stat().st_size
    path.unlink()
    Lake(str(tmp_path)).commit_manifest(other)
    assert path.stat().st_size == size, "the fault"
    assert lake.coverage(TOPIC).manifests == {FIRST: other}


@pytest.mark.usefixtures("watched")
def test_who_stands_still_with_the_lock_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-60] What is published is published without it; else whoever waits is told, and publishes when it is gone."""
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.05)
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    one, two = world.coverage.log.ranges
    world.land(only=one)
    world.die("commit", only=two)
    lake, (first, second) = world.lake, (world.coverage.manifests[each] for each in (one, two))
    with locks.hold(tmp_path / manifest_path(TOPIC, one, 0)), locks.hold(tmp_path / manifest_path(TOPIC, two, 0)):
        assert lake.publish(first) == first
        with pytest.raises(LakeUnavailable, match=r"another process holds the lock of .* nothing is lost"):
            lake.publish(second)
        assert world.coverage.pending() == [two]
    assert lake.publish(second) == second and world.coverage.pending() == []
