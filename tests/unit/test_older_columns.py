"""A lake of which some files were landed by a version that did not know a column: read, compacted, redone, audited."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import offsetlake
import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.tables import delta_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.raw_columns import RAW_COLUMNS
from pipeline_defs.core.tables import raw_table
from pipeline_defs.landing import appending
from tests.support import fake_log, raw_rows
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, Writer, assert_all_is_in_order

pytestmark = pytest.mark.usefixtures("watched")

NEW = "timestamp_type"  # what the earlier version does not know; no row of the later one is without
OLDER = tuple(column for column in RAW_COLUMNS if column.name != NEW)


@contextmanager
def older_version() -> Iterator[None]:
    """Land as the version before the column came did."""
    schema = json.loads(raw_table.SCHEMA)
    text = json.dumps({**schema, "fields": [field for field in schema["fields"] if field["name"] != NEW]})
    with pytest.MonkeyPatch.context() as patch:
        for module in (fake_log, parquet):
            patch.setattr(module, "RAW_SCHEMA", RAW_SCHEMA.remove(RAW_SCHEMA.get_field_index(NEW)))
        patch.setattr(delta_log, "SCHEMA", text)
        patch.setattr(appending, "SCHEMA", text)
        for module in (raw_rows, raw_table):
            patch.setattr(module, "RAW_COLUMNS", OLDER)
        yield


@pytest.fixture(params=["data", "table"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> SmallWorld:
    """A topic of which two ranges were landed one after the other; beside `data/` there is the raw table, or not."""
    world = SmallWorld(tmp_path, "disk", records=3, grid=3)
    world.has_raw_table = request.param == "table"
    with older_version():
        world.land()
        grow(world)
    assert {NEW in each.schema for each in world.coverage.manifests.values()} == {False}, "the control"
    return world


def grow(world: SmallWorld) -> None:
    world.grow(3)
    world.land()


def compact(world: SmallWorld) -> None:
    grow(world)
    world.has_raw_table = True
    assert not [each.violations for each in world.compact() if each.violations]
    assert len(raw_table_files(world)) == 1


def drop(world: SmallWorld) -> None:
    compact(world)
    assert world.drop()


@pytest.mark.parametrize(
    "reach", [lambda world: None, grow, compact, drop], ids=["older alone", "both", "compacted", "dropped"]
)
def test_a_column_that_a_file_does_not_have_is_null(world: SmallWorld, reach: Callable[[SmallWorld], object]) -> None:
    """[R-85] In each form, of the topic and of each range; the rows of the later version have it, and the audit is content."""
    reach(world)
    expected = [(offset, None if offset < 6 else 0) for offset in sorted(world.standing())]
    for key, rows in ((None, expected), ("0-0-3", expected[:3])):
        arrow = offsetlake.read(TOPIC, range=key, lake=str(world.folder))
        assert arrow.schema == RAW_SCHEMA
        assert [(row["offset"], row[NEW]) for row in arrow.to_pylist()] == rows
        relation = offsetlake.read(TOPIC, range=key, as_="duckdb", lake=str(world.folder))
        assert sorted(relation.columns) == sorted(RAW_SCHEMA.names)
        assert sorted(relation.project(f'"offset", {NEW}').fetchall()) == rows
    assert Duck(world.lake, [TOPIC]).query(f'SELECT "offset", {NEW} FROM "{TOPIC}" ORDER BY 1')[1] == expected
    assert_all_is_in_order(world.lake)


def test_the_next_append_widens_the_raw_table(world: SmallWorld) -> None:
    """[R-81] Delta's readers see the column from then on; who appends the version after reads the head alone, as ever."""
    world.has_raw_table = True
    if raw_table_files(world):
        assert NEW not in columns_of(world)
    grow(world)
    assert columns_of(world) == RAW_SCHEMA.names
    rows = DeltaTable(str(world.folder / f"tables/raw/{TOPIC}")).to_pyarrow_table().sort_by("offset")
    assert rows.column(NEW).to_pylist() == [None] * 6 + [0] * 3
    head = delta_log.raw_table_log(TOPIC, world.lake.store).read_head()
    due = raw_table.find_due(world.coverage, head)
    assert due is not None and due.is_none(head)


