"""Avro schemas as text: what refers to others becomes one that needs none; fastavro, which reads Avro too, is asked."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from pipeline_defs.core.avro import END, enclose, find_clashes, inline_references, parse_avro, record_name
from pipeline_defs.core.subjects import name_subject

CITY = '{"type": "record", "name": "City", "namespace": "geo", "fields": [{"name": "name", "type": "string"}]}'
PLACE = json.dumps(
    {
        "type": "record",
        "name": "geo.Place",
        "fields": [{"name": "city", "type": "City"}, {"name": "more", "type": {"type": "array", "items": "geo.City"}}],
    }
)


def inlined(schema: Any, *references: str) -> Any:
    return json.loads(inline_references(json.dumps(schema), references))


def is_whole(schema: Any) -> bool:
    """Says whether a parser takes it alone."""
    fastavro.parse_schema(schema)
    return True


def test_a_name_is_defined_where_it_is_first_used_and_named_after() -> None:
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "first", "type": ["null", "geo.City"]},
            {"name": "second", "type": {"type": "map", "values": "geo.City"}},
        ],
    }
    whole = inlined(order, CITY)
    assert whole["fields"][0]["type"][1]["fields"] == [{"name": "name", "type": "string"}]
    assert whole["fields"][1]["type"]["values"] == "geo.City"
    assert is_whole(whole)


@pytest.mark.parametrize("first", ["City", "Place"])
def test_what_refers_to_what_refers_is_whole_in_any_order(first: str) -> None:
    """Also where one reference has the other inside it already."""
    nested = json.dumps({**json.loads(PLACE), "fields": [{"name": "city", "type": json.loads(CITY)}]})
    names = [first, *({"City", "Place"} - {first})]
    order = {
        "type": "record",
        "name": "Order",
        "namespace": "geo",
        "fields": [{"name": name.lower(), "type": name} for name in names],
    }
    assert is_whole(inlined(order, CITY, PLACE))
    assert is_whole(inlined(order, PLACE, CITY))
    assert is_whole(inlined(order, nested, CITY))


def test_what_refers_to_nothing_stays_as_it_is() -> None:
    """Control: logical types, defaults, documentation and attributes of others included."""
    schema = {
        "type": "record",
        "name": "All",
        "doc": "d",
        "fields": [
            {
                "name": "at",
                "type": {"type": "long", "logicalType": "timestamp-millis"},
                "default": 0,
                "order": "ignore",
            },
            {"name": "text", "type": {"type": "string", "avro.java.string": "String"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"], "default": "A"}},
            {"name": "again", "type": "Kind", "aliases": ["other"]},
        ],
    }
    assert inlined(schema) == schema
    assert json.loads(inline_references('"string"', [])) == "string"
    assert parse_avro(" long ") == "long"


def test_a_name_that_nobody_defines_stays_for_the_parser_to_refuse() -> None:
    whole = inlined({"type": "record", "name": "R", "fields": [{"name": "x", "type": "geo.Gone"}]}, CITY)
    assert whole["fields"][0]["type"] == "geo.Gone"
    with pytest.raises(fastavro.schema.UnknownType):
        is_whole(whole)


def test_the_mark_is_behind_the_datum() -> None:
    """Written by fastavro: the bytes of a datum, then the mark."""
    schema = fastavro.parse_schema(json.loads(enclose(CITY)))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"value": {"name": "Rome"}, "end": END})
    assert out.getvalue() == b"\x08Rome" + END


def test_no_shift_of_the_mark_is_the_mark() -> None:
    """Else a datum that ends too early or too late could be followed by one."""
    assert all(END[shift:] != END[:-shift] for shift in range(1, len(END)))


def test_fields_that_differ_in_case_only_are_found_at_any_depth() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]}
    schema = {"type": "record", "name": "Out", "fields": [{"name": "a", "type": {"type": "array", "items": inner}}]}
    assert find_clashes(schema) == ["In.a", "In.A"]
    assert find_clashes(json.loads(CITY)) == []


def test_subjects_are_named_as_confluents_clients_name_them() -> None:
    from confluent_kafka.schema_registry import (
        record_subject_name_strategy,
        topic_record_subject_name_strategy,
        topic_subject_name_strategy,
    )
    from confluent_kafka.serialization import MessageField, SerializationContext

    record = record_name(CITY)
    theirs = {
        None: topic_subject_name_strategy,
        "topic_name": topic_subject_name_strategy,
        "record_name": record_subject_name_strategy,
        "topic_record_name": topic_record_subject_name_strategy,
    }
    assert record == "geo.City"
    for column in (MessageField.KEY, MessageField.VALUE):
        context = SerializationContext("orders", column)
        for ours, strategy in theirs.items():
            assert name_subject(ours, "orders", column, record) == strategy(context, record)
    assert name_subject("by hand", "orders", "value") == "by hand"
    assert record_name('"string"') is None
