"""A bucket's file: rows that any reader reads, and what it says of itself beside them, in one file."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.applied import Applied
from pipeline_defs.core.errors import BadSetting, BrokenManifest, LatestOutdated
from pipeline_defs.core.latest import MOST_BUCKETS, BucketFacts
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.latest_columns import common_schema
from pipeline_defs.edges.latest_files import (
    COLUMNS,
    LatestFiles,
    Present,
    StagedBucket,
    assemble,
    bucket_path,
    differences,
    read_facts,
)

FACTS = BucketFacts("orders", 3, 16, "string", Applied())


def write(path: Path, rows: int, metadata: dict[str, str] | None = None, **types: pa.DataType) -> Path:
    kinds = dict.fromkeys(COLUMNS, pa.int64()) | types
    table = pa.table({name: pa.array([None] * rows, kind) for name, kind in kinds.items()})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize("before", [0, 12, 13, 14, 15, 40])
def test_rows_are_read_as_before_and_tombstones_by_nobody(tmp_path: Path, before: int) -> None:
    """Whatever number of things its footer says already: a list of fifteen and more is written otherwise."""
    metadata = {f"name{n}": f"value{n}" for n in range(before)}
    staged = StagedBucket(write(tmp_path / "rows", 7, metadata), write(tmp_path / "tombstones", 3))
    tombstones = (tmp_path / "tombstones").read_bytes()
    path = tmp_path / "b.parquet"
    assemble(staged, FACTS, pa.schema([]), path)
    facts = read_facts(path, "b")
    assert (facts.bucket, facts.keys, facts.tombstones) == (3, 7, 3)
    assert path.read_bytes()[facts.tombstones_at :][: facts.tombstone_bytes] == tombstones
    assert pq.read_table(path).num_rows == 7
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{path}')").fetchall() == [(7,)]
    said = pq.read_metadata(path).metadata
    assert {name: said[name.encode()].decode() for name in metadata} == metadata


def test_a_bucket_without_rows_says_what_went_in(tmp_path: Path) -> None:
    schema = pq.read_schema(write(tmp_path / "like", 1))
    assemble(StagedBucket(), FACTS, schema, tmp_path / "b.parquet")
    assert read_facts(tmp_path / "b.parquet", "b").keys == 0
    assert pq.read_table(tmp_path / "b.parquet").schema.names == [*COLUMNS]


def test_records_are_compared_with_their_values_nan_among_them(tmp_path: Path) -> None:
    def fraction(name: str, x: float) -> Path:
        columns = dict.fromkeys(COLUMNS, pa.array([1])) | {"value": pa.array([{"x": x}])}
        pq.write_table(pa.table(columns), tmp_path / name)
        return tmp_path / name

    standing = Present(None, FACTS, fraction("standing", float("nan")))
    assert differences(standing, StagedBucket(fraction("same", float("nan")))) == []
    (said,) = differences(standing, StagedBucket(fraction("other", 1.0)))
    assert said == "keys or values are not those of the records that they stand for"


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Cut off, or its footer overwritten: one error that names the file, not the reader's."""
    path = tmp_path / "b.parquet"
    assemble(StagedBucket(write(tmp_path / "rows", 3)), FACTS, pa.schema([]), path)
    whole = path.read_bytes()
    for damaged in (b"", b"x", whole[:-3], whole[:-200] + b"\xff" * 192 + whole[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(BrokenManifest, match=r"^the_lake/b\.parquet is no Parquet file: .*; delete it"):
            read_facts(path, "the_lake/b.parquet")
    path.write_bytes(whole)
    assert read_facts(path, "the_lake/b.parquet").keys == 3
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_facts(path, "the_lake/b.parquet")


def test_as_many_buckets_as_may_be_are_held_open_side_by_side(tmp_path: Path) -> None:
    """By a process that may have 1,024 files open, as is usual."""
    lake = Lake(str(tmp_path))
    assemble(StagedBucket(write(tmp_path / "rows", 1)), FACTS, pa.schema([]), tmp_path / "b")
    (tmp_path / "latest" / "orders").mkdir(parents=True)
    for bucket in range(MOST_BUCKETS):
        os.link(tmp_path / "b", tmp_path / bucket_path("orders", bucket))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with LatestFiles(lake).snapshot("orders", range(MOST_BUCKETS), tmp_path / "seen") as present:
            assert all(each.facts == replace(FACTS, keys=1, tombstones_at=ANY) for each in present.values())
            assert len(present) == MOST_BUCKETS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_values_may_have_more_fields_or_wider_ones(tmp_path: Path) -> None:
    """As Spark reads them; whichever of them comes first."""
    point = struct(x=pa.int32())
    one = struct(
        a=pa.int32(),
        f=pa.float32(),
        d=pa.decimal128(10, 2),
        l=pa.list_(point),
        m=pa.map_(pa.string(), point),
        n=pa.int32(),
    )
    wider = struct(x=pa.int64(), y=pa.string())
    two = struct(
        a=pa.int64(),
        f=pa.float64(),
        d=pa.decimal128(9, 3),
        l=pa.list_(wider),
        m=pa.map_(pa.string(), wider),
        n=pa.float32(),
        b=pa.string(),
    )
    both = {field.name: field.type for field in two} | {"d": pa.decimal128(11, 3), "n": pa.float64()}
    paths = [write(tmp_path / name, 1, value=kind) for name, kind in (("one", one), ("two", two))]
    for order in (paths, paths[::-1]):
        found = common_schema("orders", order).field("value").type
        assert {field.name: field.type for field in found} == both


def test_keys_with_a_map_are_refused(tmp_path: Path) -> None:
    """Before Spark is asked, which would fail at every update."""
    tags = pa.map_(pa.string(), pa.int32())
    for number, kind in enumerate((tags, struct(a=tags), pa.list_(struct(a=tags)))):
        path = write(tmp_path / f"{number}", 1, key=kind)
        with pytest.raises(BadSetting, match=r"keys of type .*map<.*cannot tell which maps are equal"):
            common_schema("orders", [path])
    assert common_schema("orders", [write(tmp_path / "value", 1, value=tags)]).field("value").type == tags


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"key": pa.binary()}, {"key": pa.string()}),
        ({"key": pa.int32()}, {"key": pa.int64()}),
        ({"value": pa.binary()}, {"value": pa.string()}),
        ({"value": struct(a=pa.int64())}, {"value": struct(a=pa.string())}),
        ({"value": struct(a=pa.int64())}, {"value": pa.binary()}),
        ({"value": struct(a=pa.int64())}, {"value": struct(a=pa.float64())}),
        ({"value": struct(a=pa.int64())}, {"value": struct(a=pa.decimal128(30, 2))}),
        ({"value": struct(a=pa.decimal128(38, 2))}, {"value": struct(a=pa.decimal128(38, 3))}),
        ({"value": struct(a=pa.string())}, {"value": struct(a=pa.binary())}),
        ({"value": struct(a=pa.timestamp("us"))}, {"value": struct(a=pa.timestamp("us", "UTC"))}),
        ({"value": struct(a=pa.list_(struct(b=pa.int32())))}, {"value": struct(a=pa.list_(struct(b=pa.bool_())))}),
        ({"value": struct(Id=pa.int64())}, {"value": struct(id=pa.int64())}),
        ({"value": struct(a=struct(Id=pa.int64()))}, {"value": struct(a=struct(iD=pa.int64(), b=pa.int64()))}),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, one: dict[str, pa.DataType], two: dict[str, pa.DataType]
) -> None:
    """A key of another type would lie in another bucket, and so stand twice."""
    paths = [write(tmp_path / "one", 1, **one), write(tmp_path / "two", 1, **two)]
    with pytest.raises(LatestOutdated, match="do not go together"):
        common_schema("orders", paths)
