"""The raw table through other engines: what they read of it, and that none of them may write."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from unittest.mock import Mock

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path, published_path
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.adapters.store.object_store import open_store
from pipeline_defs.adapters.store.store import Answer
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.tables.delta_log import DeltaLog, raw_table_log
from pipeline_defs.core.errors import BrokenTable, LakeUnavailable
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables import raw_table
from pipeline_defs.core.tables.delta import Commit, File, Snapshot, from_json, replay
from pipeline_defs.core.tables.raw_table import KEY, REVISION, REVISIONS, SCHEMA, name_of, offsets_of, revision_in
from pipeline_defs.lab.processes import plain_environment
from pipeline_defs.landing import appending
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.tables.deleting import find_unnamed, may_have_leftovers, vacuum
from tests.conftest import JARS
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, Writer, watch_obstore
from tests.support.killing import PLACES
from tests.support.readers import spark_defaults
from tests.support.redecoding import Heard, OffsetDecoder, decode_by
from tests.support.strategies import EPOCH_MS

DAY_MS = 24 * 3600 * 1000


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_obstore(monkeypatch)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> SmallWorld:
    """Two landed ranges in the table; in a `bucket`, `replaced` or `compacted` where the test's parameter says so."""
    state = getattr(request, "param", "disk")
    world = SmallWorld(tmp_path, "bucket" if state == "bucket" else "disk", records=6, grid=3)
    world.has_raw_table = True
    world.land()
    if state == "replaced":
        world.lose_a_row(0)
        world.land("replace")
    elif state == "compacted":
        world.compact(world.lake)
    return world


in_each_place = pytest.mark.parametrize("world", PLACES, indirect=True)


def table_of(world: SmallWorld) -> DeltaTable:
    return DeltaTable(str(world.folder / f"tables/raw/{TOPIC}"))


def test_its_schema_is_that_of_landed_files() -> None:
    assert Schema.from_json(SCHEMA) == Schema.from_arrow(RAW_SCHEMA)


def test_delta_readers_see_what_is_landed_at_each_version(world: SmallWorld) -> None:
    """[R-81] Its files are the landed ones, by a second name for the same bytes on the disk: nothing is copied."""
    for manifest in manifests(world):
        name = f"tables/raw/{TOPIC}/g0-p0000-{manifest.offsets.stem}.r000.parquet"
        assert (world.folder / published_path(manifest)).samefile(world.folder / name)
    world.kafka.compact(100)
    world.land("replace")
    now, then = table_of(world), table_of(world)
    then.load_as_version(0)
    assert world.in_table() == world.shown() != dict.fromkeys(range(6), 1)
    for table, rows in ((now, sorted(world.shown())), (then, list(range(6)))):
        assert sorted(table.to_pyarrow_table().column("offset").to_pylist()) == rows
        assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [table.file_uris()]).fetchall() == [(len(rows),)]
    assert now.version() == 1
    versions = [now.transaction_version(name) for name in ("g0/p0", "settled")]
    assert versions == [6, 3], "one of two ranges has a second revision"


def test_a_range_is_in_the_table_before_anybody_is_told_of_it(tmp_path: Path) -> None:
    """[R-81] So who reads the table at a range's event finds it: landed, left out by a run before, read again, replaced."""
    world, told = SmallWorld(tmp_path, "disk", records=6, grid=3), []

    def look(verdict: Verdict) -> None:
        told.append(verdict.outcome)
        found = set(world.in_table())
        assert {offset for offset in world.landed() if offset in verdict.offsets} <= found, verdict
        if verdict.outcome is Outcome.REPLACED:
            assert found == set(world.landed())

    first, _ = world.coverage.pending()
    world.land(only=first)
    world.has_raw_table = True
    world.land(on_verdict=look)
    world.land("redo", on_verdict=look)
    world.kafka.compact(100)
    world.land("replace", on_verdict=look)
    assert {*told} == {Outcome.LANDED, Outcome.UNCHANGED, Outcome.REPLACED}


WRITERS: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="append"),
    "delete": lambda table: table.delete("offset > 1"),
    "compact": lambda table: table.optimize.compact(),
    "vacuum": lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_who_is_not_us_may_not_write_it(world: SmallWorld, name: str) -> None:
    """[R-81] They would double rows, or delete files that no version names yet."""
    decode_by(OffsetDecoder("id BIGINT"), world.lake, world.coverage.log.ranges)  # rows and dead letters
    before = world.files()
    for kind in ("raw", "decoded"):
        folder = world.folder / f"tables/{kind}/{TOPIC}"
        stray = folder / "linked-and-not-named-yet.parquet"
        stray.write_bytes(b"")
        os.utime(stray, (0, 0))
        with pytest.raises(DeltaError, match=r"(?i)unsupported|offsetlakeManaged|feature"):
            WRITERS[name](DeltaTable(str(folder)))
        assert check_table(TOPIC, world.lake).violations == () and world.files() == before
        assert DeltaTable(str(folder)).version() == 0 and stray.exists()


