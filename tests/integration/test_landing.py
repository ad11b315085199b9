"""Landing on a real broker and real Spark, on a disk or in a bucket: a glob shows what was produced, in the same bytes."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f

from pipeline_defs.adapters.formats.spark_decoding import DECODE_CONF
from pipeline_defs.adapters.lake.footer import canonicalize
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import published_path
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA, digest
from pipeline_defs.adapters.spark import spark as spark_adapter
from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.spark.spark import SCAN_CONF, Spark, kafka_options, select_raw, write_parquet
from pipeline_defs.adapters.store import disk
from pipeline_defs.adapters.store.object_store import open_store
from pipeline_defs.adapters.store.store import Answer
from pipeline_defs.adapters.system.processes import wait_for
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.adapters.testbed.broker import Broker
from pipeline_defs.core.errors import LakeUnavailable, ScanFailed
from pipeline_defs.core.landing.scans import READS_AT_ONCE
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.lab.drills.arena import Arena
from pipeline_defs.lab.drills.report import open_arena
from pipeline_defs.lab.drills.systems import visible_values
from pipeline_defs.lab.processes import NotMeasured
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.landing.landing import land_topics
from pipeline_defs.settings import Settings
from pipeline_defs.tables.deleting import SWEEP_AFTER_SECONDS, sweep_orphans
from tests.support.interleaving import beside
from tests.support.lakes import list_encodings_falling
from tests.support.redecoding import Heard, stop_at
from tests.support.world import PATIENCE_SECONDS, World, assert_all_is_there_once, new_attempt


def test_raw_columns_are_lossless(world: World) -> None:
    """[R-13] Null keys, tombstones, headers with null values, odd bytes and timestamps come back as they were."""
    world.create_topic(2, message_timestamp_after_max_ms=str(2**63 - 1))
    world.send(
        {"partition": n % 2, "key": None, "value": b"%d" % n, "headers": [], "timestamp_ms": 1_000 + n} for n in range(1_000)
    )
    world.send(
        [
            {"partition": 0, "key": b"k", "value": None},
            {"partition": 0, "key": b"", "value": b""},
            {"partition": 0, "key": bytes(range(256)), "value": bytes(range(255, -1, -1))},
            {"partition": 0, "value": b"h", "headers": [("a", b"1"), ("a", b"2"), ("\u00fc", b"\xff")]},
            {"partition": 0, "value": b"old", "timestamp_ms": 0},
            {"partition": 0, "value": b"far", "timestamp_ms": 4_102_444_800_123},
        ]
    )
    world.plan_and_land()
    world.assert_all_landed_once()
    rows = world.rows()
    assert sum(key is None for _, _, key, *_ in rows) == 1_003
    first = next((world.lake_folder / "data").rglob("*.parquet"))
    schema = pq.read_schema(first)
    assert [(field.name, field.type) for field in schema] == [(field.name, field.type) for field in RAW_SCHEMA]
    assert str(schema.field("timestamp").type) == "timestamp[us, tz=UTC]"


def test_no_row_shows_another_time_than_its_record(world: World) -> None:
    """[R-13] I18: Spark's source reads times before 1582 through another calendar: they are null, the others as they were."""
    last, first = 2**63 // 1000, -2_208_988_800_000
    world.create_topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    times = [-1, -5, first, first - 1, -62_135_596_800_000, -last, last, 0]
    world.send({"partition": 0, "value": b"x", "timestamp_ms": time} for time in times)
    world.plan_and_land()
    found = duckdb.sql(f'SELECT epoch_us("timestamp") FROM read_parquet(\'{world.glob}\') ORDER BY "offset"').fetchall()
    assert [micros for (micros,) in found] == [time * 1000 if time >= first else None for time in times]
    world.send({"partition": 0, "value": b"x", "timestamp_ms": first - 1} for _ in range(3))
    world.plan_and_land()
    assert not world.pending, "a range without any time is landed too"
    (manifest,) = (each for offsets, each in world.coverage.manifests.items() if offsets.start)
    assert manifest.file is not None and (manifest.rows, manifest.file.max_timestamp_ms) == (3, None)


