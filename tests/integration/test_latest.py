"""Latest by key on real Spark: equal to a full recomputation, whatever comes late, is redone, or is at it at the same time."""

from __future__ import annotations

import dataclasses
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.attempt import Attempt
from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BrokenManifest, LatestOutdated
from pipeline_defs.core.latest import Latest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.drills.children import stopped_at
from pipeline_defs.edges import spark_latest
from pipeline_defs.edges.decodings import Decodings
from pipeline_defs.edges.duck import Duck
from pipeline_defs.edges.lake import Lake
from pipeline_defs.edges.latest_files import LatestFiles, bucket_path
from pipeline_defs.edges.spark_latest import SparkLatest
from pipeline_defs.latest import LatestTools, Updated, update
from pipeline_defs.latest_check import check_bucket
from pipeline_defs.latest_due import LatestTick, run_latest_tick
from pipeline_defs.latest_launching import LaunchedUpdate, update_latest_through_dagster
from pipeline_defs.resources import Edges
from pipeline_defs.steps import StepWatcher, no_step
from tests.support.decoded import DecodedTopic, Rows, UpdateTask
from tests.support.reading import LoopingReader
from tests.support.world import World

if TYPE_CHECKING:
    from pipeline_defs.edges.engine import Engine

BUCKETS = 2
SEVERAL = 6  # more than the session has cores, so that a task has several
RANGE, LATER = OffsetRange(0, 0, 0, 20), OffsetRange(0, 0, 20, 40)
KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "string": (pa.string(), lambda n: f"k{n}"),
    "binary": (pa.binary(), lambda n: b"\x00k%d\xff" % n),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), lambda n: {"a": n, "b": None if n % 3 else "x"}),
}


class State:
    """Is a topic with its latest state in a lake of its own."""

    def __init__(
        self,
        folder: str,
        engine: Engine,
        key_type: pa.DataType = pa.string(),  # noqa: B008
        buckets: int = BUCKETS,
    ) -> None:
        self.spark = SparkLatest(engine)
        self.topic = DecodedTopic(Lake(folder), f"t{uuid.uuid4().hex[:8]}", key_type)
        self.config = Latest(buckets)

    def tools(self, on_step: StepWatcher = no_step) -> LatestTools:
        lake = Lake(str(self.topic.lake.store.local_root))  # as another process, which has read nothing yet
        now = lambda: time.time_ns() // 1_000_000  # noqa: E731
        return LatestTools(Decodings(lake), LatestFiles(lake), lambda: self.spark, now, on_step)

    def update(self, *, full: bool = False, on_step: StepWatcher = no_step) -> Updated:
        attempt = Attempt(f"update-{uuid.uuid4().hex[:8]}", "no-run", "test")
        return update(self.topic.name, self.config, attempt, self.tools(on_step), full=full)

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


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("struct", 2),
        pytest.param("binary", 3, marks=pytest.mark.long),
        *(pytest.param(kind, seed, marks=pytest.mark.long) for seed in range(10, 16) for kind in KEYS),
    ],
)
def test_any_history_is_equal_to_a_full_recomputation(kind: str, seed: int, tmp_path: Path, engine: Engine) -> None:
    """AC23: late ranges, redone ones, tombstones, a recreated generation, several partitions, in any order."""
    draw = random.Random(seed)
    key_type, key = KEYS[kind]
    state = State(str(tmp_path / "lake"), engine, key_type, SEVERAL)
    lanes = [(0, 0), (0, 1), (1, 0)]
    ranges = [OffsetRange(*lane, at, at + 6) for lane in lanes for at in range(0, 12, 6)]
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
        assert state.update().exchanged.keys() == set(range(SEVERAL))
        state.assert_right()
    shown = state.topic.shown()
    assert state.update() == Updated(), "there is nothing more to do"
    assert state.update(full=True).exchanged.keys() == set(range(SEVERAL))
    assert state.topic.shown() == shown


