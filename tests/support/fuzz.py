"""Random schemas and records of Avro, JSON and Protobuf, and what each is to be read as by other readers than ours."""

import io
import json
import math
import random
import struct
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pipeline_defs.adapters.formats.spark_wire import head_of

AVRO_LEAVES = ["boolean", "int", "long", "float", "double", "string", "bytes"]


def draw_avro(dice: random.Random, depth: int = 0, names: list[int] | None = None) -> Any:
    """Draw a schema: a record at first."""
    names = [0] if names is None else names
    kinds = [*AVRO_LEAVES, *AVRO_LEAVES, "record", "array", "map", "enum", "fixed", "maybe", "either"]
    kind = "record" if depth == 0 else dice.choice(kinds if depth < 3 else AVRO_LEAVES)
    names[0] += 1
    name = f"N{names[0]}"
    match kind:
        case "record":
            fields = [{"name": f"f{at}", "type": draw_avro(dice, depth + 1, names)} for at in range(dice.randint(1, 5))]
            return {"type": "record", "name": name, "namespace": dice.choice(["a", "b.c"]), "fields": fields}
        case "array":
            return {"type": "array", "items": draw_avro(dice, depth + 1, names)}
        case "map":
            return {"type": "map", "values": draw_avro(dice, depth + 1, names)}
        case "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B"]}
        case "fixed":
            return {"type": "fixed", "name": name, "size": 3}
        case "maybe":
            return ["null", dice.choice(AVRO_LEAVES)]
        case "either":
            return ["int", "string"]
    return kind


def draw_datum(dice: random.Random, schema: Any) -> tuple[Any, Any]:
    """Draw a datum as fastavro takes it, and the value that it decodes to."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        branch = dice.choice(kind)
        datum, value = draw_datum(dice, branch)
        if "null" in kind:
            return datum, value
        return datum, {f"member_{each}": value if each == branch else None for each in kind}
    match kind:
        case "array":
            pairs = [draw_datum(dice, schema["items"]) for _ in range(dice.randrange(4))]
            return [datum for datum, _ in pairs], [value for _, value in pairs]
        case "record" | "map":
            inner = {each["name"]: each["type"] for each in schema.get("fields", ())}
            inner |= {f"k{at}": schema["values"] for at in range(dice.randrange(4) if kind == "map" else 0)}
            named = {name: draw_datum(dice, each) for name, each in inner.items()}
            return {name: datum for name, (datum, _) in named.items()}, {name: value for name, (_, value) in named.items()}
    choices: dict[str, list[Any]] = {
        "null": [None],
        "boolean": [True, False],
        "int": [0, -1, (1 << 31) - 1, -(1 << 31)],
        "long": [0, -1, (1 << 63) - 1, -(1 << 63)],
        "float": [0.5, -1.25, float("inf")],
        "double": [0.1, -1e300, float("-inf")],
        "string": ["", "ü", "x" * 100],
        "bytes": [b"", b"\x00\xff"],
        "enum": ["A", "B"],
        "fixed": [b"abc", b"\x00\xff\x7f"],
    }
    datum = dice.choice(choices[kind])
    return datum, datum


def avro(schema: Any, datum: Any, schema_id: int | None = None) -> bytes:
    """Return a datum of a schema, with the id in front where there is one."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), datum)
    return (head_of(schema_id) if schema_id is not None else b"") + out.getvalue()


BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
JSON_LEAVES = [*BITS, "DOUBLE", "BOOLEAN", "STRING"]
TEXTS = ["", "word", "ü \U0001f600", 'quote " and \\', "4711-hush", "\n\t", "null", "5"]
NUMBERS: list[Any] = [0, -1, 127, 128, -129, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 0.5, -1e300, 1e-5, 10**25]


@dataclass(frozen=True)
class Shape:
    """A column's type: its name in capitals, and what is in it by name; of a list or map without one."""

    name: str
    is_nullable: bool = True
    inner: tuple[tuple[str, "Shape"], ...] = ()


class Wrong(Exception):
    """A document that must be set aside."""


