"""What a topic's defs.yaml says of its records, held against itself when definitions load: schemas, and columns that it names.

No registry is asked, and neither Spark nor Kafka is started. Invariant: what is not certainly wrong is not refused.
"""

from functools import lru_cache

from ...core.decode.columns import ANY, Column, NotDdl, parse_ddl, row_of
from ...core.decode.decoders import SERIALIZED, Decode, Format, Side
from ...core.errors import BadSetting

UNFIT = {"variant", "void", "interval"}  # kinds of columns that Spark has and a decoded table has not


def row_of_decode(decode: Decode) -> Column:
    """Return the columns of decoded rows, as far as they are known; raise `BadSetting` or `UnusableSchema`."""
    return row_of(*(read_side(side, name) for name, side in decode.sides.items()))


@lru_cache(maxsize=1_000)
def read_side(side: Side, name: str) -> Column:
    """Return the column of keys, or values, as far as it is known; raise `BadSetting` or `UnusableSchema`."""
    what = f"the {side.format} schema of `decode.{name}`"
    if side.format == Format.STRING:
        return Column("text")
    if side.format == Format.NONE:
        return Column("binary")
    if side.format in SERIALIZED:
        return parse_ddl(SERIALIZED[side.format])
    if side.schema is None:  # a registry's, which is asked when something is decoded, or of a format of a user's own
        return ANY
    match Format(side.format):
        case Format.JSON:
            return _read_ddl(side.schema, name)
        case Format.AVRO:
            from ...adapters.formats.spark_avro import reader_schema

            return reader_schema(side.schema, (), what).column
        case Format.PROTOBUF:
            return _read_proto(side.schema, side.message, what)
        case _:
            from ...adapters.formats.json_checks import read_columns

            return parse_ddl(read_columns(side.schema, {}, what)[1])


def _read_ddl(text: str, name: str) -> Column:
    try:
        found = parse_ddl(text, of_json=True)
        if unfit := next((each.kind for each in found.walk() if each.kind in UNFIT), None):
            raise NotDdl(f"it has {unfit.upper()}, which no JSON becomes and other readers of the table do not know")
        return found
    except NotDdl as error:
        raise BadSetting(
            f"the schema of `decode.{name}` is not Spark's DDL, expected such as `id BIGINT, at TIMESTAMP`: {error}; nothing "
            "was decoded; correct `inline_schema`, or the file that `schema_file` names, in defs.yaml"
        ) from error


def _read_proto(text: str, message: str | None, what: str) -> Column:
    from ...adapters.formats.protobuf_schema import columns_of as columns_of_message
    from ...adapters.formats.protobuf_schema import compile_proto, find_message

    return columns_of_message(find_message(compile_proto(text, {}, what), message, what))