def test_a_redo_gives_the_column_where_a_person_replaces(world: SmallWorld) -> None:
    """[R-48] Until then the range stays as it was landed, and is unchanged: its rows have the values that they had."""
    before = world.files()
    assert [verdict.outcome for verdict in world.land("redo")] == [Outcome.UNCHANGED] * 2
    assert world.files() == before
    assert [verdict.outcome for verdict in world.land("replace")] == [Outcome.REPLACED] * 2
    assert offsetlake.read(TOPIC, lake=str(world.folder)).column(NEW).to_pylist() == [0] * 6
    assert_all_is_in_order(world.lake)


def test_a_replace_that_died_before_the_exchange_hides_no_column(world: SmallWorld) -> None:
    """[R-85] Each manifest has the column, and one of the files that are read has not."""
    grow(world)
    first, second, _ = sorted(world.coverage.log.ranges)
    world.land("replace", only=second)
    world.die("commit", "replace", only=first)
    assert NEW in world.coverage.manifests[first].schema, "the fault: it is committed"
    relation = offsetlake.read(TOPIC, as_="duckdb", lake=str(world.folder))
    assert sorted(relation.project(f'"offset", {NEW}').fetchall()) == [(n, None if n < 3 else 0) for n in range(9)]
    assert Duck(world.lake, [TOPIC]).query(f'SELECT count({NEW}) FROM "{TOPIC}"')[1] == [(6,)]


def test_what_an_older_attempt_left_is_landed_or_goes(tmp_path: Path) -> None:
    """[R-16] [R-37] What Kafka has compacted since is in its file alone; a replace deletes what is landed."""
    world = SmallWorld(tmp_path, "disk", records=3, grid=3)
    world.delivery = Delivery.AT_LEAST_ONCE
    with older_version():
        world.die("publish")
    world.lose_a_row(0)
    assert [verdict.outcome for verdict in world.land()] == [Outcome.ROLLED_FORWARD]
    assert world.shown() == world.standing() == dict.fromkeys(range(3), 1)
    world.grow(3)
    with older_version():
        world.die("publish")
    (left,) = (path for path in world.files() if f"{6:020d}" in path)
    shutil.copy(world.folder / left, world.folder / left.replace(".parquet", "x.parquet"))  # as another attempt that died
    assert world.shown()[3] == 2, "the fault"
    world.land()
    later = sorted(world.coverage.log.ranges)[1]
    assert [verdict.outcome for verdict in world.land("replace", only=later)] == [Outcome.REPLACED]
    assert world.shown() == dict.fromkeys(range(6), 1)
    assert_all_is_in_order(world.lake)
    assert offsetlake.read(TOPIC, lake=str(world.folder)).column(NEW).to_pylist() == [None] * 3 + [0] * 3


def test_a_lost_manifest_of_an_older_file_is_written_again(world: SmallWorld) -> None:
    """[R-16] The file that stands has the rows that Kafka has, as far as it has columns."""
    for path in world.lake.store.list(f"manifests/{TOPIC}"):
        world.lake.store.delete_folder(path)
    world.lake = world.open(Writer())
    assert [verdict.outcome for verdict in world.land()] == [Outcome.LANDED] * 2
    assert_all_is_in_order(world.lake)
    rows = offsetlake.read(TOPIC, as_="duckdb", lake=str(world.folder)).project(f'"offset", {NEW}').fetchall()
    assert [row[0] for row in sorted(rows)] == [*range(6)]


def raw_table_files(world: SmallWorld) -> list[str]:
    return [*delta_log.raw_table_log(TOPIC, world.lake.store).read().files]


def columns_of(world: SmallWorld) -> list[str]:
    table = DeltaTable(str(world.folder / f"tables/raw/{TOPIC}"))
    return [field.name for field in table.schema().fields]
