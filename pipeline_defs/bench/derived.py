"""What is derived from landed ranges, beside landing them: decoding and sealing the same records, round by round.

Each round lands the load into a lake of its own, and then derives from it. Invariant: a turn that did not give every record
is an error, not a time.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from string import ascii_lowercase
from typing import Any

from ..attempt import Attempt
from ..core.decoders import Decode, Format, Side
from ..core.decoding import Budget
from ..core.errors import RangesFailed
from ..decoding import decode
from ..resources import Edges
from ..sealing import seal
from .data import SEED, produce_values
from .measurement import Bench, Tell, WrongCount
from .rounds import Load
from .systems import Place, offsetlake

LOAD = Load(1_000, 240_000, 15_000)
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
DECODES: Mapping[str, Decode] = {
    "json": Decode(Side(Format.STRING), Side(Format.JSON, SCHEMA), NO_BUDGET),
    "avro": Decode(Side(Format.STRING), Side(Format.AVRO, AVRO_SCHEMA), NO_BUDGET),
}
ORDERS = 5_000  # that repeat, but for their numbers
TARGETS: Mapping[str, float] = {"decode_json_to_landing_json": 1.5}  # times as long, at most


def json_values(load: Load) -> Iterator[bytes]:
    """Yields orders as JSON, each close to the load's size, the same ones each time."""
    orders = [json.dumps(order, separators=(",", ":"))[1:] for order in _orders(load)]
    for number in range(load.records):
        yield f'{{"order_id":{number},{orders[number % ORDERS]}'.encode()


def avro_values(load: Load) -> Iterator[bytes]:
    """Yields the same orders as Avro, without a registry."""
    import fastavro

    schema, orders = fastavro.parse_schema(json.loads(AVRO_SCHEMA)), _orders(load)
    for number in range(load.records):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"order_id": number, **orders[number % ORDERS]})
        yield out.getvalue()


VALUES: Mapping[str, Callable[[Load], Iterator[bytes]]] = {"json": json_values, "avro": avro_values}


def measure_derived(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measures landing and what is derived from it; returns seconds by round, medians, and ratios to landing the same."""
    for kind, values in VALUES.items():
        bench.edges.kafka().create_topic(_topic(kind), LOAD.kafka_partitions)
        tell(f"{_topic(kind)}: producing {LOAD.records:,} records")
        produce_values(bench.edges.bootstrap_servers(), _topic(kind), values(LOAD), LOAD)
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for kind in VALUES:
            tell(
                f"{_topic(kind)}: {'warm-up' if number == 0 else f'round {number} of {rounds}'}, landing, decoding, sealing"
            )
            for name, value in _take_round(bench, kind).items():
                if number:
                    seconds.setdefault(name, []).append(round(value, 3))
    medians = {name: round(median(values), 3) for name, values in seconds.items()}
    pairs = [("decode_json", "landing_json"), ("decode_avro", "landing_avro"), ("seal_json", "landing_json")]
    ratios = {f"{name}_to_{base}": round(medians[name] / medians[base], 3) for name, base in pairs}
    missed = [f"{name}: {ratios[name]}, to be at most {most}" for name, most in TARGETS.items() if ratios[name] > most]
    facts = {"records": LOAD.records, "value_bytes": LOAD.value_bytes, "ranges": LOAD.records // LOAD.records_per_range}
    return {**facts, "seconds": seconds, "median_seconds": medians, "ratios": ratios, "missed_targets": missed}


def _topic(kind: str) -> str:
    return f"{LOAD.topic}-{kind}"


def _take_round(bench: Bench, kind: str) -> dict[str, float]:
    out = bench.folder / "derived"
    out.mkdir()
    try:
        place = Place(LOAD, bench.edges, bench.pyspark, out, topic_name=_topic(kind))
        seconds = {f"landing_{kind}": timed(offsetlake(place))}
        edges = place.fresh_edges()
        seconds[f"decode_{kind}"] = timed(lambda: decode_ranges(bench, place, DECODES[kind], edges))
        seconds[f"seal_{kind}"] = timed(lambda: _seal(bench, place, edges))
        return seconds
    finally:
        shutil.rmtree(out)


def timed(act: Callable[[], None]) -> float:
    """Measures how many seconds something takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def decode_ranges(bench: Bench, place: Place, config: Decode, edges: Edges, keys: Sequence[str] | None = None) -> None:
    """Decodes ranges of a landed topic, all of them where no keys are given; every record must come out."""
    ranges = {offsets.key: len(offsets) for offsets in edges.lake.coverage(place.topic.name).log.ranges}
    chosen = [*ranges] if keys is None else keys
    verdicts = list(decode(place.topic.name, chosen, attempt(), edges.decode_tools(config, bench.pyspark)))
    _check([text for verdict in verdicts for text in verdict.violations])
    rows, records = sum(each.decoding.rows for each in verdicts if each.decoding), sum(ranges[key] for key in chosen)
    if rows != records:
        raise WrongCount(f"decoding gave {rows:,} rows of {records:,} records of {place.topic.name}")


def _seal(bench: Bench, place: Place, edges: Edges) -> None:
    tools = edges.tools(place.topic, bench.pyspark)
    target = place.topic.policy.target_file_bytes
    verdicts = list(seal(place.topic.name, attempt(), tools, target, every=True))
    _check([text for verdict in verdicts for text in verdict.violations])
    if not verdicts:
        raise WrongCount(f"nothing of {place.topic.name} was sealed")


def attempt() -> Attempt:
    """Is a try of the benchmark's own."""
    return Attempt(f"bench-{uuid.uuid4().hex[:8]}", "bench", "bench")


def _check(violations: Sequence[str]) -> None:
    if violations:
        raise RangesFailed("the benchmark's own deriving failed", violations)


def _orders(load: Load) -> list[dict[str, object]]:
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    return [_order(chance, load.value_bytes) for _ in range(ORDERS)]


def _order(chance: random.Random, size: int) -> dict[str, object]:
    """Is an order as shops write them, of about `size` bytes with its number."""
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
