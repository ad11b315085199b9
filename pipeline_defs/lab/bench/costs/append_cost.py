"""Which share the raw table's append adds to landing: measured within each landing, between the steps of the protocol."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....resources import Edges
from ...processes import NotMeasured
from ..measurement import Bench, Tell, count_rows, repeat
from ..rounds import Load, spread
from ..systems import Place, offsetlake
from ..usage import timed

LOAD = Load(1_000, 1_000_000, 62_500)
TOPIC = "bench-append"
STEPS = ("link_to_table", "append")  # of the append; the first one ends with what was read to find what is due


def measure_append(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Land the load `rounds` times, each into a lake of its own; return the append's seconds over those of the rest."""
    tell(f"{TOPIC}: producing {LOAD.records:,} records")
    bench.fill(TOPIC, LOAD)
    found = repeat(lambda _: _take_turn(bench), TOPIC, rounds, tell)
    seconds, appends = zip(*found[1:], strict=True)
    return {
        "measured": (
            f"landing {LOAD.records:,} records of {LOAD.value_bytes:,} B in {LOAD.records // LOAD.records_per_range} ranges: "
            "the seconds that end with a step of the raw table's append, over all others"
        ),
        "append_to_landing": spread([append / (whole - append) for whole, append in found[1:]]),
        "seconds": spread(seconds),
        "append_seconds": spread(appends),
    }


def _take_turn(bench: Bench) -> tuple[float, float]:
    """Return the seconds of landing, and those of them that the append took."""
    with TemporaryDirectory(dir=bench.folder) as out:
        edges = Edges(replace(bench.edges.settings, has_raw_table=True))
        place = Place(LOAD, edges, bench.pyspark, Path(out), topic_name=TOPIC)
        seconds = timed(offsetlake(place))
        rows = count_rows(place.out / "data")
        if rows != LOAD.records:
            raise NotMeasured(f"{rows:,} rows of {LOAD.records:,} records of {TOPIC} are landed")
        return seconds, sum(place.steps[step] for step in STEPS)