FOREIGN = """
import sys
from pyspark.sql import SparkSession

refused, forced = sys.argv[1:]
spark = (
    SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    .getOrCreate()
)
rows = spark.read.format("delta").load(refused)
print("rows", rows.count())
for name, write in {
    "append": lambda: rows.write.format("delta").mode("append").save(refused),
    "delete": lambda: spark.sql(f"DELETE FROM delta.`{refused}` WHERE offset > 1"),
    "optimize": lambda: spark.sql(f"OPTIMIZE delta.`{refused}`"),
    "vacuum": lambda: spark.sql(f"VACUUM delta.`{refused}` RETAIN 0 HOURS"),
}.items():
    try:
        write()
        print(name, "done")
    except Exception as error:
        said, why = str(error), "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"
        print(name, "refused" if why in said and "offsetlakeManaged" in said else said)
spark.sql(f"VACUUM delta.`{forced}` RETAIN 0 HOURS").collect()
print("rows", spark.read.format("delta").load(forced).count())
"""


@pytest.mark.scenario
def test_spark_may_read_it_and_not_write_it(world: SmallWorld, tmp_path: Path) -> None:
    """[R-81] Nor VACUUM, whose default deletes what no log names; forced, it takes no landed row along."""
    forced = SmallWorld(tmp_path / "forced", "disk", records=6, grid=3)
    forced.has_raw_table = True
    forced.land()
    let_anybody_write(forced)
    tables = [str(each.folder / f"tables/raw/{TOPIC}") for each in (world, forced)]
    strays = [Path(table) / "linked-and-not-named-yet.parquet" for table in tables]
    for stray in strays:
        stray.write_bytes(b"")
        os.utime(stray, (0, 0))
    before = [each.files() for each in (world, forced)]
    conf = spark_defaults(tmp_path / "conf", resolve_jars("delta", JARS), {})
    env = {**plain_environment("SPARK_"), **conf}  # this process may be marked as a client of Spark Connect
    done = subprocess.run([sys.executable, "-c", FOREIGN, *tables], env=env, capture_output=True, text=True, check=False)
    writers = [f"{name} refused" for name in ("append", "delete", "optimize", "vacuum")]
    said = [line for line in done.stdout.splitlines() if not line.startswith("Deleted")]  # Spark's, of its vacuum
    assert said == ["rows 6", *writers, "rows 6"], done.stderr
    assert [each.files() for each in (world, forced)] == before
    assert [stray.exists() for stray in strays] == [True, False], "the control: forced, it was a full vacuum"
    assert table_of(world).version() == 0 and check_table(TOPIC, world.lake).violations == ()
    assert forced.in_table() == forced.landed() == dict.fromkeys(range(6), 1)


@pytest.mark.parametrize("state", ["replaced", "compacted", "dropped"])
def test_a_vacuum_that_somebody_forces_takes_no_landed_row_along(world: SmallWorld, state: str) -> None:
    """[R-81] Its versions have no app transactions, by which else a run knows what the table has; the next run goes on."""
    if state == "replaced":
        world.kafka.compact(50)
        world.land("replace")
    else:
        world.compact()
        assert state == "compacted" or world.drop()
    world.has_raw_table = False
    grow(world)
    (landed,) = [each for each in manifests(world) if each.offsets.start == 6]
    linked = world.folder / f"tables/raw/{TOPIC}" / name_of(landed)
    linked.hardlink_to(world.folder / published_path(landed))
    rows, before = world.landed_offsets(), world.files()
    let_anybody_write(world)
    gone = table_of(world).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert linked.name in gone and not linked.exists(), "the control: what a run was about to name"
    assert world.files() == before and world.landed_offsets() == rows
    world.has_raw_table = True
    grow(world)
    assert set(world.in_table()) == set(world.landed_offsets()) and set(world.in_table().values()) == {1}
    assert check_table(TOPIC, world.lake).violations == ()


def rotten(data: bytes) -> bytes:
    """Return bytes of which one is another."""
    return data[:10] + bytes([data[10] ^ 255]) + data[11:]


def let_anybody_write(world: SmallWorld) -> None:
    """Take the feature that no other writer knows out of the table's log, as nobody should."""
    first = world.folder / f"tables/raw/{TOPIC}/_delta_log/{0:020d}.json"
    told = first.read_text()
    assert told.count(',"offsetlakeManaged"') == 1
    first.write_text(told.replace(',"offsetlakeManaged"', ""))


def test_a_file_that_rots_with_its_landed_one_is_mended_under_a_new_name(world: SmallWorld) -> None:
    """[R-83] Both names lead to one file: a replace mends the landed one, and the table takes that one in, in one commit."""
    (manifest, other) = manifests(world)
    path = world.folder / published_path(manifest)
    path.write_bytes(rotten(path.read_bytes()))
    with pytest.raises(AssertionError):
        world.in_table()
    world.land("redo")
    assert table_of(world).version() == 0, "a redo names what is rotten, and there is nothing to mend it with"
    world.land("replace")
    assert world.in_table() == dict.fromkeys(range(6), 1)
    assert sorted(each.name for each in files(world)) == sorted(
        f"g0-p0000-{offsets.stem}.r000{end}.parquet" for offsets, end in ((manifest.offsets, ".1"), (other.offsets, ""))
    )
    world.land("replace")
    assert table_of(world).version() == 1, "what is whole is not added again"


