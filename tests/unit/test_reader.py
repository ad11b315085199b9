"""`offsetlake.read` over real files without Spark: which rows it gives, that these are fixed, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import offsetlake
import pyarrow as pa
import pytest

from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.topic_rows import find_rows
from pipeline_defs.core.errors import BadKey, BadSetting, OffsetlakeError, Refused, UnknownTopic
from pipeline_defs.operate.reader import _read
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld
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
    grow(world)


def compacted(world: SmallWorld) -> None:
    in_table(world)
    world.compact()


def replaced(world: SmallWorld) -> None:
    """Two of three ranges have other rows than they had, of which one was compacted."""
    compacted(world)
    world.kafka.compact(50)
    world.land("replace")


def dropped(world: SmallWorld) -> None:
    compacted(world)
    assert world.drop()


def dropped_and_replaced(world: SmallWorld) -> None:
    """A compacted file of which a range was replaced since, and whose other ranges are nowhere else."""
    dropped(world)
    world.has_raw_table = False  # the newer revision is in no version yet
    world.kafka.compact(50)
    world.land("replace")


def replaced_between_dropped(world: SmallWorld) -> None:
    """A compacted file has rows before and behind the one range that was replaced since."""
    dropped(world)
    world.has_raw_table = False
    world.lose_a_row(4)
    world.land("replace", only=world.coverage.log.links[1].offsets)


def emptied(world: SmallWorld) -> None:
    in_table(world)
    world.kafka.now.partitions[0].compacted.update(range(3))
    world.kafka.now.is_compacted = True
    world.land("replace")


STATES = [
    SmallWorld.land,
    in_table,
    partly_in_table,
    compacted,
    replaced,
    dropped,
    dropped_and_replaced,
    emptied,
    replaced_between_dropped,
]


@pytest.mark.parametrize("reach", STATES)
def test_each_landed_row_is_read_once_wherever_it_stands(world: SmallWorld, reach: Callable[[SmallWorld], object]) -> None:
    """[R-85] The whole topic and each range by itself, as Arrow and through DuckDB, are what the lake has."""
    reach(world)
    expected = sorted(world.standing().elements())
    assert expected and len(set(expected)) == len(expected)
    rows, relation = read(world), read(world, as_="duckdb")
    assert rows.schema == RAW_SCHEMA
    assert offsets_of(rows) == expected, "in offset order"
    assert sorted(offsets_of(relation.arrow().read_all())) == expected
    values = dict(zip(offsets_of(rows), rows.column("value").to_pylist(), strict=True))
    assert values == world.kafka.now.partitions[0].rows(0, 100)
    for offsets in world.coverage.log.ranges:
        own = [offset for offset in expected if offset in offsets]
        assert offsets_of(read(world, range=offsets.key)) == own
        assert sorted(row[0] for row in read(world, range=offsets.key, as_="duckdb").project('"offset"').fetchall()) == own


def test_what_was_asked_for_stays_what_it_was(world: SmallWorld) -> None:
    """[R-85] A relation is read later: what landed, was compacted, replaced and dropped since is not in it."""
    in_table(world)
    before = read(world)
    relation = read(world, as_="duckdb")
    world.compact()
    world.drop()
    world.kafka.compact(50)
    world.land("replace")
    grow(world)
    assert offsets_of(read(world)) != offsets_of(before), "the control"
    assert relation.order('"offset"').arrow().read_all().cast(RAW_SCHEMA).equals(before)


def test_a_relation_is_of_the_connection_that_is_given(world: SmallWorld) -> None:
    """[R-85] So that it joins with tables of the caller's own; without one it has a connection of its own."""
    in_table(world)
    with duckdb.connect() as connection:
        connection.execute('CREATE TABLE mine AS SELECT 4::BIGINT AS "offset"')
        rows = read(world, as_=connection)
        assert rows.set_alias("a").join(connection.table("mine").set_alias("b"), 'a."offset" = b."offset"').shape[0] == 1


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
    ({"topic": 5}, Refused, "topic 5 cannot be read"),
    ({"range": "0-3"}, BadKey, "partition key '0-3' is not a range: expected"),
    ({"range": "0-0-5"}, BadKey, r"range orders/0 \[0, 5\) is not in the plan log .*`offsetlake backfill orders --all`"),
    ({"range": "0-9-12"}, Refused, r"range orders/0 \[9, 12\) is pending, expected landed; .*`offsetlake status orders`"),
    ({"as_": "pandas"}, Refused, "as_ is 'pandas', expected one of arrow, duckdb, spark"),
    ({"table": "bronze"}, Refused, "table is 'bronze', expected one of raw, decoded, latest"),
    ({"table": "decoded", "topic": "order"}, UnknownTopic, r"did you mean `orders`\?"),
    ({"table": "decoded"}, Refused, "nothing of topic orders is decoded in the lake"),
    ({"table": "decoded", "range": "0-9-12"}, Refused, r"range orders/0 \[9, 12\) is pending, expected landed"),
    ({"table": "decoded", "range": "0-0-3"}, Refused, r"orders/0 \[0, 3\) is not decoded; .*`offsetlake decode orders --due`"),
    ({"table": "latest"}, Refused, "topic orders has no latest records in the lake .*`offsetlake latest orders`"),
    ({"table": "latest", "range": "0-0-3"}, Refused, "a range and table='latest' are given"),
    ({"table": "latest", "day": "2013-01-01"}, Refused, "a day and table='latest' are given"),
    ({"as_": object()}, Refused, "as_ is a object, expected .*arrow, duckdb, spark, a DuckDB connection or a Spark session"),
    ({"lake": ""}, BadSetting, "lake= cannot be read: it is empty"),
    (
        {"lake": "http://u:word@host/lake"},
        BadSetting,
        "lake= cannot be read: it begins with http://, expected a path, or one of s3://",
    ),
    ({"lake": 5}, BadSetting, "lake= cannot be read"),
    ({"lake": "/there/is/none"}, UnknownTopic, "no lake is at /there/is/none: nothing was ever planned there, of topic orders"),
    ({"lake": "/there/is/none", "day": "2013-01-01"}, UnknownTopic, "no lake is at /there/is/none"),
]


@pytest.mark.parametrize(("changed", "kind", "said"), REFUSED)
def test_what_cannot_be_read_is_one_clear_error(
    world: SmallWorld, changed: dict[str, Any], kind: type[OffsetlakeError], said: str
) -> None:
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


def grow(world: SmallWorld) -> None:
    """Land three records more."""
    world.grow(3)
    world.land()


def read(world: SmallWorld, **how: Any) -> Any:
    return offsetlake.read(TOPIC, lake=world.folder, **how)


def offsets_of(rows: pa.Table) -> list[int]:
    return [*rows.column("offset").to_pylist()]