def draw_shape(dice: random.Random, depth: int = 0) -> Shape:
    """Draw the columns of a document: a struct at first."""
    kind = (
        "STRUCT"
        if depth == 0
        else dice.choice([*JSON_LEAVES, *JSON_LEAVES, "STRUCT", "ARRAY", "MAP"] if depth < 3 else JSON_LEAVES)
    )
    is_nullable = dice.random() < 0.8
    if kind == "STRUCT":
        fields = tuple((f"f{at}", draw_shape(dice, depth + 1)) for at in range(dice.randint(1, 5)))
        return Shape("STRUCT", is_nullable, fields)
    if kind in {"ARRAY", "MAP"}:
        inner = draw_shape(dice, depth + 1)
        return Shape(kind, is_nullable, (("", Shape(inner.name, True, inner.inner)),))
    return Shape(kind, is_nullable)


def ddl_of(shape: Shape) -> str:
    """Return a shape in Spark's DDL; of the whole without STRUCT."""
    return ", ".join(_field(name, each) for name, each in shape.inner)


def _field(name: str, shape: Shape) -> str:
    return f"{name}: {_ddl(shape)}{'' if shape.is_nullable else ' NOT NULL'}"


def _ddl(shape: Shape) -> str:
    match shape.name:
        case "STRUCT":
            return f"STRUCT<{', '.join(_field(name, each) for name, each in shape.inner)}>"
        case "ARRAY":
            return f"ARRAY<{_ddl(shape.inner[0][1])}>"
        case "MAP":
            return f"MAP<STRING, {_ddl(shape.inner[0][1])}>"
    return shape.name


def schema_of(dice: random.Random, shape: Shape) -> dict[str, Any]:
    """Return a JSON Schema of a shape, with what no column says: what must be there, how much at most, and which values."""
    null = ["null"] * shape.is_nullable
    match shape.name:
        case "STRUCT":
            properties = {name: schema_of(dice, each) for name, each in shape.inner}
            more: dict[str, Any] = {"required": ["f0"]} if dice.random() < 0.5 else {}
            more |= {"additionalProperties": False} if dice.random() < 0.3 else {}
            return {"type": ["object", *null], "properties": properties, **more}
        case "ARRAY":
            return {"type": ["array", *null], "items": schema_of(dice, shape.inner[0][1]), "maxItems": 2}
        case "MAP":
            return {"type": ["object", *null], "additionalProperties": schema_of(dice, shape.inner[0][1])}
        case "STRING" if dice.random() < 0.3:
            return {"enum": [*TEXTS[:5], *[None] * shape.is_nullable]}
    if shape.name in BITS:
        most = min(1000, (1 << BITS[shape.name] - 1) - 1)
        return {"type": ["integer", *null], "minimum": -most, "maximum": most}
    return {"type": [{"DOUBLE": "number", "BOOLEAN": "boolean", "STRING": "string"}[shape.name], *null]}


def draw_value(dice: random.Random, shape: Shape, wild: float) -> Any:
    """Draw a value of a shape; with the chance `wild`, at each place, of any other one."""
    if dice.random() < wild:
        return dice.choice([None, True, [], {}, "4711-hush", {"f0": "4711-hush"}, [4711], *NUMBERS])
    if shape.is_nullable and dice.random() < 0.15:
        return None
    match shape.name:
        case "STRUCT":
            present = [(name, each) for name, each in shape.inner if not (each.is_nullable and dice.random() < 0.1)]
            dice.shuffle(present)
            return {name: draw_value(dice, each, wild) for name, each in present} | ({"z": 1} if dice.random() < 0.2 else {})
        case "ARRAY":
            return [draw_value(dice, shape.inner[0][1], wild) for _ in range(dice.randrange(4))]
        case "MAP":
            return {dice.choice(TEXTS): draw_value(dice, shape.inner[0][1], wild) for _ in range(dice.randrange(4))}
    bits = BITS.get(shape.name, 0)
    leaves: dict[str, list[Any]] = {
        "DOUBLE": [number for number in NUMBERS if isinstance(number, float) or abs(number) < 1 << 53],
        "BOOLEAN": [True, False],
        "STRING": TEXTS,
    }
    return dice.choice(leaves.get(shape.name) or [0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1)])


