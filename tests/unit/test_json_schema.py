"""JSON without Spark: columns of JSON Schemas, documents checked by them, and what is said of one that does not fit."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DecimalType, IntegerType, MapType, StringType, StructType

from pipeline_defs.adapters.formats.json_batches import UNEXPLAINED, batch_checker, explain_mismatch
from pipeline_defs.adapters.formats.json_checks import find_violation, open_checker
from pipeline_defs.core.decode.json_schema import columns_of, refuse_bomb
from pipeline_defs.core.decode.schema_text import MOST_CHECKS

NODE = {"type": "object", "properties": {"next": {"$ref": "#"}, "n": {"type": "integer"}}}
TWICE = {"type": "object", "properties": {name: {"$ref": "#/$defs/n"} for name in "ab"}, "$defs": {"n": {"type": "integer"}}}
COLUMNS: list[tuple[Any, str]] = [
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
    ({"$ref": "#/$defs/a%20b~1c%25", "$defs": {"a b/c%": {"type": "integer"}}}, "BIGINT"),
    ({"$ref": "#/$defs/", "$defs": {"": {"type": "integer"}}}, "BIGINT"),
    ({"$ref": "#/$defs/a%2Fb", "$defs": {"a/b": {"type": "integer"}, "a": {"b": {"type": "boolean"}}}}, "BOOLEAN"),
    ({"$ref": "#/allOf/1", "allOf": [{}, {"type": "integer"}]}, "BIGINT"),
    ({"$ref": "#/allOf/2", "allOf": [{}, {}]}, "STRING"),
    (TWICE, "STRUCT<`a`: BIGINT, `b`: BIGINT>"),
    # what is not plain is text, and so is a schema within itself
    (NODE, "STRUCT<`next`: STRING, `n`: BIGINT>"),
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
CITY = {"city": {"type": "string"}, "code": {"$ref": "#/$defs/code"}}
PLACE = {"type": "object", "properties": CITY, "$defs": {"code": {"type": "integer"}}}


@pytest.mark.parametrize(("schema", "column"), COLUMNS)
def test_a_schema_has_its_column(schema: Any, column: str) -> None:
    assert columns_of(schema, {"place.json": PLACE}) == column


def test_a_document_is_checked_with_what_its_schema_refers_to_and_nothing_is_fetched() -> None:
    schema = json.dumps({"properties": {"to": {"$ref": "place.json"}, "n": {"maximum": 9}}, "required": ["n"]})
    validator = open_checker(schema, (("place.json", json.dumps(PLACE)),))
    assert find_violation(validator, b'{"n": 1, "to": {"city": "Rome"}}') is None
    assert set(str(find_violation(validator, b'{"n": 10, "to": {"city": 1}}')).split("; ")) == {
        "at /n: not as maximum 9 says (/properties/n/maximum)",
        "at /to/city: expected string, found integer (/properties/city/type)",
    }
    assert find_violation(validator, b"{}") == 'at /: "n" is a required property (/required)'
    assert find_violation(open_checker('{"$ref": "place.json"}', (("place.json", json.dumps(PLACE)),)), b'{"city": 1}')
    for elsewhere in ("gone.json", "http://127.0.0.1:9/place.json", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="retrieving it failed"):
            open_checker(json.dumps({"$ref": elsewhere}), ())


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"1 2", b"{}]}", b"[" * 100_000, b"[" * 1500 + b"]" * 1500])
def test_what_cannot_be_read_never_passes(body: bytes) -> None:
    """No JSON, more than one value, nested too deep: nobody has checked it, whatever another parser makes of it."""
    assert str(find_violation(open_checker("true", ()), body)).startswith("it cannot be checked: ")


def test_a_batch_is_checked_row_by_row_each_by_its_own_schema() -> None:
    import pandas

    check = batch_checker({1: ('{"type": "integer"}', ()), 2: ('{"type": "string"}', ())})
    found = check(pandas.Series([1, 2, None, 1, 2]), pandas.Series([b"1", b"1", b"1", None, b'"a"']))
    assert found.tolist() == [None, "at /: expected string, found integer (/type)", None, None, None]


def diamonds(levels: int, word: str) -> dict[str, Any]:
    """Return a schema of so many levels, each of which refers to the next one twice, by `word` or by two properties."""

    def level(at: int) -> dict[str, Any]:
        twice = [{"$ref": f"#/$defs/d{at + 1}"}] * 2
        return {"type": "object", "properties": dict(zip("ab", twice, strict=True))} if word == "properties" else {word: twice}

    defs = {f"d{at}": level(at) for at in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "integer"}}}


@pytest.mark.parametrize("word", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_multiplies_is_refused_before_anything_is_checked(word: str) -> None:
    """24 levels are 16 million checks of one value; a few levels are checked, and say what is wrong, in no time."""
    with pytest.raises(ValueError, match=f"checks of one value, expected at most {MOST_CHECKS:,}"):
        open_checker(json.dumps(diamonds(24, word)), ())
    assert find_violation(open_checker(json.dumps(diamonds(5, "allOf")), ()), b'"x"') is not None
    assert find_violation(open_checker(json.dumps(diamonds(5, "anyOf")), ()), b"1") is None
    many = find_violation(open_checker(json.dumps(diamonds(14, "anyOf")), ()), b'"x"')
    assert many == "it is not valid; its schema has too many branches to say where"


@pytest.mark.parametrize(
    "level",
    [
        lambda at, ref: {"allOf": [{"$ref": f"#/%24defs/d{at + 1}"}] * 2},
        lambda at, ref: {"$dynamicAnchor": f"d{at}", "allOf": [{"$dynamicRef": f"#d{at + 1}"}] * 2},
        lambda at, ref: {"items": ref, "contains": ref},
        lambda at, ref: {"properties": {"a": ref}, "patternProperties": {"a": ref}},
        lambda at, ref: {"patternProperties": {"a": ref, "^a": ref}},
    ],
    ids=["escaped", "dynamic", "contains", "pattern beside property", "two patterns"],
)
def test_checks_of_one_part_multiply_as_those_of_one_value_do(level: Callable[[int, dict[str, str]], dict[str, Any]]) -> None:
    def schema(levels: int) -> dict[str, Any]:
        defs = {f"d{at}": level(at, {"$ref": f"#/$defs/d{at + 1}"}) for at in range(levels)}
        return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"$dynamicAnchor": f"d{levels}", "type": "integer"}}}

    with pytest.raises(ValueError, match=f"checks of one value, expected at most {MOST_CHECKS:,}"):
        refuse_bomb(schema(24), {})
    assert refuse_bomb(schema(5), {}) >= 32, "the control"


def test_columns_that_multiply_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 10,000 columns, or 30 levels"):
        columns_of(diamonds(24, "properties"), {})
    assert columns_of(diamonds(3, "properties"), {}).count("BIGINT") == 8, "the control"
    bomb = json.dumps(diamonds(40, "properties"))
    assert find_violation(open_checker(bomb, ()), b'{"a": {"b": 1}}') is not None, "a document has only so many parts"


def test_schemas_that_name_each_other_in_every_way_are_counted_and_end() -> None:
    by_anchor = {"$defs": {"x": {"$anchor": "a", "allOf": [{"$ref": "#"}, {"$ref": "#a"}]}}, "$ref": "#a"}
    by_id = {"$defs": {"x": {"$id": "x.json", "anyOf": [{"$ref": "y.json"}] * 2}}, "$ref": "x.json"}
    chain = {"$defs": {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(3_000)}, "$ref": "#/$defs/0"}
    assert refuse_bomb(by_anchor, {}) < 20
    assert refuse_bomb(by_id, {"y.json": {"anyOf": [True] * 5}}) > 10
    in_a_list = {"$defs": {"x": [{"anyOf": [{"$ref": "y.json"}] * 2}]}, "$ref": "#/$defs/x/0"}
    assert refuse_bomb(in_a_list, {"y.json": {"anyOf": [True] * 5}}) > 10
    assert refuse_bomb(chain, {}) > 3_000
    assert refuse_bomb(True, {}) == 1


SECRET = "4711-hush"


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        *((schema, SECRET) for schema in ({"type": "integer"}, {"enum": ["a"]}, {"const": 1}, {"pattern": "^a"}, {"not": {}})),
        *((schema, SECRET) for schema in ({"maxLength": 1}, {"format": "date"}, {"if": True, "then": {"const": 1}})),
        ({"anyOf": [{"type": "integer"}, {"const": 5}]}, SECRET),
        ({"oneOf": [{"type": "string"}, {"minLength": 1}]}, SECRET),
        ({"additionalProperties": False}, {SECRET: 1}),
        ({"unevaluatedProperties": False}, {SECRET: 1}),
        ({"additionalProperties": {"type": "integer"}}, {SECRET: {SECRET: SECRET}}),
        ({"patternProperties": {"^4": {"type": "integer"}}}, {SECRET: SECRET}),
        ({"propertyNames": {"maxLength": 1}}, {SECRET: 1}),
        *((schema, [SECRET, SECRET]) for schema in ({"contains": {"const": 1}}, {"uniqueItems": True}, {"items": False})),
        ({"maxItems": 1}, [SECRET, SECRET]),
        ({"dependentRequired": {SECRET[:4]: ["b"]}}, {SECRET[:4]: SECRET}),
    ],
)
def test_what_is_said_of_a_document_has_nothing_of_what_it_says(schema: dict[str, Any], document: Any) -> None:
    """And is short, however long the document is."""
    checker = open_checker(json.dumps(schema), ())
    text = json.dumps(document)
    for body in (text, text.replace("hush", "hush" * 100_000)):
        said = find_violation(checker, body.encode())
        assert said is None or ("hush" not in said and len(said) < 3_000)
    assert find_violation(checker, text.encode()) is not None or "format" in schema, "the control"
    assert "hush" not in str(find_violation(checker, b'{"hush":' * 300 + b'"hush' + b"\xff"))


def test_a_number_that_no_checker_can_be_given_never_passes() -> None:
    """Of one beyond DOUBLE a checker would be told that it is null, and allow it where null is."""
    maybe = open_checker('{"type": ["null", "string"]}', ())
    assert find_violation(maybe, b"null") is None
    beyond = "a number is beyond DOUBLE"
    for body, why in ((b"1e400", beyond), (b"-1e400", beyond), (b"NaN", "NaN is no JSON")):
        assert find_violation(maybe, body) == f"it cannot be checked: {why}"
    assert find_violation(open_checker("true", ()), b"1" * 5_000) == "it cannot be checked: a number has too many digits"


INNER = StructType().add("x", "integer").add("at", "timestamp")
ORDER = StructType().add("id", "long", nullable=False).add("b", "byte").add("ok", "boolean").add("price", "double")
ORDER.add("d", "date").add("note", "string").add("sum", DecimalType(10, 2)).add("in", INNER).add("many", ArrayType(INNER))
ORDER.add("raw", BinaryType()).add("by", MapType(StringType(), IntegerType(), valueContainsNull=False))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"id": "4711"}, "id: expected BIGINT, found string"),
        ({"id": [4711]}, "id: expected BIGINT, found array"),
        ({"id": True}, "id: expected BIGINT, found boolean"),
        ({"id": 4711.5}, "id: expected BIGINT, found a number with a fraction or exponent"),
        ({"id": 4711 << 60}, "id: expected BIGINT, found a number beyond it"),
        ({}, "id is null or missing"),
        ({"id": 1, "ok": 4711}, "ok: expected BOOLEAN, found number"),
        ({"id": 1, "b": 4711}, "b: expected TINYINT, found a number beyond it"),
        ({"id": 1, "price": "4711"}, "price: expected DOUBLE, found string"),
        ({"id": 1, "d": 4711}, "d: expected DATE, found number"),
        ({"id": 1, "in": 4711}, "in: expected STRUCT, found number"),
        ({"id": 1, "in": {"x": {"4711": 4711}}}, "in.x: expected INT, found object"),
        ({"id": 1, "many": {"4711": 1}}, "many: expected ARRAY, found object"),
        ({"id": 1, "many": [None, {"at": True}]}, "many[].at: expected TIMESTAMP, found boolean"),
        ({"id": 1, "in": {"at": "4711"}}, "in.at: expected TIMESTAMP, found a text unlike 2013-01-31T12:00:00Z"),
        ({"id": 1, "in": {"at": "4711-02-30T00:00Z"}}, "in.at: expected TIMESTAMP, found a text unlike 2013-01-31T12:00:00Z"),
        *(
            ({"id": 1, "in": {"at": text}}, "in.at: expected TIMESTAMP, found a text unlike 2013-01-31T12:00:00Z")
            for text in ("2016-12-31T23:59:60Z", "2013-01-31T24:00:00Z", "2013-01-31T12:00:00+18:30", "2013-01-31T12:60")
        ),
        ({"id": 1, "in": {"at": "2013-01-31 12:00:00.123+0130"}}, UNEXPLAINED),
        ({"id": 1, "in": {"at": "2013-01-31T23:59:59-18"}}, UNEXPLAINED),
        ({"id": 1, "in": {"at": 1e9}}, "in.at: expected TIMESTAMP, found a number with a fraction or exponent"),
        ({"id": 1, "in": {"at": 4711 << 60}}, "in.at: expected TIMESTAMP, found a number beyond it"),
        ({"id": 1, "raw": "4711!"}, "raw: expected BINARY, found a text that is no base64"),
        ({"id": 1, "raw": "N Dcx"}, "raw: expected BINARY, found a text that is no base64"),
        ({"id": 1, "raw": "NDcx\nMQ=="}, UNEXPLAINED),
        ({"id": 1, "by": {"4711": "4711"}}, "by{}: expected INT, found string"),
        ({"id": 1, "by": {"4711": None}}, "by{} is null or missing"),
        ([4711], "expected STRUCT, found array"),
        (4711, "expected STRUCT, found number"),
        (None, "expected STRUCT, found null"),
        ({"id": 1, "note": {"4711": 1}, "sum": "4711", "more": 4711}, UNEXPLAINED),
    ],
)
def test_a_mismatch_names_the_field_and_both_types(document: Any, said: str) -> None:
    """And what Python does not read is no failure."""
    assert explain_mismatch(json.dumps(document).encode(), ORDER) == said
    for body in (b"", b"{", b"\xff", b"[" * 100_000, b'{"id": ' + b"1" * 5_000 + b"}"):
        assert explain_mismatch(body, ORDER) == UNEXPLAINED
