"""The columns of a decoded table, which hold the rows of all its files: fields that were added, types that were widened.

Widened only as Spark reads Parquet: what Arrow alone would promise, a BIGINT as a DOUBLE or text as bytes, Spark cannot
read, or is other values. A dead letter's bytes have columns of their own.
"""

import json
from collections.abc import Collection, Sequence

import pyarrow as pa

from ...core.errors import first_line, unusable_schema
from ...core.tables.decoded_table import DEAD, EVENT_TIME, IDENTITY
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


class ColumnsDiffer(Exception):
    """No columns hold the rows of all files; says which column, and of which types it is."""


def text_of(schema: pa.Schema) -> str:
    """Return what of a decoded file's columns is its decoder's, as Delta writes it; raise `UnusableSchema`."""
    from deltalake import Schema

    columns = pa.schema([schema.field(name) for name in DECODED])
    try:
        return Schema.from_arrow(columns).to_json()
    except Exception as error:  # delta-rs raises it as such
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
    """Return a table's columns as Arrow has them, of the schema that Delta writes."""
    from deltalake import Schema

    return pa.schema(Schema.from_json(text).to_arrow())


def columns_of(texts: Sequence[str], names: Collection[str]) -> pa.Schema:
    """Return the columns of one file with rows of some decoders, of which there are `names`; `texts` as for `schema_of`."""
    return pa.schema([field for field in arrow_schema(schema_of(texts)) if field.name in names])


def holds(wider: pa.Schema, narrower: pa.Schema) -> bool:
    """Return whether all rows of one schema can be read as rows of another."""
    try:
        return set(wider.names) == set(narrower.names) and all(
            merge_types(narrower.field(each.name).type, each.type, each.name).equals(each.type) for each in wider
        )
    except ValueError:
        return False


def merge_types(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    """Return the type that holds values of both, fields by their names; raise `ValueError` where there is none."""
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
    """Return the type that Spark reads both as: of whole numbers, fractions and decimals; none where there is none."""
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
