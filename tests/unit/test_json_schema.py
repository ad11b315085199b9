"""JSON Schemas without Spark: their columns, and documents checked by them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline_defs.core.json_schema import columns_of, find_clashes
from pipeline_defs.edges.json_checks import batch_checker, find_violation, open_validator

COLUMNS: list[tuple[dict[str, Any] | bool, str]] = [
    ({"type": "string"}, "STRING"),
    ({"type": "integer"}, "BIGINT"),
    ({"type": "number", "minimum": 0}, "DOUBLE"),
    ({"type": "boolean"}, "BOOLEAN"),
    ({"type": ["null", "integer"]}, "BIGINT"),
    ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "BOOLEAN"),
    ({"enum": ["a", "b", None]}, "STRING"),
    ({"enum": [1, 2]}, "BIGINT"),
    ({"const": True}, "BOOLEAN"),
    ({"type": "array", "items": {"type": "integer"}}, "ARRAY<BIGINT>"),
    ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
    ({"type": "object", "properties": {"a b": {"type": "integer"}, "`": {}}}, "STRUCT<`a b`: BIGINT, ````: STRING>"),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "BIGINT"),
    ({"$ref": "place.json#/properties/city"}, "STRING"),
    ({"$ref": "place.json"}, "STRUCT<`city`: STRING, `code`: BIGINT>"),
    # what is not plain is text
    ({"type": ["string", "integer"]}, "STRING"),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "STRING"),
    ({"enum": ["a", 1]}, "STRING"),
    ({"type": "array"}, "STRING"),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "integer"}}, "STRING"),
    ({"type": "object"}, "STRING"),
    ({"$ref": "gone.json"}, "STRING"),
    ({}, "STRING"),
    (True, "STRING"),
]
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "code": {"$ref": "#/$defs/code"}},
    "$defs": {"code": {"type": "integer"}},
}


@pytest.mark.parametrize(("schema", "column"), COLUMNS)
def test_a_schema_has_its_column(schema: Any, column: str) -> None:
    assert columns_of(schema, {"place.json": PLACE}) == column


def test_a_schema_within_itself_ends_as_text() -> None:
    """Beside it the same schema twice, which is no loop."""
    node = {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}}
    assert columns_of(node, {}) == "STRUCT<`next`: STRING, `n`: BIGINT>"
    both = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "integer"}},
    }
    assert columns_of(both, {}) == "STRUCT<`a`: BIGINT, `b`: BIGINT>"


def test_properties_that_differ_in_case_only_are_found() -> None:
    clashing = {"properties": {"in": {"items": [{"properties": {"a": {}, "A": {}}}]}}}
    assert find_clashes(clashing) == ["a", "A"]
    assert find_clashes(PLACE) == []


def test_a_document_is_checked_with_what_its_schema_refers_to_and_nothing_is_fetched() -> None:
    schema = json.dumps({"properties": {"to": {"$ref": "place.json"}, "n": {"maximum": 9}}, "required": ["n"]})
    validator = open_validator(schema, (("place.json", json.dumps(PLACE)),))
    assert find_violation(validator, b'{"n": 1, "to": {"city": "Rome"}}') is None
    said = find_violation(validator, b'{"n": 10, "to": {"city": 1}}')
    assert said is not None
    assert set(said.split("; ")) == {
        "at /n: 10 is greater than the maximum of 9",
        'at /to/city: 1 is not of type "string"',
    }
    assert find_violation(validator, b"{}") == 'at /: "n" is a required property'
    assert find_violation(
        open_validator('{"$ref": "place.json"}', (("place.json", json.dumps(PLACE)),)), b'{"city": 1}'
    )
    for elsewhere in ("gone.json", "http://127.0.0.1:9/place.json", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="retrieving it failed"):
            open_validator(json.dumps({"$ref": elsewhere}), ())


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"1 2", b"{}]}", b"[" * 100_000, b"[" * 1500 + b"]" * 1500])
def test_what_cannot_be_read_never_passes(body: bytes) -> None:
    """No JSON, more than one value, nested too deep: nobody has checked it, whatever another parser makes of it."""
    found = find_violation(open_validator("true", ()), body)
    assert found is not None and found.startswith("it cannot be checked: ")


def test_what_is_nested_too_deep_to_be_checked_is_said() -> None:
    deep = find_violation(open_validator('{"items": {"$ref": "#"}}', ()), b"[" * 500 + b"]" * 500)
    assert deep is None or deep.startswith("it cannot be checked: ")


def test_a_batch_is_checked_row_by_row_each_by_its_own_schema() -> None:
    import pandas

    check = batch_checker({1: ('{"type": "integer"}', ()), 2: ('{"type": "string"}', ())})
    found = check(pandas.Series([1, 2, None, 1, 2]), pandas.Series([b"1", b"1", b"1", None, b'"a"']))
    assert found.tolist() == [None, 'at /: 1 is not of type "string"', None, None, None]
