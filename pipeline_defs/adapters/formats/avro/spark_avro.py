"""Avro in Spark, through its own `from_avro`: what was written with whatever schemas, read with one.

Each datum is read with a mark behind it (`core/decode/avro.py`): where the mark does not come out, the datum was cut, goes
on, or is of another schema. Invariant: no bytes make a Spark job fail.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, StringType

from ....core.decode.avro import END, MARK, VALUE, enclose
from ....core.decode.decoders import Side
from ....core.errors import unusable_schema
from ....core.login.client_properties import ANYBODY, RegistryLogin
from ...kafka.schema_registry import Registered, connect
from ..decoded import Decoded, SideOutcome, failed, is_plain, no_id
from ..spark_calendar import has_times_of_a_calendar, leaves
from ..spark_wire import HEAD, Wire, choose_by_id, read_wire, schema_id, usable
from .spark_avro_schema import Mismatch, check_schema, find_mismatch, find_unparsed, read_type, whole_schema

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
        # Spark copies a string's bytes as they are, and DuckDB reads nothing of a file where one is not UTF-8. All are one text
        # to be checked, with ASCII between them, so that no two halves become whole: a check of each takes longer than all else
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
