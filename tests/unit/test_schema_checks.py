"""What a defs.yaml says of records, found wrong when definitions load, before anything runs: with what was probably meant."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.decode.columns import Column
from pipeline_defs.core.decode.ddl import NotDdl, parse_ddl
from pipeline_defs.core.decode.decoders import Format, Side
from pipeline_defs.core.errors import OffsetlakeError
from pipeline_defs.orchestration.assets.schema_checks import read_side


def load(text: str) -> Any:
    """Read the attributes of a defs.yaml as Dagster does."""
    return KafkaTopic.resolve_from_yaml(f"topic: orders\n{text}").as_topic()


def record(record_name: str, /, **fields: object) -> dict[str, object]:
    """Return a record of Avro with fields of these types."""
    return {"type": "record", "name": record_name, "fields": [{"name": name, "type": each} for name, each in fields.items()]}


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
ORDER = record("Order", id="long", ordered_at=MICROS, inner=["null", record("In", day="int")], either=["int", "string"])
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Order {
  int64 id = 1; google.protobuf.Timestamp ordered_at = 2; In inner = 3; repeated int32 many = 4; map<string, int32> by = 5;
  message In { int32 day = 1; } }"""
INNER = {"type": "object", "properties": {"day": {"type": "integer"}}}
JSON_SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "ordered_at": {"type": "string"}, "inner": INNER}}
DDL = "id BIGINT NOT NULL, ordered_at TIMESTAMP, inner STRUCT<day: INT>, tags MAP<STRING, STRING>, at DATE, note STRING"
SCHEMAS = {"json": DDL, "avro": json.dumps(ORDER), "protobuf": PROTO, "json_schema": json.dumps(JSON_SCHEMA)}


def decoded(name: str, schema: str | None = None, side: str = "value", **more: str) -> str:
    fields = {"format": name, "inline_schema": schema or SCHEMAS[name], **more}
    return f"decode: {{{side}: {json.dumps(fields)}}}\n"


