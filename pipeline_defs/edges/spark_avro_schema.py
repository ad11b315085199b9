"""What Avro and Spark say of schemas before anything is read with them; Avro's own classes in Spark's JVM are asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.avro import VALUE, enclose, find_clashes, inline_references, parse_avro, refuse_bomb
from ..core.errors import unusable_schema
from .engine import first_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Is why a reader's schema cannot read all that a writer's can write; or nothing of it, where it is of another type."""

    reason: str
    is_other_type: bool


NOT_A_SCHEMA = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON as a schema raises where it is none: each part of it may be of any type."""


def whole_schema(text: str, references: Iterable[str], what: str) -> str:
    """Return a schema with what it refers to put into it; raise `UnusableSchema` for what is none, and for one too large."""
    try:
        schema = inline_references(text, references)
        refuse_bomb(parse_avro(schema))
    except NOT_A_SCHEMA as error:
        raise unusable_schema(what, _explain(error)) from error
    return schema


def check_schema(session: SparkSession, schema: str, what: str) -> str:
    """Return a reader's schema, once Avro and Spark have both taken it; raise `UnusableSchema`."""
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.base import RetriesExceeded

    try:
        clashes = find_clashes(parse_avro(schema))
        if clashes:
            raise ValueError(f"fields differ in case only: {', '.join(clashes)}")
        read_type(session, schema)
    except RetriesExceeded:
        raise  # of the server, not of the schema
    except (*NOT_A_SCHEMA, PySparkException) as error:
        raise unusable_schema(what, _explain(error)) from error
    return schema


def read_type(session: SparkSession, schema: str) -> DataType:
    """Return the type that Spark reads a schema's data as; it raises what it finds wrong."""
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    options = {"enableStableIdentifiersForUnionType": "true"}
    datum = from_avro(f.lit(None).cast("binary"), enclose(schema), options).alias("datum")
    found: DataType = session.range(0).select(datum[VALUE].alias(VALUE)).schema[VALUE].dataType
    return found


def find_mismatch(writer: str, reader: str) -> Mismatch | None:
    """Return why not all that one schema writes can be read with another, as Avro sees it; none where all can.

    Raises `UnusableSchema` for a writer's schema that Avro does not take.
    """
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.errors import AvroException
    from avro.schema import NamedSchema

    try:
        written, read = _parse(writer), _parse(reader)
        check: Any = ReaderWriterCompatibilityChecker  # without types
        found = check().get_compatibility(read, written)
    except (*NOT_A_SCHEMA, AvroException) as error:
        raise unusable_schema("it", _explain(error)) from error
    if found.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = ", ".join(sorted({each.name for each in found.incompatibilities}))
    at = ", ".join(sorted(found.locations))
    is_other = isinstance(written, NamedSchema) and isinstance(read, NamedSchema) and written.name != read.name
    return Mismatch(f"{kinds} at {at}: {'; '.join(sorted(found.messages))}", is_other)


def _parse(text: str) -> Any:
    from avro.schema import parse

    return parse(text, validate_enum_symbols=False, validate_names=False)


def _explain(error: Exception) -> str:
    """Say what is wrong in the words of who found it: the innermost Java exception, where there is one."""
    if isinstance(error, RecursionError):
        return "it is nested too deep to be read"
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        return f"it is no Avro schema: {type(error).__name__}: {error}"
    return first_cause(error)