def test_a_file_that_was_cut_short_with_its_landed_one_is_mended_by_the_next_run(world: SmallWorld) -> None:
    """[R-83] The run that mends the landed one knows that the table shared its bytes."""
    (manifest, _) = manifests(world)
    path = world.folder / published_path(manifest)
    path.write_bytes(path.read_bytes()[:-9])
    assert check_table(TOPIC, world.lake).violations, "the fault"
    world.land()
    assert world.in_table() == dict.fromkeys(range(6), 1)
    assert check_table(TOPIC, world.lake).violations == ()


@in_each_place
def test_a_file_that_rots_in_the_table_alone_is_named_and_mended_by_a_redo(world: SmallWorld) -> None:
    """[R-83] So is one whose run died after it had mended the landed file, and before it told the table."""
    (path, file), _ = raw_table_log(TOPIC, world.lake.store).read().files.items()
    name = f"tables/raw/{TOPIC}/{path}"
    data = rotten(world.lake.store.get(name) or b"")
    world.lake.store.delete(name)
    assert world.lake.store.put_new(name, data, "staging/scratch") is Answer.COMMITTED
    named = check_table(TOPIC, world.lake).violations
    assert f"{path} has sha256 {sha256(data).hexdigest()}, expected {file.tags['sha256']}" in named[0]
    assert f"`offsetlake land {TOPIC} --key {file.tags[KEY]}` gives the table the landed file" in named[1]
    world.land("redo")
    assert check_table(TOPIC, world.lake).violations == ()


def test_a_revision_that_is_not_the_one_that_the_table_has_takes_its_place(world: SmallWorld) -> None:
    """[R-81] Somebody deleted a manifest, as its error tells them, and by now Kafka has other records of the range."""
    (first, _) = manifests(world)
    for offset in (0, 1):
        world.lose_a_row(offset)
        world.land("replace", only=first.offsets)
        if not offset:
            newest = manifests(world)[0]
            world.lake.store.delete(manifest_path(TOPIC, first.offsets, newest.serial))
            world.lake = world.open(Writer())
    second = manifests(world)[0]
    assert (second.serial, second.digest == newest.digest) == (newest.serial, False), "the fault"
    assert check_table(TOPIC, world.lake).violations == ()
    assert world.in_table() == dict.fromkeys(range(2, 6), 1)


def forget(world: SmallWorld, manifest: Manifest) -> None:
    """Delete a range's manifests, as `broken_manifest` says, and its file with them."""
    for serial in range(manifest.serial + 1):
        world.lake.store.delete(manifest_path(TOPIC, manifest.offsets, serial))
    world.lake.store.delete(published_path(manifest))
    world.lake = world.open(Writer())


@pytest.mark.parametrize("world", ["disk", "replaced", "compacted"], indirect=True)
@pytest.mark.parametrize("lost", [(1,), (0, 1, 2)])
def test_rows_that_only_the_table_has_stay_until_a_person_replaces_them(world: SmallWorld, lost: tuple[int, ...]) -> None:
    """[R-81] Somebody deleted a range's manifest and file, and Kafka has less of it by now; the audit says what to do."""
    first, rows = manifests(world)[0], world.in_table()
    forget(world, first)
    for offset in lost:
        world.lose_a_row(offset)
    (verdict,) = world.land(only=first.offsets)
    assert verdict.manifest is not None and verdict.manifest.digest != first.digest, "the fault"
    for how in ("land", "redo"):
        world.land(how)
        append_landed(TOPIC, world.lake, lambda: EPOCH_MS)
        assert world.in_table() == rows != world.shown(), "no row is deleted that stands nowhere else"
    alone = sum(rows.values()) - sum(world.shown().values())
    told = [said for said in check_table(TOPIC, world.lake).violations if "only the table has" in said]
    assert [f"only the table has {alone} row" in said for said in told] == [True], told
    assert f"`offsetlake land {TOPIC} --key {first.offsets.key} --on-change replace`" in told[0]
    world.land("replace")
    assert check_table(TOPIC, world.lake).violations == ()
    assert world.in_table() == world.shown() != rows


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_manifest_restored_from_backup_has_its_rows_in_the_table_by_a_redo(world: SmallWorld, *, is_compacted: bool) -> None:
    """[R-81] The table has a later revision than any manifest, with fewer rows: the audit says so, and what mends it."""
    first = manifests(world)[0]
    backup = {path: path.read_bytes() for name in ("data", "manifests") for path in (world.folder / name).rglob("*.*")}
    world.lose_a_row(1)
    world.land("replace", only=first.offsets)
    if is_compacted:
        world.compact(world.lake)
    forget(world, manifests(world)[0])
    for path, content in backup.items():
        path.unlink(missing_ok=True)
        path.write_bytes(content)
    append_landed(TOPIC, world.lake, lambda: EPOCH_MS)
    assert world.in_table() != world.shown() == dict.fromkeys(range(6), 1), "the fault"
    said = check_table(TOPIC, world.lake).violations
    assert f"range {first.offsets.text(TOPIC)}: the table has revision 1 of it, its manifest 0" in said
    assert f"`offsetlake land {TOPIC} --key {first.offsets.key}` gives the table the landed file" in said[-1]
    world.land("redo")
    assert check_table(TOPIC, world.lake).violations == ()
    assert world.in_table() == world.shown() == dict.fromkeys(range(6), 1)


