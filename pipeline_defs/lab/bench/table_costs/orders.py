"""The orders that the benchmark has decoded: what one says, its schema in each format's language, and its bytes.

The same orders in every format; as text they are the JSON.
"""

import io
import json
import random
from collections.abc import Callable, Iterator, Mapping
from string import ascii_lowercase

from ....core.decode.decoders import Decode, Format, Side
from ....core.tables.decoding import Budget
from ..data import SEED
from ..rounds import Load

SCHEMA = (
    "order_id BIGINT NOT NULL, customer STRING, state STRING, sum INT, price DOUBLE, trace STRING, at TIMESTAMP, paid BOOLEAN, "
    "items ARRAY<STRUCT<sku: STRING, count: INT, price: DOUBLE>>, address STRUCT<street: STRING, city: STRING, zip: STRING>, "
    "note STRING"
)
AVRO_SCHEMA = """{"type": "record", "name": "Order", "fields": [
 {"name": "order_id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "state", "type": "string"},
 {"name": "sum", "type": "int"}, {"name": "price", "type": "double"}, {"name": "trace", "type": "string"},
 {"name": "at", "type": "string"}, {"name": "paid", "type": "boolean"},
 {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
   {"name": "sku", "type": "string"}, {"name": "count", "type": "int"}, {"name": "price", "type": "double"}]}}},
 {"name": "address", "type": {"type": "record", "name": "Address", "fields": [
   {"name": "street", "type": "string"}, {"name": "city", "type": "string"}, {"name": "zip", "type": "string"}]}},
 {"name": "note", "type": "string"}]}"""
PROTO = """syntax = "proto3";
message Order {
  int64 order_id = 1; string customer = 2; string state = 3; int32 sum = 4; double price = 5; string trace = 6;
  string at = 7; bool paid = 8; repeated Item items = 9; Address address = 10; string note = 11;
}
message Item { string sku = 1; int32 count = 2; double price = 3; }
message Address { string street = 1; string city = 2; string zip = 3; }
"""
JSON_SCHEMA = """{"type": "object", "required": ["order_id"], "properties": {
 "order_id": {"type": "integer"}, "customer": {"type": "string"}, "state": {"type": "string"}, "sum": {"type": "integer"},
 "price": {"type": "number"}, "trace": {"type": "string"}, "at": {"type": "string"}, "paid": {"type": "boolean"},
 "items": {"type": "array", "items": {"type": "object", "properties": {
   "sku": {"type": "string"}, "count": {"type": "integer"}, "price": {"type": "number"}}}},
 "address": {"type": "object", "properties": {
   "street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string"}}},
 "note": {"type": "string"}}}"""
NO_BUDGET = Budget(0, 0.0)
ORDERS = 5_000  # that repeat, but for their numbers

Values = Callable[[Load], Iterator[bytes]]


def json_values(load: Load) -> Iterator[bytes]:
    """Yield orders as JSON, each close to the load's size, the same ones each time."""
    orders = [json.dumps(order, separators=(",", ":"))[1:] for order in _orders(load)]
    for number in range(load.records):
        yield f'{{"order_id":{number},{orders[number % len(orders)]}'.encode()


def avro_values(load: Load) -> Iterator[bytes]:
    """Yield the same orders as Avro, without a registry."""
    import fastavro

    schema, orders = fastavro.parse_schema(json.loads(AVRO_SCHEMA)), _orders(load)
    for number in range(load.records):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"order_id": number, **orders[number % len(orders)]})
        yield out.getvalue()


def protobuf_values(load: Load) -> Iterator[bytes]:
    """Yield the same orders as Protobuf, without a registry."""
    from google.protobuf.message_factory import GetMessageClass

    from ....adapters.formats.protobuf_schema import compile_proto, find_message

    message = GetMessageClass(find_message(compile_proto(PROTO, {}, "the benchmark's schema"), "Order", "it"))
    orders = [message(**order).SerializeToString() for order in _orders(load)]
    for number in range(load.records):
        yield message(order_id=number).SerializeToString() + orders[number % len(orders)]  # fields one after the other


# what is produced -> how its values are written, and each way in which they are decoded
VALUES: Mapping[str, Values] = {"json": json_values, "avro": avro_values, "protobuf": protobuf_values}
DECODES: Mapping[str, Mapping[str, Decode]] = {
    "json": {
        "json": Decode(Side(Format.STRING), Side(Format.JSON, SCHEMA), NO_BUDGET),
        "json_schema": Decode(Side(Format.STRING), Side(Format.JSON_SCHEMA, JSON_SCHEMA), NO_BUDGET),
        "string": Decode(Side(Format.STRING), Side(Format.STRING), NO_BUDGET),
    },
    "avro": {"avro": Decode(Side(Format.STRING), Side(Format.AVRO, AVRO_SCHEMA), NO_BUDGET)},
    "protobuf": {"protobuf": Decode(Side(Format.STRING), Side(Format.PROTOBUF, PROTO, message="Order"), NO_BUDGET)},
}


def _orders(load: Load) -> list[dict[str, object]]:
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    return [_order(chance, load.value_bytes) for _ in range(min(ORDERS, load.records))]


def _order(chance: random.Random, size: int) -> dict[str, object]:
    """Return an order as shops write them, of about `size` bytes with its number."""
    words = ["".join(chance.choices(ascii_lowercase, k=chance.randint(2, 9))) for _ in range(40)]
    order: dict[str, object] = {
        "customer": f"customer-{chance.randint(0, 10**6)}",
        "state": chance.choice(("created", "paid", "packed", "shipped", "delivered")),
        "sum": chance.randint(1, 99_999),
        "price": round(chance.random() * 1000, 2),
        "trace": chance.randbytes(16).hex(),
        "at": f"2026-11-{chance.randint(1, 28):02d}T{chance.randint(0, 23):02d}:00:00Z",
        "paid": chance.random() < 0.5,
        "items": [
            {"sku": chance.randbytes(6).hex(), "count": chance.randint(1, 9), "price": round(chance.random() * 100, 2)}
            for _ in range(5)
        ],
        "address": {"street": " ".join(words[:3]), "city": words[3], "zip": str(chance.randint(10_000, 99_999))},
    }
    left = size - len(json.dumps(order, separators=(",", ":"))) - 30
    return order | {"note": " ".join(chance.choices(words, k=150))[: max(0, left)]}
