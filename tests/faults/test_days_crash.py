"""Event days under SIGKILL between days, with a reader of the plain glob in a loop."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import duckdb

from pipeline_defs.attempt import Attempt
from pipeline_defs.core.days import Days
from pipeline_defs.days import update_days
from pipeline_defs.drills.children import stopped_at
from pipeline_defs.resources import Edges
from pipeline_defs.settings import Settings
from tests.support.daily import configure, event, expected, shown, update
from tests.support.reading import LoopingReader
from tests.support.world import World

DAYS = [f"2013-01-0{n}" for n in range(1, 6)]
ROWS = 40  # of each range in each day


@dataclass(frozen=True, slots=True)
class Update:
    """Is one update of all due days, by a process of its own."""

    settings: Settings
    topic: str
    days: Days

    def run(self, watch: Callable[..., None]) -> None:
        """Does it once, and tells `watch` each step as it is passed."""
        edges = Edges(self.settings, watch_step=watch)
        tools = edges.day_tools(self.days, edges.pyspark())
        attempt = Attempt(f"test-{uuid.uuid4().hex[:8]}", "no-run", "test")
        assert [*update_days(self.topic, None, attempt, tools)]


class Reader(LoopingReader):
    """Reads the glob, and keeps of each read the rows of each day, and how many are distinct."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._folder = world.lake_folder / "days" / world.name
        self._connection = duckdb.connect()
        self.seen: list[dict[str, tuple[int, int]]] = []

    def wait_for(self, rows: list[tuple[object, ...]]) -> None:
        """Waits until it has seen the days as they are now."""
        World.wait_until(lambda: any(sum(count for count, _ in each.values()) == len(rows) for each in self.seen))

    def read(self) -> None:
        sql = (
            'SELECT strftime(event_time, \'%Y-%m-%d\'), count(*), count(DISTINCT ("partition", "offset")) '
            f"FROM read_parquet('{self._folder}/*.parquet') GROUP BY ALL"
        )
        found = self.ask(self._folder, lambda: self._connection.execute(sql).fetchall())
        if found is not None:
            self.seen.append({day: (rows, distinct) for day, rows, distinct in found})


def test_a_kill_between_days_shows_no_half_day_and_the_next_update_finishes(world: World) -> None:
    """AC22: the days that were exchanged have the new rows, the others the old ones; each row once, at every moment."""
    configure(world)
    world.with_policy(records_per_range=ROWS * len(DAYS))
    world.create_topic(2)
    for partition in (0, 1):
        world.send(event(DAYS[n % len(DAYS)], n, partition) for n in range(ROWS * len(DAYS)))
    world.plan_and_land()
    one, other = (offsets.key for offsets in world.coverage.log.ranges)
    world.decode([one])
    update(world)
    world.decode([other])
    assert world.topic.days is not None
    work = Update(world.settings, world.name, world.topic.days)
    reader = Reader(world)
    with reader.reading():
        for killed_after in (2, 1):  # two days of five, then one of the three that are left
            log = world.folder / "children.log"
            with stopped_at(work, "swap_day", killed_after, log=log):
                reader.wait_for(shown(world))
        rows: dict[str, int] = {}
        for day, *_ in shown(world):
            rows[str(day)] = rows.get(str(day), 0) + 1
        assert sorted(rows.values()) == [ROWS] * 2 + [2 * ROWS] * 3, "the fault has happened: the days are half done"
        assert sorted(update(world)) == sorted(day for day, count in rows.items() if count == ROWS)
    assert shown(world) == expected(world)
    assert not reader.errors
    assert len({tuple(sorted(each.items())) for each in reader.seen}) > 2, "the reader was there while things changed"
    for each in reader.seen:
        assert sorted(each) == DAYS
        assert {count for count, _ in each.values()} <= {ROWS, 2 * ROWS}
        assert all(count == distinct for count, distinct in each.values())
