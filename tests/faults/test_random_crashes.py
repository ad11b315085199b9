"""Random crash schedules: records arrive, processes die by SIGKILL at random steps; in the end each offset is there once.

`make test-long` runs them; a failing seed is in the test's name and can be run alone.
"""

from __future__ import annotations

import random

import pytest

from tests.faults.test_crash import LAND_STEPS, TICK_STEPS
from tests.support.killing import stopped_at
from tests.support.world import World

CRASHES = 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(8))
def test_any_schedule_of_crashes_ends_with_every_row_once(world: World, seed: int) -> None:
    """[R-18] Whatever dies when, a last undisturbed run lands what the producer sent, and nothing else."""
    chance = random.Random(seed)
    partitions = chance.randint(1, 3)
    world.create_topic(partitions)
    world.with_policy(records_per_range=chance.choice([7, 50, 100]))
    for _ in range(CRASHES):
        for partition in range(partitions):
            world.send_numbered(chance.randint(1, 160), partition)
        # something is always due here, so each of these steps is passed
        action, steps = chance.choice([("tick", list(TICK_STEPS)), ("land", list(LAND_STEPS))])
        if action == "land":
            world.tick()
        with stopped_at(world, action, chance.choice(steps), own_jvm=True):
            seen = world.rows()
            assert len(seen) == len(set(seen))
            assert set(seen) <= set(world.sent.values())
    world.tick()
    world.launch()
    world.assert_all_landed_once()
    world.assert_proven()
