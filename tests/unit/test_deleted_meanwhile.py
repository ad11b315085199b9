"""What somebody deletes, and another one is written in its place, while a process goes on that has read it before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path
from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.coverage import tiling_violations
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.landing.planner import Planner
from pipeline_defs.landing.sweeping import sweep_orphans
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, Writer
from tests.support.strategies import EPOCH_MS

pytestmark = pytest.mark.usefixtures("watched")

KINDS = ["disk", "bucket"]


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> SmallWorld:
    """A topic of one landed range."""
    made = SmallWorld(tmp_path, request.param, records=6, grid=6)
    made.land()
    return made


def lose_newest_step(world: SmallWorld) -> None:
    """Delete it as another process, and go on as one that has read nothing yet."""
    world.lake = world.open(Writer())
    world.lake.store.delete_folder(max(world.lake.store.list(f"plan/{TOPIC}")))


def tick(world: SmallWorld, lake: Lake, **options: Any) -> Any:
    kafka = cast("Any", world.kafka)
    return Planner(TOPIC, world.policy, lake, kafka, lambda: EPOCH_MS, "server").commit(through_end=True, **options)


def test_a_manifest_that_was_landed_anew_is_seen_by_who_has_read_the_one_before(world: SmallWorld) -> None:
    """[R-16] Dagster's code server lists now and then; the other one may be as large, or not."""
    server = world.open(Writer())
    assert server.coverage(TOPIC).pending() == []
    (before,) = world.coverage.manifests.values()
    world.kafka.compact(100)
    world.lake = world.open(Writer())
    world.lake.store.delete_folder(manifest_path(TOPIC, before.offsets, 0))
    world.land("replace")
    (now,) = world.coverage.manifests.values()
    assert now != before, "the control: it is another one"
    assert list(server.coverage(TOPIC).manifests.values()) == [now]
    assert server.coverage(TOPIC).pending() == [] and tiling_violations(server.coverage(TOPIC)) == []


@pytest.mark.parametrize("gap", ["between ticks", "inside a tick"])
def test_a_planner_that_goes_on_sees_a_step_that_was_planned_anew(world: SmallWorld, gap: str) -> None:
    """[R-10] The other step has as many bytes; what is written next tiles with it."""
    world.grow(2)
    server = world.open(Writer())
    known = server.coverage(TOPIC)
    lose_newest_step(world)
    world.grow(1)
    world.append(2)
    step = tick(world, server, **({"known": known} if gap == "inside a tick" else {}))
    assert [offsets.key for offsets in step.ranges] == ["0-9-11"]
    assert [offsets.key for offsets in world.open(Writer()).coverage(TOPIC).log.ranges] == ["0-0-6", "0-6-9", "0-9-11"]


def test_a_step_that_goes_while_kafka_is_asked_leaves_no_gap_in_the_log(world: SmallWorld) -> None:
    """[R-10] Nothing was landed of it: what it planned is planned again."""
    world.grow(2)
    world.append(3)
    honest, asked = world.kafka.read_topic_state, [0]

    def read_topic_state(*arguments: Any) -> Any:
        asked[0] += 1
        if asked[0] == 1:
            lose_newest_step(world)
        return honest(*arguments)

    cast("Any", world.kafka).read_topic_state = read_topic_state
    tick(world, world.open(Writer()))
    assert asked[0] > 1, "the control: the step had gone, and planning began again"
    world.lake = world.open(Writer())
    world.land()
    assert world.shown() == dict.fromkeys(range(11), 1)


def losing(world: SmallWorld, at: str, records: int = 3) -> Callable[..., None]:
    """Have the newest step go when a run has passed a step, and what it planned be planned otherwise and landed."""
    done = [False]

    def lose(step: str, **_: object) -> None:
        if step == at and not done[0]:
            done[0] = True
            lose_newest_step(world)
            world.grow(records)
            world.land()

    return lose


