"""A bucket's file: rows that any reader reads, and what it says of itself beside them, in one file."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.applied import Applied
from pipeline_defs.core.errors import LatestOutdated
from pipeline_defs.core.latest import BucketFacts
from pipeline_defs.edges.latest_files import (
    COLUMNS,
    Present,
    StagedBucket,
    assemble,
    common_schema,
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


def test_values_may_have_more_fields_or_wider_ones(tmp_path: Path) -> None:
    one = write(tmp_path / "one", 1, value=struct(a=pa.int32()))
    two = write(tmp_path / "two", 1, value=struct(a=pa.int64(), b=pa.string()))
    assert common_schema("orders", [one, two]).field("value").type == struct(a=pa.int64(), b=pa.string())


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"key": pa.binary()}, {"key": pa.string()}),
        ({"key": pa.int32()}, {"key": pa.int64()}),
        ({"value": pa.binary()}, {"value": pa.string()}),
        ({"value": struct(a=pa.int64())}, {"value": struct(a=pa.string())}),
        ({"value": struct(a=pa.int64())}, {"value": pa.binary()}),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, one: dict[str, pa.DataType], two: dict[str, pa.DataType]
) -> None:
    """A key of another type would lie in another bucket, and so stand twice."""
    paths = [write(tmp_path / "one", 1, **one), write(tmp_path / "two", 1, **two)]
    with pytest.raises(LatestOutdated, match="do not go together"):
        common_schema("orders", paths)
