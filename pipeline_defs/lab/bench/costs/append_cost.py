"""Which share the raw table's append adds to landing: measured within each landing, between the steps of the protocol."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ....resources import Adapters
from ..measurement import Bench, Tell, check_rows, count_rows, repeat
from ..rounds import Load, spread
from ..systems import Place, offsetlake
from ..usage import timed

LOAD = Load("bench-append", 1_000, 1_000_000, 62_500)
STEPS = ("link_to_table", "append")  # of the append; the first one ends with what was read to find what is due


def measure_append(bench: Bench, rounds: int, tell: Tell) -> dict[str, Any]:
    """Land the load `rounds` times, each into a lake of its own; return the append's seconds over those of the rest."""
    bench.fill(LOAD, tell)
    found = repeat(lambda _: _take_turn(bench), LOAD.topic, rounds, tell)[1:]
    return {
        "measured": f"landing {LOAD.ranges_text}: the seconds that end with a step of the raw table's append, over all others",
        "append_to_landing": spread([append / (whole - append) for whole, append in found]),
        "seconds": spread([whole for whole, _ in found]),
        "append_seconds": spread([append for _, append in found]),
    }


def _take_turn(bench: Bench) -> tuple[float, float]:
    """Return the seconds of landing, and those of them that the append took."""
    with TemporaryDirectory(dir=bench.folder) as out:
        place = Place(LOAD, Adapters(replace(bench.adapters.settings, has_raw_table=True)), bench.pyspark, Path(out))
        seconds = timed(offsetlake(place))
        check_rows("landing", count_rows(place.out / "data"), LOAD)
        return seconds, sum(place.steps[step] for step in STEPS)
