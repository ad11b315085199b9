"""The columns that hold the rows of several files of one topic, whose values may have grown or widened meanwhile.

Widened only as Spark reads Parquet: what Arrow alone would promise, a BIGINT as a DOUBLE or text as bytes, Spark cannot read,
or is other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.command_lines import command
from ..core.errors import BadSetting, LatestOutdated

COLUMNS = ("generation", "partition", "offset", "timestamp", "key", "value")
MOST_DIGITS = 38


def common_schema(topic: str, paths: Sequence[Path]) -> pa.Schema:
    """Finds columns that hold the rows of all these files; raises `LatestOutdated` where there are none.

    Keys must be of one type, or they would not be in one bucket, and have an order: else `BadSetting`. Values may have more
    fields, or wider ones.
    """
    schemas = [pa.schema([pq.read_schema(path).field(name) for name in COLUMNS]) for path in paths]
    keys = {str(schema.field("key").type): schema.field("key").type for schema in schemas}
    for text, key in keys.items():
        if has_map(key):
            raise BadSetting(
                f"topic {topic} has `latest`, and keys of type {text}: Spark cannot tell which maps are equal; nothing was "
                "written; decode keys as something else, with `decode.key` in defs.yaml, or take `latest` out of it"
            )
    values = {str(schema.field("value").type) for schema in schemas}
    reason = f"keys are of types {' and '.join(sorted(keys))}" if len(keys) > 1 else ""
    if len(values) > 1 and any(not pa.types.is_struct(schema.field("value").type) for schema in schemas):
        reason = f"values are of types {' and '.join(sorted(values))}"
    if not reason:
        try:
            return pa.schema(
                pa.field(name, reduce(lambda one, other: merge_types(one, other, name), _types(schemas, name)))
                for name in COLUMNS
            )
        except ValueError as error:
            reason = str(error)
    raise LatestOutdated(
        f"the decoded ranges of {topic} and latest/{topic} do not go together: {reason}; nothing was written; decode all "
        f"ranges again as defs.yaml says now, then `{command('latest', topic, '--full')}`"
    )


def has_map(kind: pa.DataType) -> bool:
    """Says whether a type is a map, or contains one."""
    return pa.types.is_map(kind) or any(has_map(kind.field(number).type) for number in range(kind.num_fields))


def _types(schemas: Sequence[pa.Schema], name: str) -> list[pa.DataType]:
    return [schema.field(name).type for schema in schemas]


def merge_types(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    """Is the type that holds values of both, fields by their names; raises `ValueError` where there is none."""
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
    """Is the one that Spark reads both as: of whole numbers, fractions and decimals; none where there is none."""
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
