"""Dates and times in Spark that all readers of the files can say: those of the years 1 to 9999."""

from collections.abc import Iterator
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, DateType, MapType, StructType, TimestampNTZType, TimestampType

from ...core.tables.calendar import FIRST, LAST, SECONDS_A_DAY, day_of

TIMES = (DateType, TimestampType, TimestampNTZType)


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


def has_times_of_a_calendar(value: Column, kind: DataType) -> Column:
    """Return whether all dates and times in a value are of those years; true of null."""
    return reduce(and_, (is_of_a_calendar(*leaf) for leaf in leaves(value, kind, TIMES)), f.lit(True))  # noqa: FBT003


def leaves(value: Column, kind: DataType, wanted: tuple[type[DataType], ...]) -> Iterator[tuple[Column, DataType]]:
    """Yield the parts of a value that are of some types, or arrays of them, each with its type."""
    match kind:
        case ArrayType(elementType=element) if isinstance(element, wanted):
            yield value, kind
        case StructType():
            for each in kind:
                yield from leaves(value[each.name], each.dataType, wanted)
        case MapType():
            yield from leaves(f.map_keys(value), ArrayType(kind.keyType), wanted)
            yield from leaves(f.map_values(value), ArrayType(kind.valueType), wanted)
        case ArrayType(elementType=StructType() as item):
            for each in item:
                yield from leaves(value[each.name], ArrayType(each.dataType), wanted)
        case ArrayType(elementType=ArrayType() as inner):
            yield from leaves(f.flatten(f.array_compact(value)), inner, wanted)
        case ArrayType(elementType=MapType() as inner):
            yield from leaves(f.transform(value, f.map_keys), ArrayType(ArrayType(inner.keyType)), wanted)
            yield from leaves(f.transform(value, f.map_values), ArrayType(ArrayType(inner.valueType)), wanted)
        case _ if isinstance(kind, wanted):
            yield value, kind
