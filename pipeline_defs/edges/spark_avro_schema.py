"""What Avro and Spark say of schemas before anything is read with them; Avro's own classes in Spark's JVM are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.avro import VALUE, enclose, find_clashes, inline_references, parse_avro, refuse_bomb
from ..core.errors import unusable_schema
from .spark import first_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

# a length is read before what is so long: without these, six bad bytes ask for 2 GB and end Spark
LIMITS: Mapping[str, int] = {
    "org.apache.avro.limits.string.maxLength": 64 << 20,
    "org.apache.avro.limits.bytes.maxLength": 64 << 20,
    "org.apache.avro.limits.collectionItems.maxLength": 16 << 20,
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Is why a reader's schema cannot read all that a writer's can write; or nothing of it, where it is of another type."""

    reason: str
    is_other_type: bool


def limit_lengths(session: SparkSession) -> None:
    """Bounds what one datum may claim to hold, in this JVM; Avro looks once, when it is first used there."""
    system = _jvm(session, "java.lang.System")
    for name, limit in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, str(limit))


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
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        clashes = find_clashes(parse_avro(schema))
        if clashes:
            raise ValueError(f"fields differ in case only: {', '.join(clashes)}")
        read_type(session, schema)
    except (*NOT_A_SCHEMA, PySparkException, Py4JError) as error:
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


def find_mismatch(session: SparkSession, writer: str, reader: str) -> Mismatch | None:
    """Return why not all that one schema writes can be read with another, as Avro sees it; none where all can.

    Raises `UnusableSchema` for a writer's schema that Avro does not take.
    """
    from py4j.protocol import Py4JError

    compatibility = _jvm(session, "org.apache.avro.SchemaCompatibility")
    try:
        pair = compatibility.checkReaderWriterCompatibility(_parse(session, reader), _parse(session, writer))
    except Py4JError as error:
        raise unusable_schema("it", _explain(error)) from error
    found = list(pair.getResult().getIncompatibilities())
    if not found:
        return None
    reason = "; ".join(
        f"{each.getType().toString().lower()} at {each.getLocation()}: {each.getMessage()}" for each in found
    )
    return Mismatch(reason, any(each.getLocation() == "/name" for each in found))


def _explain(error: Exception) -> str:
    """Say what is wrong in the words of who found it: the innermost Java exception, where there is one."""
    from py4j.protocol import Py4JJavaError

    if isinstance(error, RecursionError):
        return "it is nested too deep to be read"
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        return f"it is no Avro schema: {type(error).__name__}: {error}"
    if not isinstance(error, Py4JJavaError):
        return first_cause(error)
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return " ".join(str(cause.getMessage() or cause.getClass().getSimpleName()).split())


def _parse(session: SparkSession, text: str) -> Any:
    return _jvm(session, "org.apache.avro.Schema$Parser")().setValidateDefaults(False).parse(text)


def _jvm(session: SparkSession, name: str) -> Any:
    return getattr(session.sparkContext._jvm, name)  # noqa: SLF001 (as pyspark does itself)
