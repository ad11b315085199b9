"""Avro in Spark, through its own `from_avro`: what was written with whatever schemas, read with one.

Each datum is read with a mark behind it (`core/decode/avro.py`): where the mark does not come out, the datum was cut, goes
on, or is of another schema. Invariant: no bytes make a Spark job fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from ....core.decode.avro import END, MARK, VALUE, enclose, record_name
from ....core.decode.decoders import Side
from ....core.errors import unusable_schema
from ....core.login.client_properties import ANYBODY, RegistryLogin
from ...kafka.schema_registry import Registered, connect
from ..decoded import Decoded, SideOutcome, failed, no_id
from ..spark_wire import HEAD, Wire, choose_by_id, read_wire, schema_id, usable
from .spark_avro_schema import Mismatch, check_schema, find_mismatch, find_unparsed, read_type, whole_schema

KIND = "AVRO"
NOT_ONE_DATUM = "the bytes are not one datum of {}: they end within it, go on behind it, or are of another one"
NOT_UTF8 = "a string in it is not UTF-8"
OPTIONS: Mapping[str, str] = {
    "mode": "PERMISSIVE",
    "datetimeRebaseMode": "CORRECTED",  # else a date before 1582 is an error
    "enableStableIdentifiersForUnionType": "true",  # a union's columns are named for its types, not for their order
}


def decode_avro(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:
    """Decode Avro: of Confluent's wire format where `side` has a registry, else plain, written with `side.schema`.

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
    names = {record_name(text) for text in writers.values()}
    given = wire.read_reader(side, side.message or (names.pop() if len(names) == 1 else None), KIND)
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
        # Spark copies a string's bytes as they are, and DuckDB reads nothing of a file where one is not UTF-8. All are one text
        # to be checked, with ASCII between them, so that no two halves become whole: a check of each takes longer than all else
        is_text = f.is_valid_utf8(f.concat_ws(" ", *_texts(value, kind)))
        wrong = f.when(is_whole, failed("avro_malformed", f.lit(NOT_UTF8))).otherwise(failed(*failure))
        return SideOutcome(value, read["is_null"] | (is_whole & is_text), wrong, read["schema_id"])

    return Decoded(read, judge, schemas)


def _texts(value: Column, kind: DataType) -> Iterator[Column]:
    """Yield the strings of a value: as text, or as arrays of text."""
    match kind:
        case StringType() | ArrayType(elementType=StringType()):
            yield value
        case StructType():
            for each in kind:
                yield from _texts(value[each.name], each.dataType)
        case MapType():
            yield from _texts(f.map_keys(value), ArrayType(kind.keyType))
            yield from _texts(f.map_values(value), ArrayType(kind.valueType))
        case ArrayType(elementType=StructType() as item):
            for each in item:
                yield from _texts(value[each.name], ArrayType(each.dataType))
        case ArrayType(elementType=ArrayType() as inner):
            yield from _texts(f.flatten(f.array_compact(value)), inner)
        case ArrayType(elementType=MapType() as inner):
            yield from _texts(f.transform(value, f.map_keys), ArrayType(ArrayType(inner.keyType)))
            yield from _texts(f.transform(value, f.map_values), ArrayType(ArrayType(inner.valueType)))


def _read(body: Column, writer: str, reader: str) -> Column:
    return from_avro(f.concat(body, f.lit(END)), enclose(writer), {**OPTIONS, "avroSchema": enclose(reader)})


def _text(schema: Registered) -> str:
    return whole_schema(schema.text, schema.references.values(), f"schema {schema.id}").text


def _failure(schema_id: int, mismatch: Mismatch | None) -> tuple[str, str]:
    """Return class and text of what is wrong with a record of this schema that could not be read."""
    if mismatch:
        return ("incompatible_schema", f"written with schema {schema_id}, which the reader's cannot read: {mismatch.reason}")
    return "avro_malformed", NOT_ONE_DATUM.format(f"schema {schema_id}")
