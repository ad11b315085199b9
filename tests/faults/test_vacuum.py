"""SIGKILL between any two deletes of the vacuum: what each table names stays, and the next vacuum deletes the rest.

What is there before and what the tables name is the ground truth; the control is the last case, in which one file is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.core.decode.decoders import Decode
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.tables.vacuum import vacuum
from tests.support.decoded import DecodedTopic, numbered
from tests.support.killing import ALL_SECONDS, everywhere, stopped_at
from tests.support.world import World

DELETES = 6  # four range files that were compacted, one of a range that was decoded again, one of the latest table


def parquet_files(world: World) -> set[str]:
    """Return the Parquet files of all tables, below the lake's root."""
    return {path for path in Lake(world.settings.lake).store.list("tables") if path.endswith(".parquet")}


def tables(world: World) -> Sequence[DeltaTable]:
    return world.table("raw"), world.table("decoded"), world.table("latest")


def named_files(world: World) -> set[str]:
    """Return those that their tables name now."""
    root = world.edges.lake.store.url("")
    return {uri.removeprefix(root) for table in tables(world) for uri in table.file_uris()}


def read_all(world: World) -> Sequence[list[int]]:
    """Return offsets of each table as delta-rs reads it, in order."""
    return [sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist()) for table in tables(world)]


@pytest.fixture
def littered(placed: World) -> World:
    """A topic with three tables, in each of which files are left that no version has any more."""
    world = placed
    world.keep_raw_table()
    world.with_policy(records_per_range=25)
    world.fill(100)
    world.plan_and_land()
    assert world.compact()
    world.topic = dataclasses.replace(world.topic, decode=Decode(), latest=Latest())
    topic = DecodedTopic(world.edges.lake, world.name, pa.string())
    for revision in range(2):
        topic.put(OffsetRange(0, 0, 0, 25), numbered(OffsetRange(0, 0, 0, 25), "abc", revision), revision)
        world.update_latest()
    return world


@pytest.mark.parametrize(
    ("placed", "nth"), everywhere([1, 3, 5, DELETES], [("disk", 3), ("bucket", DELETES)]), indirect=["placed"]
)
def test_a_vacuum_killed_between_two_deletes_has_deleted_nothing_that_a_table_names(littered: World, nth: int) -> None:
    """[R-84] Each table reads as before, while it is killed and after it."""
    world = littered
    before, named, rows = parquet_files(world), named_files(world), read_all(world)
    assert len(before - named) == DELETES and rows == [[*range(100)], [0, 1, 2], [0, 1, 2]]
    with stopped_at(world, "vacuum", "vacuum", nth):
        assert len(before - parquet_files(world)) == nth - 1, "the fault: it is in the middle"
        assert named <= parquet_files(world) and read_all(world) == rows
    deleted, errors = vacuum(Lake(world.settings.lake), world.edges.now_ms(), ALL_SECONDS)
    assert (len(deleted), errors) == (DELETES - nth + 1, [])
    assert parquet_files(world) == named and read_all(world) == rows
