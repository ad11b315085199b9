"""Every format from what defs.yaml says to the views, through Dagster: a good record is decoded, a bad one set aside."""

from __future__ import annotations

import dataclasses
import io
import json

import fastavro
import pytest

from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.component import KafkaTopic
from pipeline_defs.orchestration.assets.derived_config import BudgetConfig, DecodeConfig, SideConfig
from tests.support.world import World

AVRO = '{"type": "record", "name": "T", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}'
PROTO = 'syntax = "proto3"; message T { int64 id = 1; string name = 2; }'
JSON_SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}'


def avro(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), {"id": number, "name": "n"})
    return out.getvalue()


# schema, good records of 0, 1 and 2, what bytes of none of them are
FORMATS: dict[str, tuple[str | None, list[bytes], str]] = {
    "json": ("id BIGINT, name STRING", [b'{"id": %d, "name": "n"}' % n for n in range(3)], "not_utf8"),
    "avro": (AVRO, [avro(n) for n in range(3)], "avro_malformed"),
    "protobuf": (PROTO, [b"\x08" + bytes([n]) + b"\x12\x01n" for n in range(3)], "protobuf_malformed"),
    "json_schema": (JSON_SCHEMA, [b'{"id": %d, "name": "n"}' % n for n in range(3)], "not_utf8"),
    "string": (None, [b"0", b"1", b"2"], "not_utf8"),
    "integer": (None, [bytes([0, 0, 0, n]) for n in range(3)], "integer_malformed"),
}
BAD = b"\xff\xfe\x00"


@pytest.mark.parametrize(("key", "value"), [("string", "json"), ("integer", "avro"), ("json_schema", "protobuf")])
def test_a_format_from_defs_yaml_to_the_views(world: World, key: str, value: str) -> None:
    sides = {side: SideConfig(format=name, inline_schema=FORMATS[name][0]) for side, name in (("key", key), ("value", value))}
    component = KafkaTopic(topic=world.name, decode=DecodeConfig(**sides, dead_letters=BudgetConfig(records=2, share=0.5)))
    world.topic = dataclasses.replace(component.as_topic(), policy=world.topic.policy)
    world.create_topic(1)
    keys, values = FORMATS[key][1], FORMATS[value][1]
    pairs = [*zip(keys, values, strict=True), (BAD, values[0]), (keys[0], BAD)]
    world.send({"partition": 0, "key": each, "value": other} for each, other in pairs)
    world.plan()
    world.launch()
    ranges = list(world.coverage.log.ranges)
    (launched,) = world.in_process.decode(ranges, redo=False)
    assert launched.succeeded, launched.reason
    duck = Duck(world.edges.lake, [world.name])
    ids = [f"{side}::INTEGER" if FORMATS[name][0] is None else f"{side}.id" for side, name in (("key", key), ("value", value))]
    rows = duck.query(f'SELECT "offset", {", ".join(ids)} FROM decoded."{world.name}" ORDER BY 1')[1]
    assert rows == [(n, n, n) for n in range(3)]
    dead = duck.query(f'SELECT "offset", side, error_class FROM dead_letters."{world.name}" ORDER BY 1')[1]
    assert dead == [(3, "key", FORMATS[key][2]), (4, "value", FORMATS[value][2])]
