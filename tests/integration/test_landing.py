"""Landing on a real broker and real Spark: what was produced is what a plain glob shows, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.spark import spark as spark_edge
from pipeline_defs.adapters.store import disk
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.holes import Cause
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.landing.auditing import check_completeness, check_replay
from pipeline_defs.orchestration.runs.ledger import accept_loss
from tests.support.world import World


def outcomes(verdicts: Any) -> list[Outcome]:
    return [verdict.outcome for verdict in verdicts]


def test_many_shapes_of_ranges_are_landed_with_exact_boundaries(world: World) -> None:
    """[R-12] One range, one file: grid ranges and tails of every size, over partitions, in one call."""
    world.fill(37, 0, 0)
    world.plan()  # an off-grid beginning
    for partition, count in ((0, 463), (1, 250), (2, 7)):
        world.send_numbered(count, partition)
    world.plan()
    verdicts = world.land()
    assert set(outcomes(verdicts)) == {Outcome.LANDED}
    world.assert_all_landed_once()
    for offsets in world.coverage.log.ranges:
        file = world.lake_folder / f"data/{world.name}/{offsets.folder}/{offsets.stem}.parquet"
        found = pq.read_table(file).column("offset").to_pylist()
        assert found == list(range(offsets.start, offsets.end))


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


def test_a_time_that_no_column_can_hold_fails_its_range_alone_and_is_named(world: World) -> None:
    """[R-13] [R-15] I18: Spark cannot read such a record; the message has its offset, and what to do."""
    world.create_topic(1, message_timestamp_after_max_ms=str(2**63 - 1))
    world.send_numbered(150)
    world.send([{"partition": 0, "value": b"x", "timestamp_ms": 2**62}])
    world.send_numbered(149)
    world.plan()
    verdicts = {verdict.offsets.key: verdict for verdict in world.land()}
    assert {key for key, verdict in verdicts.items() if verdict.outcome is Outcome.FAILED} == {"0-100-200"}
    assert f"has a record at offset 150 with timestamp {2**62} ms since 1970" in verdicts["0-100-200"].violations[0]
    assert "accept-loss" in verdicts["0-100-200"].violations[0]
    assert {row[1] for row in world.rows()} == {*range(100), *range(200, 300)}
    world.delete_records(0, 151)
    assert accept_loss(world.topic, "0-100-200", world.edges, "ada")
    world.land()
    assert not world.pending, "the way out that the message names"


def test_reading_a_range_again_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-19] [R-21] Redo is a success that changes nothing; the digest is equal, byte for byte.

    [R-44] Another writer, here another codec, gives other bytes of the same rows: a note says so.
    [R-22] Of what Kafka no longer has the landed file is kept, and that is said.
    """
    world.fill(250, 80)
    world.plan_and_land()
    keys = [offsets.key for offsets in world.coverage.log.ranges]

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (world.lake_folder / "data").rglob("*.parquet")}

    before = files()
    again = world.land(keys, redo=True)
    assert {(verdict.outcome, verdict.violations) for verdict in again} == {(Outcome.UNCHANGED, ())}
    assert before == files() and not list((world.lake_folder / "staging").glob("*"))

    monkeypatch.setitem(spark_edge.PARQUET_OPTIONS, "compression", "snappy")  # type: ignore[arg-type]
    other = world.land(keys, redo=True)
    note = "equal rows, other bytes: another writer wrote them"
    assert {(verdict.outcome, verdict.violations) for verdict in other} == {(Outcome.UNCHANGED, (note,))}
    monkeypatch.undo()

    world.delete_records(partition=0, before=60)
    (expired,) = world.land(["0-0-100"], redo=True)
    assert expired.outcome is Outcome.EXPIRED
    assert "60 offsets [0, 60) are gone" in expired.violations[0]
    assert before == files()
    world.assert_all_landed_once()


def test_transactions_leave_explained_holes_and_never_hang(world: World) -> None:
    """[R-28] [R-29] Aborted records and markers are holes with causes; ranges of nothing but holes complete with 0 rows."""
    world.create_topic()
    producer = world.begin_transaction()
    world.send(({"partition": 0, "value": b"a%d" % n} for n in range(9)), producer)
    producer.commit_transaction()
    producer.begin_transaction()
    for n in range(180):
        producer.send(world.name, partition=0, value=b"x%d" % n)
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    world.send(({"partition": 0, "value": b"b%d" % n} for n in range(4)), producer)
    producer.commit_transaction()
    producer.close()
    world.with_policy(records_per_range=50)
    verdicts = world.plan_and_land()
    assert set(outcomes(verdicts)) == {Outcome.LANDED}
    world.assert_all_landed_once()
    manifests = world.coverage.manifests
    assert [manifests[offsets].rows for offsets in sorted(manifests)] == [9, 0, 0, 4]
    causes = [hole.cause for offsets in sorted(manifests) for hole in manifests[offsets].holes]
    assert set(causes) == {Cause.TRANSACTION_MARKER, Cause.ABORTED}
    assert causes.count(Cause.TRANSACTION_MARKER) == 3
    assert check_completeness(world.name, world.edges.lake).passed
    again = world.land([offsets.key for offsets in manifests], redo=True)
    assert set(outcomes(again)) == {Outcome.UNCHANGED}


