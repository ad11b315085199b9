"""`offsetlake.read` over real files without Spark: which rows it gives, that they are fixed, what it refuses.

Some files of a lake were landed by a version that did not know a column: they are read, compacted, redone and audited.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import offsetlake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.tables import delta_log
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck, relate_table
from pipeline_defs.adapters.tables.topic_rows import TableRows, find_rows
from pipeline_defs.core.errors import BadKey, BadSetting, OffsetlakeError, Refused, UnknownTopic
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.raw_columns import RAW_COLUMNS
from pipeline_defs.core.tables import raw_table
from pipeline_defs.landing import appending
from pipeline_defs.operate.reader import _read
from tests.support import fake_log, strategies
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, Writer, assert_all_is_in_order
from tests.support.redecoding import OffsetDecoder, decode_by

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture
def world(tmp_path: Path) -> SmallWorld:
    return SmallWorld(tmp_path, "disk", records=9, grid=3)


def in_table(world: SmallWorld) -> None:
    world.has_raw_table = True
    world.land()


def partly_in_table(world: SmallWorld) -> None:
    in_table(world)
    world.has_raw_table = False
    world.land_more(3)


def compacted(world: SmallWorld) -> None:
    in_table(world)
    assert not [each.violations for each in world.compact() if each.violations]
    assert len(raw_table_files(world)) == 1


def replaced(world: SmallWorld) -> None:
    """Two of three ranges have other rows than they had, of which one was compacted."""
    compacted(world)
    world.kafka.compact(50)
    world.land("replace")


def dropped(world: SmallWorld) -> None:
    compacted(world)
    assert world.drop()


def dropped_replaced(world: SmallWorld) -> None:
    """A compacted file of which a range was replaced since, and whose other ranges are nowhere else."""
    dropped(world)
    world.has_raw_table = False  # the newer revision is in no version yet
    world.kafka.compact(50)
    world.land("replace")


def between_dropped(world: SmallWorld) -> None:
    """A compacted file has rows before and behind the one range that was replaced since."""
    dropped(world)
    world.has_raw_table = False
    world.lose_a_row(4)
    world.land("replace", only=world.coverage.log.links[1].offsets)


def emptied(world: SmallWorld) -> None:
    in_table(world)
    for offset in range(3):
        world.lose_a_row(offset)
    world.land("replace")


STATES = [SmallWorld.land, in_table, partly_in_table, compacted, replaced, dropped, dropped_replaced, emptied, between_dropped]


@pytest.mark.parametrize("reach", STATES)
def test_each_landed_row_is_read_once_wherever_it_stands(world: SmallWorld, reach: Callable[[SmallWorld], object]) -> None:
    """[R-63] [R-85] The whole topic and each range by itself, as Arrow and DuckDB and its view, are what the lake has."""
    reach(world)
    expected = sorted(world.landed_offsets().elements())
    assert expected and len(set(expected)) == len(expected)
    rows, relation = read(world), read(world, as_="duckdb")
    assert rows.schema == RAW_SCHEMA
    assert offsets_of(rows) == expected, "in offset order"
    assert sorted(offsets_of(relation.arrow().read_all())) == expected
    assert Duck(world.lake, [TOPIC]).query(f'SELECT "offset" FROM "{TOPIC}" ORDER BY ALL')[1] == [(each,) for each in expected]
    values = dict(zip(offsets_of(rows), rows.column("value").to_pylist(), strict=True))
    assert values == world.kafka.now.partitions[0].rows(0, 100)
    for offsets in world.coverage.log.ranges:
        own = [offset for offset in expected if offset in offsets]
        assert offsets_of(read(world, range=offsets.key)) == own
        assert sorted(row[0] for row in read(world, range=offsets.key, as_="duckdb").project('"offset"').fetchall()) == own


def test_a_relation_is_of_its_moment_and_of_the_connection_that_is_given(world: SmallWorld) -> None:
    """[R-85] It is read later: what landed, was compacted, replaced and dropped since is not in it.

    It joins with tables of the caller's own; without a connection it has one of its own.
    """
    in_table(world)
    with duckdb.connect() as connection:
        connection.execute('CREATE TABLE mine AS SELECT 4::BIGINT AS "offset"')
        rows = read(world, as_=connection)
        assert rows.set_alias("a").join(connection.table("mine").set_alias("b"), 'a."offset" = b."offset"').shape[0] == 1
    before = read(world)
    relation = read(world, as_="duckdb")
    world.compact()
    world.drop()
    world.kafka.compact(50)
    world.land("replace")
    world.land_more(3)
    assert offsets_of(read(world)) != offsets_of(before), "the control"
    assert relation.order('"offset"').arrow().read_all().cast(RAW_SCHEMA).equals(before)


def test_a_lake_is_the_projects_or_the_one_that_is_named(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-85] A path counts from the folder that one is in."""
    world.land()
    monkeypatch.chdir(world.folder.parent)
    assert offsetlake.read(TOPIC, lake=world.folder.name).num_rows == 9
    assert offsetlake.read(TOPIC, lake=Path(world.folder.name)).num_rows == 9
    monkeypatch.setenv("OFFSETLAKE_LAKE", str(world.folder))
    assert offsetlake.read(TOPIC).num_rows == 9


