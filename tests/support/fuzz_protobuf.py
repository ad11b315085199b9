"""Random Protobuf schemas, random bytes for them in every spelling of the wire format, and what the runtime reads of them."""

import math
import random
import struct
from decimal import Decimal
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

VARINTS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool")
FIXED = {"fixed32": 4, "sfixed32": 4, "float": 4, "fixed64": 8, "sfixed64": 8, "double": 8}
KEYS = ("string", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "fixed32", "sfixed64")
KNOWN = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
    "google.protobuf.Any": "any",
    **{
        f"google.protobuf.{kind}Value": "wrappers"
        for kind in ("Int32", "Int64", "UInt32", "UInt64", "Bool", "String", "Bytes", "Double", "Float")
    },
}
NUMBERS = (0, 1, -1, 127, 128, (1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 32) + 5, (1 << 63) - 1, -(1 << 63), 1 << 40)
LIMITS = {"Timestamp": (-62_135_596_800, 253_402_300_799), "Duration": (-315_576_000_001, 315_576_000_001)}


class Unsaid(Exception):
    """A message that is legal on the wire, and has a value that no column can say."""


def draw_schema(dice: random.Random) -> str:
    """Draw a schema of proto2 or proto3, its message is `M`: scalars, enums, messages, maps, oneofs, well-known types."""
    syntax = dice.choice(["proto2", "proto3", "proto3"])
    bodies = [_draw_body(dice, syntax, level) for level in range(3)]
    enum = f"enum E {{ ZERO = 0; ONE = 1; {'MINUS = -1; ' if dice.random() < 0.3 else ''}FAR = 1000; }}"
    messages = "\n".join(f"message {name} {{ {body} }}" for name, body in zip("ABM", bodies, strict=True))
    imports = "".join(f'import "google/protobuf/{file}.proto"; ' for file in sorted(set(KNOWN.values())))
    extension = "" if syntax == "proto3" else " extend M { optional int32 more = 9005; }"
    return f'syntax = "{syntax}"; package fuzz; {imports}{enum}\n{messages}\n{extension}'


def split_enum(text: str) -> tuple[str, str]:
    """Return a drawn schema that imports its enum, and the file `enum.proto` that has it, of proto3."""
    start, end = text.index("enum E"), text.index("\n")
    rest = f'{text[:start]} import "enum.proto"; {text[end:]}'
    return rest, f'syntax = "proto3"; package fuzz; {text[start:end]}'


def _draw_body(dice: random.Random, syntax: str, inner: int) -> str:
    named = ["E", *"AB"[:inner]]
    kinds = [*VARINTS, *FIXED, "string", "bytes", *named, *dice.sample(sorted(KNOWN), 3)]
    fields, number = [], 0
    for at in range(dice.randint(1, 6)):
        number += dice.choice([1, 1, 1, 14, 2000])
        kind, name = dice.choice(kinds), f"f{at}"
        label = dice.choice(["", "", "optional ", "repeated "])
        if syntax == "proto2" and not label:
            label = dice.choice(["optional ", "optional ", "required "])
        packed = ""
        if label == "repeated " and (kind in VARINTS or kind in FIXED or kind == "E"):
            packed = dice.choice(["", " [packed = true]", " [packed = false]"])
        if syntax == "proto2" and label == "optional " and kind in VARINTS and dice.random() < 0.4:
            packed = f" [default = {'true' if kind == 'bool' else 5}]"
        if dice.random() < 0.2:
            fields.append(f"map<{dice.choice(KEYS)}, {kind}> {name} = {number};")
        elif dice.random() < 0.15:
            fields.append(f"oneof o{at} {{ {kind} {name} = {number}; string w{at} = {number + 1}; }}")
            number += 1
        else:
            fields.append(f"{label}{kind} {name} = {number}{packed};")
    if syntax == "proto2":
        fields += ["optional E e = 8999 [default = ONE];", "extensions 9001 to 9100;"]
    return " ".join(fields)


# ---- bytes