def test_a_landed_file_that_somebody_deleted_is_given_back_by_the_table(world: SmallWorld) -> None:
    """[R-83] Byte for byte, whatever Kafka has by now: it is not asked."""
    (first, _) = manifests(world)
    content = (world.folder / published_path(first)).read_bytes()
    world.lake.store.delete(published_path(first))
    world.lose_a_row(1)
    (verdict,) = world.land()
    assert (verdict.outcome, verdict.manifest) == (Outcome.ROLLED_FORWARD, first)
    assert (world.folder / published_path(first)).read_bytes() == content
    assert world.in_table() == world.shown() == dict.fromkeys(range(6), 1)


@in_each_place
@pytest.mark.parametrize("on_loss", ["fail", "record"])
@pytest.mark.parametrize("is_recreated", [False, True])
def test_what_only_a_compacted_file_has_counts_as_dropped(world: SmallWorld, on_loss: str, *, is_recreated: bool) -> None:
    """[R-83] Its advice was to accept the loss of rows that the table has; a killed run is followed by any."""
    world.compact(world.lake)
    first, second = manifests(world)
    world.lake.store.delete(published_path(first))
    world.lake, world.kafka.leaderless = world.open(Writer()), {0}
    (verdict,) = world.land(only=first.offsets)
    assert (verdict.outcome, world.coverage.dropped()) == (Outcome.FAILED, {}), "nobody leads: Kafka may have it all"
    world.kafka.leaderless = set()
    world.kafka.now.partitions[0].earliest = 3
    if is_recreated:
        world.kafka.recreate(1, 4)
        world.plan()
    world.lake = world.open(Writer())
    assert not world.coverage.is_landed(first.offsets), "the fault"
    world.die("left_to_table", "redo" if is_recreated else "land", on_loss=on_loss, only=first.offsets)
    assert world.coverage.is_landed(first.offsets) and world.coverage.dropped() == {first.offsets: 0}
    assert world.in_table() == dict.fromkeys(range(6), 1) and world.shown() == dict.fromkeys(range(3, 6), 1)
    assert check_table(TOPIC, world.lake).violations == ()
    world.lake.store.delete(published_path(second))
    (compacted,) = raw_table_log(TOPIC, world.lake.store).read().files
    world.lake.store.delete(f"tables/raw/{TOPIC}/{compacted}")
    world.lake = world.open(Writer())
    world.kafka.now.partitions[0].earliest = 0 if is_recreated else 6
    (verdict,) = world.land("redo", only=second.offsets)
    assert verdict.outcome is Outcome.FAILED, "the control: the table does not have them either"


@in_each_place
def test_rows_that_stand_in_a_compacted_file_alone_are_not_taken_out_without_a_person(world: SmallWorld) -> None:
    """[R-83] The range's file was deleted, and Kafka has less of it: it stays pending, and says why, until it is replaced."""
    world.compact(world.lake)
    world.lake.store.delete(published_path(manifests(world)[0]))
    world.lake = world.open(Writer())
    world.lose_a_row(1)
    (verdict,) = world.land()
    assert verdict.outcome is Outcome.FAILED
    assert "only the raw table has 1 row of it; nothing was written; restore the file from a backup" in verdict.violations[0]
    assert world.in_table() == dict.fromkeys(range(6), 1)
    world.land("replace")
    assert world.in_table() == world.shown() == dict.fromkeys([0, 2, 3, 4, 5], 1)
    assert check_table(TOPIC, world.lake).violations == ()


@pytest.mark.parametrize("world", ["compacted"], indirect=True)
def test_a_rotten_landed_file_is_no_measure_of_a_compacted_one(world: SmallWorld) -> None:
    """[R-62] The audit names it, and goes on; another range of that file has fewer rows in it than are landed."""
    first, second = manifests(world)
    forget(world, first)
    world.lose_a_row(1)
    world.land()
    path = world.folder / published_path(second)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:200] + b"\xff" * 40 + content[240:])
    said = check_table(TOPIC, world.lake).violations
    assert [each for each in said if second.offsets.text(TOPIC) in each] == [], said
    assert ["only the table has 1 row of it" in each for each in said].count(True) == 1


def test_what_a_compacted_file_has_otherwise_is_named_and_not_dropped_where_the_sums_come_out(world: SmallWorld) -> None:
    """[R-62] [R-72] One row more of a range that was landed anew, one less of one whose manifest was restored."""
    first, second = manifests(world)
    backup = {
        path: path.read_bytes() for path in world.folder.rglob(f"*{second.offsets.start:020d}-*") if "tables" not in path.parts
    }
    forget(world, second)
    world.lose_a_row(4)
    world.lake.store.delete(f"tables/raw/{TOPIC}")
    world.land()
    world.compact(world.lake)
    forget(world, first)
    world.lose_a_row(1)
    world.land()
    forget(world, second)
    for path, content in backup.items():
        path.write_bytes(content)
    rows = sum(each.rows for each in raw_table_log(TOPIC, world.lake.store).read().files.values())
    assert rows == sum(each.rows for each in manifests(world)) == 5, "the fault: the sums come out"
    reason = f"the table has 3 rows of range {first.offsets.text(TOPIC)}, its manifest 2"
    assert [each.reason for each in world.drop()] == [reason] * 2
    assert world.landed_offsets() == world.shown()
    named, advice = check_table(TOPIC, world.lake).violations
    assert reason in named and "away, and the next run makes the table anew" in advice
    world.lake.store.delete(f"tables/raw/{TOPIC}")
    append_landed(TOPIC, world.lake, lambda: EPOCH_MS)
    assert check_table(TOPIC, world.lake).violations == () and world.in_table() == world.shown()


