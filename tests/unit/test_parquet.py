"""Parquet files of a lake: what is read of them, here and elsewhere, and that merged ones have the rows of their originals."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.comparing import differing_from_all, differing_in_any_order, differing_rows
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.parquet import read_ranges
from pipeline_defs.adapters.spark.spark_files import Digest
from pipeline_defs.adapters.store.object_store import hadoop_url
from pipeline_defs.adapters.store.remote_file import RemoteFile
from pipeline_defs.core.errors import BadSetting, DamagedFile
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.landing.staging_places import RemoteStaging
from tests.support.interleaving import beside

FIRST: dict[str, list[Any]] = {"offset": [0, 1, 2], "value": [b"a", None, b"c"]}
SECOND: dict[str, list[Any]] = {"offset": [5, 7], "value": [b"d", b""]}
MERGED: dict[str, list[Any]] = {"offset": [0, 1, 2, 5, 7], "value": [b"a", None, b"c", b"d", b""]}


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


@pytest.mark.parametrize(
    ("merged", "said"),
    [
        (MERGED, None),
        ({**MERGED, "value": [b"a", b"", b"c", b"d", b""]}, "column value differs in the rows of first"),
        ({**MERGED, "value": [b"a", None, b"c", b"", b"d"]}, "column value differs in the rows of second"),
        ({**MERGED, "offset": [5, 7, 0, 1, 2]}, "column offset differs in the rows of first"),
        ({name: cells[:4] for name, cells in MERGED.items()}, "column offset ends in the rows of second"),
        ({name: [*cells, cells[-1]] for name, cells in MERGED.items()}, "column offset has more rows than its originals"),
        ({"offset": MERGED["offset"]}, "it lacks the columns value of first"),
        ({**MERGED, "more": [None] * 5}, None),
        ({**MERGED, "more": [None, None, 0, None, None]}, "column more differs in the rows of first"),
        ({**MERGED, "offset": [float(o) for o in MERGED["offset"]]}, "column offset differs in the rows of first"),
    ],
)
def test_a_merged_file_has_the_rows_of_its_originals(merged: dict[str, list[Any]], said: str | None, tmp_path: Path) -> None:
    """Values, order, count, columns and types; that null is not the empty value."""
    originals = [write(tmp_path / "first", FIRST), write(tmp_path / "second", SECOND)]
    found = differing_from_all(originals, write(tmp_path / "merged", merged))
    assert found is None if said is None else found is not None and found.startswith(said), found


@pytest.mark.parametrize("large", [{"value": bytes(2**20)}, {"headers": [("a", bytes(2**20)), ("b", None)]}])
def test_rows_are_written_in_chunks_of_so_many_bytes_whatever_is_large(large: dict[str, Any], tmp_path: Path) -> None:
    """[R-13] Else a range whose headers are large would be held whole in memory."""
    row = [{"topic": "t", **large}.get(field.name) for field in parquet.RAW_SCHEMA]
    parquet.write_raw(iter([row] * 70), tmp_path / "raw.parquet")
    sizes = [pq.read_metadata(tmp_path / "raw.parquet").row_group(n).num_rows for n in range(3)]
    assert sizes == [32, 32, 6]


def test_what_may_be_null_is_no_difference_and_a_type_is(tmp_path: Path) -> None:
    """Spark gives a file that it merges columns that may be null, whatever the originals' could be."""
    rows, strict = pa.table({"offset": [0, 1]}), pa.schema([pa.field("offset", pa.int64(), nullable=False)])
    for name, schema in {"a": rows.schema, "b": strict, "c": pa.schema([("offset", pa.int32())])}.items():
        pq.write_table(rows.cast(schema), tmp_path / name)
    assert differing_rows(tmp_path / "a", tmp_path / "b") is None
    assert differing_rows(tmp_path / "a", tmp_path / "c") == "columns were offset: int64, are offset: int32"


