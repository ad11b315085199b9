"""A document that is not of its columns' types: the field, the type and what is there, and nothing of what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, MapType, StringType, StructType

from pipeline_defs.adapters.formats.json.json_batches import UNEXPLAINED, explain_mismatch

INNER = StructType().add("x", "integer").add("at", "timestamp")
ORDER = (
    StructType()
    .add("id", "long", nullable=False)
    .add("b", "byte")
    .add("ok", "boolean")
    .add("price", "double")
    .add("d", "date")
    .add("note", "string")
    .add("sum", DecimalType(10, 2))
    .add("in", INNER)
    .add("many", ArrayType(INNER))
    .add("by", MapType(StringType(), IntegerType(), valueContainsNull=False))
)


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
        ({"id": 1, "by": {"4711": "4711"}}, "by{}: expected INT, found string"),
        ({"id": 1, "by": {"4711": None}}, "by{} is null or missing"),
        ([4711], "expected STRUCT, found array"),
        (4711, "expected STRUCT, found number"),
        (None, "expected STRUCT, found null"),
        ({"id": 1, "note": {"4711": 1}, "sum": "4711", "more": 4711}, UNEXPLAINED),
    ],
)
def test_a_mismatch_names_the_field_and_both_types(document: Any, said: str) -> None:
    assert explain_mismatch(json.dumps(document).encode(), ORDER) == said


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"id": ' + b"1" * 5_000 + b"}"])
def test_what_python_does_not_read_is_no_failure(body: bytes) -> None:
    assert explain_mismatch(body, ORDER) == UNEXPLAINED
