"""Avro schemas as text, and two of them: references that become one text, and numbers in other units; fastavro is asked."""

import io
import json
from typing import Any

import fastavro
import pytest

from pipeline_defs.adapters.formats.spark_avro import find_mismatch, whole_schema
from pipeline_defs.core.decode.avro import END, enclose, parse_avro, read_avro
from pipeline_defs.core.decode.decoders import name_subject
from pipeline_defs.core.errors import UnusableSchema

CITY = '{"type": "record", "name": "City", "namespace": "geo", "fields": [{"name": "name", "type": "string"}]}'
MORE = {"name": "more", "type": {"type": "array", "items": "geo.City"}}
PLACE = json.dumps({"type": "record", "name": "geo.Place", "fields": [{"name": "city", "type": "City"}, MORE]})


def inlined(schema: Any, *references: str) -> Any:
    return json.loads(read_avro(json.dumps(schema), references).text)


def test_a_name_is_defined_where_it_is_first_used_and_named_after() -> None:
    second = {"name": "second", "type": {"type": "map", "values": "geo.City"}}
    fields = [{"name": "first", "type": ["null", "geo.City"]}, second]
    whole = inlined({"type": "record", "name": "shop.Order", "fields": fields}, CITY)
    assert whole["fields"][0]["type"][1]["fields"] == [{"name": "name", "type": "string"}]
    assert whole["fields"][1] == second
    fastavro.parse_schema(whole)


@pytest.mark.parametrize("first", ["City", "Place"])
def test_what_refers_to_what_refers_is_whole_in_any_order(first: str) -> None:
    """A parser takes it alone, also where one reference has the other inside it already."""
    nested = json.dumps({**json.loads(PLACE), "fields": [{"name": "city", "type": json.loads(CITY)}]})
    fields = [{"name": name.lower(), "type": name} for name in (first, *({"City", "Place"} - {first}))]
    for references in ((CITY, PLACE), (PLACE, CITY), (nested, CITY)):
        fastavro.parse_schema(inlined({"type": "record", "name": "geo.Order", "fields": fields}, *references))


def test_what_refers_to_nothing_or_is_only_defined_later_stays_as_it_is() -> None:
    """Control: logical types, defaults, documentation and attributes of others included.

    Of a later definition some of Avro's parsers judge well; what nobody defines all refuse, as test_schema_checks.py has it.
    """
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0, "order": "ignore"},
        {"name": "text", "type": {"type": "string", "avro.java.string": "String"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"], "default": "A"}},
        {"name": "again", "type": "Kind", "aliases": ["other"]},
    ]
    schema = {"type": "record", "name": "All", "doc": "d", "fields": fields}
    assert inlined(schema) == schema
    assert json.loads(read_avro('"string"').text) == "string"
    assert parse_avro(" long ") == "long"
    fields = [{"name": "x", "type": "Late"}, {"name": "y", "type": {"type": "enum", "name": "Late", "symbols": ["A"]}}]
    schema = {"type": "record", "name": "R", "fields": fields}
    assert inlined(schema) == schema


def test_the_mark_is_behind_the_datum() -> None:
    """Written by fastavro: the bytes of a datum, then the mark, of which no shift is the mark.

    Else a datum that ends too early or too late could be followed by one.
    """
    schema = fastavro.parse_schema(json.loads(enclose(CITY)))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"value": {"name": "Rome"}, "end": END})
    assert out.getvalue() == b"\x08Rome" + END
    assert all(END[shift:] != END[:-shift] for shift in range(1, len(END)))


def test_a_reader_cannot_have_what_spark_has_no_columns_for_and_a_writer_can() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}
    fields = [{"name": "a", "type": {"type": "array", "items": inner}}, {"name": "b", "type": ["null", "Out"]}]
    schema = json.dumps({"type": "record", "name": "Out", "fields": fields})
    assert read_avro(schema).refused == (
        "record Out contains itself at the whole.b, which Spark has no type for",
        "fields differ in case only: In.a, In.A",
    )
    assert whole_schema(schema, (), "a writer's").text == schema
    assert read_avro(CITY).refused == ()


def test_subjects_are_named_as_confluents_clients_name_them() -> None:
    from confluent_kafka import schema_registry
    from confluent_kafka.serialization import MessageField, SerializationContext

    record = "geo.City"
    theirs = {
        None: schema_registry.topic_subject_name_strategy,
        "topic_name": schema_registry.topic_subject_name_strategy,
        "record_name": schema_registry.record_subject_name_strategy,
        "topic_record_name": schema_registry.topic_record_subject_name_strategy,
    }
    for column in (MessageField.KEY, MessageField.VALUE):
        context = SerializationContext("orders", column)
        for ours, strategy in theirs.items():
            assert name_subject(ours, "orders", column, record) == strategy(context, record)
    assert name_subject("by hand", "orders", "value", "") == "by hand"


def diamonds(levels: int) -> dict[str, Any]:
    """Return a record of so many levels, each of which has two fields of the next one."""
    schema: dict[str, Any] = {"type": "record", "name": f"L{levels}", "fields": [{"name": "n", "type": "int"}]}
    for at in range(levels - 1, -1, -1):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": schema["name"]}]
        schema = {"type": "record", "name": f"L{at}", "fields": fields}
    return schema