REFUSED: list[tuple[dict[str, Any], type[OffsetlakeError], str]] = [
    ({"topic": "order"}, UnknownTopic, r"has nothing of topic order, did you mean `orders`\?; it has orders;"),
    ({"topic": "or/ders"}, Refused, "topic 'or/ders' cannot be read: .* not one Kafka allows"),
    ({"range": "0-3"}, BadKey, "partition key '0-3' is not a range: expected"),
    ({"range": "0-0-5"}, BadKey, r"range orders/0 \[0, 5\) is not in the plan log .*`offsetlake backfill orders --all`"),
    ({"range": "0-9-12"}, Refused, r"range orders/0 \[9, 12\) is pending, expected landed; .*`offsetlake status orders`"),
    ({"as_": "pandas"}, Refused, "as_ is 'pandas', expected one of arrow, duckdb, spark"),
    ({"table": "bronze"}, Refused, "table is 'bronze', expected one of raw, decoded, latest"),
    ({"table": "decoded"}, Refused, "nothing of topic orders is decoded in the lake"),
    ({"table": "decoded", "range": "0-0-3"}, Refused, r"orders/0 \[0, 3\) is not decoded; .*`offsetlake decode orders --due`"),
    ({"table": "latest"}, Refused, "topic orders has no latest records in the lake .*`offsetlake latest orders`"),
    ({"table": "latest", "range": "0-0-3"}, Refused, "a range and table='latest' are given"),
    ({"lake": ""}, BadSetting, "lake= cannot be read: it is empty"),
    ({"lake": "http://u:word@host/lake"}, BadSetting, "lake= cannot be read: it begins with http://, expected a path"),
    ({"lake": "/there/is/none"}, UnknownTopic, "no lake is at /there/is/none: nothing was ever planned there, of topic orders"),
    ({"lake": "/there/is/none", "day": "2013-01-01"}, UnknownTopic, "no lake is at /there/is/none"),
]


@pytest.mark.parametrize(("changed", "kind", "said"), REFUSED)
def test_what_is_amiss_is_one_error(world: SmallWorld, changed: dict[str, Any], kind: type[OffsetlakeError], said: str) -> None:
    """[R-85] It names what, where, what was expected, and what to do."""
    world.land()
    world.grow(3)
    asked = {"topic": TOPIC, "lake": world.folder, **changed}
    with pytest.raises(kind, match=said):
        offsetlake.read(asked.pop("topic"), **asked)