@pytest.mark.parametrize("at", ["find", "scan", "stage"])
@pytest.mark.parametrize("delivery", [Delivery.EFFECTIVELY_ONCE, Delivery.AT_LEAST_ONCE])
def test_a_run_does_not_commit_a_range_whose_step_was_planned_otherwise_meanwhile(
    world: SmallWorld, delivery: Delivery, at: str
) -> None:
    """[R-2] It read the log before; the range fails, no row is shown twice, and the log is whole."""
    world.delivery = delivery
    world.grow(2)
    (verdict,) = world.land(on_step=losing(world, at))
    assert verdict.offsets.key == "0-6-8" and verdict.outcome is Outcome.FAILED
    assert "which is gone or another one by now" in verdict.violations[0]
    assert world.shown() == dict.fromkeys(range(11), 1)
    assert [offsets.key for offsets in world.open(Writer()).coverage(TOPIC).log.ranges] == ["0-0-6", "0-6-11"]


def test_a_run_does_not_claim_a_range_whose_step_was_planned_otherwise_meanwhile(world: SmallWorld) -> None:
    """[R-2] The control: once it is claimed, the lake shows that a step is lost, and nobody plans."""
    world.delivery = Delivery.AT_MOST_ONCE
    world.grow(2)
    (verdict,) = world.land(on_step=losing(world, "find"))
    assert verdict.outcome is Outcome.FAILED and world.shown() == dict.fromkeys(range(11), 1)
    world.grow(2)
    with pytest.raises(BrokenPlanLog):
        world.land(on_step=losing(world, "claim"))
    assert world.shown() == dict.fromkeys(range(11), 1)


def test_a_run_lands_what_an_earlier_step_planned_whatever_became_of_the_newest(world: SmallWorld) -> None:
    """[R-2] Only the ranges of the step that is gone are refused."""
    world.grow(2)
    world.grow(2)

    def lose(step: str, **_: object) -> None:
        if step == "stage":
            lose_newest_step(world)

    outcomes = {verdict.offsets.key: verdict.outcome for verdict in world.land(on_step=lose)}
    assert outcomes == {"0-6-8": Outcome.LANDED, "0-8-10": Outcome.FAILED}
    world.lake = world.open(Writer())
    world.plan()
    world.land()
    assert world.shown() == dict.fromkeys(range(10), 1)


def test_a_scan_looks_at_the_log_once(world: SmallWorld) -> None:
    """[R-2] A scan costs one look at the log, however many steps its ranges are of."""
    for _ in range(4):
        world.grow(2)
    asked: list[str] = []
    lake = world.open(Writer())
    honest = lake.store.get

    def get(path: str) -> bytes | None:
        asked.append(path)
        return honest(path)

    coverage = lake.coverage(TOPIC)
    lake.store.get = get  # type: ignore[method-assign]
    assert {verdict.outcome for verdict in world.land(lake=lake)} == {Outcome.LANDED}
    newest = f"plan/{TOPIC}/{coverage.log.steps[-1].seq:020d}.json"
    assert [path for path in asked if path.startswith("plan/")] == [newest]


TREES = ["plan", "manifests", "claims", "accepted", "data", "decodings"]


@pytest.mark.parametrize("tree", TREES)
def test_what_file_managers_hide_is_passed_over_in_every_folder(tmp_path: Path, tree: str) -> None:
    """[R-46] One rule for all; a Parquet file that a glob may show is named whatever it is called."""
    world = SmallWorld(tmp_path, "disk")
    world.die("stage")
    for topic in (TOPIC, "gone"):
        (tmp_path / tree / topic / "empty").mkdir(parents=True)
        for hidden in (".DS_Store", "._00000000000000000000.json", ".00000000000000000000.json.swp", ".nfs01"):
            (tmp_path / tree / topic / hidden).write_bytes(b"\0\0\0\1Bud1")
    world.lake = world.open(Writer())
    assert len(world.coverage.pending()) == 2 and tiling_violations(world.coverage) == []
    assert len(sweep_orphans(world.lake, 2**53, 0)) == 1, "a topic's folder does not stop the sweep of the whole lake"
    (tmp_path / "data" / TOPIC).mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / TOPIC / "._x.parquet").write_bytes(b"")
    assert "._x.parquet" in tiling_violations(world.open(Writer()).coverage(TOPIC))[0]
