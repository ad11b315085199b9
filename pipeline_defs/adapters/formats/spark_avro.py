"""Avro in Spark, through its own `from_avro`: what was written with whatever schemas, read with one.

Avro's own classes in Spark's JVM are asked about schemas before anything is read with them. Each datum is read with a mark
behind it (`core/decode/avro.py`): if the mark does not come out, the datum was cut, goes on, or is of another schema.
Invariant: no bytes make a Spark job fail.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, StringType

from ...core.decode.avro import END, MARK, VALUE, AvroSchema, enclose, parse_avro, read_avro
from ...core.decode.avro_units import find_other_unit
from ...core.decode.decoders import Side
from ...core.errors import unusable_schema
from ...core.login.client_properties import ANYBODY, RegistryLogin
from ..kafka.schema_registry import Registered, connect
from ..spark.spark_errors import innermost_cause
from .decoded import Decoded, SideOutcome, failed, has_times_of_a_calendar, is_plain, leaves, no_id
from .spark_wire import HEAD, Wire, choose_by_id, read_wire, schema_id, usable

ROOT = "/"
NOT_A_SCHEMA = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON as a schema raises if it is none: each part of it may be of any type."""
KIND = "AVRO"
NOT_ONE_DATUM = (
    "the bytes are not one datum of {}: they end within it, go on behind it, are of another one, or have a decimal or time "
    "that its type cannot say"
)
NOT_UTF8 = "a string in it is not UTF-8"
NOT_OF_A_CALENDAR = "a date or time in it is not of the years 1 to 9999"
NUL = "\0"  # which few strings have
OPTIONS: Mapping[str, str] = {
    "mode": "PERMISSIVE",
    "datetimeRebaseMode": "CORRECTED",  # else a date before 1582 is an error
    "enableStableIdentifiersForUnionType": "true",  # a union's columns are named for its types, not for their order
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a reader's schema cannot read all that a writer's can write, or nothing of it, if it `is_other_type`."""

    reason: str
    is_other_type: bool


def whole_schema(text: str, references: Iterable[str], what: str) -> AvroSchema:
    """Return a schema with what it refers to put into it; raise `UnusableSchema` for what is no schema, or too large."""
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
    # a record that contains itself has no type in Spark, and a writer's needs none: cut off, it has one
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
    """Return why not all that one schema writes can be read with another, as Avro sees it; none if all can.

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
    """Return what is wrong in the words of what found it: the innermost Java exception, if there is one."""
    if isinstance(error, RecursionError):
        return "it is nested too deep to be read"
    if isinstance(error, (LookupError, TypeError, AttributeError)):
        return f"it is no Avro schema: {type(error).__name__}: {error}"
    return innermost_cause(error)


def decode_avro(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:
    """Decode Avro: of Confluent's wire format if `side` has a registry, else plain, written with `side.schema`.

    Raises `UnusableSchema`, `UnknownSubject` and `RegistryUnavailable`, before anything is decoded.
    """
    if side.registry:
        return _decode_registered(rows, column, side, read_wire(rows, column, connect(side.registry, login)))
    what = f"the avro schema of the {column}"
    reader = check_schema(rows.sparkSession, side.schema or "", (), what)
    raw = f.col(column)
    kind = read_type(rows.sparkSession, reader)
    return _decoded(
        raw, _read(raw, reader, reader), kind, (f.lit("avro_malformed"), f.lit(NOT_ONE_DATUM.format("the schema"))), no_id(), {}
    )


def _decode_registered(rows: DataFrame, column: str, side: Side, wire: Wire) -> Decoded:
    session, raw = rows.sparkSession, f.col(column)
    writers, failures = usable(wire.writers, KIND, _text)
    given = wire.read_reader(side, KIND)
    reader = check_schema(session, given.text, given.references.values(), given.what)
    body = f.substring(raw, HEAD + 1, 2**31 - 1)
    unparsed = find_unparsed(session, writers)

    def judge(schema: Registered) -> Mismatch | None:
        if schema.id in unparsed:
            raise unusable_schema("it", unparsed[schema.id])
        return find_mismatch(writers[schema.id], reader)

    mismatches, refused = usable({each: wire.writers[each] for each in writers}, KIND, judge)
    readable = {
        each: _read(body, writers[each], reader)
        for each, found in mismatches.items()
        if found is None or not found.is_other_type
    }
    datum = choose_by_id(raw, readable, _read(f.lit(None).cast("binary"), reader, reader))
    failures |= {each: _failure(each, mismatch) for each, mismatch in mismatches.items()} | refused
    schemas = {str(each): text for each, text in writers.items()} | ({} if side.schema else {"reader": reader})
    return _decoded(raw, datum, read_type(session, reader), wire.explain(raw, failures), schema_id(raw), schemas)


def _decoded(
    raw: Column, datum: Column, kind: DataType, failure: tuple[Column, Column], written_with: Column, schemas: Mapping[str, str]
) -> Decoded:
    read = f.struct(raw.isNull().alias("is_null"), datum.alias("datum"), written_with.alias("schema_id"))

    def judge(read: Column) -> SideOutcome:
        is_whole = f.equal_null(read["datum"][MARK], f.lit(END))
        value = read["datum"][VALUE]
        # Spark copies a string's bytes as they are, and DuckDB reads nothing of a file if one is not UTF-8. All are checked as
        # one text, with ASCII between them, so that no two halves become whole: a check of each takes longer than all else
        text = f.concat_ws(" ", *(text for text, _ in leaves(value, kind, (StringType,))))
        is_text = is_plain(text, NUL) | f.is_valid_utf8(text)
        is_known = has_times_of_a_calendar(value, kind)
        wrong = (
            f.when(~is_whole, failed(*failure))
            .when(~is_text, failed("avro_malformed", f.lit(NOT_UTF8)))
            .otherwise(failed("avro_malformed", f.lit(NOT_OF_A_CALENDAR)))
        )
        return SideOutcome(value, read["is_null"] | (is_whole & is_text & is_known), wrong, read["schema_id"])

    return Decoded(read, judge, schemas)


def _read(body: Column, writer: str, reader: str) -> Column:
    return from_avro(f.concat(body, f.lit(END)), enclose(writer), {**OPTIONS, "avroSchema": enclose(reader)})


def _text(schema: Registered) -> str:
    return whole_schema(schema.text, schema.references.values(), f"schema {schema.id}").text


def _failure(schema_id: int, mismatch: Mismatch | None) -> tuple[str, str]:
    """Return class and text of what is wrong with a record of this schema that could not be read."""
    if mismatch:
        return ("incompatible_schema", f"written with schema {schema_id}, which the reader's cannot read: {mismatch.reason}")
    return "avro_malformed", NOT_ONE_DATUM.format(f"schema {schema_id}")
