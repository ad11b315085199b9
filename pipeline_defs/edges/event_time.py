"""Event times: the column that Spark makes of a decoded row's own, and how many rows of a file are of which day.

Invariant: every row is counted, once; what has no time that a calendar has is null, and of no day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..core.calendar import FIRST, LAST, NO_DAY, SECONDS_A_DAY, day_of
from ..core.days import UNITS, EventTime, Kind
from ..core.decoded_table import EVENT_TIME
from .remote_file import File, source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_MICROS = 1_000_000


def with_event_time(rows: DataFrame, event_time: EventTime) -> DataFrame:
    """Return decoded rows with their event time; raise `BadSetting` where it is no column of theirs, or no time."""
    from pyspark.sql import functions as f

    kind, found = _find(rows.schema, event_time)
    if not event_time.accepts(kind):
        raise event_time.refuse(found)
    column = time = f.col(".".join(f"`{name.replace('`', '``')}`" for name in event_time.parts))
    first, end = (f.timestamp_seconds(f.lit(day * SECONDS_A_DAY)) for day in (FIRST, LAST + 1))
    if kind == "integer" and event_time.unit:
        time = _from_integer(column, UNITS[event_time.unit])
    elif kind == "date":  # far beyond the calendar a cast would fail the whole job
        time = f.when(column.between(*(f.lit(day_of(day)).cast("date") for day in (FIRST, LAST))), column)
    else:
        time = f.when((column >= first) & (column < end), column)
    return rows.withColumn(EVENT_TIME, time.cast("timestamp"))


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


def _from_integer(column: Column, per_second: int) -> Column:
    """Return the moment so many units after 1970; null where no calendar has it: a cast beyond would fail the whole job."""
    from pyspark.sql import functions as f

    first, end = (day * SECONDS_A_DAY * per_second for day in (FIRST, LAST + 1))
    micros = column.cast("bigint") * f.lit(_MICROS // per_second)
    return f.when(column.between(first, end - 1), f.timestamp_micros(micros))


def count_days(file: File) -> tuple[dict[str, int], int | None, int | None]:
    """Count the rows of each day in a decoded file, sorted; those without an event time are of no day.

    Return with it a moment that no event is before, and one that none is after (ms since 1970).
    """
    column = pq.ParquetFile(source(file), memory_map=True).read(columns=[EVENT_TIME]).column(EVENT_TIME)
    micros = pc.cast(column.drop_null(), "int64").to_numpy()
    numbers, counts = np.unique(micros // (SECONDS_A_DAY * _MICROS), return_counts=True)
    days = {day_of(int(number)): int(rows) for number, rows in zip(numbers, counts, strict=True)}
    counted = {**days, NO_DAY: column.null_count} if column.null_count else days
    return (
        (counted, int(micros.min()) // 1_000, -(-int(micros.max()) // 1_000)) if len(micros) else (counted, None, None)
    )
