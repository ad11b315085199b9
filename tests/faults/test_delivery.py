"""Delivery policies: what a crash and a stale attempt do to rows under each, and no more.

Without a crash, and what else may happen between commit and publish, is in `tests/model/test_standing_files.py`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.losses import ABANDONED
from pipeline_defs.landing.auditing import check_tiling
from pipeline_defs.orchestration.runs.ledger import accept_loss, read_ledger
from pipeline_defs.topics import NOTHING_LOST
from tests.support.killing import stopped_at
from tests.support.world import World


def times_seen(world: World) -> Counter[int]:
    """Counts how often a plain glob shows each offset; every row must be one that was sent."""
    rows = world.rows()
    assert set(rows) <= set(world.sent.values())
    return Counter(row[1] for row in rows)


def test_at_most_once_abandons_what_a_crash_leaves(world: World) -> None:
    """[R-50] Killed after the claim: never read again by anybody, in the ledger by its offsets; what follows lands."""
    world.topic = dataclasses.replace(world.topic, delivery=Delivery.AT_MOST_ONCE)
    world.fill(150)
    world.tick()
    with stopped_at(world, "land", "stage"):
        assert [o.key for o in world.coverage.claims] == ["0-0-100"] and not world.rows(), "claimed, read, and not landed"
    world.tick()
    world.launch()  # what is of another scan had not been claimed
    assert not world.pending and times_seen(world) == Counter(range(100, 150))
    losses = read_ledger(world.topic, world.edges)
    assert [(loss.key, loss.cause) for loss in losses] == [("0-0-100", ABANDONED)]
    told = world.checked(world.topic.check_key(NOTHING_LOST))
    assert told is not None and not told.passed, "the sensor has told Dagster"
    (verdict,) = world.land(["0-0-100"])
    assert verdict.outcome is Outcome.FAILED and "never reads a range twice" in verdict.violations[0]

    accept_loss(world.topic, "0-0-100", world.edges, "somebody")
    world.send_numbered(30)
    world.tick()
    world.launch()
    assert times_seen(world) == Counter(range(100, 180))
    assert check_tiling(world.name, world.edges.lake).passed


# ---- a stale attempt: another process is paused, overtaken, and let go on


def files(world: World) -> dict[Path, int]:
    """Return the published files with their inodes: another file under the same name has another one."""
    return {path: path.stat().st_ino for path in (world.lake_folder / "data").rglob("*.parquet")}


def reported_outcomes(world: World) -> dict[str, str]:
    """Read what the zombie's own run reported for each range."""
    records = world.instance.fetch_materializations(world.topic.asset_key, limit=100).records
    events = [record.asset_materialization for record in records]
    return {event.partition or "": str(event.metadata["outcome"].value) for event in events if event is not None}


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_zombie_before_its_commit_ends_as_superseded(world: World, is_overtaken: bool) -> None:
    """A is paused before its commit, B lands the ranges, A resumes: the content is B's, A's files are invisible.

    The control: the same child, not overtaken, reports its range as landed. [R-16] [R-25]
    """
    world.fill(100)
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