LOOPS = (
    '{"$ref": "#"}',
    '{"$dynamicRef": "#"}',
    '{"allOf": [{"$ref": "#"}]}',
    '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
    '{"properties": {"x": {"$ref": "#/properties/y"}, "y": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/x"}]}}}',
)
MAP_OF_N = {"type": "map", "values": {"type": "array", "items": "N"}}
ENUM_E, FIXED_E = {"type": "enum", "name": "E", "symbols": ["a"]}, {"type": "fixed", "name": "E", "size": 1}
WRONG = [
    ("json", "id BIGNIT, at TIMESTAMP", "`id` has the type BIGNIT, which Spark does not have, did you mean `BIGINT`\\?"),
    ("json", "id BIGINT, at DATETIME", "`at` has the type DATETIME, which Spark does not have, did you mean TIMESTAMP\\?"),
    ("json", "id, at TIMESTAMP", "`id` has no type, expected such as BIGINT or STRING behind 'id'"),
    ("json", "id BIGINT at TIMESTAMP", "expected a comma behind the type of `id`, found at behind 'id BIGINT'"),
    ("json", "a STRUCT<b: INT, c: ARRAY<INT>", "expected > for the end of STRUCT<...> of `a`, found the end"),
    ("json", "id INT, ID INT", "`ID` is there twice, in this or another case"),
    ("json", "  ", "it is empty"),
    ("json", '{"type": "object"}', "expected a column's name, found {"),
    ("avro", "{", "Expecting property name"),
    ("avro", '{"type": "array", "items": 5}', r"the whole\[\] is 5, expected a type"),
    ("avro", "5", "expected a JSON object, list or string, found 5"),
    ("avro", '{"type": "recrod", "name": "R"}', "has the type recrod, which nobody defines, did you mean `record`"),
    ("avro", json.dumps(ORDER).replace('"long"', '"lnog"', 1), "whole.id has the type lnog, .*did you mean `long`"),
    ("avro", '{"type": "fixed", "name": "F", "size": 2147483647}', "2,147,483,647 bytes, expected at most 67,108,864"),
    ("avro", '{"type": "fixed", "name": "F", "namespace": "x", "size": 67108865}', "fixed x.F has 67,108,865 bytes"),
    ("avro", json.dumps(record("N", next=["null", "N"])), "record N contains itself at .*next"),
    ("avro", json.dumps(record("a.N", n=MAP_OF_N)), r"record a.N contains itself at the whole.n\{\}\[\]"),
    ("avro", '{"type": "fixed", "name": "F", "size": -1}', "fixed F has the size -1, expected a number of bytes from 0"),
    ("avro", '{"type": "fixed", "name": "F"}', "fixed F has the size null"),
    ("avro", '{"type": "fixed", "name": "F", "size": true}', "fixed F has the size true"),
    ("avro", "[]", "the whole is a union of nothing"),
    ("avro", '[["null", "int"], "string"]', "the whole is a union directly in a union"),
    ("avro", '["int", "int"]', "the whole is a union that has int twice"),
    ("avro", '{"type": "record", "fields": []}', "the whole is of type record and has no `name`"),
    ("avro", '{"type": "record", "name": "A"}', "record A has no list of `fields`"),
    ("avro", '{"type": "record", "name": "A", "fields": [{"name": "a"}]}', "record A has a field without a `name` or a `type`"),
    ("avro", '{"type": "array"}', "the whole is of type array and has no `items`"),
    ("avro", json.dumps([ENUM_E, {"type": "array", "items": FIXED_E}]), r"E is defined twice, again at the whole\[\]"),
    ("avro", json.dumps(record("A", a="int", A="int")), "fields differ in case only: A.a, A.A"),
    ("avro", '{"a": ' + "9" * 5000 + "}", "a number has too many digits to be read"),
    ("json_schema", '{"a": ' + "9" * 5000 + "}", "a number has too many digits to be read"),
    *(("json_schema", each, "its references lead back to themselves") for each in LOOPS),
    ("json", "a DECIMAL(39, 2)", r"`a` is DECIMAL\(39,2\), expected at most 38 digits"),
    ("json", "m MAP<INT, STRING>", "m: expected MAP<STRING, ...>, found MAP<INT, ...>; nothing was decoded"),
    (
        "json",
        "s STRUCT<a: ARRAY<MAP<STRING, map<date, INT>>>>",
        r"s.a\[\]\{\}: expected MAP<STRING, ...>, found MAP<DATE, ...>",
    ),
    ("json", "MAP<MAP<STRING, INT>, INT>", "the whole: expected MAP<STRING, ...>, found MAP<MAP, ...>"),
    *(("json", f"a STRUCT<b: {each}>", f"it has {each.split()[0]}") for each in ("VARIANT", "VOID", "INTERVAL DAY")),
    ("json", "a DECIMAL(2,5)", r"`a` is DECIMAL\(2,5\), expected at most 38 digits"),
    ("protobuf", "message {", "it is no Protobuf schema: .*Expected message name"),
    ("protobuf", 'syntax = "proto3"; message A { A a = 1; }', "A contains itself"),
    ("protobuf", 'edition = "2023"; message A { int32 a = 1; }', "editions are not supported, expected proto2 or proto3;"),
    ("json_schema", '{"type": "objec"}', "objec"),
    ("json_schema", "{", "Expecting property name"),
    ("json_schema", '{"$ref": "http://127.0.0.1:9/x"}', "nothing is fetched"),
    ("json_schema", '{"properties": {"in": {"anyOf": [{"properties": {"a": {}, "A": {}}}]}}}', "differ in case only: a, A"),
    ("json_schema", '{"$schema": "http://example.com/mine"}', "Unknown meta-schema"),
]


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(("name", "schema", "reason"), WRONG)
def test_a_wrong_schema_is_said_when_definitions_load(side: str, name: str, schema: str, reason: str) -> None:
    """Of keys and of values, with the side and the reason; nothing has run."""
    with pytest.raises(OffsetlakeError, match=f"`decode.{side}`.*{reason}") as caught:
        load(decoded(name, schema, side))
    assert len(caught.value.message) < 900
    assert not re.search(r"absl|set_int_max|TypeError|KeyError|parser\.cc", caught.value.message)


