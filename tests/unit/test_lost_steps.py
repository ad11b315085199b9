"""A plan log that has lost its newest steps: nothing is planned or landed on, so no row is shown twice, and it is said."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.core.errors import BrokenPlanLog, BrokerUnavailable
from pipeline_defs.core.log import settling
from pipeline_defs.core.log.delivery import Acceptance, Delivery
from pipeline_defs.core.log.plan_step import PlanStep
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.landing.auditing import check_tiling
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.pulse.ticking import run_tick
from pipeline_defs.resources import Edges
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, Writer, watch_obstore
from tests.support.strategies import EPOCH_MS

KINDS = ["disk", "bucket"]


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_obstore(monkeypatch)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """A topic with a landed step."""
    made = SmallWorld(tmp_path, request.param)
    made.land()
    return made


def lose_steps(world: SmallWorld, count: int) -> dict[str, bytes]:
    """Have the newest steps go, and return what went."""
    paths = sorted(world.lake.store.list(f"plan/{TOPIC}"))[-count:]
    lost = {path: world.lake.store.get(path) or b"" for path in paths}
    for path in paths:
        world.lake.store.delete_folder(path)
    world.lake = world.open(Writer())
    return lost


def everything(world: SmallWorld) -> dict[str, bytes | None]:
    """Read all that is in the lake but for what is staged."""
    trees = ["accepted", "claims", "data", "manifests", "plan", "retired"]
    return {path: world.lake.store.get(path) for tree in trees for path in world.lake.store.list(tree)}


def land_it(world: SmallWorld) -> None:
    world.land()


def land_and_lose_files(world: SmallWorld) -> None:
    world.land()
    for path in list(world.files())[2:]:
        world.lake.store.delete_folder(path)


def land_and_lose_manifests(world: SmallWorld) -> None:
    world.land()
    for path in sorted(world.lake.store.list("manifests"))[2:]:
        world.lake.store.delete_folder(path)


def publish_at_least_once(world: SmallWorld) -> None:
    world.die("publish", delivery=Delivery.AT_LEAST_ONCE)


def claim(world: SmallWorld) -> None:
    world.die("scan", delivery=Delivery.AT_MOST_ONCE)


def accept_loss(world: SmallWorld) -> None:
    (offsets,) = world.coverage.pending()
    world.lake.commit_acceptance(Acceptance(TOPIC, offsets, (offsets.start, offsets.end), "somebody", 0))


EVIDENCE = [land_it, land_and_lose_files, land_and_lose_manifests, publish_at_least_once, claim, accept_loss]


@pytest.mark.parametrize("leave_evidence", EVIDENCE)
def test_a_log_that_lost_its_newest_step_is_not_planned_or_landed_on(
    world: SmallWorld, leave_evidence: Callable[[SmallWorld], None]
) -> None:
    """[R-2] Whatever the lake has of what the step planned; nothing is written, and once it is restored all goes on."""
    world.grow(2)
    leave_evidence(world)
    lost = lose_steps(world, 1)
    before = everything(world)
    world.append(2)
    with pytest.raises(BrokenPlanLog, match=rf"steps are lost.*restore plan/{TOPIC}"):
        world.plan()
    with pytest.raises(BrokenPlanLog, match=f"{TOPIC}/0"):
        world.land()
    assert everything(world) == before
    violation, place = check_tiling(TOPIC, world.lake).violations
    assert f"{TOPIC}/0 [6, 8)" in violation
    assert place == f"1 ranges in */{TOPIC}/g0/p0000/*, from the name {6:020d}-{8:020d} on", (
        "what to move, where no backup is"
    )

    for path, data in lost.items():
        world.lake.store.put_new(path, data, "staging/restore")
    world.plan()
    world.land()
    assert check_tiling(TOPIC, world.lake).passed or world.coverage.doubles
    assert set(world.coverage.log.ranges) > set(world.coverage.pending())


@pytest.mark.parametrize("leave_evidence", EVIDENCE[:-1])
def test_who_has_read_the_log_before_sees_that_a_step_since_is_lost(
    world: SmallWorld, leave_evidence: Callable[[SmallWorld], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-96] By one name, whatever the lake has of what it planned; the control is the same step, there."""
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    for _ in range(2):
        world.grow(2)
        world.land()
    assert world.lake.move_frontier(world.coverage, EPOCH_MS, 0)
    stale = world.open(Writer())
    log = stale.recent(TOPIC).log
    assert log.base is not None and stale.goes_on(log)
    world.grow(2)
    leave_evidence(world)
    assert not stale.goes_on(log), "it is not the newest step any more"
    lose_steps(world, 1)
    with pytest.raises(BrokenPlanLog, match="steps are lost"):
        stale.goes_on(log)


