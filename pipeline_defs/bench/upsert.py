"""The latest state by key of a million records in a hundred ranges: kept up as ranges come, against made anew.

One pass, since it takes minutes: what is timed is each update after five more ranges, and at the end one full recomputation.
Beside each, in turn, delta-rs does the same work with its merge alone; both must come to the same records.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from ..core.decoders import Decode, Format, Side
from ..core.latest import Latest
from ..edges.latest_table import TREE
from ..latest import LatestTools, update
from .data import produce_values
from .delta import DeltaState, places_of
from .derived import attempt, decode_ranges, timed
from .measurement import Bench, Tell, WrongCount
from .orders import NO_BUDGET
from .rounds import Load, over
from .systems import Place, offsetlake
from .usage import read_cpu_seconds

LOAD = Load(60, 1_000_000, 10_000)
TOPIC = "bench-upsert"
RANGES_PER_UPDATE = 5
CUSTOMERS = 200_000  # a multiple of the Kafka partitions: a key is in one of them always, as producers have it
TOMBSTONES = 20  # one of so many records, of other keys each time
CONFIG = Latest()
DECODE = Decode(value=Side(Format.JSON, "n BIGINT, state STRING"), budget=NO_BUDGET)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Is what each turn took by what was done, in seconds, and in seconds of CPU of this process and its JVM."""

    jvm_pid: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self, name: str, act: Callable[[], None]) -> None:
        before = self._cpu()
        self.seconds.setdefault(name, []).append(round(timed(act), 3))
        self.cpu_seconds.setdefault(name, []).append(round(self._cpu() - before, 3))

    def _cpu(self) -> float:
        return read_cpu_seconds(self.jvm_pid) + read_cpu_seconds(os.getpid())


def measure_upsert(bench: Bench, tell: Tell) -> dict[str, Any]:
    """Measures updates of a latest state, its recomputation, and the merges of a Delta table of the same ranges."""
    out = bench.folder / "upsert"
    out.mkdir()
    try:
        bench.edges.kafka().create_topic(TOPIC, LOAD.kafka_partitions)
        tell(f"{TOPIC}: producing and landing {LOAD.records:,} records")
        produce_values(bench.edges.bootstrap_servers(), TOPIC, upsert_values(LOAD.records), LOAD, customers=CUSTOMERS)
        place = Place(LOAD, bench.edges, bench.pyspark, out, topic_name=TOPIC)
        offsetlake(place)()
        return _measure(bench, place, tell)
    finally:
        shutil.rmtree(out)


def _measure(bench: Bench, place: Place, tell: Tell) -> dict[str, Any]:
    edges = place.fresh_edges()
    tools = edges.latest_tools(bench.pyspark)
    theirs = DeltaState(place.out / "delta")
    ranges = sorted(edges.lake.coverage(TOPIC).log.ranges, key=lambda offsets: (offsets.start, offsets.partition))
    files = list[Path]()
    taken = _Taken(bench.jvm_pid)
    for at in range(0, len(ranges), RANGES_PER_UPDATE):
        these = slice(at, at + RANGES_PER_UPDATE)
        tell(f"{TOPIC}: update after {at + RANGES_PER_UPDATE} of {len(ranges)} ranges")
        decode_ranges(bench, place, DECODE, edges, [offsets.key for offsets in ranges[these]])
        decoded = edges.decodings.read_ranges(TOPIC)
        files += [place.out / decoded.path_of(offsets) for offsets in ranges[these]]
        _take_turns(taken, tools, theirs, files[these], number=at // RANGES_PER_UPDATE)
    keys = _compare(place, theirs, "updates")
    tell(f"{TOPIC}: full recomputation")
    taken.time("recompute", lambda: _update(tools, full=True))
    taken.time("delta_recompute", lambda: theirs.recompute(files))
    if _compare(place, theirs, "a recomputation") != keys:
        raise WrongCount(f"updates came to {keys:,} keys of {TOPIC}, a recomputation to another number")
    medians, cpu_medians = _medians(taken.seconds), _medians(taken.cpu_seconds)
    return {
        "records": LOAD.records,
        "ranges": len(ranges),
        "keys": keys,
        "seconds": taken.seconds,
        "median_seconds": medians,
        "median_cpu_seconds": cpu_medians,
        "ratios": {
            "update_to_recompute": over(medians["update"], medians["recompute"]),
            "to_delta_rs": over(medians["update"], medians["delta_merge"]),
            "to_delta_rs_cpu": over(cpu_medians["update"], cpu_medians["delta_merge"]),
        },
    }


def _medians(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: round(median(found), 3) for name, found in values.items()}


def _take_turns(taken: _Taken, tools: LatestTools, theirs: DeltaState, files: Sequence[Path], *, number: int) -> None:
    turns = {"update": lambda: _update(tools, full=False), "delta_merge": lambda: theirs.update(files)}
    for name in sorted(turns, reverse=bool(number % 2)):
        taken.time(name, turns[name])


def _update(tools: LatestTools, *, full: bool) -> None:
    update(TOPIC, CONFIG, attempt(), tools, full=full)


def _compare(place: Place, theirs: DeltaState, what: str) -> int:
    """Count the keys of both, which must stand for the same records."""
    table = DeltaTable(str(place.out / TREE / TOPIC)).to_pyarrow_table(columns=["partition", "offset", "_deleted"])
    ours, found = places_of(table.filter(pc.invert(table["_deleted"]))), theirs.places()
    if ours != found:
        raise WrongCount(
            f"{what} of {TOPIC} came to {len(ours):,} keys, Delta's to {len(found):,}, or to other records"
        )
    return len(ours)


def upsert_values(records: int) -> Iterator[bytes | None]:
    """Yields small documents, and tombstones among them, of other keys in each round through all of them."""
    for number in range(records):
        is_tombstone = (number + number // CUSTOMERS) % TOMBSTONES == 0
        state = (b"created", b"paid", b"shipped")[number % 3]
        yield None if is_tombstone else b'{"n": %d, "state": "%s"}' % (number, state)
