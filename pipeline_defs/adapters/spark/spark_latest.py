"""Latest by key in Spark: which record of each key is its latest, of the ranges that an update has to read.

Nothing here is visible or decides what the table has. A row's place among all is worked out beside it: its epoch, and how far
the timestamps of its Kafka partition had come.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...core.errors import BadSetting
from ...core.offsets import OffsetRange
from ...core.tables.latest import Latest, Stretch, refuse_sequence, stretches_of
from ..tables.columns_of_table import has_map
from ..tables.latest_table import FIELDS, POSITION, SEQUENCE
from ..tables.topic_rows import within
from .engine import Engine
from .spark import SCAN_CONF, write_parquet
from .spark_files import read_as

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

TASK_BYTES = 32 * 1024 * 1024  # what a task sorts
MOST_TOLD = 100  # places that differ
SHARES = 16  # of the keys; the check looks at one of them
NEVER_MS = -(1 << 63)  # before all timestamps
CONF: Mapping[str, str] = {
    **SCAN_CONF,
    # the driver lists the files itself: beyond 32 Spark starts a job for it
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # row_number() = 1 needs no pass of its own that drops rows before the sort: they are sorted once, behind the shuffle
    "spark.sql.optimizer.windowGroupLimitThreshold": "-1",
}
_ORDERED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)


@dataclass(frozen=True, slots=True)
class Source:
    """A decoded file as Spark can read it, and what of it is to be read; of one file there may be several."""

    path: Path
    stretch: Stretch

    @property
    def row(self) -> tuple[str, int, int, int, int, int, int | None]:
        """What Spark is told of it."""
        offsets, placed = self.stretch.offsets, self.stretch.placed
        place = (offsets.generation, offsets.partition, offsets.start, offsets.end)
        return self.path.name, *place, placed.epoch, placed.reached_ms


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an update reads; `everything` only where a key has lost its winner, `present` is the table's files.

    With `with_present` the rows that stand are among the candidates, and the outcome is the whole table.
    """

    fresh: Sequence[Source]
    everything: Sequence[Source] = ()
    present: Sequence[Path] = ()
    changed: Collection[OffsetRange] = ()
    with_present: bool = False


def table_schema(topic: str, decoded: pa.Schema, config: Latest) -> pa.Schema:
    """Return the columns of a latest table of a decoded one's; raise `BadSetting` for keys or a sequence without an order."""
    fields = [decoded.field(name) for name in FIELDS]
    key = decoded.field("key").type
    if has_map(key):
        raise BadSetting(
            f"topic {topic} has `latest`, and keys of type {key}: Spark cannot tell which maps are equal; nothing was "
            "written; decode keys as something else, with `decode.key` in defs.yaml, or take `latest` out of it"
        )
    fields += [pa.field("_deleted", pa.bool_()), pa.field("_epoch", pa.int32()), pa.field("_reached", pa.int64())]
    if config.sequence:
        fields.append(pa.field(SEQUENCE, _sequence_type(topic, decoded, config.sequence)))
    return pa.schema(fields)


def _sequence_type(topic: str, decoded: pa.Schema, path: str) -> pa.DataType:
    found: pa.DataType = pa.struct([decoded.field("value")])
    for name in path.split("."):
        names = [found.field(at).name for at in range(found.num_fields)] if pa.types.is_struct(found) else []
        if name not in names:
            raise refuse_sequence(topic, path, f"no field {name} among {', '.join(names) or found}")
        found = found.field(name).type
    if not any(is_ordered(found) for is_ordered in _ORDERED):
        raise refuse_sequence(topic, path, f"type {found}")
    return found