@pytest.mark.parametrize("world", ["replaced"], indirect=True)
def test_a_replace_that_dies_is_appended_by_the_next_tick_where_a_manifest_was_deleted_before(world: SmallWorld) -> None:
    """[R-63] What the table says that it has, summed up, is what it has: less than before, where a later revision is gone."""
    first, second = manifests(world)
    forget(world, first)
    world.land(only=first.offsets)
    world.land("replace", only=first.offsets)
    assert check_table(TOPIC, world.lake).violations == (), "the control"
    world.lose_a_row(4)
    world.die("publish", "replace", only=second.offsets)
    append_landed(TOPIC, world.lake, lambda: EPOCH_MS)
    assert check_table(TOPIC, world.lake).violations == ()
    assert world.in_table() == world.shown()


def test_a_table_that_is_moved_away_under_a_run_is_made_anew_by_it(world: SmallWorld) -> None:
    """[R-81] As errors tell people to do: a version that follows another table's would leave one that nobody can read."""
    world.grow(3)
    world.die("publish")
    moved = Heard("link_to_table", lambda: (world.folder / f"tables/raw/{TOPIC}").rename(world.folder / "moved"))
    assert append_landed(TOPIC, world.lake, lambda: EPOCH_MS, on_step=moved) == 0
    assert moved, "the fault"
    assert world.in_table() == dict.fromkeys(range(9), 1)


def test_a_range_appended_and_dropped_meanwhile_is_not_called_gone(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] Between a look at the table and one at what is landed."""
    world.grow(3)
    world.die("publish")
    late, dropped = world.open(Writer()), []

    def recent(topic: str) -> Coverage:
        if not dropped:
            append_landed(TOPIC, world.lake, lambda: EPOCH_MS)
            world.compact()
            dropped.extend(world.drop())
        return Lake.recent(late, topic)

    monkeypatch.setattr(late, "recent", recent)
    assert append_landed(TOPIC, late, lambda: EPOCH_MS) == raw_table_log(TOPIC, world.lake.store).read().version
    assert dropped, "the fault"


def test_what_is_missing_in_the_table_is_named_and_appended_by_whoever_comes(tmp_path: Path) -> None:
    """[R-81] Of a lake that had no table, or a run that died before it appended."""
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    assert append_landed(TOPIC, world.lake, lambda: EPOCH_MS) == -1, "no table of a topic without rows"
    world.land()
    (first, second) = manifests(world)
    mends = f"the next run appends it, or `offsetlake compact {TOPIC} --apply`"
    assert check_table(TOPIC, world.lake).violations == tuple(
        f"range {each.offsets.text(TOPIC)}: landed, and not in the table; {mends}" for each in (first, second)
    )
    assert append_landed(TOPIC, world.open(Writer()), lambda: EPOCH_MS) == 0
    assert append_landed(TOPIC, world.open(Writer()), lambda: EPOCH_MS) == 0, "nothing is due"
    assert check_table(TOPIC, world.lake).violations == ()
    (tmp_path / f"tables/raw/{TOPIC}/g0-p0000-{first.offsets.stem}.r000.parquet").unlink()
    where = f"{tmp_path}/tables/raw/{TOPIC}/g0-p0000-{first.offsets.stem}.r000.parquet"
    command = f"offsetlake land {TOPIC} --key {first.offsets.key}"
    assert check_table(TOPIC, world.lake).violations == (
        f"{TOPIC}: the table's file {where} is not there, expected sha256 {first.digest}",
        f"{TOPIC}: `{command}` gives the table the landed file",
    )
    assert pq.read_table(tmp_path / published_path(first)).num_rows == 3


@pytest.mark.parametrize("kind", PLACES)
def test_a_range_that_is_replaced_while_it_is_linked_is_added_as_it_is_then(tmp_path: Path, kind: str) -> None:
    """[R-81] Wherever the replace comes in between, and although both files have one size: a name has its revision's rows."""
    for number in itertools.count():
        world = SmallWorld(tmp_path / str(number), kind, records=3, grid=3)
        world.land()

        def replace_it(call: int, number: int = number, world: SmallWorld = world) -> None:
            if call == number:
                replace_by_as_many_bytes(world)

        writer = Writer(before=replace_it)
        append_landed(TOPIC, world.open(writer), lambda: EPOCH_MS)
        world.in_table()  # which holds each file against the digest that the log gives it
        world.land()  # publishes the replace, where the lock of who linked held it up
        append_landed(TOPIC, world.open(Writer()), lambda: EPOCH_MS)
        world.in_table()
        assert check_table(TOPIC, world.lake).violations == ()
        if len(writer.calls) <= number:
            break
    assert number > 3, "the control: each call was stopped at"


