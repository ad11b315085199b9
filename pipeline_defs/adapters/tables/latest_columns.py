"""The columns of a latest table: of a decoded one's, with what orders the records of a key."""

from collections.abc import Iterator

import pyarrow as pa

from ...core.errors import BadSetting
from ...core.tables.latest import Latest, refuse_sequence

FIELDS = ("generation", "partition", "offset", "timestamp", "key", "value")
POSITION = ("generation", "_epoch", "_reached", "partition", "offset")
SEQUENCE = "_sequence"
_ORDERED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_date, pa.types.is_string)


def table_schema(topic: str, decoded: pa.Schema, config: Latest) -> pa.Schema:
    """Return the columns of a latest table of a decoded one's; raise `BadSetting` for keys or a sequence without an order."""
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
    """Return a column of whose values any part may be null."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(each) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _nullable(kind.item_field))
    return field.with_type(kind).with_nullable(nullable=True)