def test_a_record_whose_time_no_column_can_hold_lands_without_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-13] [R-15] I18: Spark's source fails at such a record, so its range is read from the log: all of it, in its order."""
    world.create_topic(1, message_timestamp_after_max_ms=str(2**63 - 1), compression_type="zstd")
    strange = {"partition": 0, "key": None, "value": b"", "headers": [("a", b"1"), ("a", b""), ("\u00fc", b"\xff")]}
    world.send([strange, {"partition": 0, "key": b"", "value": None}])
    world.send_numbered(148)
    for time in (2**62, 2**55):
        (place,) = world.send([{**strange, "timestamp_ms": time}])
        world.sent[place] = world.sent[place]._replace(timestamp_ms=None)
    world.send_aborted(20, partition=0, value=b"aborted")
    world.send([{"partition": 0, "key": b"k", "value": None}])
    world.alter_topic(message_timestamp_type="LogAppendTime")

    def is_appended() -> bool:
        ((_, offset),) = world.send([{"partition": 0, "value": b"", "timestamp_ms": 5}])
        return world.sent[0, offset].timestamp_ms != 5

    assert wait_for(is_appended, PATIENCE_SECONDS, 0.1)
    first = max(offset for _, offset in world.sent)
    world.send_numbered(299 - first)
    world.plan()
    with monkeypatch.context() as patch:  # the fault
        patch.setattr("pipeline_defs.landing.landing.may_be_untellable", lambda *_: False)
        failed = {verdict.offsets.key for verdict in world.land() if verdict.outcome is Outcome.FAILED}
    assert failed == {"0-100-200"}
    assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
    world.assert_all_landed_once()
    types = duckdb.sql(f"SELECT timestamp_type, max(\"offset\") FROM read_parquet('{world.glob}') GROUP BY ALL ORDER BY ALL")
    assert types.fetchall() == [(0, first - 1), (1, 299)]
    (again,) = world.land(["0-100-200"], redo=True)
    assert (again.outcome, again.violations) == (Outcome.UNCHANGED, ())
    monkeypatch.setattr("pipeline_defs.landing.landing.may_be_untellable", lambda *_: True)
    monkeypatch.setattr(Spark, "stage", Mock(side_effect=ScanFailed("the fault")))
    outcomes = {again.outcome for again in world.land(["0-0-100", "0-200-300"], redo=True)}
    assert outcomes == {Outcome.UNCHANGED}, "what Spark has read and what is read from the log are the same rows"


def test_reading_a_range_again_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-19] [R-21] Redo is a success that changes nothing; the digest is equal, byte for byte.

    Also after the topic has more partitions, and another configuration.

    [R-44] Another writer, here another codec, gives other bytes of the same rows: a note says so.
    [R-22] Of what Kafka no longer has the landed file is kept, and that is said.
    """
    world.fill(250, 80)
    world.plan_and_land()
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    before = world.files("data")
    world.add_partitions(3)
    world.alter_topic(max_message_bytes="2000000", compression_type="gzip", retention_ms="864000000")
    world.send_numbered(20, 2)
    again = world.land(keys, redo=True)
    assert {(verdict.outcome, verdict.violations) for verdict in again} == {(Outcome.UNCHANGED, ())}
    assert before == world.files("data") and not list((world.lake_folder / "staging").glob("*"))

    monkeypatch.setitem(spark_adapter.PARQUET_OPTIONS, "compression", "snappy")  # type: ignore[arg-type]
    other = world.land(keys, redo=True)
    note = "equal rows, other bytes: of another writer, or without columns that came later"
    assert {(verdict.outcome, verdict.violations) for verdict in other} == {(Outcome.UNCHANGED, (note,))}
    monkeypatch.undo()

    world.delete_records(partition=0, before=60)
    (expired,) = world.land(["0-0-100"], redo=True)
    assert expired.outcome is Outcome.EXPIRED
    assert "60 offsets [0, 60) are gone" in expired.violations[0] and "accept-loss" not in expired.violations[0]
    assert before == world.files("data")
    world.plan_and_land()
    world.assert_all_landed_once()


def test_what_a_manifest_names_is_on_the_disk_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-23] Power may go at any moment: the staged file and the folders that lead to it are synced before the commit."""
    synced: list[Path] = []
    before: dict[str, set[Path]] = {}
    beside(monkeypatch, disk, "_fsync", after=synced.append)
    beside(monkeypatch, Lake, "commit_manifest", lambda _, manifest: before.update({manifest.offsets.key: {*synced}}))
    world.fill(150, 50)
    world.plan()
    for verdict in world.land():
        assert verdict.manifest is not None and verdict.manifest.file is not None
        staged = world.lake_folder / verdict.manifest.file.path
        folders = [folder for folder in staged.parents if folder.is_relative_to(world.lake_folder)]
        assert {staged, *folders} <= before[verdict.offsets.key]


def uncut(*given: Any, **named: Any) -> dict[str, str]:
    return kafka_options(*given, **named) | {"maxRecordsPerPartition": "200"}


