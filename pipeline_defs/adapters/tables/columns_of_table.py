"""The columns of derived tables, which hold the rows of all their files: fields are added, types are widened.

Types are widened only as Spark reads Parquet. Arrow alone would allow more, as a BIGINT as a DOUBLE or text as bytes: Spark
cannot read that, or values change. A dead letter's bytes have columns of their own; a latest table has those of the decoded
one, and those that order the records of a key.
"""

import json
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from ...core.errors import BadSetting, first_line, unusable_schema
from ...core.tables.decoded_table import DEAD, EVENT_TIME, IDENTITY
from ...core.tables.latest import Latest, refuse_sequence
from ..lake.parquet import RAW_SCHEMA

DEAD_LETTERS = pa.schema(
    [
        *(RAW_SCHEMA.field(name) for name in (*IDENTITY, "headers")),
        ("key_schema_id", pa.int32()),
        ("value_schema_id", pa.int32()),
        ("raw_key", pa.binary()),
        ("raw_value", pa.binary()),
        ("side", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
    ]
)
# what every file may have, whatever is decoded
_COLUMNS = pa.schema([*DEAD_LETTERS, (EVENT_TIME, pa.timestamp("us", "UTC")), (DEAD, pa.bool_())])
DECODED = ("key", "value")
DECODED_COLUMNS = (*IDENTITY, "headers", *DECODED, "key_schema_id", "value_schema_id", EVENT_TIME)
MOST_DIGITS = 38
FIELDS = ("generation", "partition", "offset", "timestamp", "key", "value")
POSITION = ("generation", "_epoch", "_reached", "partition", "offset")
SEQUENCE = "_sequence"
_ORDERED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)


class ColumnsDiffer(Exception):
    """No columns hold the rows of all files; says which column, and of which types it is."""


def text_of(schema: pa.Schema) -> str:
    """Return the columns of a decoded file that its decoder makes, as Delta writes them; raise `UnusableSchema`."""
    from deltalake import Schema

    columns = pa.schema([schema.field(name) for name in DECODED])
    try:
        return Schema.from_arrow(columns).to_json()
    except Exception as error:  # delta-rs raises no narrower one
        raise unusable_schema(
            "what keys and values are decoded to", f"no Delta table has such columns: {first_line(error)}"
        ) from error


def schema_of(texts: Sequence[str]) -> str:
    """Return the schema of a table that has files of these columns, as Delta writes it; raise `ColumnsDiffer`.

    `texts` are as `text_of` gives them.
    """
    from deltalake import Schema

    types: dict[str, pa.DataType] = {}
    for text in texts:
        for field in pa.schema(Schema.from_json(text).to_arrow()):
            try:
                types[field.name] = merge_types(types.get(field.name, field.type), field.type, field.name)
            except ValueError as error:
                raise ColumnsDiffer(str(error)) from error
    schema = pa.schema([*_COLUMNS, *(pa.field(name, kind) for name, kind in sorted(types.items()))])
    return json.dumps(json.loads(Schema.from_arrow(schema).to_json()), separators=(",", ":"))


def arrow_schema(text: str) -> pa.Schema:
    """Return a table's columns as an Arrow schema, from the schema that Delta writes."""
    from deltalake import Schema

    return pa.schema(Schema.from_json(text).to_arrow())


def columns_of(texts: Sequence[str], names: Collection[str]) -> pa.Schema:
    """Return those of the columns `names` that one file with rows of some decoders has; `texts` as for `schema_of`."""
    return pa.schema([field for field in arrow_schema(schema_of(texts)) if field.name in names])


def holds(wider: pa.Schema, narrower: pa.Schema) -> bool:
    """Return whether all rows of the narrower schema can be read as rows of the wider one."""
    try:
        return set(wider.names) == set(narrower.names) and all(
            merge_types(narrower.field(each.name).type, each.type, each.name).equals(each.type) for each in wider
        )
    except ValueError:
        return False


