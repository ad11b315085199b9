"""Two processes move one consumer group at once: the newer frontier stays, whatever the order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline_defs.landing.mirror import mirror_frontier
from pipeline_defs.orchestration.pulse import ticking
from tests.support.fake_log import TOPIC
from tests.support.intercepting import beside
from tests.support.interleaving import SmallWorld, Writer
from tests.support.strategies import EPOCH_MS

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture
def world(tmp_path: Path) -> SmallWorld:
    """A topic of two ranges, of which one is landed."""
    world = SmallWorld(tmp_path, "disk", records=8, grid=4)
    first, _ = world.coverage.log.ranges
    world.land(only=first)
    return world


@pytest.mark.parametrize("is_late", [True, False], ids=["overtaken", "the control"])
def test_of_two_that_move_the_group_at_once_the_newer_frontier_stays(
    world: SmallWorld, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-36] U7: the first is about to write where it was, the second lands more and writes that; then the first writes."""
    kafka, moves = cast("Any", world.kafka), list[str]()

    def land_more(topic: str, frontier: object, group: str) -> None:
        moves.append(group)
        if len(moves) == 1 and is_late:
            world.land()
            mirror_frontier(TOPIC, "group", world.open(Writer()), kafka)

    beside(monkeypatch, kafka, "move_group", land_more)
    mirror_frontier(TOPIC, "group", world.lake, kafka)
    assert kafka.groups["group"] == ({0: 8} if is_late else {0: 4})
    assert moves.count("group") == (3 if is_late else 1)


def test_a_group_that_a_dying_run_has_moved_back_is_repaired_within_a_minute_though_nothing_arrives(world: SmallWorld) -> None:
    """[R-36] By the tick of a process that has moved it before; until then it is not moved at each tick, the control."""
    groups, now = world.kafka.groups, [EPOCH_MS]
    edges = SimpleNamespace(mirrored={}, lake=world.lake, kafka=lambda topic: world.kafka, now_ms=lambda: now[0])
    topic = SimpleNamespace(name=TOPIC, group="group")

    def tick() -> Mapping[int, int]:
        assert ticking._mirror(cast("Any", topic), world.lake.recent(TOPIC), cast("Any", edges)) is None
        return groups["group"]

    assert tick() == {0: 4}
    groups["group"] = {0: 0}
    assert tick() == {0: 0}, "the fault"
    now[0] += 61_000
    assert tick() == {0: 4}
