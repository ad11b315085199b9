"""What each decoder in Spark gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import DataType


@dataclass(frozen=True, slots=True)
class SideOutcome:
    """What a key or value decodes to; `failure` and `value` are each right only where they are asked for.

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

    `read` is the work. `judge` is given the column that it became, which may be asked for as often as one likes. Only a
    `failure` asks for the key or value itself: it is large, and rows that are right need not carry it along. `schemas` are
    what decided the outcome beside the configuration: a reader's schema, writers' by their ids. All are of no one data frame:
    they can be asked of any rows with columns of those names.
    """

    read: Column
    judge: Callable[[Column], SideOutcome]
    schemas: Mapping[str, str] = field(default_factory=dict)


def failed(error_class: Column | str, error: Column) -> Column:
    """Return a failure: its class, and what a person is told."""
    name = f.lit(error_class) if isinstance(error_class, str) else error_class
    return f.struct(name.alias("error_class"), error.alias("error"))


def no_id() -> Column:
    """Return the `schema_id` of what no registry has the schema of."""
    return f.lit(None).cast("int")


def is_plain(text: Column, sign: str) -> Column:
    """Return whether a text is UTF-8 and has nowhere a sign, a regular expression of one character; never null.

    One call of Java says so, in half the time of `is_valid_utf8`: Spark reads the text, looks for the sign, and writes what
    stands before it, which is other bytes where some were not UTF-8.
    """
    return f.coalesce(f.get(f.split(text, sign, 2), 0) == text, f.lit(False))  # noqa: FBT003


def in_python(function: Callable[..., Any], kind: DataType, *columns: Column) -> Column:
    """Return what a function makes of batches of columns, of that kind, in Spark's Python workers."""
    make: Any = pandas_udf  # its overloads know no types that are strings
    made: Column = make(function, kind)(*columns)
    return made


def decoded_where_not_null(raw: Column, value: Column, failure: Column) -> Decoded:
    """Return how a key or value decodes whose `value` is null where its bytes cannot be decoded; a null stays one."""
    read = f.struct(raw.isNull().alias("is_null"), value.alias("value"))
    return Decoded(read, lambda read: SideOutcome(read["value"], read["is_null"] | read["value"].isNotNull(), failure, no_id()))


def decoded_where_read(
    plain: Decoded, is_unread: Column, why: tuple[Column, Column], written_with: Column, schemas: Mapping[str, str]
) -> Decoded:
    """Return how a key or value decodes of which a registry's schemas say whether it can be read at all.

    `why` has class and text of what is wrong with one that `is_unread`; `written_with` is the id of its schema.
    """
    read = f.struct(plain.read.alias("plain"), is_unread.alias("is_unread"), written_with.alias("schema_id"))

    def judge(read: Column) -> SideOutcome:
        found = plain.judge(read["plain"])
        failure = f.when(read["is_unread"], failed(*why)).otherwise(found.failure)
        return SideOutcome(found.value, ~read["is_unread"] & found.is_right, failure, read["schema_id"])

    return Decoded(read, judge, schemas)
