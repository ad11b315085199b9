"""Dates and times in Spark that all readers of the files can say: those of the years 1 to 9999."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DateType

from ...core.tables.calendar import FIRST, LAST, SECONDS_A_DAY, day_of


def is_of_a_calendar(time: Column, kind: DataType) -> Column:
    """Return whether a date or time, or each in an array, is of those years; true of null."""
    earliest, latest = (f.array_min(time), f.array_max(time)) if isinstance(kind, ArrayType) else (time, time)
    leaf = kind.elementType if isinstance(kind, ArrayType) else kind
    if isinstance(leaf, DateType):
        first, last = (f.lit(day_of(day)).cast("date") for day in (FIRST, LAST))
        is_within = (earliest >= first) & (latest <= last)
    else:
        first, end = (f.timestamp_seconds(f.lit(day * SECONDS_A_DAY)).cast(leaf) for day in (FIRST, LAST + 1))
        is_within = (earliest >= first) & (latest < end)
    return f.coalesce(is_within, f.lit(True))  # noqa: FBT003
