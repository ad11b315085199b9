"""The column of event times that Spark makes of a decoded row's own time; null where it has none that a calendar has."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DateType, StructType, TimestampType

from ...core.tables.calendar import FIRST, LAST, SECONDS_A_DAY
from ...core.tables.days import UNITS, EventTime
from ...core.tables.decoded_table import EVENT_TIME
from ..formats.spark_calendar import is_of_a_calendar

KINDS: Mapping[type[DataType], str] = {
    **dict.fromkeys((types.TimestampType, types.TimestampNTZType), "timestamp"),
    types.DateType: "date",
    **dict.fromkeys((types.ByteType, types.ShortType, types.IntegerType, types.LongType), "integer"),
}


def with_event_time(rows: DataFrame, event_time: EventTime) -> DataFrame:
    """Return decoded rows with their event time; raise `BadSetting` where it is no column of theirs, or no time."""
    kind, found = _find(rows.schema, event_time)
    if not event_time.accepts(kind):
        raise event_time.refuse(found)
    column = time = f.col(".".join(f"`{name.replace('`', '``')}`" for name in event_time.parts))
    if kind == "integer" and event_time.unit:
        time = _from_integer(column, UNITS[event_time.unit])
    else:  # of a date far beyond the calendar a cast would fail the whole job
        time = f.when(is_of_a_calendar(column, DateType() if kind == "date" else TimestampType()), column)
    return rows.withColumn(EVENT_TIME, time.cast("timestamp"))


def _find(schema: StructType, event_time: EventTime) -> tuple[str | None, str]:
    found: DataType = schema
    at = "the row"
    for name in event_time.parts:
        if not isinstance(found, types.StructType) or name not in found.names:
            names = f"of {', '.join(found.names)}" if isinstance(found, types.StructType) else found.simpleString()
            return None, f"no column {name} in {at}, which is {names}"
        found, at = found[name].dataType, name
    return KINDS.get(type(found)), found.simpleString()


def _from_integer(column: Column, per_second: int) -> Column:
    """Return the moment so many units after 1970; null where no calendar has it: a cast beyond would fail the whole job."""
    first, end = (day * SECONDS_A_DAY * per_second for day in (FIRST, LAST + 1))
    micros = column.cast("bigint") * f.lit(1_000_000 // per_second)
    return f.when(column.between(first, end - 1), f.timestamp_micros(micros))