def varint(number: int, more: int = 0) -> bytes:
    """Return a number as a varint; with `more` bytes than it needs, which is allowed up to ten in all."""
    left, out = number & (1 << 64) - 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    for _ in range(min(more, 10 - len(out))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def draw_message(dice: random.Random, kind: Descriptor, depth: int = 4) -> bytes:
    """Draw the bytes of a message: fields in any order, more than once, split, packed or not, and unknown ones."""
    parts = []
    for field in kind.fields:
        times = dice.choice([0, 1, 1, 1, 2, 3]) if depth else 0
        parts += [_draw_field(dice, field, depth) for _ in range(times)]
    if dice.random() < 0.3:
        parts.append(_draw_unknown(dice, depth))
    if dice.random() < 0.5:
        dice.shuffle(parts)
    return b"".join(parts)


def _draw_field(dice: random.Random, field: FieldDescriptor, depth: int) -> bytes:
    name = _type(field)
    if dice.random() < 0.02:
        return _draw_unknown(dice, depth, field.number)
    if name == "group":
        return _tag(field.number, 3) + draw_message(dice, field.message_type, depth - 1) + _tag(field.number, 4)
    if name == "message":
        if field.message_type.GetOptions().map_entry:
            body = _draw_entry(dice, field.message_type, depth - 1)
        else:
            body = draw_message(dice, field.message_type, depth - 1)
        return _sized(dice, field.number, body)
    if name in {"string", "bytes"}:
        texts = [b"", b"word", "ü".encode(), b"\0", b"x" * 200]
        texts += [b"\xff\xfe"] if name == "bytes" or dice.random() < 0.05 else []
        return _sized(dice, field.number, dice.choice(texts))
    wire = 0 if name in VARINTS or name == "enum" else 5 if FIXED[name] == 4 else 1
    values = [_draw_number(dice, name) for _ in range(dice.randint(0, 4))]
    if field.is_repeated and dice.random() < 0.5:
        return _sized(dice, field.number, b"".join(values))
    if not field.is_repeated:
        values = [*values, _draw_number(dice, name)][:1]
    return b"".join(_tag(field.number, wire) + each for each in values)


def _draw_entry(dice: random.Random, kind: Descriptor, depth: int) -> bytes:
    """Draw an entry of a map: key and value, either or none, in any order, twice."""
    parts = [_draw_field(dice, field, depth) for field in kind.fields if dice.random() < 0.8]
    if dice.random() < 0.1:
        parts.append(_draw_field(dice, kind.fields[1], depth))
    dice.shuffle(parts)
    return b"".join(parts)


def _draw_number(dice: random.Random, name: str) -> bytes:
    if name in {"float", "double"}:
        value = dice.choice([0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 1e-40])
        return struct.pack("<f" if name == "float" else "<d", value)
    number = dice.choice([*NUMBERS, dice.randint(-1000, 1000)])
    if name in FIXED:
        return (number & (1 << 8 * FIXED[name]) - 1).to_bytes(FIXED[name], "little")
    if name == "enum":
        number = dice.choice([0, 1, 1000, -1, 7, number])
    return varint(number, dice.choice([0, 0, 0, 0, 1, 3]))


def _draw_unknown(dice: random.Random, depth: int, number: int = 0) -> bytes:
    number = number or dice.choice([300, 100_000, (1 << 29) - 1])
    match dice.randrange(5):
        case 0:
            return _tag(number, 0) + varint(dice.choice(NUMBERS))
        case 1:
            return _tag(number, 1) + dice.randbytes(8)
        case 2:
            return _sized(dice, number, dice.randbytes(dice.randrange(9)))
        case 3:
            return _tag(number, 5) + dice.randbytes(4)
        case _:
            inner = _draw_unknown(dice, depth - 1) if depth > 0 else b""
            return _tag(number, 3) + inner + _tag(number, 4)


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def _sized(dice: random.Random, number: int, body: bytes) -> bytes:
    return _tag(number, 2) + varint(len(body), dice.choice([0, 0, 0, 1])) + body


# ---- what Protobuf's own runtime reads, as docs/decoding.md says it


def read_row(message: Any) -> dict[str, Any]:
    """Return a parsed message as the decoded column has it; raise `Unsaid`."""
    try:
        return {field.name: _read_field(message, field) for field in message.DESCRIPTOR.fields}
    except UnicodeDecodeError as error:  # proto2 allows a string that is not UTF-8
        raise Unsaid from error


def _read_field(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        keys, of = field.message_type.fields
        return sorted(((_read_value(key, keys), _read_value(each, of)) for key, each in value.items()), key=repr)
    if field.is_repeated:
        return [_read_value(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _read_value(value, field)


def _read_value(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _read_known(value) if field.message_type.full_name in KNOWN else read_row(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if _type(field) in {"uint64", "fixed64"}:
        return Decimal(value)
    if _type(field) == "string" and isinstance(value, bytes):  # as proto2 allows
        raise Unsaid
    return value


def _read_known(value: Any) -> Any:
    name = value.DESCRIPTOR.name
    if name in LIMITS:
        micros = value.seconds * 1_000_000 + int(value.nanos / 1000)
        if not LIMITS[name][0] <= micros // 1_000_000 <= LIMITS[name][1]:
            raise Unsaid
        return micros
    if name == "Any":
        return read_row(value)
    return Decimal(value.value) if name == "UInt64Value" else value.value


def _type(field: FieldDescriptor) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