def merge_types(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    """Return the type that holds values of both, fields by their names; raise `ValueError` if there is none."""
    if one.equals(other):
        return one
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return _merge_fields(one, other, where)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(merge_types(one.value_type, other.value_type, f"an item of {where}"))
    if pa.types.is_map(one) and pa.types.is_map(other):
        item = merge_types(one.item_type, other.item_type, f"an item of {where}")
        return pa.map_(merge_types(one.key_type, other.key_type, f"a key of {where}"), item)
    wider = _wider(one, other)
    if wider is None:
        raise ValueError(f"{where} is of type {one} and of {other}, expected types of which one holds both")
    return wider


def _merge_fields(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    fields = {field.name: field.type for field in one}
    spelled = {name.lower(): name for name in fields}
    for field in other:
        name = field.name
        if spelled.setdefault(name.lower(), name) != name:
            raise ValueError(f"{where} has the fields {spelled[name.lower()]} and {name}, which differ in case only")
        fields[name] = merge_types(fields[name], field.type, f"{where}.{name}") if name in fields else field.type
    return pa.struct([*fields.items()])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that Spark reads both as, of integers, floating-point numbers or decimals; none if there is none."""
    kinds = (one, other)
    if all(pa.types.is_decimal(kind) for kind in kinds):
        scale = max(kind.scale for kind in kinds)
        digits = max(kind.precision - kind.scale for kind in kinds) + scale
        return pa.decimal128(digits, scale) if digits <= MOST_DIGITS else None
    if all(pa.types.is_signed_integer(kind) for kind in kinds):
        return max(kinds, key=lambda kind: kind.bit_width)
    if all(pa.types.is_floating(kind) or (pa.types.is_signed_integer(kind) and kind.bit_width <= 32) for kind in kinds):
        return pa.float64()
    return None


def table_schema(topic: str, decoded: pa.Schema, config: Latest) -> pa.Schema:
    """Return a latest table's columns from the decoded one's; raise `BadSetting` for types that it cannot have."""
    fields = [_nullable(decoded.field(name)) for name in FIELDS]
    key, value = decoded.field("key").type, decoded.field("value").type
    if any(map(pa.types.is_map, parts_of(key))):
        raise BadSetting(
            f"topic {topic} has `latest`, and keys of type {key}: nothing tells which maps are equal; nothing was "
            "written; decode keys as something else, with `decode.key` in defs.yaml, or take `latest` out of it"
        )
    maps = (part for part in parts_of(value) if pa.types.is_map(part))
    if any(pa.types.is_timestamp(part) and part.tz is None for each in maps for part in parts_of(each)):
        raise BadSetting(
            f"topic {topic} has `latest`, and values with a time without a zone in a map: delta-rs makes no table of "
            "them; nothing was written; decode it as TIMESTAMP or STRING in defs.yaml, or take `latest` out of it"
        )
    fields += [pa.field("_deleted", pa.bool_()), pa.field("_epoch", pa.int32()), pa.field("_reached", pa.int64())]
    if config.sequence:
        fields.append(pa.field(SEQUENCE, _sequence_type(topic, decoded, config.sequence)))
    return pa.schema(fields)


def _sequence_type(topic: str, decoded: pa.Schema, path: str) -> pa.DataType:
    found: pa.DataType = pa.struct([decoded.field("value")])
    for name in path.split("."):
        names = [found.field(at).name for at in range(found.num_fields)] if pa.types.is_struct(found) else []
        if name not in names:
            raise refuse_sequence(topic, path, f"no field {name} among {', '.join(names) or found}")
        found = found.field(name).type
    if not any(is_ordered(found) for is_ordered in _ORDERED):
        raise refuse_sequence(topic, path, f"type {found}")
    return found


def parts_of(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type, and all that it contains."""
    yield kind
    for number in range(kind.num_fields):
        yield from parts_of(kind.field(number).type)


def _nullable(field: pa.Field) -> pa.Field:
    """Return a column in whose values any part may be null."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(each) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    return field.with_type(kind).with_nullable(nullable=True)
