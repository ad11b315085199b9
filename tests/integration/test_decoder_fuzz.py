"""Every decoder on real Spark, fuzzed: any bytes become the row that another decoder reads, or a dead letter; no job fails.

`HUNT=200` takes that many schemas of each format. Protobuf has a fuzzer of its own, without Spark (tests/unit).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import fastavro
import jsonschema
import pytest

from pipeline_defs.adapters.formats.spark_wire import head_of
from pipeline_defs.core.decode.decoders import Format, Side
from tests.support import fuzz_avro, fuzz_json, outcomes
from tests.support.avro import avro
from tests.support.fake_registry import fake_registry
from tests.support.fuzz import draws, mutate
from tests.support.fuzz_protobuf import draw_message, draw_schema

if TYPE_CHECKING:
    from pipeline_defs.adapters.spark.engine import Engine

RECORDS = 150
SECRET = "hush"


def decode(engine: Engine, records: Sequence[bytes | None], side: Side) -> list[tuple[Any, str | None, str | None]]:
    """Return value, error class and error of records in their order; nothing is lost, and no error says what a record says."""
    found = outcomes.decode(engine, records, side)
    assert [row.offset for row in found.rows] == [*range(len(records))]
    read = [*zip(found.values, found.classes, found.errors, strict=True)]
    for (value, why, error), body in zip(read, records, strict=True):
        assert (why is None) == (error is None)
        assert error is None or (SECRET not in error and len(error) < 1_500), error
        assert why is None or (value is None and body is not None)
    return read


def test_json_is_what_pythons_parser_reads_or_a_dead_letter(engine: Engine) -> None:
    right = wrong = 0
    for seed, dice in draws(1):
        shape = fuzz_json.draw_shape(dice)
        bodies: list[bytes | None] = [
            fuzz_json.draw_body(dice, fuzz_json.draw_value(dice, shape, dice.choice([0.0, 0.0, 0.1]))) for _ in range(RECORDS)
        ]
        bodies = [mutate(dice, body) if body and dice.random() < 0.25 else body for body in bodies]
        for body, (value, why, _) in zip(
            bodies, decode(engine, bodies, Side(Format.JSON, fuzz_json.ddl_of(shape))), strict=True
        ):
            assert body is not None
            try:
                expected = fuzz_json.expect(body, shape)
            except fuzz_json.Wrong:
                wrong += 1
                assert why is not None, (seed, body, value)
            else:
                right += 1
                assert why is None and fuzz_json.is_same(value, expected), (seed, body, why, value, expected)
    assert right and wrong, "the control"


def test_avro_is_what_fastavro_wrote_or_a_dead_letter(engine: Engine) -> None:
    for seed, dice in draws(2):
        schema = fuzz_avro.draw_schema(dice)
        parsed = fastavro.parse_schema(schema)
        data, expected = zip(*(fuzz_avro.draw_datum(dice, schema) for _ in range(RECORDS)), strict=True)
        bodies = [avro(parsed, datum) for datum in data]
        changed = [mutate(dice, body) for body in bodies] + [dice.randbytes(dice.randrange(30)) for _ in range(50)]
        found = decode(engine, [*bodies, None, *changed], Side(Format.AVRO, json.dumps(schema)))
        for body, value, (read, why, _) in zip(bodies, expected, found, strict=False):
            assert why is None and read == value, (seed, body, why, read, value)
        assert found[RECORDS] == (None, None, None)
        assert any(why for _, why, _ in found[RECORDS:]), "the control"


def _schema_of(dice: random.Random, depth: int = 0) -> dict[str, Any]:
    """Draw a JSON Schema: an object at first."""
    kind = "object" if depth == 0 else dice.choice(["string", "integer", "number", "boolean", "object", "array", "enum"])
    match kind if depth < 3 else "integer":
        case "object":
            properties = {f"f{at}": _schema_of(dice, depth + 1) for at in range(dice.randint(1, 4))}
            more = {"required": ["f0"]} if dice.random() < 0.5 else {}
            return {"type": "object", "properties": properties, **more} | (
                {"additionalProperties": False} if dice.random() < 0.3 else {}
            )
        case "array":
            return {"type": "array", "items": _schema_of(dice, depth + 1), "maxItems": 2}
        case "enum":
            return {"enum": ["word", ""]}
        case "integer":
            return {"type": ["integer", "null"] if dice.random() < 0.3 else "integer", "maximum": 1000}
    return {"type": kind}


def _document(dice: random.Random, schema: dict[str, Any]) -> Any:
    kind = schema.get("type", "enum")
    if dice.random() < 0.06:
        return dice.choice([SECRET, {SECRET: SECRET}, [SECRET], None, 5000, True])
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {name: _document(dice, each) for name, each in schema["properties"].items() if dice.random() < 0.9}
        case "array":
            return [_document(dice, schema["items"]) for _ in range(dice.randrange(4))]
        case "string" | "enum":
            return dice.choice(["word", "", "ü"])
        case "boolean":
            return dice.random() < 0.5
        case "number":
            return dice.choice([0.5, -1.5])
    return dice.choice([0, -5, 1000])


def test_json_of_a_schema_is_what_another_validator_allows_or_a_dead_letter(engine: Engine) -> None:
    right = wrong = 0
    for seed, dice in draws(1):
        schema = _schema_of(dice)
        other = jsonschema.Draft202012Validator(schema)
        documents = [_document(dice, schema) for _ in range(RECORDS)]
        bodies: list[bytes | None] = [json.dumps(document).encode() for document in documents]
        changed = [mutate(dice, body) for body in bodies if body]
        found = decode(engine, [*bodies, None, *changed], Side(Format.JSON_SCHEMA, json.dumps(schema)))
        for document, (value, why, error) in zip(documents, found, strict=False):
            if other.is_valid(document):
                right += 1
                assert why is None and _has(value, document), (seed, document, why, error, value)
            else:
                wrong += 1
                assert why == "schema_violated", (seed, document, why, value)
    assert right and wrong, "the control"


def _has(row: Any, document: Any) -> bool:
    """Return whether a row says all that a document says in its columns."""
    if isinstance(row, dict):
        return all(_has(row[name], document.get(name)) for name in row)
    if isinstance(row, list):
        return len(row) == len(document) and all(map(_has, row, document))
    return bool(row == document)


def _datum(body: bytes) -> bytes:
    """Return a string of Avro: its length, in zigzag, and its bytes."""
    assert len(body) < 64, "longer ones have more bytes of length"
    return bytes([2 * len(body)]) + body


STRINGS: dict[str, tuple[Side, Callable[[bytes], bytes], str]] = {
    "string": (Side(Format.STRING), bytes, "not_utf8"),
    "avro": (Side(Format.AVRO, '"string"'), _datum, "avro_malformed"),
    "json": (Side(Format.JSON, "STRING"), lambda body: b'"' + body + b'"', "not_utf8"),
}


@pytest.mark.parametrize("name", [*STRINGS])
def test_a_string_is_utf8_or_a_dead_letter(engine: Engine, name: str) -> None:
    side, write, bad = STRINGS[name]
    printed = bytes(byte for byte in range(0x20, 0x100) if byte not in b'"\\')  # JSON has no others as they are
    for seed, dice in draws(1):
        every = printed if name == "json" else bytes(range(0x100))
        kinds = [bytes(dice.choices(every, k=dice.randrange(6))) for _ in range(RECORDS)]
        known = ["ü\U0001f600".encode(), "\ufffd".encode(), b"", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
        bodies = [dice.choice((body, *known, *([] if name == "json" else [b"\0", b"\0\xff"]))) for body in kinds]
        found = decode(engine, [write(body) for body in bodies], side)
        for body, (value, why, _) in zip(bodies, found, strict=True):
            try:
                assert (value, why) == (body.decode(), None), seed
            except UnicodeDecodeError:
                assert (value, why) == (None, bad), (seed, body)


def test_any_bytes_of_any_wire_format_are_a_row_or_a_dead_letter(engine: Engine) -> None:
    """Heads of registered schemas of every language, of none, cut ones and noise, for a reader of each language."""
    avro, proto = (
        '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}',
        'syntax = "proto3"; message M { int32 n = 1; }',
    )
    texts = {
        "AVRO": (avro, b"\x02"),
        "PROTOBUF": (proto, b"\0\x08\x01"),
        "JSON": ('{"type": "object", "properties": {"n": {"type": "integer"}}}', b'{"n": 1}'),
    }
    formats = {"AVRO": Format.AVRO, "PROTOBUF": Format.PROTOBUF, "JSON": Format.JSON_SCHEMA}
    with fake_registry() as fake:
        for number, (kind, (text, _)) in enumerate(texts.items(), 1):
            fake.put(number, text, kind)
            fake.put(number + 10, "nonsense {", kind)
        for seed, dice in draws(1):
            for number, (kind, (text, body)) in enumerate(texts.items(), 1):
                fake.put_version("orders-value", "latest", number, text, kind)
                heads = [head_of(dice.choice([number, 1, 2, 3, 11, 12, 13, 99, (1 << 31) - 1])) for _ in range(RECORDS)]
                records: list[bytes | None] = [head + dice.choice([body, body, dice.randbytes(4), b""]) for head in heads]
                records = [mutate(dice, each) if each and dice.random() < 0.3 else each for each in records]
                found = decode(engine, [*records, None, head_of(number) + body], Side(formats[kind], registry=fake.url))
                assert found[-1] == ({"n": 1}, None, None), (seed, kind)
                for each, (_, why, _) in zip(records, found, strict=False):
                    if each == head_of(number) + body:
                        assert why is None, (seed, kind)
                    elif each and not each.startswith(head_of(number)):
                        assert why is not None, (seed, kind, each)


def test_protobuf_through_spark_loses_and_blames_nothing(engine: Engine) -> None:
    """The columns that ptars makes pass through Spark's workers whole; values are held by tests/unit/test_protobuf_fuzz.py."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    from pipeline_defs.adapters.formats.protobuf.protobuf_schema import compile_proto, find_message

    for seed, dice in draws(1):
        text = draw_schema(dice)
        kind = find_message(compile_proto(text, {}, "the schema"), "M", "the schema")
        read = GetMessageClass(kind)
        bodies = [draw_message(dice, kind) for _ in range(RECORDS)]
        bodies = [mutate(dice, body) if dice.random() < 0.3 else body for body in bodies]
        side = Side(Format.PROTOBUF, text, message="M")
        for body, (value, why, _) in zip(bodies, decode(engine, bodies, side), strict=True):
            try:
                read.FromString(body)
            except DecodeError:
                assert why == "protobuf_malformed", (seed, body)
            assert (value is None) == (why is not None), (seed, body)
