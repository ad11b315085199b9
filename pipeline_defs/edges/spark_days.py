"""Event days in Spark: decoded ranges in, one file per day out, in the order of the Kafka log. Nothing here is visible.

Invariant: all rows of a day are of one task, so that they are one file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.calendar import FIRST, LAST, SECONDS_A_DAY, day_of
from ..core.days import UNITS, EventTime, Kind
from .engine import Engine
from .spark import PARQUET_OPTIONS, SCAN_CONF, paths_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

EVENT_TIME = "event_time"
DAY = "_day"
ORDER = ("generation", "partition", "offset")
TASKS_PER_CORE = 4  # a task writes its days one after another; more tasks share days out better, and cost more


def check_event_time(schema: StructType, event_time: EventTime) -> None:
    """Refuses an event time that is no column of these, or of another type; raises `BadSetting`."""
    kind, found = _find(schema, event_time)
    if not event_time.accepts(kind):
        raise event_time.refuse(found)


def _find(schema: StructType, event_time: EventTime) -> tuple[Kind | None, str]:
    from pyspark.sql import types

    found: DataType = schema
    at = "the row"
    for name in event_time.parts:
        if not isinstance(found, types.StructType) or name not in found.names:
            names = f"of {', '.join(found.names)}" if isinstance(found, types.StructType) else found.simpleString()
            return None, f"no column {name} in {at}, which is {names}"
        found, at = found[name].dataType, name
    kinds: list[tuple[tuple[type[DataType], ...], Kind]] = [
        ((types.TimestampType, types.TimestampNTZType), "timestamp"),
        ((types.DateType,), "date"),
        ((types.ByteType, types.ShortType, types.IntegerType, types.LongType), "integer"),
    ]
    return next((kind for classes, kind in kinds if isinstance(found, classes)), None), found.simpleString()


class SparkDays:
    """Stages days of one topic."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stage(
        self, ranges: Sequence[Path], standing: Sequence[Path], days: Sequence[str], event_time: EventTime, folder: Path
    ) -> None:
        """Writes below `folder` one file per day that has rows, `_day=2013-01-01/`: of the ranges' files and standing days.

        Raises `ScanFailed`; then nothing counts.
        """
        from pyspark.sql import functions as f

        with self._engine.job(
            SCAN_CONF,
            f"write {len(days)} days from {len(ranges)} decoded ranges",
            "nothing became visible; the rows stay in the decoded ranges, and the days are tried again; where the ranges' "
            "columns do not fit together, decode the older ones again",
        ) as session:
            read = partial(_read, session, _merge(session, [*ranges, *standing]))
            parts = [_with_time(read(ranges), event_time)] if ranges else []
            parts += [read(standing)] if standing else []
            rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1], allowMissingColumns=True)
            rows = rows.withColumn(DAY, f.to_date(EVENT_TIME)).where(
                f.col(DAY).isin([f.lit(day).cast("date") for day in days])
            )
            tasks = min(len(days), TASKS_PER_CORE * (os.cpu_count() or 1))
            rows = rows.repartition(tasks, DAY).sortWithinPartitions(DAY, *ORDER)
            rows.write.mode("error").options(**PARQUET_OPTIONS, **self._engine.write_options).partitionBy(DAY).parquet(
                str(folder)
            )


def _merge(session: SparkSession, files: Sequence[Path]) -> StructType:
    """Is the schema of all files; Spark refuses by name a field that has not the same type in all of them.

    A union of what is read apart would make values fit instead, the number 7 of the text 007, and match by position what
    lies within maps.
    """
    reader = session.read.option("mergeSchema", "true").option("recursiveFileLookup", "true")
    return reader.parquet(*paths_of(files)).schema


def _read(session: SparkSession, schema: StructType, files: Sequence[Path]) -> DataFrame:
    reader = session.read.schema(schema).option("recursiveFileLookup", "true")
    return reader.parquet(*paths_of(files))


def _with_time(rows: DataFrame, event_time: EventTime) -> DataFrame:
    from pyspark.sql import functions as f

    kind, _ = _find(rows.schema, event_time)
    column = time = f.col(".".join(f"`{name.replace('`', '``')}`" for name in event_time.parts))
    if kind == "integer" and event_time.unit:
        time = _from_integer(column, UNITS[event_time.unit])
    elif kind == "date":  # far beyond the calendar a cast would fail the whole job
        time = f.when(column.between(*(f.lit(day_of(day)).cast("date") for day in (FIRST, LAST))), column)
    return rows.withColumn(EVENT_TIME, time.cast("timestamp"))


def _from_integer(column: Column, per_second: int) -> Column:
    """Is the moment so many units after 1970; null where no calendar has it: a cast beyond would fail the whole job."""
    from pyspark.sql import functions as f

    first, end = (day * SECONDS_A_DAY * per_second for day in (FIRST, LAST + 1))
    micros = column.cast("bigint") * f.lit(1_000_000 // per_second)
    return f.when(column.between(first, end - 1), f.timestamp_micros(micros))
