"""What each decoder in Spark returns, and which dates and times all readers of the files can read: of the years 1 to 9999."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import ArrayType, DataType, DateType, MapType, StructType, TimestampNTZType, TimestampType

from ...core.tables.days import FIRST, LAST, SECONDS_A_DAY, day_of

TIMES = (DateType, TimestampType, TimestampNTZType)


@dataclass(frozen=True, slots=True)
class SideOutcome:
    """What a key or value decodes to; `value` and `failure` are each right only for the rows named here.

    | column | of which rows | what |
    |---|---|---|
    | `is_right` | all | whether it could be decoded; true of a null, never null |
    | `value` | those that could | null for a null |
    | `failure` | the others | struct<error_class: string, error: string>, see `failed` |
    | `schema_id` | all | the registry's id that it was written with, or null |
    """

    value: Column
    is_right: Column
    failure: Column
    schema_id: Column


@dataclass(frozen=True, slots=True)
class Decoded:
    """How a key or value decodes, in two steps, so that the work is done once for each row.

    `read` is the work. `judge` is given the column with its result, which may be used as often as one likes. Only a
    `failure` uses the key or value itself: it is large, and rows that are right need not carry it along. `schemas` are what
    decided the outcome beside the configuration: a reader's schema, writers' by their ids. None is bound to a data frame:
    they can be used on any rows with columns of those names.
    """

    read: Column
    judge: Callable[[Column], SideOutcome]
    schemas: Mapping[str, str] = field(default_factory=dict)


def failed(error_class: Column | str, error: Column) -> Column:
    """Return a failure: its class, and its text for people."""
    name = f.lit(error_class) if isinstance(error_class, str) else error_class
    return f.struct(name.alias("error_class"), error.alias("error"))


def no_id() -> Column:
    """Return the `schema_id` of what has no schema in a registry."""
    return f.lit(None).cast("int")


def is_plain(text: Column, sign: str) -> Column:
    """Return whether a text is UTF-8 and lacks a sign, given as a regular expression of one character; never null.

    One Java call tells, in half the time of `is_valid_utf8`: Spark reads the text, looks for the sign, and writes what is
    before it, which is other bytes if some were not UTF-8.
    """
    return f.coalesce(f.get(f.split(text, sign, 2), 0) == text, f.lit(False))  # noqa: FBT003


def in_python(function: Callable[..., Any], kind: DataType, *columns: Column) -> Column:
    """Return the column of type `kind` that a function makes of batches of columns in Spark's Python workers."""
    make: Any = pandas_udf  # its overloads know no types that are strings
    made: Column = make(function, kind)(*columns)
    return made


def decoded_where_not_null(raw: Column, value: Column, failure: Column) -> Decoded:
    """Return how a key or value decodes whose `value` is null if its bytes cannot be decoded; a null stays one."""
    read = f.struct(raw.isNull().alias("is_null"), value.alias("value"))
    return Decoded(read, lambda read: SideOutcome(read["value"], read["is_null"] | read["value"].isNotNull(), failure, no_id()))


def decoded_where_read(
    plain: Decoded, is_unread: Column, why: tuple[Column, Column], written_with: Column, schemas: Mapping[str, str]
) -> Decoded:
    """Return how a key or value decodes if a registry's schemas tell whether it can be read at all.

    `why` has class and text of what is wrong with one that `is_unread`; `written_with` is the id of its schema.
    """
    read = f.struct(plain.read.alias("plain"), is_unread.alias("is_unread"), written_with.alias("schema_id"))

    def judge(read: Column) -> SideOutcome:
        found = plain.judge(read["plain"])
        failure = f.when(read["is_unread"], failed(*why)).otherwise(found.failure)
        return SideOutcome(found.value, ~read["is_unread"] & found.is_right, failure, read["schema_id"])

    return Decoded(read, judge, schemas)


def is_of_a_calendar(time: Column, kind: DataType) -> Column:
    """Return whether a date or time, or each in an array, is of the years 1 to 9999; true for null."""
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
    """Return whether all dates and times in a value are of the years 1 to 9999; true for null."""
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
