"""A stale attempt cannot replace a landed range: another process is paused, overtaken, and let go on.

What else may happen between commit and publish is in `tests/model/test_standing_files.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_defs.core.landing.verdicts import Outcome
from tests.support.killing import stopped_at
from tests.support.world import World


def files(world: World) -> dict[Path, int]:
    """Returns the published files with their inodes: another file under the same name has another one."""
    return {path: path.stat().st_ino for path in (world.lake_folder / "data").rglob("*.parquet")}


def reported_outcomes(world: World) -> dict[str, str]:
    """Reads what the zombie's own run reported for each range."""
    records = world.instance.fetch_materializations(world.topic.asset_key, limit=100).records
    events = [record.asset_materialization for record in records]
    return {event.partition or "": str(event.metadata["outcome"].value) for event in events if event is not None}


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_zombie_before_its_commit_ends_as_superseded(world: World, is_overtaken: bool) -> None:
    """A is paused before its commit, B lands the ranges, A resumes: the content is B's, A's files are invisible.

    The control: the same child, not overtaken, reports its range as landed. [R-16] [R-25]
    """
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    with stopped_at(world, "land", "stage") as zombie:
        assert world.rows() == [], "the zombie has published nothing yet"
        if is_overtaken:
            assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
        landed, manifests = files(world), world.coverage.manifests
        zombie.resume()
    world.assert_all_landed_once()
    assert not is_overtaken or (files(world), world.coverage.manifests) == (landed, manifests)
    assert not list((world.lake_folder / "staging").rglob("*.parquet"))
    assert reported_outcomes(world) == {"0-0-100": (Outcome.SUPERSEDED if is_overtaken else Outcome.LANDED).value}