def test_a_day_of_a_topic_without_days_names_the_setting(world: SmallWorld) -> None:
    """[R-85] Its rows have no event time."""
    world.land()
    decode_by(OffsetDecoder(is_mended=True), world.lake, world.coverage.log.ranges)
    assert read(world, table="decoded").num_rows == 9, "the control"
    with pytest.raises(Refused, match=r"had no `days: \{event_time: .* `offsetlake decode orders --outdated`"):
        read(world, day="2013-01-01")


@pytest.mark.parametrize("form", ["arrow", "duckdb"])
def test_a_file_that_goes_while_it_is_read_is_told(world: SmallWorld, form: Any) -> None:
    """[R-85] Nothing is given in silence without it; what is in no file any more counts as not landed."""
    in_table(world)
    gone = raw_table_log(TOPIC, world.lake.store).folder
    parts = find_rows(world.coverage, world.lake).parts()
    for file in (world.folder / gone).glob("*.parquet"):
        file.unlink()
    with pytest.raises(FileNotFoundError):
        _read(parts, form, world.lake, None)
    assert read(world).num_rows == 9, "`data/` has its rows"


def read(world: SmallWorld, **how: Any) -> Any:
    return offsetlake.read(TOPIC, lake=world.folder, **how)


def offsets_of(rows: pa.Table) -> list[int]:
    return [*rows.column("offset").to_pylist()]


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
        for module in (strategies, raw_table):
            patch.setattr(module, "RAW_COLUMNS", OLDER)
        yield


@pytest.fixture(params=["data", "table"])
def older(tmp_path: Path, request: pytest.FixtureRequest) -> SmallWorld:
    """A topic of which two ranges were landed one after the other; beside `data/` there is the raw table, or not."""
    world = SmallWorld(tmp_path, "disk", records=3, grid=3)
    world.has_raw_table = request.param == "table"
    with older_version():
        world.land()
        world.land_more(3)
    assert {NEW in each.schema for each in world.coverage.manifests.values()} == {False}, "the control"
    return world


@pytest.mark.parametrize(("later", "reach"), [(0, SmallWorld.land), (3, SmallWorld.land), (3, compacted), (3, dropped)])
def test_a_column_that_a_file_lacks_is_null(older: SmallWorld, later: int, reach: Callable[[SmallWorld], object]) -> None:
    """[R-85] In each form, of the topic and of each range; the rows of the later version have it, and the audit is content."""
    older.land_more(later)
    reach(older)
    expected = [(offset, None if offset < 6 else 0) for offset in sorted(older.landed_offsets())]
    for key, rows in ((None, expected), ("0-0-3", expected[:3])):
        arrow = read(older, range=key)
        assert arrow.schema == RAW_SCHEMA
        assert [(row["offset"], row[NEW]) for row in arrow.to_pylist()] == rows
        relation = read(older, range=key, as_="duckdb")
        assert sorted(relation.columns) == sorted(RAW_SCHEMA.names)
        assert sorted(relation.project(f'"offset", {NEW}').fetchall()) == rows
    assert Duck(older.lake, [TOPIC]).query(f'SELECT "offset", {NEW} FROM "{TOPIC}" ORDER BY 1')[1] == expected
    assert_all_is_in_order(older.lake)


def test_the_next_append_widens_the_raw_table(older: SmallWorld) -> None:
    """[R-81] Delta's readers see the column from then on; who appends the version after reads the head alone, as ever."""
    older.has_raw_table = True
    if raw_table_files(older):
        assert NEW not in columns_of(older)
    older.land_more(3)
    assert columns_of(older) == RAW_SCHEMA.names
    rows = DeltaTable(str(older.folder / f"tables/raw/{TOPIC}")).to_pyarrow_table().sort_by("offset")
    assert rows.column(NEW).to_pylist() == [None] * 6 + [0] * 3
    head = delta_log.raw_table_log(TOPIC, older.lake.store).read_head()
    due = raw_table.find_due(older.coverage, head)
    assert due is not None and due.is_none(head)


