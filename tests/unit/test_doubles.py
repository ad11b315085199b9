"""Files that attempts without a fence leave beside the landed one: allowed for a crash, and gone once a replace has decided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_defs.auditing import check_published, check_tiling
from pipeline_defs.core.delivery import Delivery
from pipeline_defs.core.losses import all_losses
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.store import Store
from tests.support.fake_log import COMMITTED, TOPIC
from tests.support.interleaving import Dead, SmallWorld, Writer, watch_obstore


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_obstore(monkeypatch)


@pytest.fixture(params=["disk", "bucket"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """A range that is landed at least once, and doubled by the file of an attempt that died before it had committed."""
    made = SmallWorld(tmp_path, request.param, records=4, grid=4)
    made.delivery = Delivery.AT_LEAST_ONCE
    die_in(made, "land", "publish")
    made.land()
    assert made.shown() == dict.fromkeys(range(4), 2), "the fault"
    assert made.coverage.pending() == [] and check_tiling(TOPIC, made.lake).passed, "what the policy allows a crash"
    made.kafka.compact(100)
    return made


def die_in(world: SmallWorld, mode: str, at: str) -> None:
    def die(passed: str, **_: object) -> None:
        if passed == at:
            raise Dead

    with pytest.raises(Dead):
        world.land(mode, on_step=die)


def assert_whole(world: SmallWorld) -> None:
    assert world.shown() == dict.fromkeys(world.in_kafka(), 1)
    assert world.coverage.pending() == [] and check_tiling(TOPIC, world.lake).passed
    assert check_published(TOPIC, world.lake).passed


@pytest.mark.parametrize("at", ["commit", "publish"])
@pytest.mark.parametrize("mode", ["land", "redo", "replace"])
@pytest.mark.parametrize("policy", Delivery)
def test_a_replace_that_dies_before_it_deleted_the_doubles_is_finished_by_the_next_run(
    world: SmallWorld, at: str, mode: str, policy: Delivery
) -> None:
    """[R-37] Whoever goes over the range first, under whatever policy; until then it is pending, and the audit says so."""
    die_in(world, "replace", at)
    world.lake = world.open(Writer())
    assert max(world.shown().values()) == 2, "the fault"
    assert len(world.coverage.pending()) == 1, "a tick asks for it"
    (violation, *_) = check_tiling(TOPIC, world.lake).violations
    assert f"the next run, or `offsetlake land {TOPIC} --pending`, deletes it" in violation
    world.land(mode, delivery=policy)
    assert_whole(world)


def test_a_stale_attempt_that_publishes_after_a_replace_is_cleaned_up_by_the_next_run(world: SmallWorld) -> None:
    """[R-37] It read the range before the replace, and knows of no manifest."""
    stale = next(iter(world.files().items()))
    world.land("replace")
    assert_whole(world)
    world.lake.store.put_new(stale[0].replace(".parquet", "x.parquet"), stale[1], "staging/stale")
    assert world.coverage.pending() != []
    world.land()
    assert_whole(world)


def test_what_kafka_no_longer_has_is_whole_after_it_too(world: SmallWorld) -> None:
    """[R-37] Nothing is read for it, and what is landed is no loss."""
    die_in(world, "replace", "publish")
    shown = world.in_kafka()
    world.kafka.expire(0, 100)
    marks = world.kafka.read_watermarks(TOPIC, COMMITTED)
    assert world.coverage.pending() and all_losses(world.coverage, marks) == []
    world.land()
    assert world.shown() == dict.fromkeys(shown, 1) and check_tiling(TOPIC, world.lake).passed


def test_a_replace_deletes_doubles_of_what_kafka_no_longer_has(world: SmallWorld) -> None:
    """[R-37] As the audit advises after a change of policy: the landed file is held against its digest first."""
    world.kafka.expire(0, 100)
    (verdict,) = world.land("replace")
    assert verdict.outcome is Outcome.EXPIRED
    assert world.shown() == dict.fromkeys(range(4), 1)


def test_a_double_that_cannot_be_deleted_fails_its_range_and_is_asked_for_again(
    world: SmallWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-15] The run goes on, and says so."""
    die_in(world, "replace", "publish")
    delete: Callable[[Store, str], None] = Store.delete_folder

    def refuse(store: Store, prefix: str) -> None:
        with store.explained("delete", prefix):
            if prefix.startswith("data/"):
                raise PermissionError(13, "not yours", prefix)
        delete(store, prefix)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "delete_folder", refuse)
        (verdict,) = world.land()
        assert verdict.outcome is Outcome.FAILED and "not yours" in verdict.violations[0]
        assert len(world.coverage.pending()) == 1
    world.land()
    assert_whole(world)
