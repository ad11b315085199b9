"""A stale attempt cannot replace a landed range: another process is paused, overtaken, and let go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.orchestration.runs.ledger import read_ledger
from tests.support.killing import stopped_at
from tests.support.world import World


def files(world: World) -> dict[Path, int]:
    """Returns the published files with their inodes: another file under the same name has another one."""
    return {path: path.stat().st_ino for path in (world.lake_folder / "data").rglob("*.parquet")}


def reported_outcomes(world: World) -> dict[str, str]:
    """Reads what the zombie's own run reported for each range."""
    records = world.instance.fetch_materializations(world.topic.asset_key, limit=100).records
    found = {}
    for record in records:
        event = record.asset_materialization
        assert event is not None and event.partition is not None
        found[event.partition] = str(event.metadata["outcome"].value)
    return found


@pytest.mark.parametrize("step", ["stage", *(pytest.param(step, marks=pytest.mark.long) for step in ("scan", "verify"))])
def test_a_zombie_before_its_commit_ends_as_superseded(world: World, step: str) -> None:
    """A is paused before its commit, B lands the ranges, A resumes: the content is B's, A's files are invisible.

    [R-16] [R-25]
    """
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    with stopped_at(world, "land", step) as zombie:
        assert world.rows() == [], "the zombie has published nothing yet"
        winner = world.land()
        assert {verdict.outcome for verdict in winner} == {Outcome.LANDED}
        landed, manifests = files(world), world.coverage.manifests
        zombie.resume()
    world.assert_all_landed_once()
    assert files(world) == landed
    assert world.coverage.manifests == manifests
    assert not list((world.lake_folder / "staging").rglob("*.parquet"))
    assert set(reported_outcomes(world).values()) == {Outcome.SUPERSEDED.value}


def test_a_zombie_after_its_commit_is_finished_by_another(world: World) -> None:
    """A dies still between commit and publish; B rolls it forward; A resumes and finds its work done.

    [R-23] [R-25]
    """
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    with stopped_at(world, "land", "commit") as zombie:
        assert len(world.coverage.manifests) == 1 and not files(world), "committed and not published"
        (verdict,) = world.land()
        assert verdict.outcome is Outcome.ROLLED_FORWARD
        landed = files(world)
        world.assert_all_landed_once()
        zombie.resume()
    assert files(world) == landed
    world.assert_all_landed_once()


def kill_after_commit(world: World) -> Manifest:
    """Has an attempt die between commit and publish, and returns what it committed."""
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    with stopped_at(world, "land", "commit"):
        (manifest,) = world.coverage.manifests.values()
    return manifest


def assert_landed_as_committed(world: World, manifest: Manifest) -> None:
    (verdict,) = world.land()
    assert verdict.outcome is Outcome.LANDED
    assert verdict.manifest is not None and verdict.manifest.revision == manifest.revision + 1
    assert verdict.manifest.digest == manifest.digest
    world.assert_all_landed_once()


def test_a_commit_whose_staged_file_is_gone_is_landed_again_with_the_same_digest(world: World) -> None:
    """Killed between commit and publish, and staging wiped: the range is read again, and the digest must match.

    [R-24]
    """
    manifest = kill_after_commit(world)
    for staged in (world.lake_folder / "staging").rglob("*.parquet"):
        staged.unlink()
    assert_landed_as_committed(world, manifest)


def test_a_torn_staged_file_is_not_rolled_forward(world: World) -> None:
    """Killed between commit and publish, and the staged file is not what was committed: a glob never shows it.

    [R-24]
    """
    manifest = kill_after_commit(world)
    assert manifest.file is not None
    staged = world.lake_folder / manifest.file.path
    staged.write_bytes(staged.read_bytes()[:-100] + bytes(100))
    assert_landed_as_committed(world, manifest)


@pytest.mark.parametrize("delivery", [Delivery.EFFECTIVELY_ONCE, Delivery.AT_MOST_ONCE])
def test_a_committed_range_of_a_recreated_topic_is_published(world: World, delivery: Delivery) -> None:
    """Killed between commit and publish, and the topic is recreated: what is decided is finished, and not called lost.

    [R-60]
    """
    world.topic = dataclasses.replace(world.topic, delivery=delivery)
    kill_after_commit(world)
    world.recreate_topic()
    assert not world.rows()
    world.tick()
    world.launch()
    world.assert_all_landed_once()
    assert not read_ledger(world.topic, world.edges)


def test_without_a_zombie_the_run_lands_by_itself(world: World) -> None:
    """[R-25] The control: the same child, not overtaken, reports its ranges as landed."""
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    with stopped_at(world, "land", "verify") as child:
        child.resume()
    world.assert_all_landed_once()
    assert reported_outcomes(world) == {"0-0-100": Outcome.LANDED.value}
