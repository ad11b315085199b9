"""What is derived from landed ranges, beside landing them: decoding and compacting the same records, round by round.

Each round lands the load into a lake of its own, and then derives from it. Invariant: a turn that did not give every record
is an error, not a time.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from ..attempt import Attempt
from ..compaction import compact
from ..core.decoders import Decode
from ..core.errors import RangesFailed
from ..decoding import decode
from ..resources import Edges
from .data import produce_values
from .measurement import Bench, Tell, WrongCount
from .orders import DECODES, VALUES
from .rounds import Load
from .systems import Place, offsetlake

LOAD = Load(1_000, 240_000, 15_000)
COMPACTION = ("compact_json", "landing_json")
WARM_UPS = 2  # the JVM compiles most of decoding in the first two
TARGETS: Mapping[str, float] = {"decode_json_to_landing_json": 1.5}  # times as long, at most


def measure_derived(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measures landing and what is derived from it; returns seconds by round, medians, and ratios to landing the same."""
    for kind, values in VALUES.items():
        bench.edges.kafka().create_topic(_topic(kind), LOAD.kafka_partitions)
        tell(f"{_topic(kind)}: producing {LOAD.records:,} records")
        produce_values(bench.edges.bootstrap_servers(), _topic(kind), values(LOAD), LOAD)
    seconds: dict[str, list[float]] = {}
    for number in range(1 - WARM_UPS, rounds + 1):
        for kind in VALUES:
            tell(
                f"{_topic(kind)}: {f'round {number} of {rounds}' if number > 0 else 'warm-up'}, landing, decoding, compaction"
            )
            for name, value in _take_round(bench, kind).items():
                if number > 0:
                    seconds.setdefault(name, []).append(round(value, 3))
    medians = {name: round(median(values), 3) for name, values in seconds.items()}
    pairs = [(f"decode_{name}", f"landing_{kind}") for kind, decodes in DECODES.items() for name in decodes]
    ratios = {f"{name}_to_{base}": round(medians[name] / medians[base], 3) for name, base in [*pairs, COMPACTION]}
    missed = [f"{name}: {ratios[name]}, to be at most {most}" for name, most in TARGETS.items() if ratios[name] > most]
    return {
        "records": LOAD.records,
        "value_bytes": LOAD.value_bytes,
        "ranges": LOAD.records // LOAD.records_per_range,
        "seconds": seconds,
        "median_seconds": medians,
        "records_per_second": {name: round(LOAD.records / value) for name, value in medians.items()},
        "ratios": ratios,
        "missed_targets": missed,
    }


def _topic(kind: str) -> str:
    return f"{LOAD.topic}-{kind}"


def _take_round(bench: Bench, kind: str) -> dict[str, float]:
    out = bench.folder / "derived"
    out.mkdir()
    try:
        place = Place(LOAD, bench.edges, bench.pyspark, out, topic_name=_topic(kind))
        seconds = {f"landing_{kind}": timed(offsetlake(place))}
        edges = place.fresh_edges()
        for name, config in DECODES[kind].items():
            edges = place.fresh_edges()
            seconds[f"decode_{name}"] = timed(partial(decode_ranges, bench, place, config, edges))
            shutil.rmtree(out / "tables/decoded")  # for the next one
        seconds[f"compact_{kind}"] = timed(lambda: _compact(bench, place, edges))
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


def _compact(bench: Bench, place: Place, edges: Edges) -> None:
    tools = edges.tools(place.topic, bench.pyspark)
    target = place.topic.policy.target_file_bytes
    verdicts = list(compact(place.topic.name, attempt(), tools, target, every=True))
    _check([text for verdict in verdicts for text in verdict.violations])
    if not verdicts:
        raise WrongCount(f"nothing of {place.topic.name} was compacted")


def attempt() -> Attempt:
    """Is a try of the benchmark's own."""
    return Attempt(f"bench-{uuid.uuid4().hex[:8]}", "bench", "bench")


def _check(violations: Sequence[str]) -> None:
    if violations:
        raise RangesFailed("the benchmark's own deriving failed", violations)
