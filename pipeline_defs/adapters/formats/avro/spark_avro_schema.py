"""What Avro and Spark say of schemas before anything is read with them; Avro's own classes in Spark's JVM are asked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType

from ....core.decode.avro import VALUE, AvroSchema, enclose, parse_avro, read_avro
from ....core.decode.avro_units import find_other_unit
from ....core.errors import unusable_schema
from ...spark.spark_errors import first_cause


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a reader's schema cannot read all that a writer's can write; or nothing of it, where it is of another type."""

    reason: str
    is_other_type: bool


ROOT = "/"
NOT_A_SCHEMA = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON as a schema raises where it is none: each part of it may be of any type."""


def whole_schema(text: str, references: Iterable[str], what: str) -> AvroSchema:
    """Return a schema with what it refers to put into it; raise `UnusableSchema` for what is none, and for one too large."""
    try:
        return read_avro(text, references)
    except NOT_A_SCHEMA as error:
        raise unusable_schema(what, _explain(error)) from error


def reader_schema(text: str, references: Iterable[str], what: str) -> AvroSchema:
    """Return a schema that records can be read with, as far as is known without Spark; raise `UnusableSchema`."""
    schema = whole_schema(text, references, what)
    if schema.refused:
        raise unusable_schema(what, "; ".join(schema.refused))
    return schema


def check_schema(session: SparkSession, text: str, references: Iterable[str], what: str) -> str:
    """Return a reader's schema, once Avro and Spark have both taken it; raise `UnusableSchema`."""
    from grpc import StatusCode
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    schema = reader_schema(text, references, what).text
    try:
        read_type(session, schema)
    except (*NOT_A_SCHEMA, PySparkException) as error:
        if isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode() is StatusCode.UNAVAILABLE:
            raise  # of the server, not of the schema
        raise unusable_schema(what, _explain(error)) from error
    return schema


def read_type(session: SparkSession, schema: str) -> DataType:
    """Return the type that Spark reads a schema's data as; it raises what it finds wrong."""
    (found,) = _types(session, [schema], {})
    return found


def find_unparsed(session: SparkSession, schemas: Mapping[int, str]) -> dict[int, str]:
    """Return the writers' schemas that Spark's own Avro does not take, each with the reason.

    One of them, met first in a task, would fail the whole job.
    """
    # a record that contains itself has no type in Spark, which a writer's need not: cut off, it has one
    options = {"recursiveFieldMaxDepth": "1"}
    try:
        _types(session, [*schemas.values()], options)
    except PySparkException as error:
        if len(schemas) == 1:
            return dict.fromkeys(schemas, _explain(error))
        each_alone = (find_unparsed(session, {number: schema}) for number, schema in schemas.items())
        return {number: reason for found in each_alone for number, reason in found.items()}
    return {}


def _types(session: SparkSession, schemas: Sequence[str], options: Mapping[str, str]) -> list[DataType]:
    options = {"enableStableIdentifiersForUnionType": "true", **options}
    nothing = f.lit(None).cast("binary")
    data = [from_avro(nothing, enclose(schema), options)[VALUE].alias(str(at)) for at, schema in enumerate(schemas)]
    return [column.dataType for column in session.range(0).select(*data).schema]


def find_mismatch(writer: str, reader: str) -> Mismatch | None:
    """Return why not all that one schema writes can be read with another, as Avro sees it; none where all can.

    Raises `UnusableSchema` for a writer's schema that Avro does not take.
    """
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.errors import AvroException
    from avro.schema import make_avsc_object

    check: Any = ReaderWriterCompatibilityChecker  # it and `make_avsc_object` are without types
    parse: Any = make_avsc_object
    try:
        # names are Spark's to judge: by Avro 1.12 they may be of any letters, by its Python of ASCII's
        pair = [
            parse(_bare(parse_avro(text)), None, validate_enum_symbols=False, validate_names=False) for text in (reader, writer)
        ]
        found = check().get_compatibility(*pair)
    except (*NOT_A_SCHEMA, AvroException) as error:
        raise unusable_schema("it", _explain(error)) from error
    if (unit := find_other_unit(writer, reader)) is not None:
        return Mismatch(unit, is_other_type=True)
    if found.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = ", ".join(sorted({each.name for each in found.incompatibilities}))
    places = sorted(found.locations - {ROOT}) or [ROOT]  # the root is added to each other place
    return Mismatch(f"{kinds} at {', '.join(places)}: {'; '.join(sorted(found.messages))}", f"{ROOT}name" in places)


def _bare(schema: Any) -> Any:
    """Return a schema as far as compatibility goes: types in types unwrapped, errors as records, without logical types."""
    if isinstance(schema, list):
        return [_bare(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, dict | list):
        return _bare(kind)
    bare = {name: value for name, value in schema.items() if name not in {"logicalType", "precision", "scale"}}
    bare["type"] = "record" if kind == "error" else kind
    bare |= {name: _bare(schema[name]) for name in ("items", "values") if name in schema}
    if "fields" in schema:
        bare["fields"] = [{**each, "type": _bare(each["type"])} for each in schema["fields"]]
    return bare


def _explain(error: Exception) -> str:
    """Say what is wrong in the words of who found it: the innermost Java exception, where there is one."""
    if isinstance(error, RecursionError):
        return "it is nested too deep to be read"
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        return f"it is no Avro schema: {type(error).__name__}: {error}"
    return first_cause(error)
