"""Compaction, dropping and vacuum with a real Spark: right at every version, whoever is killed, replaces or compacts meanwhile.

What a view and a snapshot show is held against what the producer sent; what the plain glob shows changes by dropping alone.
"""

import dataclasses
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.cli.terminal import Shown
from pipeline_defs.cli.work.read import run_audit
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import CompactionFailed, Refused
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.core.tables.raw_table import is_compacted, is_compacted_name
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.orchestration.upkeep.housekeeping import COMPACT
from pipeline_defs.tables.deleting import drop_range_files, plan_dropping, vacuum
from tests.support.commands import Run, commands_of
from tests.support.decoded import DecodedTopic, numbered
from tests.support.killing import ALL_SECONDS, everywhere, stopped_at
from tests.support.pulse import location_of, requests_of, run_job
from tests.support.world import World, sent_rows, shown_rows

PER_RANGE = 50
NOISE = random.Random(0).randbytes  # does not compress: what is produced is about what a file weighs


def fill(world: World, ranges: int, *, landed: int | None = None, with_aborted: bool = False) -> None:
    """Have ranges of 50 records and about 26 KB landed, all or the first few; the target is four times that.

    The first may hold an aborted record, which a reader of committed ones will not see, so that a replace changes it.
    """
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=PER_RANGE, target_file_bytes=90_000)
    if with_aborted:
        world.with_policy(isolation_level="read_uncommitted")
        world.send_aborted(partition=0, key=b"never", value=b"aborted")
    world.send({"partition": 0, "key": b"k%d" % n, "value": NOISE(500)} for n in range(ranges * PER_RANGE))
    world.plan()
    world.land([offsets.key for offsets in world.pending[:landed]])
    world.with_policy(isolation_level="read_committed")


def table_folder(world: World) -> Path:
    return world.lake_folder / table_path(world)


def table_path(world: World) -> str:
    return raw_table_log(world.name, world.adapters.lake.store).folder


def table_names(world: World) -> set[str]:
    """Return the names of the files in the table's folder, whether a version names them or not."""
    paths = world.adapters.lake.store.list(table_path(world))
    return {path.rsplit("/", 1)[-1] for path in paths if path.endswith(".parquet")}


def snapshot(world: World, version: int | None = None) -> list[int]:
    rows = world.table("raw", version).to_pyarrow_table(columns=["offset"])
    return sorted(rows.column("offset").to_pylist())


def compacted_files(world: World) -> list[Path]:
    table = raw_table_log(world.name, world.adapters.lake.store).read()
    return sorted(table_folder(world) / file.path for file in table.files.values() if is_compacted(file))


def assert_all_is_well(world: World) -> None:
    world.assert_proven()
    assert check_table(world.name, Lake(world.settings.lake)).violations == ()


@pytest.fixture(autouse=True)
def raw_table(world: World) -> None:
    world.keep_raw_table()