def replace_by_as_many_bytes(world: SmallWorld) -> None:
    """Publish a second revision of the one range, of which a byte differs."""
    (manifest,) = manifests(world)
    assert manifest.file is not None
    data = rotten(world.files()[published_path(manifest)])
    staged, lake = "staging/other/0.parquet", world.open(Writer())
    lake.store.put_new(staged, data, "staging/other/scratch")
    newer = replace(manifest, revision=1, file=replace(manifest.file, path=staged, sha256=sha256(data).hexdigest()))
    assert lake.commit_manifest(newer) == newer
    with suppress(LakeUnavailable):
        lake.publish(newer)


def test_a_checkpoint_says_the_same_as_the_commits_before_it(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] Delta-rs writes it and deletes old commits; whoever reads then, or appends, goes on from there."""
    monkeypatch.setattr(appending, "CHECKPOINT_EVERY", 3)
    world.kafka.compact(100)
    world.land("replace")
    for _ in range(3):
        grow(world)
    log = raw_table_log(TOPIC, world.lake.store)
    folder = world.folder / log.folder / "_delta_log"
    by_commits = replay(from_json(commit.read_bytes(), "t") for commit in sorted(folder.glob("*.json")))
    assert by_commits.removed, "which delta-rs drops after a week"
    assert by_commits.version == 4 and (folder / f"{3:020d}.checkpoint.parquet").exists()
    for version in range(4):  # as a week later
        (folder / f"{version:020d}.json").unlink()
    assert log.read() == replace(by_commits, removed={})
    assert sorted(each.name for each in files(world)) == sorted(by_commits.files)
    grow(world)
    log.write_checkpoint()
    for commit in folder.glob("*.json"):
        commit.unlink()
    head = log.read_head()
    assert (head.version, head.transactions, head.files) == (5, log.read().transactions, {})
    grow(world)
    assert world.in_table() == world.landed() and check_table(TOPIC, world.lake).facts["version"] == 6


def test_a_fault_that_nobody_foresaw_in_the_table_ends_no_landing(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] It is told as any other reason, by its type."""
    monkeypatch.setattr(raw_table, "find_due", Mock(side_effect=KeyError("a secret")))
    said = Heard("append_failed")
    grow(world, said)
    (reason,) = (each["reason"] for each in said)
    assert len(world.shown()) == 9 and "KeyError" in reason and "secret" not in reason


@pytest.mark.parametrize("torn", [1, 2])
def test_a_torn_checkpoint_costs_nothing_while_another_is_whole(world: SmallWorld, torn: int) -> None:
    """[R-81] The commits below are gone after a week: of two the one before is read, and an older one is in nobody's way."""
    log = raw_table_log(TOPIC, world.lake.store)
    folder = world.folder / log.folder / "_delta_log"
    for _ in range(2):
        grow(world)
        log.write_checkpoint()
    grow(world)
    whole = log.read()
    for version in range(2):
        (folder / f"{version:020d}.json").unlink()
    path = folder / f"{torn:020d}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    assert log.read() == whole and whole.version == 3 and log.read_head().version == 3
    assert (log.find_damage() is None) == (torn == 1)
    grow(world)
    assert world.in_table() == world.landed()
    if torn == 1:
        log.write_checkpoint()
        assert log.find_damage() is None and world.in_table() == world.landed()
    else:
        (folder / f"{1:020d}.checkpoint.parquet").unlink()
        with pytest.raises(BrokenTable, match=f"{path.name} cannot be used, and the commits before it are cleaned up"):
            log.read()


@pytest.mark.parametrize("is_torn", [True, False])
def test_old_commits_go_once_a_checkpoint_reads_back(world: SmallWorld, monkeypatch: pytest.MonkeyPatch, is_torn: bool) -> None:
    """[R-81] Else the table would be in no object any more; delta-rs does not wait for the disk."""
    grow(world)
    log, durable = raw_table_log(TOPIC, world.lake.store), world.lake.store.make_durable
    folder, whole = world.folder / log.folder / "_delta_log", log.read()
    for commit in folder.glob("*.json"):
        os.utime(commit, (0, 0))
    made_durable = list[str]()

    def make_durable(path: str) -> None:
        made_durable.append(path)
        assert len([*folder.glob("*.json")]) == 2, "before any is deleted"
        durable(path)
        if is_torn:
            zero(world.folder / path, "txn.appId")  # which delta-rs does not read

    monkeypatch.setattr(world.lake.store, "make_durable", make_durable)
    if is_torn:
        with pytest.raises(LakeUnavailable, match="is not what the commits say, and was deleted"):
            log.write_checkpoint()
    else:
        log.write_checkpoint()
    assert made_durable == [f"{log.folder}/_delta_log/{1:020d}.checkpoint.parquet"]
    assert len([*folder.glob("*.json")]) == (2 if is_torn else 1)
    assert log.read() == whole