class SparkLatest:
    """Finds the latest records by key."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stage(self, topic: str, inputs: Inputs, schema: pa.Schema, config: Latest, folder: Path) -> None:
        """Write the winners below `folder`; `schema` is the table's, which holds all rows."""
        with self._job(topic) as session:
            write_parquet(_changes(session, inputs, schema, config), self._engine, str(folder))

    def find_differences(
        self, topic: str, inputs: Inputs, schema: pa.Schema, config: Latest, share: int
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """Compare a share of the keys with a recomputation; return how many keys it has, and the places that differ.

        A place is (generation, Kafka partition, offset) of the record that should stand, or of the one that stands.
        """
        from pyspark.sql import functions as f

        place = ("generation", "partition", "offset")
        with self._job(topic) as session:
            is_drawn = f.pmod(f.hash("key"), f.lit(SHARES)) == share
            right = _winners(_candidates(session, inputs.fresh, schema, config).where(is_drawn), _tasks(inputs))
            stands = read_as(session, schema, inputs.present).where(is_drawn)

            def packed(rows: DataFrame, name: str) -> DataFrame:
                content = f.to_json(f.struct("key", "value"))
                return rows.select("key", f.struct(*place, content.alias("content")).alias(name))

            # of a key that stands twice neither row is as it should be, though each alone might be
            rows_of_key = packed(stands, "row").groupBy("key").agg(f.max("row").alias("stands"), f.count("*").alias("rows"))
            both = packed(right, "right").join(rows_of_key, "key", "full_outer")
            is_wrong = ~f.col("right").eqNullSafe(f.col("stands")) | (f.col("rows") > 1)
            wrong = both.where(is_wrong).select(f.coalesce("right", "stands").alias("row"))
            rows = wrong.select(*(f"row.{name}" for name in place)).sort(*place).limit(MOST_TOLD).collect()
            return stands.count(), [(row[0], row[1], row[2]) for row in rows]

    def _job(self, topic: str) -> Any:
        consequence = f"nothing became visible; what stands in latest/{topic} stays, and the next update tries again"
        return self._engine.job(CONF, f"find the latest records of {topic}", consequence, topic=topic)


def _changes(session: SparkSession, inputs: Inputs, schema: pa.Schema, config: Latest) -> DataFrame:
    """Return the rows of an update, one per key: with what is to be done to the key, or the whole table."""
    from pyspark.sql import functions as f

    tasks = _tasks(inputs)
    rows = _candidates(session, inputs.fresh, schema, config)
    present = read_as(session, schema, inputs.present)
    lost = None
    if inputs.changed and inputs.present:
        is_changed = f.expr(within(stretches_of(inputs.changed), "`"))
        found = present.where(is_changed).select("key")
        present = present.where(~is_changed)
        if not found.isEmpty():
            lost = found
            history = _candidates(session, inputs.everything, schema, config)
            rows = rows.unionByName(history.join(lost, "key", "left_semi"))
    if inputs.with_present:
        return _winners(rows.unionByName(present), tasks)
    best = _winners(rows, tasks)
    if lost is None:
        return best.withColumns({"_forced": f.lit(False), "_gone": f.lit(False)})  # noqa: FBT003
    marked = lost.withColumn("_lost", f.lit(True))  # noqa: FBT003
    joined = best.withColumn("_found", f.lit(True)).join(marked, "key", "full_outer")  # noqa: FBT003
    return joined.withColumns({"_forced": f.col("_lost").isNotNull(), "_gone": f.col("_found").isNull()}).drop(
        "_lost", "_found"
    )


def _winners(rows: DataFrame, tasks: int) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = [name for name in (SEQUENCE, *POSITION) if name in rows.columns]
    # by a hash first: keys often begin alike, and rows are sorted twice as fast where their first column tells them apart
    by = f.xxhash64("key"), "key"
    newest = Window.partitionBy(*by).orderBy(*(f.col(name).desc_nulls_last() for name in order))
    return rows.repartition(tasks, "key").withColumn("_nth", f.row_number().over(newest)).where("_nth = 1").drop("_nth")


def _candidates(session: SparkSession, sources: Sequence[Source], schema: pa.Schema, config: Latest) -> DataFrame:
    """Read decoded files as rows of the table, each with its place in the order; records without a key are left out."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    columns = pa.schema([schema.field(name) for name in FIELDS])
    if not sources:
        return read_as(session, schema, [])
    of_stretches = session.createDataFrame(
        [(number, *each.row) for number, each in enumerate(sources)],
        "_stretch int, _file string, _generation int, _partition int, _start long, _end long, _epoch int, _before long",
    )
    paths = sorted({each.path for each in sources})
    tasks = min(len(paths), _cores())
    read = [read_as(session, columns, paths[number::tasks]).coalesce(1) for number in range(tasks)]
    rows = reduce(DataFrame.unionByName, (_placed(files, f.broadcast(of_stretches)) for files in read))
    more = {"_deleted": f.col("value").isNull(), "key": _normalized(f.col("key"), rows.schema["key"].dataType)}
    if config.sequence:
        quoted = ".".join(f"`{name}`" for name in config.sequence.split("."))
        more[SEQUENCE] = f.col(quoted)
    return rows.where(f.col("key").isNotNull()).withColumns(more).select(*schema.names)


def _placed(rows: DataFrame, of_stretches: DataFrame) -> DataFrame:
    """Give rows of whole files, in one task so that nothing is shuffled, what their stretch says and how far time had come."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    lies_in = (
        (f.col("_metadata.file_name") == f.col("_file"))
        & (f.col("generation") == f.col("_generation"))
        & (f.col("partition") == f.col("_partition"))
        & f.col("offset").between(f.col("_start"), f.col("_end") - 1)
    )
    so_far = Window.partitionBy("_stretch").orderBy("offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    reached = f.greatest(f.max(f.unix_millis("timestamp")).over(so_far), f.col("_before"))
    return rows.join(of_stretches, lies_in).withColumn("_reached", f.coalesce(reached, f.lit(NEVER_MS)))


def _normalized(column: Column, kind: DataType) -> Column:
    """Return a key in which NaN and zero have one form each: as text or bytes they have several, which Spark takes for one."""
    from pyspark.sql import functions as f
    from pyspark.sql import types

    if not any(f'"{name}"' in kind.json() for name in ("double", "float")):
        return column
    if isinstance(kind, types.StructType):
        fields = [_normalized(column[each.name], each.dataType).alias(each.name) for each in kind]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(kind, types.ArrayType):
        return f.transform(column, lambda item: _normalized(item, kind.elementType))
    if isinstance(kind, (types.FloatType, types.DoubleType)):
        return f.when(f.isnan(column), f.lit(float("nan")).cast(kind)).otherwise((column + f.lit(0.0)).cast(kind))
    return column


def _tasks(inputs: Inputs) -> int:
    """Return how many tasks find the winners: as few as keep the cores busy and are not too large."""
    files = {each.path for each in (*inputs.fresh, *inputs.everything)} | {*(inputs.present if inputs.with_present else ())}
    return max(_cores(), ceil(sum(file.stat().st_size for file in files) / TASK_BYTES))


def _cores() -> int:
    return os.cpu_count() or 1