def test_two_updates_at_once_lose_nothing(tmp_path: Path, engine: Engine) -> None:
    """Both have seen the same state; one exchanges each bucket, the other is told, begins again and finds nothing due."""
    state = State(str(tmp_path / "lake"), engine)
    state.topic.put(RANGE, {0: ("a", {"n": 1}), 1: ("b", {"n": 2}), 2: ("c", None)})
    state.update()
    state.topic.put(LATER, {20: ("a", {"n": 3}), 21: ("b", None), 22: ("d", {"n": 4})})
    both = threading.Barrier(2)
    refused = []

    def meet(step: str, **fields: object) -> None:
        if step == "stage_latest" and not both.broken:
            with suppress(threading.BrokenBarrierError):
                both.wait(60)
            both.abort()
        if step == "exchange_latest" and not fields["exchanged"]:
            refused.append(fields["bucket"])

    with ThreadPoolExecutor(2) as pool:
        done = [future.result() for future in [pool.submit(state.update, on_step=meet) for _ in range(2)]]
    assert refused, "the fault: one was overtaken"
    assert sorted([*done[0].exchanged, *done[1].exchanged]) == [*range(BUCKETS)], "each bucket was exchanged once"
    state.assert_right()


def test_a_range_that_is_decoded_again_while_it_is_read_is_read_again(tmp_path: Path, engine: Engine) -> None:
    """What was read stays what it was; the next update finds what is newer."""
    state = State(str(tmp_path / "lake"), engine)
    state.topic.put(RANGE, {0: ("a", {"n": 1})})
    steps = []

    def redo(step: str, **fields: object) -> None:
        if step == "stage_latest" and step not in steps:
            state.topic.put(RANGE, {1: ("b", {"n": 2})}, 1)
        steps.append(step)

    state.update(on_step=redo)
    assert steps.count("stage_latest") == 2, "the fault: the first had read what is not decoded any more"
    state.assert_right()
    assert [row[4] for row in state.topic.shown()] == ["b"]

    def spark() -> SparkLatest:
        state.topic.put(RANGE, {2: ("c", {"n": 3})}, 2)
        return state.spark

    bucket = next(iter(LatestFiles(state.topic.lake).read_facts(state.topic.name)))
    check = dataclasses.replace(state.tools(), spark=spark)
    found = check_bucket(state.topic.name, state.config, bucket, Attempt("check", "no-run", "test"), check)
    assert found.violations == (
        f"1 ranges of bucket {bucket} were decoded again since: update latest/{state.topic.name}, then check",
    ), "not that its records are wrong"


def test_a_full_update_takes_away_what_is_decoded_no_more_and_a_damaged_file_is_named(
    tmp_path: Path, engine: Engine
) -> None:
    """Where no row is left anywhere the columns are those that stand."""
    state = State(str(tmp_path / "lake"), engine)
    state.topic.put(RANGE, {n: (f"k{n}", {"n": n}) for n in range(9)})
    state.update()
    shutil.rmtree(tmp_path / "lake/tables/decoded")
    assert len(state.topic.shown()) == 9
    assert state.update(full=True).exchanged.keys() == set(range(BUCKETS))
    assert state.topic.shown() == []
    damaged = tmp_path / "lake" / bucket_path(state.topic.name, 0)
    damaged.write_bytes(b"cut off")
    for full in (False, True):
        with pytest.raises(
            BrokenManifest, match=r"b0000\.parquet is no Parquet file: .*; delete it, and the next update"
        ):
            state.update(full=full)
    damaged.unlink()
    assert state.update().exchanged.keys() == {0}
    assert state.topic.shown() == []


