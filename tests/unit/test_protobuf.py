"""Protobuf without Spark: schemas compiled, compared and refused; batches with anything in them, also fuzzed."""

import io
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pipeline_defs.adapters.formats.protobuf_batches import arrow_type, decode_bodies, open_reader
from pipeline_defs.adapters.formats.protobuf_schema import MAIN, compile_proto, encode_path, find_message, find_mismatches
from pipeline_defs.core.errors import UnusableSchema
from tests.support.fuzz import Unsaid, draw_message, draw_proto, read_row, split_enum
from tests.support.strategies import PanicException, draws, mutate

ORDER = """
syntax = "proto3";
package shop;
message Order {
  int64 id = 1; optional string note = 2; repeated Line lines = 3; map<string, int32> counts = 4; uint64 big = 5;
  message Line { uint32 number = 1; Size size = 2; }
  enum Size { SMALL = 0; LARGE = 1; }
}
message Refund { int64 id = 1; message Why { string text = 1; } }
"""


def message_of(text: str, name: str | None = None) -> Any:
    return find_message(compile_proto(text, {}, "the schema"), name, "the schema")


def fields(text: str) -> Any:
    return message_of(f'syntax = "proto3"; message M {{ {text} }}')


def decode(text: str, name: str, bodies: list[bytes | None]) -> tuple[list[Any], list[str | None]]:
    reader = open_reader(compile_proto(text, {}, "the schema").descriptors, message_of(text, name).full_name)
    values, errors = decode_bodies(pa.array(bodies, pa.binary()), reader, arrow_type(pa.struct(list(reader.handler.schema()))))
    return values.to_pylist(), errors


def test_a_batch_keeps_each_message_at_its_place() -> None:
    """A null stays one; an empty message is one with defaults; what cannot be read is an error of its own."""
    order = GetMessageClass(message_of(ORDER, "Order"))
    whole = order(id=7, note="x", lines=[{"number": (1 << 32) - 1, "size": 1}], counts={"a": 1}, big=(1 << 64) - 1)
    body = whole.SerializeToString()
    values, errors = decode(ORDER, "Order", [None, body, body[:-1], b"", body])
    lines = [{"number": (1 << 32) - 1, "size": "LARGE"}]
    read = {"id": 7, "note": "x", "lines": lines, "counts": [("a", 1)], "big": (1 << 64) - 1}
    assert values == [None, read, None, {"id": 0, "note": None, "lines": [], "counts": [], "big": 0}, read]
    assert [error is None for error in errors] == [True, True, False, True, True]
    assert decode(ORDER, "Order", []) == ([], [])
    assert decode(ORDER, "Order", [None]) == ([None], [None])


def test_a_panic_of_the_arrow_library_is_an_error_of_its_own_record() -> None:
    """Whatever it panics at next; what is no panic is raised."""
    reader = open_reader(compile_proto(ORDER, {}, "the schema").descriptors, "shop.Order")

    def read_or_panic(bodies: pa.Array) -> pa.RecordBatch:
        if b"\x08\x07" in bodies.to_pylist():
            raise PanicException("secret contents")
        return reader.handler.array_to_record_batch(bodies)

    wanted = arrow_type(pa.struct(list(reader.handler.schema())))
    bodies = pa.array([b"\x08\x05", b"\x08\x07", None, b"\x08\x06"], pa.binary())
    values, errors = decode_bodies(bodies, replace(reader, handler=Mock(array_to_record_batch=read_or_panic)), wanted)
    assert [value and value["id"] for value in values.to_pylist()] == [5, None, None, 6]
    assert errors == [None, "ptars, which makes columns of messages, fails at it", None, None]
    stops = Mock(array_to_record_batch=Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        decode_bodies(bodies, replace(reader, handler=stops), wanted)


def test_a_time_that_protobuf_does_not_define_never_becomes_another_one() -> None:
    """At any depth: ptars ends at 64 bits of microseconds, and makes January 1st of a year."""
    text = """syntax = "proto3"; package google.type;
    import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    message Date { int32 year = 1; int32 month = 2; int32 day = 3; }
    message In { repeated google.protobuf.Timestamp at = 1; map<string, google.protobuf.Duration> by = 2; Date day = 3; }
    message M { repeated In in = 1; }"""
    kind = GetMessageClass(message_of(text, "M"))
    by = {"k": {"seconds": -315576000000}}
    good = {"at": [{"seconds": 253402300799}], "by": by, "day": {"year": 1, "month": 1, "day": 1}}
    bad: list[dict[str, Any]] = [
        *({"at": [{"seconds": 253402300800}]}, {"at": [{}, {"seconds": 1 << 62}]}, {"by": {"k": {"seconds": 1 << 50}}}),
        *({"day": {"year": 2020}}, {"day": {"year": 10_000, "month": 1, "day": 1}}),
    ]
    values, errors = decode(text, "M", [kind(**{"in": [good, each]}).SerializeToString() for each in ({}, *bad)])
    assert values[0] is not None and values[1:] == [None] * len(bad)
    assert errors == [
        None,
        *["in[].at[] is a Timestamp out of the years 1 to 9999"] * 2,
        "in[].by{} is a Duration of more than 10,000 years",
        *["a google.type.Date is no day of the years 1 to 9999"] * 2,
    ]


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ('syntax = "proto3"; import "gone.proto";', None, "gone.proto"),
        ('syntax = "proto3"; message A { B b = 1; } message B {}', "A", "B has no fields"),
        ('syntax = "proto2"; message A { optional int32 x = 1; optional int32 X = 2; }', None, "in case only"),
        ('syntax = "proto2"; message A { optional group G = 1 { optional int32 x = 1; } }', "A", "A.g is a group"),
        (ORDER, None, "has the messages shop.Order, shop.Order.Line, shop.Refund, shop.Refund.Why, expected one"),
        (ORDER, "Gone", "expected one Gone"),
    ],
)
def test_a_schema_that_cannot_be_used_is_said(text: str, name: str | None, reason: str) -> None:
    with pytest.raises(UnusableSchema, match=reason):
        message_of(text, name)


