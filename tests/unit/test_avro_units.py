"""Numbers of Avro that two schemas have in other units: Avro reads them all the same, ten or a thousand times too large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline_defs.adapters.formats.avro.spark_avro_schema import find_mismatch
from pipeline_defs.core.decode.avro import read_avro


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
    (decimal(10, 2), decimal(12, 2)),
    (MILLIS, MILLIS),
    (MILLIS, long("local-timestamp-millis")),
    ("long", MICROS),
    (MICROS, "long"),
    ("int", MILLIS),
    (["null", DATE, MILLIS], ["null", DATE, MILLIS]),
    (["string", "null"], ["null", "string"]),
]


def mismatch(writer: Any, reader: Any) -> str | None:
    found = find_mismatch(*(read_avro(json.dumps(schema)).text for schema in (writer, reader)))
    assert found is None or found.is_other_type, "no record of it may be read"
    return found and found.reason


@pytest.mark.parametrize(("writer", "reader", "told"), PAIRS)
def test_a_number_in_another_unit_is_incompatible(writer: Any, reader: Any, told: str) -> None:
    found = mismatch(record(writer), record(reader))
    assert found is not None and found.startswith(told)


@pytest.mark.parametrize(("writer", "reader"), ALIKE)
def test_a_unit_that_stayed_or_that_one_schema_does_not_say_is_compatible(writer: Any, reader: Any) -> None:
    assert mismatch(record(writer), record(reader)) is None


def test_a_field_is_found_by_its_alias_and_a_type_by_its_name() -> None:
    renamed = record(MICROS, "y", aliases=["x"])
    assert (mismatch(record(MILLIS), renamed) or "").startswith("y was written in milliseconds")
    twice = [{"name": "a", "type": inner(MILLIS)}, {"name": "b", "type": "In"}]
    other = [{"name": "b", "type": inner(MICROS)}]
    writer, reader = ({"type": "record", "name": "R", "namespace": "shop", "fields": fields} for fields in (twice, other))
    assert (mismatch(writer, reader) or "").startswith("b.d was written in milliseconds")


def test_what_a_record_that_contains_itself_has_is_found_once() -> None:
    def chain(unit: dict[str, Any]) -> dict[str, Any]:
        fields = [{"name": "next", "type": ["null", "N"]}, {"name": "at", "type": unit}]
        return {"type": "record", "name": "N", "fields": fields}

    assert mismatch(chain(MILLIS), chain(MILLIS)) is None
    assert (mismatch(chain(MILLIS), chain(MICROS)) or "").startswith("at was written in milliseconds")