def test_values_that_grow_fields_stay_one_state_and_another_layout_is_refused(tmp_path: Path, engine: Engine) -> None:
    state = State(str(tmp_path / "lake"), engine)
    state.topic.put(RANGE, {0: ("a", {"n": 1}), 1: (None, {"n": 9}), 2: ("b", {"n": 2})})
    state.update()
    state.topic.value_type = pa.struct([("n", pa.int64()), ("more", pa.string())])
    state.topic.put(LATER, {20: ("a", {"n": 3, "more": "x"})})
    state.update()
    assert [row[4:] for row in state.topic.shown()] == [
        ("b", {"n": 2, "more": None}),
        ("a", {"n": 3, "more": "x"}),
    ], "a record without a key is no state"
    before = state.topic.shown()
    state.config = Latest(BUCKETS + 1)
    with pytest.raises(LatestOutdated, match=r"has files of 2 buckets, defs\.yaml says 3"):
        state.update(full=True)
    state.config = Latest(BUCKETS)
    shutil.rmtree(tmp_path / "lake/tables/decoded")  # the table has one type of keys, its latest records another
    state.topic.key_type = pa.binary()
    state.topic.put(OffsetRange(0, 0, 40, 50), {40: (b"a", {"n": 3, "more": "x"})})
    with pytest.raises(LatestOutdated, match="keys are of types binary and string"):
        state.update()
    assert state.topic.shown() == before


