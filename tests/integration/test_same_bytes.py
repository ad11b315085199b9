"""Same rows, same bytes, whatever wrote them; of another JVM a cluster's files are compared (test_spark_cluster.py)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.decoding.spark_decoding import DECODE_CONF
from pipeline_defs.adapters.lake.footer import canonicalize
from pipeline_defs.adapters.lake.parquet import digest
from pipeline_defs.adapters.spark import spark as spark_edge
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.spark.spark import SCAN_CONF, write_parquet
from tests.support.footers import list_encodings_falling
from tests.support.world import PATIENCE_SECONDS, World

ROWS = 200_000
TRIES = 3


def test_canonical_footers_change_no_meaning(world: World, tmp_path: Path) -> None:
    """[R-19] Sorting the encodings keeps length, rows, schema and statistics; a second time nothing changes."""
    world.fill(100)
    world.plan_and_land()
    (landed,) = (world.lake_folder / "data").rglob("*.parquet")
    shuffled = tmp_path / "shuffled.parquet"
    content = landed.read_bytes()
    first = pq.read_metadata(landed).row_group(0).column(0).encodings
    assert len(first) > 1
    shuffled.write_bytes(content)
    canonicalize(shuffled)
    assert shuffled.read_bytes() == content, "what is landed is canonical already"
    list_encodings_falling(shuffled)
    assert shuffled.read_bytes() != content
    canonicalize(shuffled)
    assert shuffled.read_bytes() == content
    list_encodings_falling(shuffled)
    table = pq.read_table(shuffled)
    assert table.equals(pq.read_table(landed))
    for number in range(pq.read_metadata(landed).num_columns):
        ours, theirs = (pq.read_metadata(path).row_group(0).column(number).to_dict() for path in (shuffled, landed))
        assert set(ours.pop("encodings")) == set(theirs.pop("encodings"))
        assert ours == theirs


def test_jobs_of_one_jvm_write_the_same_bytes_beside_each_other(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-19] [R-71] Writers of one JVM share the factory of encoders: a job with other options would change our bytes."""
    monkeypatch.setitem(spark_edge.PARQUET_OPTIONS, "parquet.block.size", "65536")  # type: ignore[arg-type]
    alone = _write(engine, tmp_path / "alone")
    others = {**spark_edge.PARQUET_OPTIONS, "parquet.enable.dictionary#topic": "false"}
    beside, beside_others = tmp_path / "beside", tmp_path / "beside_others"
    with _writing(engine, spark_edge.PARQUET_OPTIONS, tmp_path / "ours"):
        assert {_write(engine, beside / str(number)) for number in range(TRIES)} == {alone}
    with _writing(engine, others, tmp_path / "others"):
        assert any(_write(engine, beside_others / str(number)) != alone for number in range(10 * TRIES)), "the control"


def test_all_that_spark_writes_has_the_same_options() -> None:
    """[R-19] One function writes, for landing, decoding, compaction and latest."""
    adapters = Path(spark_edge.__file__).parents[1]
    writers = {path.name for path in adapters.rglob("*.py") if ".write." in path.read_text("utf-8")}
    assert writers == {"class_archive.py", "spark.py"}, "the first in a JVM of its own, at setup"
    assert Path(spark_edge.__file__).read_text("utf-8").count(".write.") == 1


def _write(engine: Engine, folder: Path) -> str:
    """Write one file of many row groups; return its digest."""
    from pyspark.sql import functions as f

    folder.parent.mkdir(exist_ok=True)
    with engine.job(SCAN_CONF, "write numbers", "") as session:
        rows = session.range(0, ROWS, 1, 1).select(f.lit("orders").alias("topic"), f.col("id").alias("offset"))
        write_parquet(rows, engine, str(folder))
    (file,) = folder.glob("*.parquet")
    assert pq.read_metadata(file).num_row_groups > 2
    canonicalize(file)
    return digest(file)


@contextmanager
def _writing(engine: Engine, options: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Have another job of the same JVM write small files with some options, one after the other, from before the body on."""
    from pyspark.sql import functions as f

    folder.mkdir()
    written, ended = threading.Event(), threading.Event()

    def write() -> None:
        for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            with engine.job(DECODE_CONF, "write few numbers", "") as session:
                rows = session.range(0, 10, 1, 1).select(f.lit("orders").alias("topic"))
                rows.write.options(**options, **engine.write_options).parquet(str(folder / str(number)))
            written.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            assert written.wait(PATIENCE_SECONDS)
            yield
        finally:
            ended.set()
        writing.result()
