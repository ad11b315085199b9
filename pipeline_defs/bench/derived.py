"""What is derived from landed ranges, beside landing them: decoding and sealing the same records, round by round.

Each round lands the load into a lake of its own, and then derives from it. Invariant: a turn that did not give every record
is an error, not a time.
"""

from __future__ import annotations

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
TOPIC_SUFFIX = "-json"
SCHEMA = (
    "order_id BIGINT NOT NULL, customer STRING, state STRING, sum INT, price DOUBLE, trace STRING, at TIMESTAMP, paid BOOLEAN, "
    "items ARRAY<STRUCT<sku: STRING, count: INT, price: DOUBLE>>, address STRUCT<street: STRING, city: STRING, zip: STRING>, "
    "note STRING"
)
DECODE = Decode(Side(Format.STRING), Side(Format.JSON, SCHEMA), Budget(0, 0.0))
ORDERS = 5_000  # that repeat, but for their numbers
TARGETS: Mapping[str, float] = {"decode_json_to_landing": 1.5}  # times as long, at most


def json_values(load: Load) -> Iterator[bytes]:
    """Yields orders as JSON, each close to the load's size, the same ones each time."""
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    orders = [json.dumps(_order(chance, load.value_bytes), separators=(",", ":"))[1:] for _ in range(ORDERS)]
    for number in range(load.records):
        yield f'{{"order_id":{number},{orders[number % ORDERS]}'.encode()


def measure_derived(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measures landing and what is derived from it; returns seconds by round, medians, and ratios to landing."""
    topic = f"{LOAD.topic}{TOPIC_SUFFIX}"
    bench.edges.kafka().create_topic(topic, LOAD.kafka_partitions)
    tell(f"{topic}: producing {LOAD.records:,} records")
    produce_values(bench.edges.bootstrap_servers(), topic, json_values(LOAD), LOAD)
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        tell(f"{topic}: {'warm-up' if number == 0 else f'round {number} of {rounds}'}, landing, decoding, sealing")
        for name, value in _take_round(bench, topic).items():
            if number:
                seconds.setdefault(name, []).append(round(value, 3))
    medians = {name: round(median(values), 3) for name, values in seconds.items()}
    ratios = {
        f"{name}_to_landing": round(medians[name] / medians["landing"], 3) for name in medians if name != "landing"
    }
    missed = [f"{name}: {ratios[name]}, to be at most {most}" for name, most in TARGETS.items() if ratios[name] > most]
    facts = {"records": LOAD.records, "value_bytes": LOAD.value_bytes, "ranges": LOAD.records // LOAD.records_per_range}
    return {**facts, "seconds": seconds, "median_seconds": medians, "ratios": ratios, "missed_targets": missed}


def _take_round(bench: Bench, topic: str) -> dict[str, float]:
    out = bench.folder / "derived"
    out.mkdir()
    try:
        place = Place(LOAD, bench.edges, bench.pyspark, out, topic_name=topic)
        seconds = {"landing": _timed(offsetlake(place))}
        edges = place.fresh_edges()
        seconds["decode_json"] = _timed(lambda: _decode(bench, topic, edges))
        seconds["seal"] = _timed(lambda: _seal(bench, place, edges))
        return seconds
    finally:
        shutil.rmtree(out)


def _timed(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _decode(bench: Bench, topic: str, edges: Edges) -> None:
    keys = [offsets.key for offsets in edges.lake.coverage(topic).log.ranges]
    tools = edges.decode_tools(DECODE, bench.pyspark)
    verdicts = list(decode(topic, keys, _attempt(), tools))
    _check([text for verdict in verdicts for text in verdict.violations])
    rows = sum(verdict.decoding.rows for verdict in verdicts if verdict.decoding)
    if rows != LOAD.records:
        raise WrongCount(f"decoding gave {rows:,} rows of {LOAD.records:,} records of {topic}")


def _seal(bench: Bench, place: Place, edges: Edges) -> None:
    tools = edges.tools(place.topic, bench.pyspark)
    target = place.topic.policy.target_file_bytes
    verdicts = list(seal(place.topic.name, _attempt(), tools, target, every=True))
    _check([text for verdict in verdicts for text in verdict.violations])
    if not verdicts:
        raise WrongCount(f"nothing of {place.topic.name} was sealed")


def _attempt() -> Attempt:
    return Attempt(f"bench-{uuid.uuid4().hex[:8]}", "bench", "bench")


def _check(violations: Sequence[str]) -> None:
    if violations:
        raise RangesFailed("the benchmark's own deriving failed", violations)


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
