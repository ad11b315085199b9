"""`offsetlake.read` of what a real Spark landed, in each form, on a disk and in a bucket."""

import json
from typing import Any

import offsetlake
import pyarrow as pa
import pytest

from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.spark import spark
from pipeline_defs.adapters.spark.spark import select_raw
from pipeline_defs.core.errors import Refused
from pipeline_defs.core.tables.days import EventTime
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.settings import Settings
from tests.support.killing import PLACES
from tests.support.redecoding import compact_decoded
from tests.support.world import World, landed_rows


@pytest.fixture(autouse=True)
def as_a_user(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process know its machine by the environment, as a user's does."""
    monkeypatch.setenv("OFFSETLAKE_HOME", str(settings.home))
    monkeypatch.setenv("OFFSETLAKE_SPARK_MASTER", settings.spark_master)
    monkeypatch.setenv("OFFSETLAKE_SPARK_DRIVER_MEMORY", settings.spark_driver_memory)


@pytest.mark.parametrize("placed", PLACES, indirect=True)
def test_each_form_has_the_landed_rows(placed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-85] Landed alone, and in the middle of a compacted file; a Spark that knows no bucket is refused before it starts."""
    world = placed
    monkeypatch.setenv("OFFSETLAKE_LAKE", world.settings.lake)
    world.fill(250, 150)
    world.send([{"partition": 1, "key": b"k", "value": None, "headers": [("h", b"x"), ("e", b"")]}])
    world.plan_and_land()
    for is_compacted in (False, True):
        for key in (None, "0-100-200"):
            expected = rows_of(world, key)
            rows = offsetlake.read(world.name, range=key)
            assert rows.schema == RAW_SCHEMA and landed_rows(rows) == expected
            assert landed_rows(offsetlake.read(world.name, range=key, as_="duckdb").arrow().read_all()) == expected
            if not world.adapters.lake.store.is_remote:
                assert landed_rows(offsetlake.read(world.name, range=key, as_="spark").toArrow()) == expected
        if not is_compacted:
            world.keep_raw_table()
            world.send_numbered(50)
            world.plan_and_land()
            assert world.compact()
            world.send_numbered(50)
            world.plan_and_land()
    if world.adapters.lake.store.is_remote:
        with pytest.raises(Refused, match="the Spark of this machine reads no object store, and the lake is s3://"):
            offsetlake.read(world.name, as_="spark")


def test_a_column_that_an_earlier_version_did_not_land_is_null(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-85] By Spark, from files of both versions and from the one that they were compacted to, whose rows are verified."""
    world.keep_raw_table()
    with monkeypatch.context() as patch:
        patch.setattr(spark, "select_raw", lambda *given: select_raw(*given).drop("timestamp_type"))
        patch.setattr(parquet, "RAW_SCHEMA", RAW_SCHEMA.remove(RAW_SCHEMA.get_field_index("timestamp_type")))
        world.fill(250, 150)
        world.plan_and_land()
    world.send_numbered(50)
    world.plan_and_land()
    assert len({frozenset(each.schema) for each in world.coverage.manifests.values()}) == 2, "the control"
    for _ in range(2):
        rows = offsetlake.read(world.name, lake=world.settings.lake)
        nulls = rows.column("timestamp_type").null_count
        assert 0 < nulls < len(rows)
        frame = offsetlake.read(world.name, as_="spark", lake=world.settings.lake)
        assert frame.columns == RAW_SCHEMA.names and frame.where("timestamp_type IS NULL").count() == nulls
        assert landed_rows(frame.toArrow()) == landed_rows(rows) == rows_of(world, None)
        world.compact()


def test_decoded_and_latest_rows_are_read_in_each_form(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-85] Also of a range in a file of many, sorted otherwise; and what was asked for stays what it was."""
    monkeypatch.setenv("OFFSETLAKE_LAKE", world.settings.lake)
    world.derive("n BIGINT, at BIGINT", event_time=EventTime("value.at", "s"), latest=Latest())

    def rows(table: str, key: str | None = None) -> list[tuple[int, int, str, Any]]:
        """What was produced: without what cannot be decoded; the newest of each key, without tombstones."""
        ranges = [each for each in world.coverage.log.ranges if key in {None, each.key}]
        good = [
            (p, o, str(k, "utf-8"), v and json.loads(v))
            for p, o, k, v, *_ in sorted(world.sent.values(), key=lambda row: row[:2])
            if k is not None and v != b"{cut off" and any(p == each.partition and o in each for each in ranges)
        ]
        if table == "latest":
            return sorted(row for row in {row[2]: row for row in good}.values() if row[3] is not None)
        return good

    def shown(found: pa.Table) -> list[tuple[Any, ...]]:
        assert not [name for name in found.column_names if name.startswith(("_", "raw_"))]
        columns = ["partition", "offset", "key", "value"]
        return sorted((tuple(row[name] for name in columns) for row in found.select(columns).to_pylist()), key=lambda r: r[:2])

    def grow(first: int) -> None:
        numbers = range(first, first + 130)
        world.send(
            {"partition": 0, "key": b"k%d" % (n % 90), "value": b'{"n": %d, "at": %d}' % (n, 10**9 - n)} for n in numbers
        )
        world.send([{"partition": 0, "key": b"k3", "value": None}, {"partition": 0, "key": b"k4", "value": b"{cut off"}])
        world.plan_and_land()
        world.decode()
        world.update_latest()

    world.create_topic()
    grow(0)
    assert len(compact_decoded(world.adapters.lake, world.name)) == 1, "rows of two ranges in one file, the last ones first"
    grow(130)
    asked = [("decoded", None), ("decoded", "0-0-100"), ("decoded", "0-100-132"), ("latest", None)]
    before = dict[tuple[str, str | None], Any]()
    for table, key in asked:
        expected = rows(table, key)
        arrow = offsetlake.read(world.name, range=key, table=table)
        before[table, key] = offsetlake.read(world.name, range=key, table=table, as_="duckdb"), expected
        frame = offsetlake.read(world.name, range=key, table=table, as_="spark")
        assert expected and shown(arrow) == expected and shown(frame.toArrow()) == expected
        assert arrow["offset"].to_pylist() == sorted(arrow["offset"].to_pylist()), "in offset order"
    grow(260)
    compact_decoded(world.adapters.lake, world.name)
    for (table, key), (relation, expected) in before.items():
        assert shown(relation.to_arrow_table()) == expected, "fixed when it was asked for"
        assert (shown(offsetlake.read(world.name, range=key, table=table)) == expected) == (key is not None), "the control"


def rows_of(world: World, key: str | None) -> list[tuple[Any, ...]]:
    """What was produced, of the topic or of a range."""
    ranges = [each for each in world.coverage.log.ranges if key in {None, each.key}]
    return sorted(row for row in world.sent.values() if any(row[0] == o.partition and row[1] in o for o in ranges))
