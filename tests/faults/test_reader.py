"""A plain DuckDB glob in a loop never sees a half, doubled or unsent row, whatever goes on in the lake meanwhile."""

from __future__ import annotations

from collections import Counter

import duckdb

from tests.support.killing import stopped_at
from tests.support.reading import LoopingReader
from tests.support.world import World


class Reader(LoopingReader):
    """Reads the glob, and keeps what it saw: rows per file range, and distinct rows."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._glob = world.glob
        self._lake = world.lake_folder
        self._connection = duckdb.connect()
        self.seen: list[tuple[int, int, Counter[int]]] = []

    def read(self) -> None:
        sql = f'SELECT "offset" // 100, count(*), count(DISTINCT "offset") FROM read_parquet(\'{self._glob}\') GROUP BY ALL'
        if not any((self._lake / "data").rglob("*.parquet")):
            return
        try:
            found = self._connection.execute(sql).fetchall()
        except duckdb.Error as error:
            self.errors.append(str(error))
            return
        counts = Counter({block: rows for block, rows, _ in found})
        self.seen.append((sum(counts.values()), sum(distinct for *_, distinct in found), counts))


def test_a_glob_is_right_at_every_moment(world: World) -> None:
    """During landing, a crash, roll-forward and redo, each read shows whole ranges and each offset once.

    [R-17]
    """
    world.create_topic()
    world.send_numbered(1_200)
    world.tick()
    reader = Reader(world)
    with reader.reading():
        with stopped_at(world, "land", "publish", nth=4):
            assert 4 <= len(list((world.lake_folder / "data").rglob("*.parquet"))) < 12
        for offsets in world.pending:
            world.land([offsets.key])
        world.land([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    world.assert_all_landed_once()
    assert not reader.errors
    assert len({rows for rows, _, _ in reader.seen}) > 2, "the reader was there while things changed"
    for rows, distinct, counts in reader.seen:
        assert rows == distinct
        assert set(counts.values()) <= {100}
    totals = [rows for rows, _, _ in reader.seen]
    assert totals == sorted(totals), "what was once visible stays visible"