def draw_body(dice: random.Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, None, 1]))
    return (dice.choice(["", " ", "\r\n\t"]) + text + dice.choice(["", " "])).encode()


def expect(body: bytes, shape: Shape) -> Any:
    """Return the decoded value of a document; raise `Wrong` where it must be set aside."""
    try:
        document = json.loads(body.decode(), object_pairs_hook=_Pairs, parse_constant=_refuse)
        json.dumps(document, ensure_ascii=False).encode()  # half of a surrogate pair anywhere, in what no column has too
    except (ValueError, RecursionError) as error:
        raise Wrong from error
    if document is None:
        raise Wrong
    return _value(document, shape)


class _Pairs(list[tuple[str, Any]]):
    """An object with its keys as they stand, which may be there twice."""


def _refuse(text: str) -> None:
    raise ValueError(text)


def _value(value: Any, shape: Shape) -> Any:
    is_object, most = isinstance(value, _Pairs), 1 << BITS.get(shape.name, 1) - 1
    match shape.name:
        case _ if value is None and shape.is_nullable:
            return None
        case "STRUCT" if is_object:
            given = dict(value)
            return {name: _value(given.get(name), each) for name, each in shape.inner}
        case "MAP" if is_object and len(dict(value)) == len(value):
            return {name: _value(each, shape.inner[0][1]) for name, each in value}
        case "ARRAY" if isinstance(value, list) and not is_object:
            return [_value(each, shape.inner[0][1]) for each in value]
        case "STRING" if value is not None:
            return value if isinstance(value, str) else ...  # its JSON, as Spark writes it
        case "BOOLEAN" if isinstance(value, bool):
            return value
        case "DOUBLE" if type(value) in {int, float} and abs(value) <= sys.float_info.max:
            return float(value)
        case name if name in BITS and type(value) is int and -most <= value < most:
            return value
    raise Wrong


def is_same(found: Any, expected: Any) -> bool:
    """Return whether a decoded value is the one expected; of `...` any text is."""
    if expected is ...:
        return isinstance(found, str)
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(is_same(found[name], expected[name]) for name in expected)
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_same, found, expected))
    return bool(type(found) is type(expected) and found == expected)


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
INTEGERS = (0, 1, -1, 127, 128, (1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 32) + 5, (1 << 63) - 1, -(1 << 63), 1 << 40)
LIMITS = {"Timestamp": (-62_135_596_800, 253_402_300_799), "Duration": (-315_576_000_001, 315_576_000_001)}


class Unsaid(Exception):
    """A message that is legal on the wire, and has a value that no column can say."""


def draw_proto(dice: random.Random) -> str:
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
    name = _short_name(field)
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
    number = dice.choice([*INTEGERS, dice.randint(-1000, 1000)])
    if name in FIXED:
        return (number & (1 << 8 * FIXED[name]) - 1).to_bytes(FIXED[name], "little")
    if name == "enum":
        number = dice.choice([0, 1, 1000, -1, 7, number])
    return varint(number, dice.choice([0, 0, 0, 0, 1, 3]))


def _draw_unknown(dice: random.Random, depth: int, number: int = 0) -> bytes:
    number = number or dice.choice([300, 100_000, (1 << 29) - 1])
    inner = _draw_unknown(dice, depth - 1) if depth > 0 else b""
    forms = [_tag(number, 0) + varint(dice.choice(INTEGERS)), _tag(number, 1) + dice.randbytes(8)]
    forms += [_sized(dice, number, dice.randbytes(dice.randrange(9))), _tag(number, 5) + dice.randbytes(4)]
    return dice.choice([*forms, _tag(number, 3) + inner + _tag(number, 4)])


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def _sized(dice: random.Random, number: int, body: bytes) -> bytes:
    return _tag(number, 2) + varint(len(body), dice.choice([0, 0, 0, 1])) + body


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
    if _short_name(field) in {"uint64", "fixed64"}:
        return Decimal(value)
    if _short_name(field) == "string" and isinstance(value, bytes):  # as proto2 allows
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


def _short_name(field: FieldDescriptor) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
