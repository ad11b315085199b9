"""The raw table under SIGKILL; `test_readers.py` reads it in a loop."""

from __future__ import annotations

from itertools import product

import pytest

from pipeline_defs.landing.auditing import check_table
from tests.support.killing import everywhere, stopped_at
from tests.support.world import World

# step -> (versions, rows) that the table has when the process dies there, of one that had a version with 100 rows
STEPS = {"report": (2, 350), "link_to_table": (1, 100), "append": (2, 350)}


def with_a_version(world: World) -> World:
    """Have a hundred rows in version 0 of the table."""
    world.keep_raw_table()
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    world.launch()
    return world


@pytest.mark.parametrize(
    ("placed", "step"), everywhere(STEPS, [*product(["disk"], STEPS), ("bucket", "link_to_table")]), indirect=["placed"]
)
def test_a_run_killed_around_its_append_leaves_a_table_that_the_next_tick_makes_whole(placed: World, step: str) -> None:
    """[R-81] Half done is never seen: the version is there with all its rows, or not at all."""
    world = with_a_version(placed)
    world.send_numbered(250)
    world.tick()
    with stopped_at(world, "land", step):
        table = check_table(world.name, world.edges.lake)
        assert (table.facts["version"] + 1, table.facts["rows"]) == STEPS[step]
    world.tick()  # ends the run that died, and appends
    world.tick()
    assert check_table(world.name, world.edges.lake).violations == ()
    assert check_table(world.name, world.edges.lake).facts["rows"] == 350
    world.launch()
    world.assert_all_landed_once()
    assert check_table(world.name, world.edges.lake).facts["version"] == 1, "nothing was due twice"