def test_a_redo_gives_the_column_where_a_person_replaces(older: SmallWorld) -> None:
    """[R-48] Until then the range stays as it was landed, and is unchanged: its rows have the values that they had."""
    before = older.files()
    assert [verdict.outcome for verdict in older.land("redo")] == [Outcome.UNCHANGED] * 2
    assert older.files() == before
    assert [verdict.outcome for verdict in older.land("replace")] == [Outcome.REPLACED] * 2
    assert read(older).column(NEW).to_pylist() == [0] * 6
    assert_all_is_in_order(older.lake)


def test_a_relation_has_the_fields_and_types_that_its_files_are_older_than(world: SmallWorld) -> None:
    """[R-66] An older day of a table that has grown, say, as the other forms give it."""
    value = pa.array([{"v": 2**31 - 1}], pa.struct([("v", pa.int32())]))
    pq.write_table(pa.table({"offset": [1], "value": value, "_own": [True]}), world.folder / "old.parquet")
    grown = pa.struct([("v", pa.int64()), ("n", pa.string())])
    schema = pa.schema([("offset", pa.int64()), ("value", grown), ("d", pa.decimal128(9, 4)), ("_own", pa.bool_())])
    with duckdb.connect() as connection:
        relation = relate_table(TableRows(("old.parquet",), schema, "_own"), world.lake, connection)
        assert relation.columns == ["offset", "value", "d"]
        assert relation.project("value.v * 2, value.n, d").fetchall() == [(2**32 - 2, None, None)]
        nameless = schema.append(pa.field("more", pa.struct([("", pa.int64()), ("b", pa.int64())])))
        assert relate_table(TableRows(("old.parquet",), nameless, "_own"), world.lake, connection).columns == [
            "offset",
            "value",
        ]


def test_a_replace_that_died_before_the_exchange_hides_no_column(older: SmallWorld) -> None:
    """[R-85] Each manifest has the column, and one of the files that are read has not."""
    older.land_more(3)
    first, second, _ = sorted(older.coverage.log.ranges)
    older.land("replace", only=second)
    older.die("commit", "replace", only=first)
    assert NEW in older.coverage.manifests[first].schema, "the fault: it is committed"
    relation = read(older, as_="duckdb")
    assert sorted(relation.project(f'"offset", {NEW}').fetchall()) == [(n, None if n < 3 else 0) for n in range(9)]
    assert Duck(older.lake, [TOPIC]).query(f'SELECT count({NEW}) FROM "{TOPIC}"')[1] == [(6,)]


def test_what_an_older_attempt_left_is_landed_or_goes(tmp_path: Path) -> None:
    """[R-16] [R-37] What Kafka has compacted since is in its file alone; a replace deletes what is landed."""
    world = SmallWorld(tmp_path, "disk", records=3, grid=3)
    world.delivery = Delivery.AT_LEAST_ONCE
    with older_version():
        world.die("publish")
    world.lose_a_row(0)
    assert [verdict.outcome for verdict in world.land()] == [Outcome.ROLLED_FORWARD]
    assert world.shown() == world.landed_offsets() == dict.fromkeys(range(3), 1)
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
    assert read(world).column(NEW).to_pylist() == [None] * 3 + [0] * 3


def test_a_lost_manifest_of_an_older_file_is_written_again(older: SmallWorld) -> None:
    """[R-16] The file that stands has the rows that Kafka has, as far as it has columns."""
    older.lake.store.delete("manifests")
    older.lake = older.open(Writer())
    assert [verdict.outcome for verdict in older.land()] == [Outcome.LANDED] * 2
    assert_all_is_in_order(older.lake)
    assert [row[0] for row in sorted(read(older, as_="duckdb").project(f'"offset", {NEW}').fetchall())] == [*range(6)]


def raw_table_files(world: SmallWorld) -> list[str]:
    return [*delta_log.raw_table_log(TOPIC, world.lake.store).read().files]


def columns_of(world: SmallWorld) -> list[str]:
    return [field.name for field in DeltaTable(str(world.folder / f"tables/raw/{TOPIC}")).schema().fields]