def test_records_that_multiply_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 10,000 columns, or 30 levels"):
        read_avro(json.dumps(diamonds(24)))
    read_avro(json.dumps(diamonds(8)))
    nothing: Any = {"type": "record", "name": "N", "fields": [{"name": "f", "type": {"type": "fixed", "name": "F", "size": 0}}]}
    for empty in ("null", nothing, {"type": "fixed", "name": "F", "size": 0}):
        with pytest.raises(ValueError, match="a list of items that take no bytes"):
            read_avro(json.dumps({"type": "array", "items": {"type": "array", "items": empty}}))
        later = [("a", {"type": "array", "items": "N"}), ("b", nothing)]
        with pytest.raises(ValueError, match="a list of items that take no bytes"):
            read_avro(json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": of} for n, of in later]}))
        read_avro(json.dumps({"type": "array", "items": ["null", empty] if empty != "null" else ["null"]}))
    chain: Any = "int"
    for at in range(120):
        chain = {"type": "record", "name": f"R{at}", "fields": [{"name": "x", "type": chain}]}
    with pytest.raises(ValueError, match="30 levels"):
        read_avro(json.dumps(chain))


ODD = [
    *("{", "", "[" * 100_000, '{"a":' * 100_000, "5", "nul", "NaN", '{"type": 5}', '{"type": null}', "{}", "[5]", "[null]"),
    *('{"type": "record"}', '{"type": "record", "name": "R"}', '{"type": "record", "name": "R", "fields": 5}'),
    *('{"type": "record", "name": "R", "fields": [5]}', '{"type": "record", "name": "R", "fields": [{"name": "a"}]}'),
    *('{"type": "record", "name": "R", "fields": {"a": "int"}}', '{"type": "array"}', '{"type": {"type": {"type": []}}}'),
    *('{"type": "record", "name": 5, "fields": []}', '{"type": "enum", "name": "E"}', '{"type": "map", "values": true}'),
    *('{"type": "fixed", "name": "F", "size": "x"}', '{"type": "fixed", "name": "F", "size": 1e300}', '{"items": "int"}'),
    '{"type": "record", "name": "R", "namespace": {}, "fields": [{"name": "a", "type": ["null", {"type": []}]}]}',
]


@pytest.mark.parametrize("text", ODD)
def test_any_json_is_a_schema_or_one_clear_error(text: str) -> None:
    """Whatever type each part of it is of, and however deep it is nested; what is left is Avro's own to refuse."""
    said = ""
    try:
        whole_schema(text, (), "schema 7")
    except UnusableSchema as error:
        said = str(error)
        assert said.startswith("schema 7 cannot be used: ") and len(said) < 800
    assert ("nested too deep" in said) == (len(text) >= 100_000)


def decimal(precision: int, scale: int, **kind: Any) -> dict[str, Any]:
    return {"type": "bytes", **kind, "logicalType": "decimal", "precision": precision, "scale": scale}


def long(unit: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": unit}


def record(kind: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "namespace": "shop", "fields": [{"name": name, "type": kind, **more}]}


def inner(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "In", "fields": [{"name": "d", "type": kind}]}


DATE, MILLIS, MICROS = {"type": "int", "logicalType": "date"}, long("timestamp-millis"), long("timestamp-micros")
PAIRS = [
    (decimal(10, 2), decimal(10, 3), "x was written in scale 2, and the reader's schema has scale 3"),
    (MILLIS, MICROS, "x was written in milliseconds, and the reader's schema has microseconds"),
    (DATE, MILLIS, "x was written in days"),
    ({"type": "int", "logicalType": "time-millis"}, long("time-micros"), "x was written in milliseconds"),
    (["null", MILLIS], ["null", MICROS], "x was written in milliseconds"),
    (MILLIS, ["null", "string", MICROS], "x was written in milliseconds"),
    ({"type": "array", "items": MILLIS}, {"type": "array", "items": ["null", MICROS]}, "x[] was written in milliseconds"),
    ({"type": "map", "values": inner(MILLIS)}, {"type": "map", "values": inner(MICROS)}, "x{}.d was written in milliseconds"),
    ({"type": inner(MILLIS)}, {"type": inner(MICROS)}, "x.d was written in milliseconds"),
    (decimal(4, 1, type="fixed", name="F", size=4), decimal(4, 2, type="fixed", name="F", size=4), "x was written in scale 1"),
]
ALIKE = [
    *((decimal(10, 2), decimal(12, 2)), (MILLIS, MILLIS), (MILLIS, long("local-timestamp-millis")), ("long", MICROS)),
    *((MICROS, "long"), ("int", MILLIS), (["null", DATE, MILLIS], ["null", DATE, MILLIS])),
    (["string", "null"], ["null", "string"]),
]


def mismatch(writer: Any, reader: Any) -> str | None:
    found = find_mismatch(*(read_avro(json.dumps(schema)).text for schema in (writer, reader)))
    assert found is None or found.is_other_type, "no record of it may be read"
    return found and found.reason


@pytest.mark.parametrize(("writer", "reader", "told"), [*PAIRS, *((*each, "None") for each in ALIKE)])
def test_a_number_in_another_unit_is_incompatible(writer: Any, reader: Any, told: str) -> None:
    """One that stayed, or that one schema does not say, is compatible: the controls."""
    assert str(mismatch(record(writer), record(reader))).startswith(told)


def test_a_field_is_found_by_its_alias_and_a_type_by_its_name() -> None:
    renamed = record(MICROS, "y", aliases=["x"])
    assert (mismatch(record(MILLIS), renamed) or "").startswith("y was written in milliseconds")
    twice = [{"name": "a", "type": inner(MILLIS)}, {"name": "b", "type": "In"}]
    other = [{"name": "b", "type": inner(MICROS)}]
    writer, reader = ({"type": "record", "name": "R", "namespace": "shop", "fields": fields} for fields in (twice, other))
    assert (mismatch(writer, reader) or "").startswith("b.d was written in milliseconds")