def test_fractions_are_keys_and_a_time_without_a_zone_is_a_value(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes all NaN and both zeros for one key each, and would shuffle rows once more for it: still a file per bucket."""
    state = State(str(tmp_path / "lake"), engine, pa.struct([("x", pa.list_(pa.float64()))]), SEVERAL)
    monkeypatch.setitem(spark_latest.CONF, "spark.sql.adaptive.coalescePartitions.enabled", "false")  # type: ignore[arg-type]
    state.topic.value_type = pa.struct([("at", pa.timestamp("us"))])
    at = datetime(2013, 1, 1)  # noqa: DTZ001
    state.topic.put(RANGE, {n: ({"x": [n / 2]}, {"at": at}) for n in range(20)})
    state.update()
    later = [-0.0, float("nan"), float("nan"), 1.0]
    state.topic.put(LATER, {n: ({"x": [x]}, {"at": at + timedelta(days=n)}) for n, x in enumerate(later, 20)})
    state.update()
    shown = state.topic.shown()
    assert repr(shown) == repr(state.topic.recomputed()), "NaN is not equal to itself"
    assert [row[2] for row in shown] == [1, *range(3, 21), 22, 23]
    assert shown[-1][5] == {"at": at + timedelta(days=23)}


class Reader(LoopingReader):
    """Reads the glob; each key has to be there once, with its old or its new record."""

    def __init__(self, topic: DecodedTopic, old: dict[str, int], new: dict[str, int]) -> None:
        super().__init__()
        self._topic, self._old, self._new = topic, old, new
        self._folder = Path(topic.lake.store.url(f"latest/{topic.name}"))
        self.reads = 0

    def read(self) -> None:
        rows = self.ask(self._folder, self._topic.shown)
        if rows is None:
            return
        found = {row[4]: row[5]["n"] for row in rows}
        if len(rows) != len(self._old) or any(found[key] not in {n, self._new[key]} for key, n in self._old.items()):
            self.errors.append(str(rows))
        self.reads += 1


@pytest.mark.parametrize(
    "step",
    ["exchange_latest", *(pytest.param(step, marks=pytest.mark.long) for step in ("read_decoded", "stage_latest"))],
)
def test_whoever_dies_between_two_steps_leaves_each_bucket_old_or_new(world: World, engine: Engine, step: str) -> None:
    """AC23: SIGKILL between steps, with a reader's glob in a loop; the next update does what is missing."""
    topic = upserted(world)
    old = {f"k{n}": n for n in range(20)}
    topic.put(RANGE, {at: (f"k{at}", {"n": at}) for at in range(20)})
    assert launch(world).succeeded
    topic.put(LATER, {at: (f"k{at - 20}", {"n": at}) for at in range(20, 40)})
    new = {f"k{n}": n + 20 for n in range(20)}
    reader = Reader(topic, old, new)
    with reader.reading():
        task, log = UpdateTask(world.settings, world.topic), world.folder / "children.log"
        with stopped_at(task, step, log=log):
            applied = {each.applied for each in Edges(world.settings).latest_files.read_facts(topic.name).values()}
            assert len(applied) == (2 if step == "exchange_latest" else 1), "the fault: it is half done"
        later = Edges(world.settings, now_ms=lambda: time.time_ns() // 1_000_000 + 60_000)  # its back-off is over
        tick = run_latest_tick(world.topic, Latest(BUCKETS), world.instance, later)
        assert tick.run_key is not None, "the dead run does not keep the next one from being asked for"
        assert launch(world).succeeded
    assert not reader.errors
    assert reader.reads > 1
    assert topic.shown() == topic.recomputed()
    assert {row[4]: row[5]["n"] for row in topic.shown()} == new
    files = [world.lake_folder / bucket_path(world.name, bucket) for bucket in range(BUCKETS)]
    keys = [pq.ParquetFile(file).read()["key"].to_pylist() for file in files]
    assert all(found and found == sorted(found) for found in keys), "a reader may skip by key"


def test_from_kafka_to_the_latest_record_through_dagster(world: World) -> None:
    """The sensor asks once something is decoded; the run's facts are the state's; the check finds what was tampered with."""
    world.topic = dataclasses.replace(
        world.topic, decode=Decode(Side(Format.STRING), Side(Format.STRING)), latest=Latest(BUCKETS)
    )
    world.create_topic(2)
    world.send({"partition": n % 2, "key": b"k%d" % (n % 7), "value": b"v%d" % n} for n in range(150))
    world.send([{"partition": 1, "key": b"k3", "value": None}, {"partition": 0, "key": None, "value": b"nobody"}])
    world.plan_and_land()
    config = Latest(BUCKETS)
    assert run_latest_tick(world.topic, config, world.instance, world.edges) == LatestTick(0, 0), (
        "nothing is decoded yet"
    )
    world.decode()
    tick = run_latest_tick(world.topic, config, world.instance, world.edges)
    assert (tick.buckets, tick.ranges, tick.run_key) == (BUCKETS, 2, f"latest:{world.name}:0:0")
    launched = launch(world)
    assert launched.succeeded, launched.reason
    event = world.instance.get_latest_materialization_event(world.topic.latest_key)
    assert event is not None and event.asset_materialization is not None
    facts = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert (facts["keys"], facts["tombstones"], facts["applied_offsets"], facts["ranges_read"]) == (6, 1, 152, 2)
    topic = DecodedTopic(world.edges.lake, world.name, pa.string(), pa.string())
    assert topic.shown() == topic.recomputed()
    assert run_latest_tick(world.topic, config, world.instance, world.edges).run_key is None
    _, rows = Duck(world.edges.lake, [world.name]).query(f'SELECT count(*) FROM latest."{world.name}"')
    assert rows == [(6,)]

    tools = world.edges.latest_tools(world.edges.pyspark())
    attempt = Attempt("check", "no-run", "test")
    findings = [check_bucket(world.name, config, bucket, attempt, tools) for bucket in range(BUCKETS)]
    assert [finding.violations for finding in findings] == [(), ()]
    assert sum(finding.facts["keys"] for finding in findings) == 6
    one, other = (world.lake_folder / bucket_path(world.name, bucket) for bucket in range(BUCKETS))
    state = one.read_bytes()
    one.write_bytes(other.read_bytes())
    assert (
        "records are not the latest of their key" in check_bucket(world.name, config, 0, attempt, tools).violations[0]
    )
    one.write_bytes(state)
    assert check_bucket(world.name, config, 0, attempt, tools).passed


def upserted(world: World) -> DecodedTopic:
    """Gives the world's topic a latest state; what is decoded is put there by hand."""
    world.topic = dataclasses.replace(world.topic, decode=Decode(), latest=Latest(BUCKETS))
    return DecodedTopic(world.edges.lake, world.name, pa.string())


def launch(world: World) -> LaunchedUpdate:
    edges = Edges(world.settings)
    return update_latest_through_dagster(world.topic, edges, world.instance, full=False, topics=world.definitions)
