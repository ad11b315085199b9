"""JSON of a JSON Schema in Spark: each document checked by the schema it was written with, columns of the reader's."""

import json

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from ....core.decode.decoders import Side
from ....core.login.client_properties import ANYBODY, RegistryLogin
from ...kafka.schema_registry import connect
from ..decoded import Decoded, SideOutcome, decoded_where_read, failed, in_python, no_id
from ..spark_wire import HEAD, Wire, choose_by_id, read_wire, schema_id, usable
from .json_batches import batch_checker
from .json_checks import Checked, check_schema, read_columns
from .spark_json import decode_json

KIND = "JSON"


def decode_json_schema(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:
    """Decode JSON of a JSON Schema: of Confluent's wire format where `side` has a registry, else plain.

    Raises `UnusableSchema`, `UnknownSubject` and `RegistryUnavailable`, before anything is decoded.
    """
    if side.registry:
        return _decode_registered(column, side, read_wire(rows, column, connect(side.registry, login)))
    raw = f.col(column)
    reader, columns = read_columns(side.schema or "", {}, f"the JSON schema of the {column}")
    violation = in_python(batch_checker({0: reader}), StringType(), f.when(raw.isNotNull(), 0), raw)
    return _join(decode_json(raw, columns), violation)


def _decode_registered(column: str, side: Side, wire: Wire) -> Decoded:
    raw = f.col(column)
    given = wire.read_reader(side, KIND)
    reader, columns = read_columns(given.text, given.references, given.what)
    checked, failures = usable(
        wire.writers, KIND, lambda schema: check_schema(schema.text, schema.references, f"schema {schema.id}")
    )
    known = choose_by_id(raw, {each: f.lit(each) for each in checked}, f.lit(None).cast("int"))
    body = f.when(known.isNotNull(), f.substring(raw, HEAD + 1, 2**31 - 1))
    violation = in_python(batch_checker(checked), StringType(), known, body)
    schemas = {str(each): _text(schema) for each, schema in checked.items()}
    schemas |= {} if side.schema else {"reader": _text(reader)}
    read, is_unread = _join(decode_json(body, columns), violation), raw.isNotNull() & body.isNull()
    return decoded_where_read(read, is_unread, wire.explain(raw, failures), schema_id(raw), schemas)


def _join(document: Decoded, violation: Column) -> Decoded:
    """Return what is read as JSON together with what its schema forbids: what is no JSON, what has no place."""
    read = f.struct(document.read.alias("document"), violation.alias("violation"))

    def judge(read: Column) -> SideOutcome:
        inner, found = document.judge(read["document"]), read["violation"]
        is_json = inner.is_right | (inner.failure["error_class"] == "json_mismatch")
        failure = f.when(found.isNotNull() & is_json, failed("schema_violated", found)).otherwise(inner.failure)
        return SideOutcome(inner.value, found.isNull() & inner.is_right, failure, no_id())

    return Decoded(read, judge)


def _text(schema: Checked) -> str:
    """Return the schema with what it refers to, as one text to be told apart by."""
    text, references = schema
    return json.dumps({"schema": json.loads(text), "references": {name: json.loads(of) for name, of in references}})
