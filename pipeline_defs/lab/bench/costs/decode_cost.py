"""Decoding and compaction of landed orders, the same ones in each format, beside landing them, round by round.

Each round lands the load into a lake of its own, and then derives from it. Invariant: a turn that did not give every record
is an error, not a time.
"""

import io
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any

from ....core.decode.decoders import Decode, Format, Side
from ....core.errors import RangesFailed
from ....core.tables.decoding import Budget
from ....resources import Adapters
from ....tables.compaction import compact
from ....tables.decoding import decode
from ...processes import NotMeasured
from ..measurement import SEED, Bench, Tell, check_rows, repeat
from ..rounds import Load, spread
from ..systems import Place, attempt, fresh_adapters, offsetlake
from ..usage import timed

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
NO_BUDGET = Budget(0, 0.0)
ORDERS = 5_000  # that repeat, but for their numbers

Values = Callable[[Load], Iterator[bytes]]
DECODES: Mapping[str, Decode] = {
    "json": Decode(Side(Format.STRING), Side(Format.JSON, SCHEMA), NO_BUDGET),
    "avro": Decode(Side(Format.STRING), Side(Format.AVRO, AVRO_SCHEMA), NO_BUDGET),
}
LOAD = Load("bench-derived", 1_000, 240_000, 15_000)
WARM_UPS = 16  # landing and decoding get faster until then, while the JVM compiles them: Avro in its twelfth round still


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


# format -> how its values are written
VALUES: Mapping[str, Values] = {"json": json_values, "avro": avro_values}


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


def measure_decoding(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measure landing and what is derived from it; return seconds, and how many times as long as landing the same each took."""
    for kind, values in VALUES.items():
        bench.fill(_load_of(kind), tell, values(LOAD))
    seconds: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)

    def take_round(number: int) -> None:
        for kind in VALUES:
            landing, taken = _take_round(bench, kind)
            if number > 0:
                for name, value in {f"landing_{kind}": landing, **taken}.items():
                    seconds[name].append(value)
                for name, value in taken.items():
                    ratios[f"{name}_to_landing"].append(value / landing)

    repeat(take_round, LOAD.topic, rounds, tell, WARM_UPS)
    return {
        "measured": (
            f"{LOAD.ranges_text}, the same orders in each format; each round lands them into a lake of its own, decodes them, "
            "and compacts what is landed"
        ),
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "ratios": {name: spread(values) for name, values in ratios.items()},
    }


def _load_of(kind: str) -> Load:
    return replace(LOAD, topic=f"{LOAD.topic}-{kind}")


def _take_round(bench: Bench, kind: str) -> tuple[float, dict[str, float]]:
    """Return the seconds of landing, and by name those of what is derived from it."""
    with TemporaryDirectory(dir=bench.folder) as folder:
        out = Path(folder)
        place = Place(_load_of(kind), bench.adapters, bench.pyspark, out)
        landing, seconds = timed(offsetlake(place)), dict[str, float]()
        seconds[kind] = timed(partial(_decode, bench, place, DECODES[kind], fresh_adapters(bench.adapters, out)))
        seconds[f"compact_{kind}"] = timed(partial(_compact, bench, place, fresh_adapters(bench.adapters, out)))
        return landing, seconds


def _decode(bench: Bench, place: Place, config: Decode, adapters: Adapters) -> None:
    """Decode all ranges of a landed topic; every record must come out."""
    keys = [offsets.key for offsets in adapters.lake.coverage(place.topic.name).log.ranges]
    verdicts = list(decode(place.topic.name, keys, attempt(), adapters.decode_tools(config, bench.pyspark)))
    _check([text for verdict in verdicts for text in verdict.violations])
    check_rows("decoding", sum(each.decoding.rows for each in verdicts if each.decoding), place.load)


def _compact(bench: Bench, place: Place, adapters: Adapters) -> None:
    tools = adapters.tools(place.topic, bench.pyspark)
    target = place.topic.policy.target_file_bytes
    verdicts = list(compact(place.topic.name, attempt(), tools, target, every=True))
    _check([text for verdict in verdicts for text in verdict.violations])
    if not verdicts:
        raise NotMeasured(f"nothing of {place.topic.name} was compacted")


def _check(violations: Sequence[str]) -> None:
    if violations:
        raise RangesFailed("the benchmark's own deriving failed", violations)
