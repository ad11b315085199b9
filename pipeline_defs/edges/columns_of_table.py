"""The columns of a decoded table, which hold the rows of all its files: fields that were added, types that were widened.

Widened only as Spark reads Parquet (`latest_columns`); a dead letter's bytes have columns of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from ..core.decoded_table import DEAD
from .latest_columns import merge_types

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# what every file may have, whatever is decoded
_COLUMNS = pa.schema(
    [
        ("topic", pa.string()),
        ("generation", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", _HEADERS),
        ("key_schema_id", pa.int32()),
        ("value_schema_id", pa.int32()),
        ("raw_key", pa.binary()),
        ("raw_value", pa.binary()),
        ("side", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        (DEAD, pa.bool_()),
    ]
)
DECODED = ("key", "value")


class ColumnsDiffer(Exception):
    """No columns hold the rows of all files; says which column, and of which types it is."""


def text_of(schema: pa.Schema) -> str:
    """Return what of a decoded file's columns is its decoder's, as Delta writes it."""
    from deltalake import Schema

    return Schema.from_arrow(pa.schema([schema.field(name) for name in DECODED])).to_json()


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
