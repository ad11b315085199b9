"""The raw table under SIGKILL, and read in a loop by delta-rs and DuckDB while ranges are landed, redone and replaced."""

from __future__ import annotations

from itertools import product

import duckdb
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.landing.auditing import check_table
from tests.support.killing import everywhere, stopped_at
from tests.support.reading import LoopingReader
from tests.support.world import World

# step -> (versions, rows) that the table has when the process dies there, of one that had a version with 100 rows
STEPS = {"report": (2, 350), "link_to_table": (1, 100), "append": (2, 350)}


@pytest.fixture
def table_world(world: World) -> World:
    return with_a_version(world)


def with_a_version(world: World) -> World:
    """Have a hundred rows in version 0 of the table."""
    world.keep_raw_table()
    world.create_topic()
    world.send_numbered(100)
    world.tick()
    world.launch()
    return world


class Reader(LoopingReader):
    """Reads the newest snapshot, its files by DuckDB, and keeps how many rows it saw, and how many distinct ones."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._folder = f"{world.lake_folder}/{raw_table_log(world.name, world.edges.lake.store).folder}"
        self._connection = duckdb.connect()
        self.seen: list[tuple[int, int, int]] = []

    def read(self) -> None:
        try:
            table = DeltaTable(self._folder)
            sql = 'SELECT count(*), count(DISTINCT "offset") FROM read_parquet($1)'
            ((rows, distinct),) = self._connection.execute(sql, [table.file_uris()]).fetchall()
        except (duckdb.Error, TableNotFoundError, OSError) as error:
            self.errors.append(str(error))
            return
        self.seen.append((table.version(), rows, distinct))


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


def test_a_snapshot_is_right_at_every_moment(table_world: World) -> None:
    """[R-81] Each read shows each offset once, and no fewer rows than the one before, whatever goes on meanwhile."""
    world = table_world
    reader = Reader(world)
    with reader.reading():
        for _ in range(3):
            world.send_numbered(200)
            world.tick()
            with stopped_at(world, "land", "link_to_table"):
                pass
            world.tick()
            world.launch()
        keys = [offsets.key for offsets in world.coverage.log.ranges]
        world.land(keys, redo=True)
        world.land(keys, redo=True, on_change="replace")
        world.tick()
    assert reader.errors == []
    assert all(rows == distinct for _, rows, distinct in reader.seen)
    totals = [rows for _, rows, _ in reader.seen]
    assert totals == sorted(totals) and totals[-1] == 700
    assert len({version for version, _, _ in reader.seen}) > 2, "the reader was there while things changed"
