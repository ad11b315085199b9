"""A lake elsewhere: how Spark knows it, how little of a file is read, and what is not taken for what Spark wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake import parquet
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.spark_files import Digest
from pipeline_defs.adapters.store.object_store import hadoop_url
from pipeline_defs.adapters.store.remote_file import RemoteFile
from pipeline_defs.core.errors import BadSetting, DamagedFile
from pipeline_defs.landing.staging_places import RemoteStaging
from tests.support.intercepting import beside

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
    assert parquet.read_runs(file) == ((0, ROWS),)
    assert sum(read) < size / 10
    read.clear()
    assert parquet.digest(file) == parquet.digest(here) and sum(read) == size
    assert parquet.differing_rows(file, here) is None
    lake.store.delete_folder(path)
    with pytest.raises(FileNotFoundError):
        parquet.read_runs(file)


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
