"""What a lake shows to SQL, in a bucket or on a disk, held against what was produced."""

from typing import Any

from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.resources import Edges
from tests.support.world import World

Rows = list[tuple[Any, ...]]


def shown_rows(world: World) -> Rows:
    """Read every row that the lake shows; a doubled row stands twice."""
    _, rows = Duck(Edges(world.settings).lake, [world.name]).ask(
        f'SELECT "partition", "offset", "key", "value" FROM "{world.name}" ORDER BY "partition", "offset"'
    )
    return rows


def sent_rows(world: World) -> Rows:
    """Return what the producer had acknowledged, in the same form."""
    return [row[:4] for row in sorted(world.sent.values(), key=lambda row: row[:2])]


def assert_all_is_there_once(world: World) -> None:
    """Hold what the lake shows against what was sent, row by row, and files against their manifests' digests."""
    assert shown_rows(world) == sent_rows(world)
    assert not world.pending
    world.assert_proven()