@pytest.mark.parametrize(
    ("name", "otherwise", "said"),
    [
        ("kafka_options", uncut, "not one planned range's"),
        ("select_raw", lambda *given: select_raw(*given).drop("headers"), "Spark wrote columns of {'topic': "),
    ],
    ids=["of two ranges", "with other columns"],
)
def test_a_file_that_is_not_as_planned_is_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, otherwise: Callable[..., object], said: str
) -> None:
    """[R-45] [R-14] Were Spark to cut elsewhere, or to write other columns, nothing of that scan would become visible."""
    world.fill(200)
    world.plan()
    with monkeypatch.context() as patch:
        patch.setattr(spark_adapter, name, otherwise)
        verdicts = world.land()
    assert {verdict.outcome for verdict in verdicts} == {Outcome.FAILED}
    assert said in verdicts[0].violations[0]
    assert world.rows() == []
    world.land()
    world.assert_all_landed_once()


PARTITIONS, ROUNDS = 3, 8


def test_a_backlog_of_uneven_ranges_lands_in_few_jobs_and_the_same_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-12] L5: a union of reads is one scan, with a task and a file for each range, as if each were read alone.

    [R-28] [R-29] A range of nothing but aborted records completes with 0 rows, and nothing waits for one.

    Its reads share consumers, and no job has those of another, which may hold what was polled before a topic was recreated.
    """
    groups = list[str]()
    beside(monkeypatch, spark_adapter, "kafka_options", lambda *_, group: groups.append(group))
    world.create_topic(PARTITIONS)
    for number in range(ROUNDS):
        for partition in range(PARTITIONS):
            if number == ROUNDS // 2:
                end = world.watermarks(partition).end
                world.send_aborted(partition=partition, value=b"aborted")
                world.wait_until(lambda p=partition, end=end: world.watermarks(p).end == end + 2)
            else:
                world.send_numbered(3 + number * 5 % 7 + partition, partition)
        world.plan()
    ranges = list(world.coverage.log.ranges)
    assert len(ranges) == PARTITIONS * ROUNDS
    assert len({len(offsets) for offsets in ranges}) > ROUNDS // 2, "the fault: there is no grid in them"
    scans = Heard("scan")
    assert {verdict.outcome for verdict in world.land(on_step=scans)} == {Outcome.LANDED}
    world.assert_all_landed_once()
    for offsets, manifest in world.coverage.manifests.items():
        if manifest.file is not None:
            found = pq.read_table(world.lake_folder / published_path(manifest))["offset"].to_pylist()
            assert found == sorted(o for p, o in world.sent if p == offsets.partition and o in offsets)
    empty = [offsets for offsets, manifest in world.coverage.manifests.items() if manifest.file is None]
    assert len(empty) == PARTITIONS, "the control: aborted records are a range without a file"
    assert len(scans) <= -(-len(ranges) // READS_AT_ONCE) and sum(each["ranges"] for each in scans) == len(ranges)
    assert len(groups) > len(scans) == len(set(groups))
    for number, offsets in enumerate(ranges[::7], 1):
        (alone,) = world.land([offsets.key], redo=True)
        assert len(set(groups)) == len(scans) + number
        assert (alone.outcome, alone.violations) == (Outcome.UNCHANGED, ()), "a note would say: equal rows, other bytes"


def test_what_is_pending_of_two_topics_is_one_job_and_the_same_bytes(world: World, settings: Settings, tmp_path: Path) -> None:
    """[R-12] One read names all topics; each range is a file of its own, as if it were read alone."""
    with World(settings, tmp_path, f"{world.name}b") as other:
        worlds, scans = {world.name: world, other.name: other}, Heard("scan")
        for each, counts in ((world, (250, 70)), (other, (130,))):
            each.fill(*counts)
            each.plan()
        keys = {topic: [offsets.key for offsets in each.pending] for topic, each in worlds.items()}
        verdicts = [*land_topics(keys, new_attempt(), {topic: each.tools(scans) for topic, each in worlds.items()})]
        assert [verdict.outcome for _, verdict in verdicts] == [Outcome.LANDED] * 6
        assert [each["topic"] for each in scans] == [f"{world.name},{other.name}"]
        for each in worlds.values():
            each.assert_all_landed_once()
            again = each.land(keys[each.name], redo=True)
            assert {(verdict.outcome, verdict.violations) for verdict in again} == {(Outcome.UNCHANGED, ())}


ROWS = 200_000
TRIES = 3


def test_canonical_footers_change_no_meaning(world: World, tmp_path: Path) -> None:
    """[R-19] Sorting the encodings keeps length, rows, schema and statistics; a second time nothing changes."""
    world.fill(100)
    world.plan_and_land()
    (landed,) = (world.lake_folder / "data").rglob("*.parquet")
    shuffled = tmp_path / "shuffled.parquet"
    content = landed.read_bytes()
    first = pq.read_metadata(landed).row_group(0).column(0).encodings
    assert len(first) > 1
    shuffled.write_bytes(content)
    canonicalize(shuffled)
    assert shuffled.read_bytes() == content, "what is landed is canonical already"
    list_encodings_falling(shuffled)
    assert shuffled.read_bytes() != content
    canonicalize(shuffled)
    assert shuffled.read_bytes() == content
    list_encodings_falling(shuffled)
    table = pq.read_table(shuffled)
    assert table.equals(pq.read_table(landed))
    for number in range(pq.read_metadata(landed).num_columns):
        ours, theirs = (pq.read_metadata(path).row_group(0).column(number).to_dict() for path in (shuffled, landed))
        assert set(ours.pop("encodings")) == set(theirs.pop("encodings"))
        assert ours == theirs


def test_jobs_side_by_side_write_the_same_bytes(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-19] [R-71] Writers of one JVM share the factory of encoders: a job with other options would change our bytes."""
    monkeypatch.setitem(spark_adapter.PARQUET_OPTIONS, "parquet.block.size", "65536")  # type: ignore[arg-type]
    alone = _write(engine, tmp_path / "alone")
    others = {**spark_adapter.PARQUET_OPTIONS, "parquet.enable.dictionary#topic": "false"}
    beside, beside_others = tmp_path / "beside", tmp_path / "beside_others"
    with _writing(engine, spark_adapter.PARQUET_OPTIONS, tmp_path / "ours"):
        assert {_write(engine, beside / str(number)) for number in range(TRIES)} == {alone}
    with _writing(engine, others, tmp_path / "others"):
        assert any(_write(engine, beside_others / str(number)) != alone for number in range(10 * TRIES)), "the control"