def test_of_two_who_begin_the_newest_step_stands(world: SmallWorld) -> None:
    """[R-96] Whichever call of the store one is overtaken at by the other."""
    world.grow(2)
    first, second = world.coverage.log.steps
    overtaken = []
    for older, newer, number in product((first, second), (first, second), range(8)):

        def overtake(call: int, number: int = number, newer: PlanStep = newer) -> None:
            if call == number:
                world.open(Writer()).begin(TOPIC, [newer])
                overtaken.append(number)

        world.lake.store.delete_folder(f"begun/{TOPIC}")
        before = len(overtaken)
        world.open(Writer(before=overtake)).begin(TOPIC, [older])
        newest = max(older.seq, newer.seq) if len(overtaken) > before else older.seq
        assert max(world.lake.store.list(f"begun/{TOPIC}")) == f"begun/{TOPIC}/{newest:020d}"
    assert len(overtaken) >= 8, "the control: there are that many calls"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_row_is_shown_twice_after_the_newest_steps_are_lost(world: SmallWorld, count: int) -> None:
    """[R-17] One, several, or the whole plan folder: planned again from an older head, ranges would have other ends."""
    for _ in range(2):
        world.grow(2)
        world.land()
    lose_steps(world, count)
    with suppress(BrokenPlanLog):
        world.grow(5)
        world.land()
    assert world.shown() == dict.fromkeys(range(10), 1)


def test_a_lost_step_that_nothing_was_landed_of_is_planned_again(world: SmallWorld) -> None:
    """[R-17] Nobody can know of it, and no row is missing or doubled for it."""
    world.grow(2)
    lose_steps(world, 1)
    world.grow(5)
    world.land()
    assert check_tiling(TOPIC, world.lake).passed and world.shown() == dict.fromkeys(world.in_kafka(), 1)


def test_a_middle_step_that_is_lost_is_named(world: SmallWorld) -> None:
    """[R-2] The control of the newest one."""
    world.grow(2)
    world.grow(2)
    world.lake.store.delete_folder(sorted(world.lake.store.list(f"plan/{TOPIC}"))[1])
    with pytest.raises(BrokenPlanLog, match="expected plan step 1, found 2"):
        world.plan()


def test_without_a_backup_what_the_lost_step_planned_can_be_moved_away_and_is_landed_again(world: SmallWorld) -> None:
    """[R-2] As the runbook says."""
    world.grow(2)
    world.land()
    lose_steps(world, 1)
    for path in everything(world):
        if "00000006-" in path:
            world.lake.store.delete_folder(path)
    world.grow(5)
    world.land()
    assert check_tiling(TOPIC, world.lake).passed and world.shown() == dict.fromkeys(range(13), 1)


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("kind", KINDS)
def test_no_step_is_called_lost_that_another_process_plans_meanwhile(
    tmp_path: Path, kind: str, delivery: Delivery
) -> None:
    """[R-2] Another one plans and lands between any two calls of the store, and whoever reads or plans sees a whole log."""
    world = SmallWorld(tmp_path, kind)
    overtaken = 0
    for number in range(30):

        def overtake(call: int, number: int = number) -> None:
            nonlocal overtaken
            if call == number:
                world.lake = world.open(Writer())
                world.grow(2)
                world.land(delivery=delivery)
                overtaken += 1

        reader = world.open(Writer(before=overtake))
        reader.coverage(TOPIC)
    assert overtaken > 6, "the control: there are that many calls"


def test_status_and_tick_say_it_of_that_topic_alone(tmp_path: Path) -> None:
    """[R-2] The control is the same topic with its step, whose broker is asked."""
    world = SmallWorld(tmp_path, "disk")
    world.land()
    named = {"OFFSETLAKE_LAKE": str(tmp_path), "DAGSTER_HOME": str(tmp_path / "dagster")}
    settings = read_settings({**named, "OFFSETLAKE_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    topic, other = Topic(TOPIC, Policy()), Topic("other", Policy())

    def kinds() -> list[str]:
        edges = Edges(settings, kafka_timeout_seconds=0.2)
        with dg.DagsterInstance.ephemeral() as instance:
            with pytest.raises((BrokenPlanLog, BrokerUnavailable)) as ticked:
                run_tick(topic, instance, edges)
            documents = [document for document, _ in read_statuses([topic, other], edges, instance)]
        return [ticked.value.kind, *(each["kind"] for each in documents)]  # type: ignore[attr-defined]

    assert kinds() == ["broker_unavailable"] * 3
    lose_steps(world, 1)
    assert kinds() == ["broken_plan_log", "broken_plan_log", "broker_unavailable"]
    assert Lake(str(tmp_path)).store.list(f"plan/{TOPIC}") == {}
