"""Latest by key in Spark: present rows and tombstones, and the rows of fresh ranges in; per bucket the winners out.

One bucket of keys is one file, sorted by key, and one of tombstones; a task has one bucket, or several of a small state.
Nothing here is visible or decides anything, but which record of a key is its latest: that with the greatest (generation,
partition, offset).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import ceil
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ScanFailed
from ..core.latest import MOST_BUCKETS, stretches_of
from ..core.offsets import OffsetRange
from .engine import Engine
from .latest_files import StagedBucket
from .spark import PARQUET_OPTIONS, SCAN_CONF, paths_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

PLACE = ("generation", "partition", "offset")
OPTIONS: Mapping[str, str] = {**PARQUET_OPTIONS, "parquet.column.statistics.enabled#key": "true"}  # sorted by key
# a small state has fewer tasks than buckets; what a task sorts, and the files that it has open side by side, stay few
TASK_BYTES = 32 * 1024 * 1024
TASK_BUCKETS = 16
CONF: Mapping[str, str] = {
    **SCAN_CONF,
    # the driver lists the files itself: beyond 32 Spark starts a job for it
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # row_number() = 1 needs no pass of its own that drops rows before the sort: they are sorted once, behind the shuffle
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
    # a task writes its buckets' files side by side, as many as it has, so that the sort by key is the only one
    "spark.sql.maxConcurrentOutputFileWriters": str(2 * MOST_BUCKETS),
}


Reader = Callable[[Sequence[Path]], "DataFrame"]
"""Reads files of decoded rows, or of a state, as rows of one layout."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Are the files that an update reads, and of which ranges the standing rows count no more by themselves.

    `everything` is read only where a key has lost its winner. Without `present` it is a recomputation.
    """

    fresh: Sequence[Path]
    present: Sequence[Path] = ()
    tombstones: Sequence[Path] = ()
    everything: Sequence[Path] = ()
    changed: Collection[OffsetRange] = ()


class SparkLatest:
    """Finds the latest records by key."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stage(
        self, topic: str, inputs: Inputs, schema: Any, buckets: int, due: Collection[int], folder: Path
    ) -> dict[int, StagedBucket]:
        """Writes the winners of the due buckets below `folder`; `schema` is the Arrow schema that holds all rows."""
        consequence = f"nothing became visible; what stands in latest/{topic} stays, and the next update tries again"
        with self._engine.job(CONF, f"find the latest records of {topic}", consequence, topic=topic) as session:
            winners = _winners(partial(_read, session, schema), inputs, buckets, due)
            winners.write.mode("error").options(**OPTIONS, **self._engine.write_options).partitionBy(
                "bucket", "dead"
            ).parquet(str(folder))
        return {bucket: _staged(topic, folder / f"bucket={bucket}") for bucket in due}


def _winners(read: Reader, inputs: Inputs, buckets: int, due: Collection[int]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    bucket = f.pmod(f.hash("key"), f.lit(buckets))
    is_due = f.lit(True) if len(due) == buckets else bucket.isin(*due)  # noqa: FBT003
    counts = f.col("key").isNotNull() & is_due
    standing = [*inputs.present, *inputs.tombstones]
    if inputs.changed and inputs.present:
        rows = _without_changed(read, inputs, read(standing), counts)
    else:
        rows = read([*standing, *inputs.fresh]).where(counts)
    tasks = _tasks(buckets, [*standing, *inputs.fresh])
    if _has_fractions(rows.schema["key"]):
        # a window looks at them with NaN and zero in one form each, and would shuffle what is spread by key once more;
        # spread by bucket it does not, but buckets are then spread over tasks by chance
        rows, by = rows.withColumn("bucket", bucket).repartition(tasks, "bucket"), ["bucket", "key"]
    else:
        # its partitioning is pmod of the same hash: where tasks divide buckets, a bucket is in one task
        rows, by = rows.repartition(tasks, "key"), ["key"]
    newest = Window.partitionBy(*by).orderBy(*(f.col(name).desc() for name in PLACE))
    best = rows.withColumn("nth", f.row_number().over(newest)).where("nth = 1").drop("nth")
    return best.withColumns({"bucket": bucket, "dead": f.col("value").isNull()})


def _without_changed(read: Reader, inputs: Inputs, present: DataFrame, counts: Column) -> DataFrame:
    """Reads what stands but for what lies in ranges that changed, what is fresh, and all of keys that lost their winner."""
    is_changed = _lies_in(inputs.changed)
    fresh = read(inputs.fresh).where(counts)
    again = fresh.where(is_changed).select("key", *PLACE)
    lost = present.where(is_changed).join(again, ["key", *PLACE], "left_anti").select("key")
    if not lost.isEmpty():
        history = read(inputs.everything).where(counts)
        fresh = fresh.unionByName(history.join(lost, "key", "left_semi"))
    return present.where(~is_changed).unionByName(fresh)


def _tasks(buckets: int, files: Sequence[Path]) -> int:
    """Is how many tasks find the winners: as few as keep the cores busy and are not too large, and divide the buckets."""
    size = sum(file.stat().st_size for file in files)
    cores = os.cpu_count() or 1
    wanted = max(cores, ceil(size / TASK_BYTES), ceil(buckets / TASK_BUCKETS))
    return next((number for number in range(1, buckets) if number >= wanted and buckets % number == 0), buckets)


def _read(session: SparkSession, schema: Any, files: Sequence[Path]) -> DataFrame:
    """Read files as the rows of an Arrow schema that holds all of them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not files:
        return session.createDataFrame([], columns)
    return session.read.schema(columns).parquet(*paths_of(files))


def _has_fractions(key: StructField) -> bool:
    """Says whether a key may be, or contain, a DOUBLE or FLOAT; of one with a field of that name, too, which does no harm."""
    return any(f'"{name}"' in key.dataType.json() for name in ("double", "float"))


def _lies_in(ranges: Collection[OffsetRange]) -> Column:
    from pyspark.sql import functions as f

    return reduce(
        or_,
        (
            (f.col("generation") == each.generation)
            & (f.col("partition") == each.partition)
            & (f.col("offset") >= each.start)
            & (f.col("offset") < each.end)
            for each in stretches_of(ranges)
        ),
    )


def _staged(topic: str, folder: Path) -> StagedBucket:
    return StagedBucket(_only(topic, folder / "dead=false"), _only(topic, folder / "dead=true"))


def _only(topic: str, folder: Path) -> Path | None:
    files = sorted(folder.glob("*.parquet"))
    if len(files) > 1:
        raise ScanFailed(
            f"Spark wrote {len(files)} files of {topic} into {folder}, expected one; nothing became visible"
        )
    return files[0] if files else None