def test_all_that_spark_writes_has_the_same_options() -> None:
    """[R-19] One function writes, for landing, decoding, compaction and latest."""
    adapters = Path(spark_adapter.__file__).parents[1]
    writers = {path.name for path in adapters.rglob("*.py") if ".write." in path.read_text("utf-8")}
    assert writers == {"class_archive.py", "spark.py"}, "the first in a JVM of its own, at setup"
    assert Path(spark_adapter.__file__).read_text("utf-8").count(".write.") == 1


def _write(engine: Engine, folder: Path) -> str:
    """Write one file of many row groups; return its digest."""
    folder.parent.mkdir(exist_ok=True)
    with engine.job(SCAN_CONF, "write numbers", "") as session:
        rows = session.range(0, ROWS, 1, 1).select(f.lit("orders").alias("topic"), f.col("id").alias("offset"))
        write_parquet(rows, engine, str(folder))
    (file,) = folder.glob("*.parquet")
    assert pq.read_metadata(file).num_row_groups > 2
    canonicalize(file)
    return digest(file)


@contextmanager
def _writing(engine: Engine, options: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Have another job of the same JVM write small files with some options, one after the other, from before the body on."""
    folder.mkdir()
    written, ended = threading.Event(), threading.Event()

    def write() -> None:
        for number in itertools.takewhile(lambda _: not ended.is_set(), itertools.count()):
            with engine.job(DECODE_CONF, "write few numbers", "") as session:
                rows = session.range(0, 10, 1, 1).select(f.lit("orders").alias("topic"))
                rows.write.options(**options, **engine.write_options).parquet(str(folder / str(number)))
            written.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            assert written.wait(PATIENCE_SECONDS)
            yield
        finally:
            ended.set()
        writing.result()


@pytest.mark.usefixtures("bucket")
def test_a_put_and_an_exchange_hold_only_for_what_was_there() -> None:
    """[R-40] [R-48] Of two who put or exchange one object one is told so; putting the same again is no conflict."""
    store = open_store("s3://lake/exchange")
    puts = [store.put_new("final", content, "") for content in (b"first", b"second", b"first")]
    assert puts == [Answer.COMMITTED, Answer.CONFLICT, Answer.COMMITTED] and store.get("final") == b"first"
    store.put_new("staged", b"second", "")
    store.put_new("other", b"third", "")

    def overtaken() -> bool:
        is_first = store.exists("other")
        if is_first:
            store.exchange("other", "final", guard="", is_due=lambda: True)
        return is_first  # asked again, there is a later revision

    store.exchange("staged", "final", guard="", is_due=overtaken)
    assert store.get("final") == b"third"
    assert (store.exists("other"), store.exists("staged")) == (False, True)
    store.exchange("staged", "final", guard="", is_due=lambda: False)
    assert store.get("final") == b"third"


@pytest.mark.usefixtures("bucket")
def test_a_topic_lands_in_a_bucket(world: World) -> None:
    """[R-40] With nothing left in staging. [R-58] Orphans are swept by the bucket's own times."""
    world.fill(250, 60)
    world.move_lake(f"s3://lake/{world.name}")
    world.plan()
    overtake = stop_at("verify", world.land)  # another attempt lands everything while this one is before its first commit
    outcomes = [verdict.outcome for verdict in world.land(on_step=overtake)]
    assert set(outcomes) <= {Outcome.SUPERSEDED, Outcome.LANDED}
    assert Outcome.SUPERSEDED in outcomes
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    assert {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    assert_all_is_there_once(world)
    assert not world.adapters.lake.store.list("staging")

    (verdict,) = world.compact()
    assert (verdict.outcome, verdict.group.offsets.key) == (CompactionOutcome.COMPACTED, "0-0-250")
    assert_all_is_there_once(world)
    ((compacted,),) = Duck(world.adapters.lake, [world.name]).query(
        "SELECT count(*) FROM ranges WHERE compacted_file LIKE 's3://%'"
    )[1]
    assert compacted == 3 and {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    assert check_table(world.name, world.adapters.lake).violations == ()
    store = world.adapters.lake.store
    assert not store.list("staging")

    for path in ("staging/dead/part.parquet", "staging/plan-dead"):
        store.put_new(path, b"x", "unused")
    now_ms = world.adapters.now_ms()
    assert sweep_orphans(world.adapters.lake, now_ms) == {}, "the control: all of it is new"
    swept = sweep_orphans(world.adapters.lake, now_ms + int((SWEEP_AFTER_SECONDS + 60) * 1000))
    assert [*swept] == ["dead", "plan-dead"] and not store.list("staging")


def test_a_drill_deletes_its_lake_in_a_bucket_alone(bucket: str, broker: Broker, settings: Settings, tmp_path: Path) -> None:
    own = dataclasses.replace(settings, lake=f"{bucket}/drills/one")
    with open_arena(own, broker, tmp_path / "d1", Delivery.EFFECTIVELY_ONCE, {}) as arena:
        lake = open_store(arena.settings.lake)
        assert lake.root == f"{bucket}/drills/one/d1/lake"
        for path in ("plan/t/0.json", "data/t/g0/p0/x.parquet"):
            lake.put_new(path, b"x", "unused")
        open_store(own.lake).put_new("d1/lake2/plan/0.json", b"x", "unused")
        open_store(own.lake).put_new("d10/lake/plan/0.json", b"x", "unused")
        assert len(open_store(bucket).list("drills/one")) == 4, "the control"
    assert list(open_store(bucket).list("drills/one")) == ["drills/one/d1/lake2/plan/0.json", "drills/one/d10/lake/plan/0.json"]
    assert not (tmp_path / "d1").exists()


def test_a_drill_reads_what_a_bucket_shows_of_its_topic_alone(bucket: str, tmp_path: Path) -> None:
    store, below = open_store(bucket), f"drills/{tmp_path.name}/lake/data"
    for number, path in enumerate(("t/g0/p0000/0.parquet", "t/g0/p0001/0.parquet", "t2/g0/p0000/0.parquet")):
        pq.write_table(pa.table({"value": [b"%d" % number]}), tmp_path / "file.parquet")
        store.upload(tmp_path / "file.parquet", f"{below}/{path}")
    assert visible_values(f"{bucket}/{below}/t") == [b"0", b"1"]
    assert visible_values(f"{bucket}/{below}/t3") == []


def test_what_fails_at_a_drills_end_does_not_hide_why_it_failed(
    broker: Broker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where nothing failed before, it is the error."""

    def fail(arena: Arena) -> None:
        arena.kafka.close()
        raise LakeUnavailable("cannot delete it")

    monkeypatch.setattr(Arena, "close", fail)
    with (
        pytest.raises(NotMeasured, match="the first") as told,
        open_arena(settings, broker, tmp_path / "d1", Delivery.EFFECTIVELY_ONCE, {}),
    ):
        raise NotMeasured("the first")
    assert any("was not deleted either: cannot delete it" in note for note in told.value.__notes__)
    with pytest.raises(LakeUnavailable), open_arena(settings, broker, tmp_path / "d2", Delivery.EFFECTIVELY_ONCE, {}):
        pass
    assert not list(tmp_path.glob("d*"))
