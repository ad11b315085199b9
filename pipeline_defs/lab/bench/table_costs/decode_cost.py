"""Decoding and compaction of landed records beside landing the same, round by round.

Each round lands the load into a lake of its own, and then derives from it. Invariant: a turn that did not give every record
is an error, not a time.
"""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....core.decode.decoders import Decode
from ....core.errors import RangesFailed
from ....resources import Edges
from ....tables.compaction import compact
from ....tables.decoding import decode
from ...waiting import NotMeasured
from ..measurement import Bench, Tell, repeat
from ..rounds import Load, spread
from ..systems import Place, attempt, fresh_edges, offsetlake
from ..usage import timed
from .orders import DECODES, VALUES

LOAD = Load(1_000, 240_000, 15_000)
TOPIC = "bench-derived"
WARM_UPS = 8  # landing and decoding get faster until then, while the JVM compiles them: Avro in its fifth and sixth round still


def measure_decoding(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measure landing and what is derived from it; return seconds, and how many times as long as landing the same each took."""
    for kind, values in VALUES.items():
        tell(f"{_topic(kind)}: producing {LOAD.records:,} records")
        bench.fill(_topic(kind), LOAD, values(LOAD))
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

    repeat(take_round, TOPIC, rounds, tell, WARM_UPS)
    return {
        "measured": (
            f"{LOAD.records:,} records of {LOAD.value_bytes:,} B in {LOAD.records // LOAD.records_per_range} ranges, the same "
            "orders in each format; each round lands them into a lake of its own, decodes them, and compacts what is landed"
        ),
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "ratios": {name: spread(values) for name, values in ratios.items()},
    }


def _topic(kind: str) -> str:
    return f"{TOPIC}-{kind}"


def _take_round(bench: Bench, kind: str) -> tuple[float, dict[str, float]]:
    """Return the seconds of landing, and by name those of what is derived from it."""
    with TemporaryDirectory(dir=bench.folder) as folder:
        out = Path(folder)
        place = Place(LOAD, bench.edges, bench.pyspark, out, topic_name=_topic(kind))
        landing, seconds = timed(offsetlake(place)), dict[str, float]()
        for name, config in DECODES[kind].items():
            seconds[name] = timed(partial(_decode, bench, place, config, fresh_edges(bench.edges, out)))
            shutil.rmtree(out / "tables/decoded")  # for the next one
        seconds[f"compact_{kind}"] = timed(partial(_compact, bench, place, fresh_edges(bench.edges, out)))
        return landing, seconds


def _decode(bench: Bench, place: Place, config: Decode, edges: Edges) -> None:
    """Decode all ranges of a landed topic; every record must come out."""
    ranges = {offsets.key: len(offsets) for offsets in edges.lake.coverage(place.topic.name).log.ranges}
    verdicts = list(decode(place.topic.name, [*ranges], attempt(), edges.decode_tools(config, bench.pyspark)))
    _check([text for verdict in verdicts for text in verdict.violations])
    rows, records = sum(each.decoding.rows for each in verdicts if each.decoding), sum(ranges.values())
    if rows != records:
        raise NotMeasured(f"decoding gave {rows:,} rows of {records:,} records of {place.topic.name}")


def _compact(bench: Bench, place: Place, edges: Edges) -> None:
    tools = edges.tools(place.topic, bench.pyspark)
    target = place.topic.policy.target_file_bytes
    verdicts = list(compact(place.topic.name, attempt(), tools, target, every=True))
    _check([text for verdict in verdicts for text in verdict.violations])
    if not verdicts:
        raise NotMeasured(f"nothing of {place.topic.name} was compacted")


def _check(violations: Sequence[str]) -> None:
    if violations:
        raise RangesFailed("the benchmark's own deriving failed", violations)