def in_base64(text: str, name: str | None = None) -> str:
    from confluent_kafka.schema_registry.protobuf import _schema_to_str

    return _schema_to_str(message_of(text, name).file)


NAMES = [
    *("../x.proto", "a/../../x.proto", "/tmp/x.proto", "..", ".", "", "a//b.proto", "a/", "./a.proto", "a\\b.proto"),
    *("a\0b.proto", "a\nb.proto", MAIN, "\ud800.proto"),
]


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_no_import_leaves_its_folder(name: str, is_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called, as text or as a descriptor: one error that says which."""
    text = ORDER if is_text else in_base64(ORDER, "Order")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(UnusableSchema, match=r"the schema cannot be used: (it imports|the import) '") as caught:
        compile_proto(ORDER, {name: text}, "the schema")
    assert len(str(caught.value)) < 600
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_an_import_may_be_called_like_a_file_of_ours_or_be_a_descriptor_in_base64() -> None:
    """As Confluent's clients for Python register it; two of which one is the other's folder are one error."""
    place = 'syntax = "proto3"; package p; message Place { string city = 1; }'
    for name in ("x" * 300, "/".join("x" * 99 for _ in range(60))):
        with pytest.raises(UnusableSchema, match=r"the import 'x+' cannot be written: File name too long"):
            compile_proto(ORDER, {name: place}, "the schema")
    for name in ("given", "descriptors", "a/b c.proto", "ü.proto"):
        text = f'syntax = "proto3"; import "{name}"; message M {{ p.Place to = 1; }}'
        assert find_message(compile_proto(text, {name: place}, "the schema"), None, "the schema").name == "M"
    with pytest.raises(UnusableSchema, match=r"the import 'b\.proto' cannot be written"):
        compile_proto(ORDER, {"a": place, "a/b.proto": place}, "the schema")
    text = 'syntax = "proto3"; import "geo/place.proto"; message M { p.Place to = 1; }'
    kind = find_message(compile_proto(text, {"geo/place.proto": in_base64(place)}, "the schema"), None, "the schema")
    assert [field.name for field in kind.fields_by_name["to"].message_type.fields] == ["city"]


def test_an_edition_is_refused_for_a_reader_and_compared_for_a_writer() -> None:
    """Ptars panics at a schema that has one, also where it only imports one; a writer's is never given to it."""
    edition = 'edition = "2023"; package shop; message M { int32 n = 1; In in = 2; } message In { int32 x = 1; }'
    with pytest.raises(UnusableSchema, match="the schema cannot be used: editions are not supported, expected proto2"):
        message_of(edition, "M")
    text = 'syntax = "proto3"; import "e.proto"; message X { int32 n = 1; }'
    with pytest.raises(UnusableSchema, match=r"expected proto2 or proto3 in the import 'e\.proto'"):
        find_message(compile_proto(text, {"e.proto": edition}, "it"), "X", "it")
    reader = message_of(edition.replace('edition = "2023"', 'syntax = "proto3"'), "M")
    written, delimited = (
        compile_proto(text, {}, "it").messages("it")["shop.M"]
        for text in (edition, edition.replace("in = 2", "in = 2 [features.message_encoding = DELIMITED]"))
    )
    assert [*find_mismatches(written, reader)] == []
    assert [*find_mismatches(delimited, reader)] == ["in = 2 was written as group, expected message"]


def test_messages_that_multiply_are_refused_in_no_time() -> None:
    """24 levels that each name the next one twice are 16 million columns, and as many comparisons."""
    levels = [f"message L{at} {{ L{at + 1} a = 1; L{at + 1} b = 2; }}" for at in range(24)]
    text = f'syntax = "proto3"; {" ".join(levels)} message L24 {{ int32 n = 1; }}'
    with pytest.raises(UnusableSchema, match="L12 has more than 10,000 columns, once each message is put where it is named"):
        message_of(text, "L0")
    bomb = compile_proto(text, {}, "the schema").messages("it")["L0"]
    assert [*find_mismatches(bomb, compile_proto(f"{text} ", {}, "the schema").messages("it")["L0"])] == []
    assert message_of(text, "L20").name == "L20", "the control"
    deep = [f"message L{at} {{ L{at + 1} a = 1; }}" for at in range(120)]
    with pytest.raises(UnusableSchema, match="is more than 30 levels deep"):
        message_of(f'syntax = "proto3"; {" ".join(deep)} message L120 {{ int32 n = 1; }}', "L0")


def test_a_path_to_a_message_is_spelled_as_confluents_serializer_spells_it() -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer, _create_index_array

    for name in ("Order", "Order.Line", "Refund", "Refund.Why"):
        kind = message_of(ORDER, f"shop.{name}")
        out = io.BytesIO()
        ProtobufSerializer._encode_varints(out, _create_index_array(kind))
        assert encode_path(kind).sure[0] == out.getvalue(), name
    assert encode_path(message_of(ORDER, "Order")).sure == (b"\0", b"\2\0"), "a client may spell out the usual one"


MAP, GROUP = "map<string, int32> m = 9;", "optional group G = 8 { optional int32 g = 1; }"


@pytest.mark.parametrize(
    ("body", "sure", "doubtful"),
    [
        ("{A} {B}", [b"\4\0\0"], {}),
        ("{A} {B} {map} {group}", [b"\4\0\0"], {}),
        ("{map} {A}", [b"\4\0\2", b"\4\0\0"], {}),
        ("{map} {A} {B}", [b"\4\0\0"], {b"\4\0\2": "s.Outer.B"}),
        ("{B} {map} {A}", [b"\4\0\4", b"\4\0\2"], {}),
        ("{map} {B} {A}", [b"\4\0\4"], {b"\4\0\2": "s.Outer.B"}),
        ("{group} {A} {B}", [], {b"\4\0\2": "s.Outer.B", b"\4\0\0": "s.Outer.G"}),
        ("{map} {group} {A}", [b"\4\0\4"], {b"\4\0\2": "s.Outer.G", b"\4\0\0": "s.Outer.G"}),
    ],
)
def test_a_path_that_may_mean_two_messages_means_none(body: str, sure: list[bytes], doubtful: dict[bytes, str]) -> None:
    """Some serializers count what protoc makes of maps and groups, some do not: a wrong one would be read without an error."""
    parts = {name: f"message {name} {{ optional int32 x = 1; }}" for name in "AB"} | {"map": MAP, "group": GROUP}
    text = f'syntax = "proto2"; package s; message Outer {{ {body.format(**parts)} }}'
    found = encode_path(compile_proto(text, {}, "it").messages("it")["s.Outer.A"])
    assert ([*found.sure], found.doubtful) == (sure, doubtful)


LIST = "a = 1 was written as repeated message"
TOGETHER = "a = 1 and b = 2 could be written together, expected one of them at most, of oneof o"


@pytest.mark.parametrize(
    ("writer", "reader", "said"),
    [
        ("int32 a = 1;", "int64 b = 1;", None),
        ("uint32 a = 1;", "int64 a = 1;", None),
        ("bool a = 1;", "int32 a = 1;", None),
        ("bytes a = 1;", "string a = 1;", None),
        ("int32 a = 1; string gone = 2;", "int32 a = 1; string new = 3;", None),
        ("message I { int32 x = 1; } I a = 1;", "message J { int64 y = 1; } J a = 1;", None),
        ("map<string, int32> a = 1;", "map<string, int64> a = 1;", None),
        ("map<string, int32> a = 1;", "message P { string key = 1; int32 value = 2; } repeated P a = 1;", None),
        ("int32 a = 1;", "optional int32 a = 1;", None),
        ("int32 a = 1; string gone = 4;", "oneof o { int32 a = 1; string b = 2; }", None),
        ("oneof p { int32 a = 1; string b = 2; bytes c = 3; }", "oneof o { int32 a = 1; string b = 2; }", None),
        ("oneof p { int32 a = 1; string b = 2; }", "optional int32 a = 1; string b = 2;", None),
        ("string a = 1;", "int64 b = 1;", "b = 1 was written as string, expected int64"),
        ("int64 a = 1;", "int32 a = 1;", "a = 1 was written as int64, expected int32"),
        ("int32 a = 1;", "sint32 a = 1;", "a = 1 was written as int32, expected sint32"),
        ("float a = 1;", "double a = 1;", "a = 1 was written as float, expected double"),
        ("int32 a = 1;", "repeated int32 a = 1;", "a = 1 was written as int32, expected repeated int32"),
        ("message P {string key=1; int32 value = 2; } repeated P a = 1;", "map<string, int32> a = 1;", f"{LIST}, expected map"),
        ("map<string, int32> a = 1;", "string a = 1;", "a = 1 was written as map, expected string"),
        ("int32 a = 1; string b = 2;", "oneof o { int32 a = 1; string b = 2; }", TOGETHER),
        ("optional int32 a = 1; optional string b = 2;", "oneof o { int32 a = 1; string b = 2; }", TOGETHER),
        ("oneof p { int32 a = 1; } string b = 2;", "oneof o { int32 a = 1; string b = 2; }", TOGETHER),
        ("oneof p { int32 a = 1; bool c = 3; } string b = 2;", "oneof o { int32 a = 1; bool c = 3; string b = 2; }", TOGETHER),
        ("oneof p { int32 a = 1; } oneof q { string b = 2; }", "oneof o { int32 a = 1; string b = 2; }", TOGETHER),
        (
            "message I { int32 a = 1; string b = 2; } I i = 3;",
            "message I { oneof o { int32 a = 1; string b = 2; } } I i = 3;",
            f"i = 3: {TOGETHER}",
        ),
        ("message I { string x = 1; } I a = 1;", "message I { bool x = 1; } I a = 1;", "a = 1: x = 1 was written as string"),
    ],
)
def test_what_protobuf_would_pass_over_or_change_is_a_mismatch(writer: str, reader: str, said: str | None) -> None:
    """What reads without a loss is none."""
    found = [*find_mismatches(fields(writer), fields(reader))]
    assert [each.startswith(said or "nothing") for each in found] == ([True] if said else [])


def test_every_message_is_the_row_that_protobufs_runtime_reads_or_an_error_of_its_own() -> None:
    """In any spelling the wire format allows, whatever stands beside it; no batch fails.

    The runtime reads an enum of another file, of proto3, where it keeps numbers without a name: of proto2 it would drop them.
    """
    outcomes: set[str] = set()
    said: set[str | None] = set()
    for seed, dice in draws(12):
        text = draw_proto(dice)
        file = compile_proto(text, {}, "the schema")
        kind = find_message(file, "M", "the schema")
        rest, enum = split_enum(text)
        read = GetMessageClass(find_message(compile_proto(rest, {"enum.proto": enum}, "the schema"), "M", "the schema"))
        bodies: list[bytes | None] = [draw_message(dice, kind) for _ in range(80)]
        bodies = [mutate(dice, body) if body is not None and dice.random() < 0.3 else body for body in bodies] + [None]
        expected = [_expect(read, body) for body in bodies]
        reader = open_reader(file.descriptors, kind.full_name)
        wanted = arrow_type(pa.struct(list(reader.handler.schema())))
        values, errors = decode_bodies(pa.array(bodies, pa.binary()), reader, wanted)
        rows = zip(bodies, map(_plain, values.to_pylist()), errors, strict=True)
        found = [None if body is None else "an error" if error else value for body, value, error in rows]
        assert list(map(repr, found)) == list(map(repr, expected)), f"seed {seed}: {text}"  # a NaN is itself
        outcomes |= {type(each).__name__ for each in expected}
        said |= {*errors}
    assert outcomes == {"dict", "str", "NoneType"}, "the control"
    assert "a string is not UTF-8" in said, "as proto2 allows, and Arrow does not"


def _expect(read: Any, body: bytes | None) -> Any:
    try:
        return None if body is None else read_row(read.FromString(body))
    except (DecodeError, Unsaid):
        return "an error"


def _plain(value: Any) -> Any:
    """Return a value as `read_row` has it: maps in an order, times as microseconds."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case [(_, _), *_]:
            return sorted(((key, _plain(each)) for key, each in value), key=repr)
        case list():
            return [_plain(each) for each in value]
        case datetime():
            return (value - datetime(1970, 1, 1, tzinfo=value.tzinfo)) // timedelta(microseconds=1)
    return value
