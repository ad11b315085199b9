"""Two processes move one consumer group at once: the newer frontier stays, whatever the order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline_defs.core.log.plan_step import TopicIds
from pipeline_defs.landing.mirror import mirror_frontier
from pipeline_defs.orchestration.pulse import ticking
from tests.support.fake_log import TOPIC
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


class Slow:
    """A group's coordinator whose answer to the first request is late: what is done meanwhile comes in between."""

    def __init__(self, meanwhile: Any, *, is_late: bool) -> None:
        self.group: Mapping[int, int] = {}
        self.moves = 0
        self._meanwhile = meanwhile
        self._is_late = is_late

    def read_ids(self, topic: str) -> TopicIds:
        return TopicIds("id-0", None)

    def move_group(self, topic: str, frontier: Mapping[int, int], group: str) -> None:
        self.moves += 1
        if self.moves == 1 and self._is_late:
            self._meanwhile()
        self.group = frontier


@pytest.mark.parametrize("is_late", [True, False], ids=["overtaken", "the control"])
def test_of_two_that_move_the_group_at_once_the_newer_frontier_stays(world: SmallWorld, is_late: bool) -> None:
    """[R-36] U7: the first is about to write where it was, the second lands more and writes that; then the first writes."""

    def land_more() -> None:
        world.land()
        mirror_frontier(TOPIC, "group", world.open(Writer()), cast("Any", slow))

    slow = Slow(land_more, is_late=is_late)
    mirror_frontier(TOPIC, "group", world.lake, cast("Any", slow))
    assert slow.group == ({0: 8} if is_late else {0: 4})
    assert slow.moves == (3 if is_late else 1)


def test_a_group_that_a_dying_run_has_moved_back_is_repaired_within_a_minute_though_nothing_arrives(world: SmallWorld) -> None:
    """[R-36] By the tick of a process that has moved it before; until then it is not moved at each tick, the control."""
    slow, now = Slow(None, is_late=False), [EPOCH_MS]
    edges = SimpleNamespace(mirrored={}, lake=world.lake, kafka=lambda topic: slow, now_ms=lambda: now[0])
    topic = SimpleNamespace(name=TOPIC, group="group")

    def tick() -> None:
        assert ticking._mirror(cast("Any", topic), world.lake.recent(TOPIC), cast("Any", edges)) is None

    tick()
    slow.group = {0: 0}
    tick()
    assert slow.group == {0: 0} and slow.moves == 1, "the fault"
    now[0] += 61_000
    tick()
    assert slow.group == {0: 4}
