"""What Avro and Spark say of schemas before anything is read with them; Avro's own classes in Spark's JVM are asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.avro import enclose, find_clashes, inline_references, parse_avro
from ..core.errors import UnusableSchema
from .spark import first_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def check_schema(session: SparkSession, text: str, what: str) -> str:
    """Is a reader's schema, once Avro and Spark have both taken it; raises `UnusableSchema`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    try:
        schema = inline_references(text, ())
        clashes = find_clashes(parse_avro(schema))
        if clashes:
            raise ValueError(f"fields differ in case only: {', '.join(clashes)}")
        session.range(0).select(from_avro(f.lit(None).cast("binary"), enclose(schema))).schema  # noqa: B018 (is analysed)
    except (ValueError, LookupError, TypeError, AttributeError, PySparkException, Py4JError) as error:
        raise UnusableSchema(
            f"{what} cannot be used: {_reason(error)}; nothing was decoded; correct it, or give records a reader's schema "
            "of their own with `inline_schema` in defs.yaml"
        ) from error
    return schema


def find_mismatch(session: SparkSession, writer: str, reader: str) -> Mismatch | None:
    """Is why not all that one schema writes can be read with another, as Avro sees it; none where all can."""
    compatibility = _jvm(session, "org.apache.avro.SchemaCompatibility")
    pair = compatibility.checkReaderWriterCompatibility(_parse(session, reader), _parse(session, writer))
    found = list(pair.getResult().getIncompatibilities())
    if not found:
        return None
    reason = "; ".join(
        f"{each.getType().toString().lower()} at {each.getLocation()}: {each.getMessage()}" for each in found
    )
    return Mismatch(reason, any(each.getLocation() == "/name" for each in found))


def _reason(error: Exception) -> str:
    """Is what the innermost Java exception says, where there is one."""
    from py4j.protocol import Py4JJavaError

    if not isinstance(error, Py4JJavaError):
        return first_cause(error)
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return " ".join(str(cause.getMessage()).split())


def _parse(session: SparkSession, text: str) -> Any:
    return _jvm(session, "org.apache.avro.Schema$Parser")().setValidateDefaults(False).parse(text)


def _jvm(session: SparkSession, name: str) -> Any:
    return getattr(session.sparkContext._jvm, name)  # noqa: SLF001 (as pyspark does itself)
