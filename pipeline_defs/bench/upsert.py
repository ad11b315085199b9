"""The latest state by key of a million records in a hundred ranges: kept up as ranges come, against made anew.

One pass, since it takes minutes: what is timed is each update after five more ranges, and at the end one full recomputation.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from statistics import median
from typing import Any

from ..core.decoders import Decode, Format, Side
from ..core.latest import Latest
from ..latest import LatestTools, update
from ..resources import Edges
from .data import produce_values
from .derived import NO_BUDGET, attempt, decode_ranges, timed
from .measurement import Bench, Tell, WrongCount
from .rounds import Load
from .systems import Place, offsetlake

LOAD = Load(60, 1_000_000, 10_000)
TOPIC = "bench-upsert"
RANGES_PER_UPDATE = 5
CUSTOMERS = 200_003
CONFIG = Latest(16)
DECODE = Decode(value=Side(Format.JSON, "n BIGINT, state STRING"), budget=NO_BUDGET)


def measure_upsert(bench: Bench, tell: Tell) -> dict[str, Any]:
    """Measures updates of a latest state, and its recomputation; both must come to the same number of keys."""
    out = bench.folder / "upsert"
    out.mkdir()
    try:
        bench.edges.kafka().create_topic(TOPIC, LOAD.kafka_partitions)
        tell(f"{TOPIC}: producing and landing {LOAD.records:,} records")
        produce_values(bench.edges.bootstrap_servers(), TOPIC, _values(), LOAD, customers=CUSTOMERS)
        place = Place(LOAD, bench.edges, bench.pyspark, out, topic_name=TOPIC)
        offsetlake(place)()
        return _measure(bench, place, tell)
    finally:
        shutil.rmtree(out)


def _measure(bench: Bench, place: Place, tell: Tell) -> dict[str, Any]:
    edges = place.fresh_edges()
    tools = edges.latest_tools(bench.pyspark)
    keys = [offsets.key for offsets in edges.lake.coverage(TOPIC).log.ranges]
    seconds = []
    for at in range(0, len(keys), RANGES_PER_UPDATE):
        tell(f"{TOPIC}: update after {at + RANGES_PER_UPDATE} of {len(keys)} ranges")
        decode_ranges(bench, place, DECODE, edges, keys[at : at + RANGES_PER_UPDATE])
        seconds.append(round(timed(lambda: _update(tools, full=False)), 3))
    counts = [_count(edges)]
    tell(f"{TOPIC}: full recomputation")
    recomputed = round(timed(lambda: _update(tools, full=True)), 3)
    counts.append(_count(edges))
    if counts[0] != counts[1]:
        raise WrongCount(f"updates came to {counts[0]:,} keys of {TOPIC}, a recomputation to {counts[1]:,}")
    return {
        "records": LOAD.records,
        "ranges": len(keys),
        "keys": counts[0],
        "update_seconds": seconds,
        "median_update_seconds": median(seconds),
        "recompute_seconds": recomputed,
        "update_to_recompute": round(median(seconds) / recomputed, 3),
    }


def _update(tools: LatestTools, *, full: bool) -> None:
    update(TOPIC, CONFIG, attempt(), tools, full=full)


def _count(edges: Edges) -> int:
    return sum(facts.keys for facts in edges.latest_files.read_facts(TOPIC).values())


def _values() -> Iterator[bytes]:
    for number in range(LOAD.records):
        yield b'{"n": %d, "state": "%s"}' % (number, (b"created", b"paid", b"shipped")[number % 3])