LOOK_WRONG = [
    ("json_schema", json.dumps({"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}})),
    ("avro", json.dumps(record("A", a={"type": "fixed", "name": "F", "size": 0}, b="F"))),
    ("avro", '{"type": "fixed", "name": "F", "size": 67108864}'),
    ("json", "a DECIMAL(38, 38), b DECIMAL(1)"),
]


@pytest.mark.parametrize(("name", "schema"), [*SCHEMAS.items(), *LOOK_WRONG])
def test_a_right_schema_loads_and_so_does_one_that_a_registry_has(name: str, schema: str) -> None:
    """The control: a tree refers to the whole for its parts, a type may be named again; no registry is asked."""
    assert load(decoded(name, schema)).decode.value.schema == schema
    if name != "json":
        anywhere = f"decode: {{value: {{format: {name}, registry: 'http://127.0.0.1:9'}}}}\n"
        assert load(f"{anywhere}days: {{start: 2013-01-01, event_time: value.any.thing}}")


EVENT_TIMES = [
    ("json", "value.orderd_at", "no column orderd_at in value, which is of id, .*did you mean `value.ordered_at`"),
    ("json", "value.Ordered_At", "did you mean `value.ordered_at`"),
    ("json", "ordered_at", "no column ordered_at in the row, .*did you mean `value.ordered_at`"),
    ("json", "value", "found a struct"),
    ("json", "value.note", "found a text"),
    ("json", "value.id", "found a integer|found an integer"),
    ("json", "value.id.more", "no column more in value.id, which is a"),
    ("json", "timestmp", "did you mean `timestamp`"),
    ("avro", "value.inner.dya", "no column dya in value.inner, which is of day"),
    ("avro", "value.order_at", "did you mean `value.ordered_at`"),
    ("protobuf", "value.ordered_att", "did you mean `value.ordered_at`"),
    ("protobuf", "value.many", "found a list"),
    ("json_schema", "value.ordered_at", "found a text"),
]


@pytest.mark.parametrize(("name", "path", "reason"), EVENT_TIMES)
def test_an_event_time_that_is_no_time_is_said_when_definitions_load(name: str, path: str, reason: str) -> None:
    with pytest.raises(OffsetlakeError, match=f"event time {path} of `days` in defs.yaml: .*({reason})"):
        load(f"{decoded(name)}days: {{start: 2013-01-01, event_time: {path}}}")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, "timestamp") for name in SCHEMAS),
        *((name, "value.ordered_at") for name in ("json", "avro", "protobuf")),
        *((name, "value.inner.day, unit: s") for name in SCHEMAS),
        *(("json", "value.at"), ("avro", "value.either, unit: s"), ("avro", "value.either")),
    ],
)
def test_an_event_time_that_is_a_time_loads(name: str, path: str) -> None:
    """The control; of what is not known, a union's, nothing is refused."""
    assert load(f"{decoded(name)}days: {{start: 2013-01-01, event_time: {path}}}").days is not None


@pytest.mark.parametrize("name", ["json", "protobuf"])
def test_latest_records_by_a_map_are_refused_whatever_the_format(name: str) -> None:
    with pytest.raises(OffsetlakeError, match=r"`latest`, and `decode\.key` with a MAP"):
        load(f"{decoded(name, side='key')}latest: {{}}")


FIELDS = [
    ("topc: x", "topc", "topic"),
    ("record_per_range: 5", "record_per_range", "records_per_range"),
    ("isolation: read_committed", "isolation", "isolation_level"),
    ("decode: {valu: {format: string}}", "decode.valu", "value"),
    ("decode: {value: {format: json, inline_schem: x}}", "decode.value.inline_schem", "inline_schema"),
    ("decode: {value: {format: json, inlineSchema: x}}", "decode.value.inlineSchema", "inline_schema"),
    ("decode: {dead_letter: {records: 1}}", "decode.dead_letter", "dead_letters"),
    ("decode: {dead_letters: {record: 1}}", "decode.dead_letters.record", "records"),
    ("days: {start: 2013-01-01, eventtime: timestamp}", "days.eventtime", "event_time"),
    ("latest: {sequnce: value.n}", "latest.sequnce", "sequence"),
    ("days: {start: 2013-01-01, zzz: 1}", "days.zzz", None),
]


@pytest.mark.parametrize(("text", "where", "known"), FIELDS)
def test_an_unknown_field_is_told_which_one_was_meant(text: str, where: str, known: str | None) -> None:
    """With its line, and nothing of what Dagster calls its models; one like no other is told those there are."""
    said = f", did you mean `{known}`" if known else "; there are start, event_time, unit"
    with pytest.raises(ValidationError, match=rf"(?s){where} at <string>:2.*no such field{said}") as caught:
        load(text)
    assert "Extra inputs" not in str(caught.value) and "Model." not in str(caught.value)


def test_columns_are_read_as_spark_reads_them() -> None:
    """Held against Spark itself in tests/integration/test_json.py."""
    integer, text = Column("integer"), Column("text")
    assert parse_ddl("BIGINT") == parse_ddl(" bigint ") == integer
    assert parse_ddl("date DATE") == Column("struct", {"date": Column("date")})
    assert parse_ddl("a: INT, `b c`: STRING") == Column("struct", {"a": integer, "b c": text})
    nested = "a STRUCT<x: INT, y: ARRAY<MAP<STRING, DECIMAL(10, 2)>>> NOT NULL COMMENT 'a, b>', b CHAR(3)"
    many = Column("list", inner=(Column("map", inner=(text, Column("decimal"))),))
    assert parse_ddl(nested) == Column("struct", {"a": Column("struct", {"x": integer, "y": many}), "b": text})
    with pytest.raises(NotDdl, match="nested more than 100 levels deep"):
        parse_ddl("a " + "ARRAY<" * 200 + "INT" + ">" * 200)


def test_a_side_without_a_schema_has_its_column() -> None:
    assert read_side(Side(), "key") == Column("binary")
    assert read_side(Side(Format.STRING), "key") == Column("text")