def test_a_slow_topic_is_planned_when_its_record_is_old_enough(world: World) -> None:
    """[R-5] One record an hour is planned once it has waited for max_age, and not before."""
    world.create_topic()
    world.with_policy(max_age_seconds=60.0)
    world.send_numbered(1)
    moment = world.edges.now_ms()
    world.edges.now_ms = lambda: moment + 59_000
    world.plan(through_end=False)
    assert world.coverage.log.ranges == {}
    world.edges.now_ms = lambda: moment + 61_000
    world.plan(through_end=False)
    assert [offsets.key for offsets in world.coverage.log.ranges] == ["0-0-1"]


def test_two_planners_at_once_fix_each_boundary_once(world: World) -> None:
    """[R-10] Both plan from the same tail; the loser of the put-if-absent plans again, and the log tiles."""
    world.fill(250)
    raced = itertools.count()

    def race(step: str, **fields: object) -> None:
        if step == "plan_decided" and next(raced) == 0:
            world.plan()  # another planner wins while this one holds its decision

    world.edges.watch_step = race
    world.plan()
    world.edges.watch_step = lambda step, **fields: None
    assert next(raced) > 1
    assert [offsets.key for offsets in world.coverage.log.ranges] == ["0-0-100", "0-100-200", "0-200-250"]
    world.land()
    world.assert_all_landed_once()


def test_what_a_manifest_names_is_on_the_disk_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-23] Power may go at any moment: the staged file and the folders that lead to it are synced before the commit."""
    synced: list[Path] = []
    before: dict[str, set[Path]] = {}
    sync, commit = disk._fsync, Lake.commit_manifest

    def watch_sync(path: Path) -> None:
        sync(path)
        synced.append(path)

    def watch_commit(lake: Lake, manifest: Manifest) -> Manifest:
        before[manifest.offsets.key] = set(synced)
        return commit(lake, manifest)

    monkeypatch.setattr(disk, "_fsync", watch_sync)
    monkeypatch.setattr(Lake, "commit_manifest", watch_commit)
    world.fill(150, 50)
    world.plan()
    for verdict in world.land():
        assert verdict.manifest is not None
        assert verdict.manifest.file is not None
        staged = world.lake_folder / verdict.manifest.file.path
        folders = [folder for folder in staged.parents if folder.is_relative_to(world.lake_folder)]
        assert {staged, *folders} <= before[verdict.offsets.key]


def test_a_redo_that_reads_other_rows_keeps_the_landed_file_and_names_the_difference(world: World) -> None:
    """[R-44] Landed while aborted records counted, read again when they do not: the landed file stays, the verdict says why."""
    world.create_topic()
    world.with_policy(isolation_level="read_uncommitted")
    world.send_aborted(3, partition=0, value=b"x")
    world.send_numbered(5)
    world.plan_and_land()
    before = world.rows()
    assert len(before) == 8
    world.with_policy(isolation_level="read_committed")
    (verdict,) = world.land(["0-0-9"], redo=True)
    assert verdict.outcome is Outcome.CHANGED
    assert "3 offsets gone (first [0, 1, 2])" in verdict.violations[0]
    assert world.rows() == before
    finding = check_replay(world.name, world.tools(), sample=None, seed="0")
    assert not finding.passed and "3 offsets gone" in finding.violations[0]


def test_a_file_that_covers_two_ranges_lands_neither(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-45] Were Spark to cut elsewhere than at our boundaries, nothing of that scan would become visible."""
    world.fill(200)
    world.plan()
    honest = spark_edge.kafka_options

    def uncut(*arguments: Any, **more: Any) -> dict[str, str]:
        return honest(*arguments, **more) | {"maxRecordsPerPartition": "200"}

    monkeypatch.setattr(spark_edge, "kafka_options", uncut)
    verdicts = world.land()
    assert {verdict.outcome for verdict in verdicts} == {Outcome.FAILED}
    assert "not one planned range's" in verdicts[0].violations[0]
    assert world.rows() == []
    monkeypatch.undo()
    world.land()
    world.assert_all_landed_once()
