"""Protobuf in Spark: messages of any writers' schemas read as one message, in Arrow batches of Spark's Python workers.

Protobuf's bytes do not say what they are: if a registry has their writers' schemas, those are compared first.
"""

from collections.abc import Mapping

import pyarrow as pa
from google.protobuf.descriptor import Descriptor
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from ...core.decode.decoders import Side
from ...core.errors import is_panic, unusable_schema
from ...core.login.client_properties import ANYBODY, RegistryLogin
from ..kafka.schema_registry import Registered, connect
from .decoded import Decoded, SideOutcome, decoded_where_read, failed, in_python, no_id
from .protobuf_batches import arrow_type, batch_decoder, open_reader
from .protobuf_schema import Prefixes, ProtoFile, compile_proto, encode_path, find_message, find_mismatches
from .spark_wire import Reader, Wire, head_of, read_wire, schema_id, usable

KIND = "PROTOBUF"


def decode_protobuf(rows: DataFrame, column: str, side: Side, login: RegistryLogin = ANYBODY) -> Decoded:
    """Decode Protobuf: of Confluent's wire format if `side` has a registry, else messages of `side.schema` as they are.

    Raises `UnusableSchema`, `UnknownSubject` and `RegistryUnavailable`, before anything is decoded.
    """
    if side.registry:
        return _decode_registered(column, side, read_wire(rows, column, connect(side.registry, login)))
    what = f"the protobuf schema of the {column}"
    file = compile_proto(side.schema or "", {}, what)
    return _read(f.col(column), file, find_message(file, side.message, what), what)


def _decode_registered(column: str, side: Side, wire: Wire) -> Decoded:
    raw = f.col(column)
    given = wire.read_reader(side, KIND)
    file = compile_proto(given.text, given.references, given.what)
    reader = find_message(file, side.message, given.what)
    body = f.when(f.lit(False), f.lit(None).cast("binary"))  # noqa: FBT003
    compared, unusable = usable(wire.writers, KIND, lambda schema: _compare(schema, reader))
    failures = {each: failure for each, (_, failure) in compared.items()} | unusable
    doubt = f.when(f.lit(False), f.lit(None).cast("string"))  # noqa: FBT003
    for each, (prefixes, _) in compared.items():
        for prefix in prefixes.sure:
            start = head_of(each) + prefix
            body = body.when(f.substring(raw, 1, len(start)) == f.lit(start), f.substring(raw, len(start) + 1, 2**31 - 1))
        for prefix, other in prefixes.doubtful.items():
            start = head_of(each) + prefix
            doubt = doubt.when(f.substring(raw, 1, len(start)) == f.lit(start), f.lit(_doubt(each, reader, other)))
    read = _read(body, file, reader, given.what)
    writers = {str(each): _text(schema) for each, schema in wire.writers.items() if schema.kind == KIND}
    schemas = writers | ({} if side.schema else {"reader": _text(given)})
    is_unread = raw.isNotNull() & body.isNull()
    classes, texts = wire.explain(raw, failures)
    return decoded_where_read(read, is_unread, (classes, f.coalesce(doubt, texts)), schema_id(raw), schemas)


def _doubt(schema_id: int, reader: Descriptor, other: str) -> str:
    return (
        f"it is {reader.full_name} or {other} of schema {schema_id}: some serializers count maps and groups among messages, "
        "others do not, expected maps and groups after nested messages in .proto text"
    )


def _compare(schema: Registered, reader: Descriptor) -> tuple[Prefixes, tuple[str, str]]:
    """Return the prefixes behind which a writer's messages can be read, and what is wrong with a record that has none."""
    what = f"schema {schema.id}"
    messages = compile_proto(schema.text, schema.references, what).messages(what)
    written = messages.get(reader.full_name)
    if written is None:
        reason = f"it has the messages {', '.join(messages)}, expected {reader.full_name}"
    else:
        reason = "; ".join(find_mismatches(written, reader))
    if written is None or reason:
        failure = f"written with schema {schema.id}, which the reader's cannot read: {reason}"
        return Prefixes((), {}), ("incompatible_schema", failure)
    return encode_path(written), ("other_message", f"another message of schema {schema.id}, expected {reader.full_name}")


def _read(body: Column, file: ProtoFile, message: Descriptor, what: str) -> Decoded:
    """Return how bodies decode; raise `UnusableSchema` if ptars panics at the schema."""
    try:
        found = open_reader(file.descriptors, message.full_name).handler.schema()
    except BaseException as error:
        if not is_panic(error):
            raise
        raise unusable_schema(what, f"ptars, which makes columns of messages, fails at it: {error}") from None
    columns = from_arrow_type(arrow_type(pa.struct(list(found))))
    wanted = pa.schema([pa.field("value", to_arrow_type(columns))]).serialize().to_pybytes()
    returned = StructType([StructField("value", columns), StructField("error", StringType())])
    read = in_python(batch_decoder(file.descriptors, message.full_name, wanted), returned, body)

    def judge(read: Column) -> SideOutcome:
        error = read["error"]
        return SideOutcome(read["value"], error.isNull(), failed("protobuf_malformed", error), no_id())

    return Decoded(read, judge)


def _text(schema: Registered | Reader) -> str:
    """Return the schema with what it imports, as one text to compare it by."""
    imported: Mapping[str, str] = schema.references
    return "\n".join([*(f"// {name}\n{text}" for name, text in sorted(imported.items())), schema.text])