def zero(path: Path, column: str) -> None:
    """Have a disk lose the bytes of a column, as a power cut does that comes before they are written."""
    group, data = pq.read_metadata(path).row_group(0), bytearray(path.read_bytes())
    chunks = (group.column(number) for number in range(group.num_columns))
    (torn,) = (chunk for chunk in chunks if chunk.path_in_schema == column)
    start = torn.dictionary_page_offset or torn.data_page_offset
    data[start : start + torn.total_compressed_size] = bytes(torn.total_compressed_size)
    path.write_bytes(data)


def test_a_checkpoint_that_lost_any_of_its_blocks_is_replaced_by_the_next(world: SmallWorld) -> None:
    """[R-81] Also one that reads as something else, or that delta-rs, which writes the next, cannot open."""
    grow(world)
    log = raw_table_log(TOPIC, world.lake.store)
    log.write_checkpoint()
    grow(world)
    folder, whole = world.folder / log.folder / "_delta_log", log.read()
    (path,) = folder.glob("*.checkpoint.parquet")
    before, seen = {each: each.read_bytes() for each in folder.iterdir()}, dict[bool, list[int]]()
    for start in range(0, len(before[path]), BLOCK):
        path.write_bytes(without_block(before[path], start))
        seen.setdefault(log.read() == whole, []).append(start)
    assert seen.keys() == {True, False}, "the control: some read as something else, others are seen to be torn, or harmless"
    last = max(seen[True])
    for start in (*seen[False][:3], *seen[True][:: len(seen[True]) // 3], last):
        for each in folder.iterdir():
            each.unlink()
        for each, content in before.items():
            each.write_bytes(content)
            os.utime(each, (0, 0))
        path.write_bytes(without_block(before[path], start))
        if start == last:
            with pytest.raises(DeltaError, match="Parquet"):
                DeltaTable(str(folder.parent))
        log.write_checkpoint()
        assert log.read() == whole
        assert len(DeltaTable(str(folder.parent)).file_uris()) == len(whole.files)


BLOCK = 16  # bytes: a small checkpoint has no more to lose at once


def without_block(data: bytes, start: int) -> bytes:
    return data[:start] + bytes(len(data[start : start + BLOCK])) + data[start + BLOCK :]


def test_a_rotten_checkpoint_that_no_commit_replaces_is_left_to_be_restored(world: SmallWorld) -> None:
    """[R-81] It is all that there is; the control is the test above, where the commits are there."""
    grow(world)
    log = raw_table_log(TOPIC, world.lake.store)
    log.write_checkpoint()
    folder = world.folder / log.folder / "_delta_log"
    (path,) = folder.glob("*.checkpoint.parquet")
    (folder / f"{0:020d}.json").unlink()
    path.write_bytes(path.read_bytes()[:-9])
    before = {each: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(LakeUnavailable, match="the commits before it are cleaned up; nothing was written"):
        log.write_checkpoint()
    assert {each: each.read_bytes() for each in folder.iterdir()} == before


def test_a_checkpoint_writer_that_hangs_is_ended(world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] A run, or a tick, waits for it: what it was to land comes first."""
    grow(world)
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr("pipeline_defs.adapters.tables.delta_log._WRITER", hanging)
    monkeypatch.setattr("pipeline_defs.adapters.tables.delta_log.CHECKPOINT_SECONDS", 0.5)
    with pytest.raises(LakeUnavailable, match=r"timed out after 0.5 seconds"):
        raw_table_log(TOPIC, world.lake.store).write_checkpoint()


def test_a_log_whose_tags_are_not_ours_is_a_broken_table(world: SmallWorld) -> None:
    """[R-85] It is told as that, and takes no view of another topic along."""
    file = next(iter(raw_table_log(TOPIC, world.lake.store).read().files.values()))
    for tags in ({**file.tags, KEY: "\0"}, {**file.tags, REVISION: "x"}, {}, {**file.tags, REVISIONS: "[1"}):
        with pytest.raises(BrokenTable, match="no version of Offsetlake writes"):
            revision_in(replace(file, tags=tags), offsets_of(replace(file, tags=tags)))


def test_a_hint_that_says_nothing_is_passed_over(world: SmallWorld) -> None:
    """[R-81] Nor does one at a checkpoint that is not there, as a restored backup has it, make the table look empty."""
    log = raw_table_log(TOPIC, world.lake.store)
    hint = world.folder / log.folder / "_delta_log/_last_checkpoint"
    nothing = ['{"version": 1e999}', '{"version": -1e999}', "[" * 100_000, '{"version": -7}', '{"version": 7, "size": 1}']
    for text in (*nothing, '{"version": 0, "si'):
        hint.write_text(text)
        assert log.read().version == log.read_head().version == 0, text[:20]
    grow(world)
    assert world.in_table() == world.landed() and raw_table_log(TOPIC, world.lake.store).read().version == 1
    hint.write_text('{"version": 7, "size": 1}')
    with pytest.raises(Exception, match="Had a _last_checkpoint hint"):
        table_of(world)  # the fault: delta-rs reads nothing by it
    log.write_checkpoint()
    assert table_of(world).version() == 1 and json.loads(hint.read_text())["version"] == 1


def test_a_checkpoint_that_fails_is_told_and_costs_nothing(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] With the reason that delta-rs has in a process of its own; what is landed is appended all the same."""
    monkeypatch.setattr(appending, "CHECKPOINT_EVERY", 1)
    (world.folder / f"tables/raw/{TOPIC}/_delta_log/{1:020d}.checkpoint.parquet/in-the-way").mkdir(parents=True)
    said = Heard("checkpoint_failed")
    grow(world, said)
    (reason,) = (each["reason"] for each in said)
    assert re.match(r"cannot write a checkpoint of table \S+/tables/raw/\S+: .*Is a directory", reason), reason
    assert world.in_table() == world.landed()


def test_a_table_in_a_bucket_has_checkpoints_too(bucket: str, tmp_path: Path) -> None:
    """[R-81] By the variables that the lake itself is reached with."""
    store = open_store(f"{bucket}/{tmp_path.name}")
    log = DeltaLog(store, "tables/t", SCHEMA)
    for number in range(3):
        file = File(f"{number}.parquet", 1, EPOCH_MS, {"numRecords": 1})
        store.put_new(f"tables/t/{file.path}", b"x", "staging/t")
        assert log.commit(Commit([file], transactions={"n": number}), log.read(), EPOCH_MS)
        assert not log.commit(Commit(), Snapshot(), EPOCH_MS), "of two that write a version one looks again"
    whole = log.read()
    log.write_checkpoint()
    assert f"tables/t/_delta_log/{2:020d}.checkpoint.parquet" in store.list("tables/t/_delta_log")
    for version in range(3):
        store.delete(f"tables/t/_delta_log/{version:020d}.json")
    assert log.read() == whole and log.read_head().transactions == {"n": 2}


@in_each_place
def test_the_vacuum_deletes_what_no_version_of_a_week_names_and_nothing_else(world: SmallWorld) -> None:
    """[R-84] Replaced files go once nobody can read them; named ones, those that a run is about to name and others' stay."""
    world.kafka.compact(100)
    world.land("replace")
    folder = f"tables/raw/{TOPIC}"
    world.has_raw_table = False
    grow(world)
    (landed,) = [each for each in manifests(world) if each.offsets.start == 6]
    store, now_ms = world.lake.store, time.time_ns() // 1_000_000
    for name in (name_of(landed), "notes.parquet"):
        store.put_new(f"{folder}/{name}", b"x", "staging/t")
    (replaced,) = raw_table_log(TOPIC, world.lake.store).read().removed
    before = set(store.list(folder))
    assert vacuum(world.lake, EPOCH_MS + 7 * DAY_MS) == ([], []), "a reader may be at the version of a week ago"
    assert vacuum(world.lake, now_ms + 8 * DAY_MS) == ([f"{folder}/{replaced}"], [])
    assert vacuum(world.lake, now_ms + 8 * DAY_MS) == ([], [])
    assert set(store.list(folder)) == before - {f"{folder}/{replaced}"}
    assert set(world.in_table()) == {offset for offset in world.shown() if offset < 6}


def test_a_link_that_a_run_has_just_made_of_an_old_file_is_not_deleted(world: SmallWorld) -> None:
    """[R-84] The run may commit it in a moment, though a later revision is there: its age is the link's, not the file's."""
    world.kafka.compact(100)
    world.has_raw_table = False
    world.land("replace")
    folder = world.folder / f"tables/raw/{TOPIC}"
    names = [name_of(replace(each, revision=0)) for each in manifests(world) if each.revision]
    assert len(names) == 1
    now_ms = time.time_ns() // 1_000_000
    log = raw_table_log(TOPIC, world.lake.store)
    log.commit(Commit(removes={names[0]: 1}), log.read(), 1)
    late = folder / names[0].replace(".parquet", ".1.parquet")
    late.hardlink_to(folder / names[0])
    os.utime(late, (0, 0))
    assert find_unnamed(TOPIC, world.lake, now_ms) == [f"tables/raw/{TOPIC}/{names[0]}"], "which a commit removed long ago"
    assert f"tables/raw/{TOPIC}/{late.name}" in find_unnamed(TOPIC, world.lake, now_ms, -1)


def test_a_table_that_cannot_be_read_keeps_no_other_from_its_vacuum(world: SmallWorld) -> None:
    """[R-84] Its folder stays as it is, and the job is red."""
    torn = world.folder / "tables/raw/another/_delta_log" / f"{0:020d}.json"
    torn.parent.mkdir(parents=True)
    torn.write_text("{")
    world.kafka.compact(100)
    world.land("replace")
    now_ms = time.time_ns() // 1_000_000
    assert may_have_leftovers(world.lake, now_ms), "the job is to tell of it"
    deleted, (error,) = vacuum(world.lake, now_ms + 8 * DAY_MS)
    assert len(deleted) == 1 and error.kind == "broken_table"


def grow(world: SmallWorld, on_step: StepWatcher = no_step) -> None:
    """Land three records more."""
    world.grow(3)
    world.land(on_step=on_step)


def manifests(world: SmallWorld) -> list[Manifest]:
    return [manifest for _, manifest in sorted(world.coverage.manifests.items())]


def files(world: SmallWorld) -> list[Path]:
    return [Path(uri) for uri in table_of(world).file_uris()]