@pytest.fixture
def commands(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = commands_of("work.compact", world, monkeypatch)
    return lambda *arguments: run("compact", world.name, *arguments)


def test_small_files_become_few_large_ones(world: World) -> None:
    """[R-61] [R-62] The newest, which weigh too little, wait unless asked for; each version has all rows; `data/` stays."""
    fill(world, 10)
    before, target = world.files("data"), world.topic.policy.target_file_bytes
    verdicts = world.compact(every=False)
    assert [(v.outcome, v.group.offsets.key) for v in verdicts] == [
        (CompactionOutcome.COMPACTED, "0-0-200"),
        (CompactionOutcome.COMPACTED, "0-200-400"),
    ]
    assert shown_rows(world) == sent_rows(world)
    names = [path.name for path in sorted(compacted_files(world)) for _ in range(4)]
    _, rows = Duck(Lake(world.settings.lake), [world.name]).query(
        "SELECT parse_filename(compacted_file) FROM ranges ORDER BY start"
    )
    assert [name for (name,) in rows] == [*names, None, None]
    found = trace_row(world.topic, 0, 60, world.adapters)
    assert (found["range"], Path(found["compacted_file"]).name, found["row"]["offset"]) == ("0-50-100", names[0], 60)
    assert "sha256" in found, "of its own file, which is not dropped"
    assert world.compact(every=False) == [], "what is compacted is compacted"
    assert [v.group.offsets.key for v in world.compact()] == ["0-400-500"]
    files = compacted_files(world)
    assert len(files) == 3 <= -(-sum(map(len, before.values())) // target) + 1
    assert statistics.median(path.stat().st_size for path in files) >= target / 2
    assert world.files("data") == before and shown_rows(world) == sent_rows(world)
    world.assert_all_landed_once()
    columns = [(field.name, field.type) for field in pq.read_schema(next(iter(before)))]
    assert all([(field.name, field.type) for field in pq.read_schema(path)] == columns for path in files)
    newest = world.table("raw").version()
    assert {len(snapshot(world, version)) for version in range(newest + 1)} == {500}
    assert snapshot(world) == [*range(500)]
    assert_all_is_well(world)
    assert not list((world.lake_folder / "staging").iterdir())


STEPS: dict[str, Callable[[int, int], bool]] = {
    # step -> what is so of two files that are written side by side when the process dies there: how many of them a version
    # names, and how many are in the table's folder and none names them
    "compaction_planned": lambda named, left: named + left == 0,
    "compaction_read": lambda named, left: named + left <= 1,
    "compaction_staged": lambda named, left: named + left <= 1,
    "compaction_verified": lambda named, left: named + left <= 1,
    "compaction_named": lambda named, left: left >= 1,
    "compaction_committed": lambda named, left: named >= 1,
}
QUICK = [("disk", "compaction_named"), ("disk", "compaction_committed"), ("bucket", "compaction_named")]


@pytest.mark.parametrize(("placed", "step"), everywhere(STEPS, QUICK), indirect=["placed"])
def test_compaction_killed_at_any_step_leaves_each_row_once(placed: World, step: str) -> None:
    """[R-62] SIGKILL: at it and after it a view and the newest version have each row once; the next compacts what is left."""
    world = placed
    fill(world, 6)
    with stopped_at(world, "compact", step):
        assert shown_rows(world) == sent_rows(world) and snapshot(world) == [*range(300)]
        named = {path.name for path in compacted_files(world)}
        left = {name for name in table_names(world) if is_compacted_name(name)} - named
        assert STEPS[step](len(named), len(left)), "the fault: it is in the middle"
    assert {verdict.outcome for verdict in world.compact()} <= {CompactionOutcome.COMPACTED}
    assert len(compacted_files(world)) == 2 and world.compact() == []
    vacuum(world.adapters.lake, world.adapters.now_ms(), ALL_SECONDS)
    assert table_names(world) == {path.name for path in compacted_files(world)}
    assert shown_rows(world) == sent_rows(world) and snapshot(world) == [*range(300)]
    assert_all_is_well(world)


@pytest.mark.parametrize(
    ("placed", "step"), everywhere(["link_to_table", "append"], [("disk", "link_to_table")]), indirect=["placed"]
)
def test_cutting_killed_at_any_step_leaves_each_row_once(placed: World, step: str) -> None:
    """[R-63] SIGKILL: a view has the replaced range's new rows already, the table has the old ones or the new ones."""
    world = placed
    fill(world, 4, with_aborted=True)
    world.compact()
    old, new = snapshot(world), [offset for _, offset, *_ in sent_rows(world)]
    assert len(old) == len(new) + 1
    with stopped_at(world, "replace", step):
        assert snapshot(world) == (old if step == "link_to_table" else new), "the fault: it is in the middle"
        assert shown_rows(world) == sent_rows(world)
    append_landed(world.name, world.adapters.lake, world.adapters.now_ms)
    assert snapshot(world) == new and shown_rows(world) == sent_rows(world)
    assert_all_is_well(world)


@pytest.mark.parametrize(
    ("placed", "step"),
    everywhere(["drop_marked", "range_file_dropped"], [("disk", "drop_marked"), ("bucket", "range_file_dropped")]),
    indirect=["placed"],
)
def test_dropping_killed_at_any_step_is_finished_by_the_next(placed: World, step: str) -> None:
    """[R-72] [R-73] SIGKILL: a view shows each row once; then the rest is dropped, read again from Kafka, and decoded."""
    world = placed
    fill(world, 4)
    world.compact()
    with stopped_at(world, "drop", step):
        assert shown_rows(world) == sent_rows(world) and not world.pending
    there = len(world.adapters.lake.store.list("data"))
    assert there == (4 if step == "drop_marked" else 3), "the fault: it is in the middle"
    assert shown_rows(world) == sent_rows(world)
    assert drop(world) == [None] * there
    assert world.adapters.lake.store.list("data") == {} and shown_rows(world) == sent_rows(world)
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    assert {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    found = trace_row(world.topic, 0, 60, world.adapters)
    assert found["row"]["offset"] == 60 and "sha256" not in found, "the table's file, which has another one"
    world.topic = dataclasses.replace(world.topic, decode=Decode(Side(Format.STRING), Side(Format.NONE)))
    assert sum(verdict.decoding.rows for verdict in world.decode() if verdict.decoding) == 4 * PER_RANGE
    assert_all_is_well(world)


def drop(world: World) -> list[str | None]:
    plans = plan_dropping(world.name, world.adapters.lake, world.adapters.now_ms() + 1, 0)
    return [verdict.reason for verdict in drop_range_files(world.name, world.adapters.lake, plans, 0)]


def test_the_command_and_the_job_compact(world: World, commands: Run) -> None:
    """[R-61] [R-65] [R-72] `offsetlake compact` shows first, then does; `compact_tables` runs by itself where it is due."""
    fill(world, 8, landed=5)
    assert "would compact 4 files" in commands().stdout and not compacted_files(world)
    (file,) = json.loads(commands("--json", "--apply").stdout)["files"]
    assert (file["key"], file["outcome"], file["files"], file["rows"]) == ("0-0-200", "compacted", 4, 200)
    assert file["bytes_after"] < file["bytes_before"]
    assert "compacted 0 files" in commands("--apply").stdout

    world.land()
    schedule = location_of(world).resolve_schedule_def(f"{COMPACT}_schedule")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert len(requests_of(world, COMPACT)) == 1
    assert run_job(world, COMPACT).success and len(compacted_files(world)) == 2
    assert requests_of(world, COMPACT) == []
    assert "is no age" in commands("--drop-range-files-after", "soon").output
    assert "would drop 0 range files" in commands("--drop-range-files-after", "30d").stdout
    assert "would drop 8 range files" in commands("--drop-range-files-after", "0d").stdout
    assert len(world.files("data")) == 8
    assert "shows their rows no more" in commands("--drop-range-files-after", "0d", "--apply").stdout.replace("\n", " ")
    assert world.files("data") == {} and shown_rows(world) == sent_rows(world)


def test_what_cannot_be_compacted_is_said(world: World, commands: Run) -> None:
    """[R-61] A file of the table that was changed, by name; and that a lake has no table."""
    fill(world, 4)
    damaged = next(table_folder(world).glob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"x" + damaged.read_bytes()[-8:])
    done = commands("--apply")
    assert isinstance(done.exception, CompactionFailed) and damaged.name in str(done.exception)
    object.__setattr__(world.adapters.settings, "has_raw_table", False)
    done = commands()
    assert isinstance(done.exception, Refused) and "OFFSETLAKE_RAW_TABLE is off" in str(done.exception)
    found = {each.check: each for each in run_audit(world.topic, world.adapters, "none", "1", Shown("", None))}
    assert "the raw table stays at version" in found["raw_table"].violations[0], "it is there, and nobody appends to it"


DELETES = 6  # four range files that were compacted, one of a range that was decoded again, one of the latest table


def parquet_files(world: World) -> set[str]:
    """Return the Parquet files of all tables, below the lake's root."""
    return {path for path in Lake(world.settings.lake).store.list("tables") if path.endswith(".parquet")}


def tables(world: World) -> Sequence[DeltaTable]:
    return world.table("raw"), world.table("decoded"), world.table("latest")


def named_files(world: World) -> set[str]:
    """Return those that their tables name now."""
    root = world.adapters.lake.store.url("")
    return {uri.removeprefix(root) for table in tables(world) for uri in table.file_uris()}


def read_all(world: World) -> Sequence[list[int]]:
    return [sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist()) for table in tables(world)]


@pytest.fixture
def littered(placed: World) -> World:
    """A topic with three tables, in each of which files are left that no version has any more."""
    world = placed
    world.with_policy(records_per_range=25)
    world.fill(100)
    world.plan_and_land()
    assert world.compact()
    world.topic = dataclasses.replace(world.topic, decode=Decode(), latest=Latest())
    topic = DecodedTopic(world.adapters.lake, world.name, pa.string())
    for revision in range(2):
        topic.put(OffsetRange(0, 0, 0, 25), numbered(OffsetRange(0, 0, 0, 25), "abc", revision), revision)
        world.update_latest()
    return world


@pytest.mark.parametrize(
    ("placed", "nth"), everywhere([1, 3, 5, DELETES], [("disk", 3), ("bucket", DELETES)]), indirect=["placed"]
)
def test_a_vacuum_killed_between_two_deletes_has_deleted_nothing_that_a_table_names(littered: World, nth: int) -> None:
    """[R-84] Each table reads as before, while it is killed and after it."""
    world = littered
    before, named, rows = parquet_files(world), named_files(world), read_all(world)
    assert len(before - named) == DELETES and rows == [[*range(100)], [0, 1, 2], [0, 1, 2]]
    with stopped_at(world, "vacuum", "vacuum", nth):
        assert len(before - parquet_files(world)) == nth - 1, "the fault: it is in the middle"
        assert named <= parquet_files(world) and read_all(world) == rows
    deleted, errors = vacuum(Lake(world.settings.lake), world.adapters.now_ms(), ALL_SECONDS)
    assert (len(deleted), errors) == (DELETES - nth + 1, [])
    assert parquet_files(world) == named and read_all(world) == rows
