"""Latest by key on real Spark: equal to a full recomputation, whatever comes late, is redone, or is at it at the same time."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pipeline_defs.attempt import Attempt
from pipeline_defs.core.latest import Latest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.edges.decodings import Decodings
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.latest_files import LatestFiles
from pipeline_defs.edges.spark_latest import SparkLatest
from pipeline_defs.latest import LatestTools, Updated, update
from pipeline_defs.steps import StepWatcher, no_step
from tests.support.decoded import DecodedTopic, Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 2
KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "string": (pa.string(), lambda n: f"k{n}"),
    "binary": (pa.binary(), lambda n: b"\x00k%d\xff" % n),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), lambda n: {"a": n, "b": None if n % 3 else "x"}),
}


class State:
    """Is a topic with its latest state in a lake of its own."""

    def __init__(self, folder: str, spark: SparkSession, key_type: pa.DataType = pa.string()) -> None:  # noqa: B008
        self.spark = SparkLatest(spark)
        self.topic = DecodedTopic(Lake(folder), f"t{uuid.uuid4().hex[:8]}", key_type)
        self.config = Latest(BUCKETS)

    def update(self, *, full: bool = False, on_step: StepWatcher = no_step) -> Updated:
        lake = Lake(str(self.topic.lake.store.local_root))  # as another process, which has read nothing yet
        now = lambda: time.time_ns() // 1_000_000  # noqa: E731
        tools = LatestTools(Decodings(lake), LatestFiles(lake), lambda: self.spark, now, on_step)
        attempt = Attempt(f"update-{uuid.uuid4().hex[:8]}", "no-run", "test")
        return update(self.topic.name, self.config, attempt, tools, full=full)

    def assert_right(self) -> None:
        assert self.topic.shown() == self.topic.recomputed()
        assert not [path for path in self.topic.lake.store.list("staging") if "update-" in path]


def draw_rows(draw: random.Random, offsets: OffsetRange, key: Callable[[int], Any]) -> Rows:
    """Draws what a range decodes to: of some offsets nothing, tombstones, and records without a key."""
    rows = {}
    for at in range(offsets.start, offsets.end):
        if draw.random() < 0.85:
            value = None if draw.random() < 0.3 else {"n": draw.randrange(1000)}
            rows[at] = (None if draw.random() < 0.05 else key(draw.randrange(14)), value)
    return rows


@pytest.mark.parametrize(("kind", "seed"), [("string", 1), ("struct", 2), ("binary", 3)])
def test_any_history_is_equal_to_a_full_recomputation(kind: str, seed: int, tmp_path: Any, spark: SparkSession) -> None:
    """AC23: late ranges, redone ones, tombstones, a recreated generation, several partitions, in any order."""
    draw = random.Random(seed)
    key_type, key = KEYS[kind]
    state = State(str(tmp_path / "lake"), spark, key_type)
    lanes = [(0, 0), (0, 1), (1, 0)]
    ranges = [OffsetRange(*lane, at, at + 6) for lane in lanes for at in range(0, 18, 6)]
    draw.shuffle(ranges)
    revisions: dict[OffsetRange, int] = {}
    while ranges:
        for offsets in [ranges.pop() for _ in range(min(len(ranges), draw.randint(1, 4)))]:
            state.topic.put(offsets, draw_rows(draw, offsets, key))
            revisions[offsets] = 0
        if draw.random() < 0.7:
            redone = draw.choice(sorted(revisions))
            revisions[redone] += 1
            state.topic.put(redone, draw_rows(draw, redone, key), revisions[redone])
        assert state.update().exchanged.keys() == set(range(BUCKETS))
        state.assert_right()
    shown = state.topic.shown()
    assert state.update() == Updated(), "there is nothing more to do"
    assert state.update(full=True).exchanged.keys() == set(range(BUCKETS))
    assert state.topic.shown() == shown
