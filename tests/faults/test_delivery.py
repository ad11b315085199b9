"""Delivery policies: what a crash and a stale attempt do to rows under each, and no more."""

from __future__ import annotations

import dataclasses
from collections import Counter

import dagster as dg
import pytest

from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.losses import ABANDONED
from pipeline_defs.landing.auditing import check_tiling
from pipeline_defs.orchestration.runs.ledger import accept_loss, read_ledger
from pipeline_defs.topics import NOTHING_LOST
from tests.support.killing import stopped_at
from tests.support.world import World


def planned(world: World, delivery: Delivery) -> None:
    """Plans two ranges of one Kafka partition under a delivery policy."""
    world.topic = dataclasses.replace(world.topic, delivery=delivery)
    world.create_topic()
    world.send_numbered(150)
    world.tick()


def times_seen(world: World) -> Counter[int]:
    """Counts how often a plain glob shows each offset; every row must be one that was sent."""
    rows = world.rows()
    assert set(rows) <= set(world.sent.values())
    return Counter(row[1] for row in rows)


@pytest.mark.parametrize("delivery", Delivery)
def test_without_a_crash_every_policy_shows_each_row_once(world: World, delivery: Delivery) -> None:
    """[R-49] [R-50] The control: nobody is killed, everything is landed once, and a redo changes nothing."""
    planned(world, delivery)
    world.launch()
    world.assert_all_landed_once()
    assert check_tiling(world.name, world.edges.lake).passed
    again = world.land([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    assert {verdict.outcome for verdict in again} == {Outcome.UNCHANGED}
    world.assert_all_landed_once()


def test_at_least_once_lands_what_was_published_and_not_committed(world: World) -> None:
    """[R-49] Killed between publish and commit: the next attempt commits the file that is shown, so no row is doubled."""
    planned(world, Delivery.AT_LEAST_ONCE)
    with stopped_at(world, "land", "publish"):
        assert times_seen(world), "visible at once"
    # ranges are decided side by side: the other may have come further until the kill
    committed = world.coverage.manifests
    early = {offset for offset in times_seen(world) if not any(offset in offsets for offsets in committed)}
    assert early, "visible and not committed"
    world.tick()
    world.launch()
    assert not world.pending
    world.assert_all_landed_once()
    assert world.coverage.doubles == {} and check_tiling(world.name, world.edges.lake).passed


def test_at_least_once_lets_a_stale_attempt_double_rows(world: World) -> None:
    """[R-49] A is paused, B lands, A goes on: there is no fence, so both files are visible."""
    planned(world, Delivery.AT_LEAST_ONCE)
    with stopped_at(world, "land", "stage") as stale:
        world.land()
        world.assert_all_landed_once()
        stale.resume()
    assert set(times_seen(world).values()) == {2}


def test_at_most_once_abandons_what_a_crash_leaves(world: World) -> None:
    """[R-50] Killed after the claim: never read again by anybody, in the ledger by its offsets; what follows lands."""
    planned(world, Delivery.AT_MOST_ONCE)
    with stopped_at(world, "land", "stage"):
        assert [o.key for o in world.coverage.claims] == ["0-0-100"] and not world.rows(), "claimed, read, and not landed"
    world.tick()
    world.launch()  # what is of another scan had not been claimed
    assert not world.pending and times_seen(world) == Counter(range(100, 150))
    losses = read_ledger(world.topic, world.edges)
    assert [(loss.key, loss.cause) for loss in losses] == [("0-0-100", ABANDONED)]
    key = dg.AssetCheckKey(world.topic.losses_key, NOTHING_LOST)
    (event,) = world.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).values()
    assert event.status.value == "FAILED", "the sensor has told Dagster"
    (verdict,) = world.land(["0-0-100"])
    assert verdict.outcome is Outcome.FAILED and "never reads a range twice" in verdict.violations[0]

    accept_loss(world.topic, "0-0-100", world.edges, "somebody")
    world.send_numbered(30)
    world.tick()
    world.launch()
    assert times_seen(world) == Counter(range(100, 180))
    assert check_tiling(world.name, world.edges.lake).passed


def test_at_most_once_lands_by_the_attempt_that_claimed_and_by_no_other(world: World) -> None:
    """[R-50] A is paused after its claim, B is refused and lands what A has not claimed, A goes on and lands."""
    planned(world, Delivery.AT_MOST_ONCE)
    with stopped_at(world, "land", "stage") as first:
        outcomes = {verdict.offsets.key: verdict.outcome for verdict in world.land(["0-0-100", "0-100-150"])}
        assert outcomes == {"0-0-100": Outcome.FAILED, "0-100-150": Outcome.LANDED}
        first.resume()
    world.assert_all_landed_once()
    assert not read_ledger(world.topic, world.edges)


def test_at_most_once_finishes_what_is_committed(world: World) -> None:
    """[R-50] Killed between commit and publish: publishing what is staged is not reading twice."""
    planned(world, Delivery.AT_MOST_ONCE)
    with stopped_at(world, "land", "commit", nth=2):
        assert len(world.coverage.manifests) == 2
    world.tick()
    world.launch(sorted(world.coverage.manifests))
    world.assert_all_landed_once()
