"""Protobuf, fuzzed: any bytes of any schema become the row that Protobuf's own runtime reads, or an error of their own."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pipeline_defs.adapters.formats.protobuf.protobuf_batches import arrow_type, decode_bodies, open_reader
from pipeline_defs.adapters.formats.protobuf.protobuf_schema import compile_proto, find_message
from tests.support.fuzz import draws, mutate
from tests.support.fuzz_protobuf import Unsaid, draw_message, draw_schema, read_row

MESSAGES = 80


def test_every_message_is_the_row_that_protobufs_runtime_reads_or_an_error_of_its_own() -> None:
    """In any spelling the wire format allows, whatever stands beside it; no batch fails."""
    outcomes: set[str] = set()
    for seed, dice in draws(12):
        text = draw_schema(dice)
        file = compile_proto(text, {}, "the schema")
        kind = find_message(file, "M", "the schema")
        read = GetMessageClass(kind)
        bodies: list[bytes | None] = [draw_message(dice, kind) for _ in range(MESSAGES)]
        bodies = [mutate(dice, body) if body is not None and dice.random() < 0.3 else body for body in bodies] + [None]
        expected = [_expect(read, body) for body in bodies]
        reader = open_reader(file.descriptors, kind.full_name)
        wanted = arrow_type(pa.struct(list(reader.handler.schema())))
        values, errors = decode_bodies(pa.array(bodies, pa.binary()), reader, wanted)
        found = [
            None if body is None else "an error" if error else value
            for body, value, error in zip(bodies, _rows(values), errors, strict=True)
        ]
        assert list(map(repr, found)) == list(map(repr, expected)), f"seed {seed}: {text}"  # a NaN is itself
        outcomes |= {type(each).__name__ for each in expected}
    assert outcomes == {"dict", "str", "NoneType"}, "the control"


def _expect(read: Any, body: bytes | None) -> Any:
    try:
        return None if body is None else read_row(read.FromString(body))
    except (DecodeError, Unsaid):
        return "an error"


def _rows(values: pa.Array) -> list[Any]:
    """Return values as `read_row` has them: times as microseconds, maps in an order."""
    kind = values.type
    return [_plain(value, kind) for value in values.cast(_with_numbers(kind)).to_pylist()]


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return sorted(((key, _plain(each, kind.item_type)) for key, each in value), key=repr)
    return [_plain(each, kind.value_type) for each in value] if pa.types.is_list(kind) else value


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _with_numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_numbers(kind.key_type), _with_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_numbers(kind.value_type))
    return pa.int64() if pa.types.is_timestamp(kind) else kind