NAN = float("nan")
FRACTION, STRUCT = pa.float64(), pa.struct([("x", pa.float32()), ("s", pa.string())])


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (FRACTION, NAN, 1.0),
        (STRUCT, {"x": NAN, "s": "a"}, {"x": NAN, "s": "b"}),
        (STRUCT, {"x": NAN, "s": None}, {"x": None, "s": None}),
        (pa.list_(STRUCT), [{"x": NAN, "s": "a"}], [{"x": NAN, "s": "a"}, None]),
        (pa.map_(pa.string(), FRACTION), [("a", NAN)], [("b", NAN)]),
    ],
)
def test_a_row_with_nan_is_equal_to_itself_and_to_no_other(kind: pa.DataType, one: Any, other: Any, tmp_path: Path) -> None:
    """Else what is decoded again would never be what stands; chunks of any size, at any depth."""
    rows = [None, one, other, one]
    for name, cells, group in (("as it was", rows, 4), ("again", rows, 3), ("other", [None, one, one, one], 4)):
        table = pa.table({"offset": pa.array(range(4)), "value": pa.array(cells, kind)})
        pq.write_table(table, tmp_path / name, row_group_size=group)
    assert differing_rows(tmp_path / "as it was", tmp_path / "again") is None
    assert differing_from_all([tmp_path / "as it was"], tmp_path / "again") is None
    assert differing_rows(tmp_path / "as it was", tmp_path / "other") == "equal offsets, other values in value"
    assert differing_from_all([tmp_path / "as it was"], tmp_path / "other") is not None


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_rows_of_ranges_are_read_through_once_wherever_batches_end(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Batches of 65,536 rows: ranges end within, at and beyond their ends, or have no row at all."""
    path = tmp_path_factory.mktemp("merged") / "merged.parquet"
    steps = data.draw(st.lists(st.tuples(st.integers(1, 70_000), st.integers(0, 5)), min_size=1, max_size=5))
    pieces, at = [], data.draw(st.integers(0, 10))
    for count, gap in steps:
        pieces.append(np.arange(at, at + count))
        at += count + gap
    offsets = np.concatenate(pieces)
    pq.write_table(pa.table({"offset": offsets, "value": offsets * 2}), path, row_group_size=50_000)
    cuts = sorted(data.draw(st.sets(st.integers(0, at + 5), min_size=2, max_size=8)))
    ranges = [OffsetRange(0, 0, start, end) for start, end in pairwise(cuts)]
    ranges = [each for each in ranges if data.draw(st.booleans())]
    found = dict(read_ranges(path, ranges))
    assert list(found) == ranges
    for each, rows in found.items():
        expected = offsets[(offsets >= each.start) & (offsets < each.end)]
        assert np.array_equal(rows["offset"], expected) and np.array_equal(rows["value"], expected * 2)


def test_a_compacted_file_is_held_against_its_files(tmp_path: Path) -> None:
    """[R-91] In whatever order and in wider columns: a row that is lost, doubled, or has another value is named."""
    place = {"generation": pa.array([0, 0, 0], pa.int32()), "partition": pa.array([0, 0, 1], pa.int32())}

    def write(name: str, offsets: list[int], values: list[object], kind: pa.DataType) -> Path:
        columns = {name: each.slice(0, len(offsets)) for name, each in place.items()}
        rows = pa.table({**columns, "offset": pa.array(offsets, pa.int64()), "value": pa.array(values, kind)})
        pq.write_table(rows, tmp_path / name)
        return tmp_path / name

    narrow, wide = pa.struct([("n", pa.int32())]), pa.struct([("n", pa.int64()), ("more", pa.string())])
    nan = pa.map_(pa.string(), pa.float64())
    one = write("one", [0, 1, 0], [{"n": 1}, None, {"n": 3}], narrow)
    right = [{"n": 3, "more": None}, {"n": 1, "more": None}, None]
    rows = pq.read_table(write("same", [0, 1, 0], [right[1], right[2], right[0]], wide))
    pq.write_table(rows.take([2, 0, 1]), tmp_path / "moved")
    assert differing_in_any_order([one], tmp_path / "moved") is None
    changed = write("changed", [0, 1, 0], [right[1], right[2], {"n": 4, "more": None}], wide)
    assert differing_in_any_order([one], changed) == "column value differs"
    assert differing_in_any_order([one], write("short", [0, 1], [right[1], None], wide)) == "it has 2 rows, expected 3"
    assert differing_in_any_order([one], write("twice", [0, 0, 0], [right[1], right[1], right[0]], wide)) is not None
    maps = write("maps", [0, 1, 0], [[("a", float("nan"))], None, []], nan)
    assert differing_in_any_order([maps], maps) is None


ROWS = 2_000
Staged = tuple[Lake, Path, str]


@pytest.mark.parametrize(
    ("lake", "spark"),
    [
        ("s3://b/lake", "s3a://b/lake"),
        ("s3a://b", "s3a://b"),
        ("gs://b/lake", "gs://b/lake"),
        ("abfss://c@a.dfs.core.windows.net/lake", "abfss://c@a.dfs.core.windows.net/lake"),
    ],
)
def test_spark_knows_a_lake_under_a_url_of_hadoops(lake: str, spark: str) -> None:
    assert hadoop_url(lake) == spark
    with pytest.raises(BadSetting, match="expected such as s3://, gs:// or abfss://container@account"):
        hadoop_url("az://container/lake")


@pytest.fixture
def staged(tmp_path: Path) -> Staged:
    """A staged file of a lake in memory, the same file here, and its path there."""
    offsets = np.arange(ROWS, dtype=np.int64)
    noise = np.random.default_rng(1).bytes(ROWS * 1000)
    columns = {
        "partition": pa.array(np.zeros(ROWS, dtype=np.int32)),
        "offset": pa.array(offsets),
        "timestamp": pa.array(offsets, pa.timestamp("us", tz="UTC")),
        "value": pa.array([noise[n * 1000 : n * 1000 + 1000] for n in range(ROWS)], pa.binary()),
    }
    here = tmp_path / "part-00000.parquet"
    pq.write_table(pa.table(columns), here, use_dictionary=False, compression="zstd")
    lake = Lake("memory:///")
    path = "staging/attempt/scan/part-00000.parquet"
    lake.store.upload(here, path)
    return lake, here, path


def test_of_a_file_elsewhere_only_its_footer_and_a_column_are_read(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-80] The control is the whole file, by the same way."""
    lake, here, path = staged
    size = here.stat().st_size
    read: list[int] = []
    beside(monkeypatch, obstore, "get_range", lambda *_, start, end, **__: read.append(end - start))
    file = RemoteFile(lake.store, path, size, f"s3a://b/{path}")
    part, known = parquet.read_part(file), parquet.read_part(here)
    assert part is not None and known is not None
    assert (part.rows, part.min_offset, part.max_offset, part.schema) == (ROWS, 0, ROWS - 1, known.schema)
    assert parquet.read_stretches(file) == ((0, ROWS),)
    assert sum(read) < size / 10
    read.clear()
    assert parquet.digest(file) == parquet.digest(here) and sum(read) == size
    assert differing_rows(file, here) is None
    lake.store.delete(path)
    with pytest.raises(FileNotFoundError):
        parquet.read_stretches(file)


def test_a_file_that_changed_after_its_digest_was_read_is_not_taken(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-80] The control is the file as Spark has read it; what lies deeper, of tasks that did not commit, is none of it."""
    lake, here, path = staged
    monkeypatch.setattr(lake.store, "root", "s3://b")
    size, sha256 = here.stat().st_size, parquet.digest(here)
    told: dict[str, Digest] = {f"s3a://b/{path}": Digest(size, sha256)}
    staging = RemoteStaging("attempt", lake, lambda urls: told)
    folder = staging.root / "scan"
    lake.store.upload(here, "staging/attempt/scan/_temporary/0/part-00001.parquet")
    staging.finish(folder)
    (found,) = staging.files(folder)
    part = staging.read_part(found)
    assert part is not None
    file = staging.settle(part, "unused")
    assert (file.path, file.bytes, file.sha256, file.rows) == (path, size, sha256, ROWS)
    told[f"s3a://b/{path}"] = Digest(size - 1, sha256)
    staging.finish(folder)
    with pytest.raises(DamagedFile, match=f"has {size} bytes, and Spark has read {size - 1} bytes there"):
        staging.read_part(found)
