"""A raw table on a bad day, over real files without Spark: rotten, torn and missing files, a full disk, other clocks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from pipeline_defs.adapters.lake.disk_store import DiskStore
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.adapters.tables.latest_table import LatestTable
from pipeline_defs.cli.work import compact as command
from pipeline_defs.core.errors import DamagedFile, LakeUnavailable, RangeFilesKept, TableFileGone
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.steps import no_step
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.raw_table import compacted_name
from pipeline_defs.landing import staging_places
from pipeline_defs.landing.auditing import check_published, check_table
from pipeline_defs.landing.raw_table import append_landed
from pipeline_defs.landing.standing import Digests, landed_files
from pipeline_defs.tables.dropping import DropVerdict, drop_range_files, plan_dropping
from pipeline_defs.tables.vacuum import find_unnamed, is_vacuum_due, vacuum
from tests.support.dropped import (
    R,
    another,
    compacted,
    damage,
    drop,
    dropped,
    land,
    planned,
    replace_by_nothing,
    root,
    run_compact,
    shown,
    view,
)
from tests.support.interleaving import Dead, SmallWorld, watch_obstore
from tests.support.strategies import EPOCH_MS, TOPIC

DAY_MS = 24 * 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Is a lake with six planned ranges."""
    return planned(tmp_path)


def append(lake: Lake) -> int:
    return append_landed(TOPIC, another(lake), lambda: EPOCH_MS)


def rot(path: Path) -> None:
    """Puts a whole Parquet file with other rows in its place."""
    rows = pq.read_table(path)
    others = pa.array([b"rotten"] * rows.num_rows, pa.binary())
    pq.write_table(rows.set_column(rows.schema.get_field_index("value"), "value", others), path)


@pytest.mark.parametrize("spoil", [rot, damage, Path.unlink])
def test_a_compacted_file_that_is_not_as_the_log_says_is_never_cut(lake: Lake, spoil: Callable[[Path], None]) -> None:
    """[R-63] Its rows would get a new name and a new digest; it stays as it is and is named, and the others are appended."""
    _, path = compacted(lake)
    content = path.read_bytes()
    spoil(path)
    land(lake, R[1], 1, b"w")
    land(lake, R[3])
    for _ in range(2):
        with pytest.raises(DamagedFile, match="the next run makes the table anew") as error:
            append(lake)
        (said,) = error.value.violations
        assert str(path) in said and "expected" in said
        table = raw_table_log(TOPIC, lake.store).read()
        assert (table.version, {file.rows for file in table.files.values()}) == (2, {30, 10}), "the others, once"
    land(lake, R[4])
    with pytest.raises(DamagedFile):
        run_compact(another(lake))
    assert len(raw_table_log(TOPIC, lake.store).read().files) == 2, "the others are compacted too"
    path.write_bytes(content)
    append(lake)
    assert check_table(TOPIC, another(lake)).violations == () and view(lake) == [*range(50)]


@pytest.mark.parametrize(("module", "name"), [(pq, "write_table"), (staging_places, "canonicalize")])
def test_a_disk_that_is_full_while_a_file_is_cut_is_said(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    """[R-63] As anywhere: with the place, and that the next run goes on; the table stays as it was."""
    compacted(lake)
    land(lake, R[1], 1, b"w")
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(module, name, full)
        with pytest.raises(LakeUnavailable, match=r"No space left .* make room on that disk"):
            append(lake)
    append(lake)
    assert check_table(TOPIC, another(lake)).violations == ()


def test_a_file_that_goes_away_before_it_is_compacted_is_one_clear_sentence(lake: Lake) -> None:
    """[R-61] With its path and what to do; the other group is compacted."""
    for offsets in R[:2]:
        land(lake, offsets)
    append(lake)
    name = next(iter(raw_table_log(TOPIC, lake.store).read().files))
    path = Path(lake.store.url(f"tables/raw/{TOPIC}/{name}"))
    path.unlink()
    (verdict,) = run_compact(lake)
    assert verdict.outcome is CompactionOutcome.FAILED
    (said,) = verdict.violations
    assert f"{path} is not there" in said and f"offsetlake audit {TOPIC}" in said and "Errno" not in said


def test_rows_that_stand_again_under_a_later_revision_are_dropped_again(lake: Lake) -> None:
    """[R-72] The compacted file has the very bytes of the one before: what was said of that is not said of this revision."""
    _, path = dropped(lake)
    bytes_before = path.read_bytes()
    land(lake, R[1], 1)
    append(lake)
    (verdict,) = run_compact(lake)
    assert verdict.file is not None
    assert (path.parent / verdict.file.path).read_bytes() == bytes_before, "the control: equal bytes"
    assert another(lake).coverage(TOPIC).dropped() == dict.fromkeys(R[:3], 0)
    assert drop(lake) == [DropVerdict(R[1])]
    coverage = another(lake).coverage(TOPIC)
    assert coverage.dropped() == {R[0]: 0, R[1]: 1, R[2]: 0} and coverage.is_landed(R[1]) and view(lake) == [*range(30)]


def test_a_range_without_rows_is_not_dropped(lake: Lake) -> None:
    """[R-72] Its file of no rows stays in `data/`: the table has none of it, and is not asked for it."""
    manifests, _ = compacted(lake)
    replace_by_nothing(lake, manifests[1])
    append(lake)
    run_compact(lake)
    assert drop(lake) == [DropVerdict(R[0]), DropVerdict(R[2])] and drop(another(lake)) == []
    assert shown(lake) == ["10"] and view(lake) == [*range(10), *range(20, 30)]
    newest = another(lake).newest(manifests[1])
    newest = another(lake).commit_manifest(newest.dropped(EPOCH_MS))
    another(lake).delete_given_up(newest)
    assert shown(lake) == [] and check_published(TOPIC, another(lake)).violations == (), "as somebody else has dropped it"
    assert view(lake) == [*range(10), *range(20, 30)]
    with landed_files([newest], another(lake)) as files:
        assert pq.read_table(files[R[1]].path).num_rows == 0


@pytest.mark.parametrize("cure", ["replace", "drop"])
def test_a_range_file_that_rots_between_its_mark_and_its_end_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cure: str
) -> None:
    """[R-73] By what the audit advises, or by the drop's end: the table has the rows."""
    watch_obstore(monkeypatch)
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    world.has_raw_table = True
    world.land()
    world.compact()

    def die(step: str, **_: object) -> None:
        if step == "drop_marked":
            raise Dead

    with pytest.raises(Dead):
        world.drop(on_step=die)
    (path, _) = sorted((tmp_path / "data").rglob("*.parquet"))
    damage(path)
    assert {each.outcome for each in world.land("redo")} == {Outcome.FAILED, Outcome.UNCHANGED}
    assert len(check_published(TOPIC, world.lake).violations) == 1
    if cure == "replace":
        world.land("replace")
    else:
        world.drop()
    assert check_published(TOPIC, world.lake).violations == ()
    assert world.standing() == dict.fromkeys(range(6), 1)
    world.drop()
    assert world.shown() == {} and world.standing() == dict.fromkeys(range(6), 1)


def test_a_file_that_is_gone_before_its_commit_is_in_no_version(lake: Lake) -> None:
    """[R-81] A vacuum, or a power cut, took it away: of a compaction, and of what is left of a file that was cut."""

    def lose(step: str, **_: object) -> None:
        if step in {"compaction_named", "link_to_table"}:
            for path in (root(lake) / log.folder).glob("*.c-*"):
                if path.name not in log.read().files:
                    path.unlink()

    log = raw_table_log(TOPIC, lake.store)
    for offsets in R[:3]:
        land(lake, offsets)
    append(lake)
    before = log.read()
    (verdict,) = run_compact(lake, lose)
    assert verdict.outcome is CompactionOutcome.FAILED and "is not there any more" in verdict.violations[0]
    assert log.read() == before
    run_compact(lake)
    before = log.read()
    land(lake, R[1], 1, b"w")
    with pytest.raises(LakeUnavailable, match="is not there any more"):
        append_landed(TOPIC, another(lake), lambda: EPOCH_MS, on_step=lose)
    assert log.read() == before
    append(lake)
    assert check_table(TOPIC, another(lake)).violations == () and view(lake) == [*range(30)]


def test_the_vacuum_deletes_nothing_of_a_table_that_misses_a_file(lake: Lake) -> None:
    """[R-84] What is left of an earlier version may be all that there is of some rows."""
    _, path = compacted(lake)
    small = sorted((root(lake) / "tables").rglob("*.r000.parquet"))
    content = path.read_bytes()
    path.unlink()
    deleted, (error,) = vacuum(lake, EPOCH_MS + 8 * DAY_MS)
    assert (
        deleted == []
        and error.kind == "damaged_file"
        and f"{path} is not there; nothing of the table was deleted" in str(error)
    )
    assert is_vacuum_due(lake, EPOCH_MS + 8 * DAY_MS), "so that somebody is told"
    path.write_bytes(content)
    assert len(vacuum(lake, EPOCH_MS + 8 * DAY_MS)[0]) == len(small) == 3, "the control"


def test_of_a_latest_table_what_no_version_has_goes_after_a_week(tmp_path: Path) -> None:
    """[R-84] A MERGE that died leaves such a file. That delta-rs cannot open a lake is told, and ends no other table."""
    folder = tmp_path / "lake" / "tables" / "latest" / "orders"
    write_deltalake(str(folder), pa.table({"key": ["a"], "_deleted": [False]}))
    shutil.copytree(tmp_path / "lake", tmp_path / "lake[1]")
    old, new = folder / "part-old.parquet", folder / "part-new.parquet"
    for path in (old, new):
        path.write_bytes(b"of nobody")
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (week_ago, week_ago))
    assert vacuum(Lake(str(tmp_path / "lake")), EPOCH_MS) == (["tables/latest/orders/part-old.parquet"], [])
    assert not old.exists() and new.exists()
    deleted, (error,) = vacuum(Lake(str(tmp_path / "lake[1]")), EPOCH_MS)
    assert deleted == [] and "cannot be opened by delta-rs" in str(error)


@pytest.mark.parametrize("skew_days", [-30, 30])
def test_an_unnamed_file_ages_by_the_clock_that_dated_it(lake: Lake, monkeypatch: pytest.MonkeyPatch, skew_days: int) -> None:
    """[R-84] The file system's: it may run behind this machine, so that a file of a moment ago looks a month old."""
    compacted(lake)
    name = compacted_name(R[3], "7c1b")
    unnamed = f"{raw_table_log(TOPIC, lake.store).folder}/{name}"
    lake.store.put_new(unnamed, b"x", "staging/t")
    linked_at_ms, now_ms = lake.store.linked_at_ms, time.time_ns() // 1_000_000

    def by_another_clock(path: str, days: int = skew_days) -> int | None:
        at_ms = linked_at_ms(path)
        return None if at_ms is None else at_ms + days * DAY_MS

    monkeypatch.setattr(lake.store, "linked_at_ms", by_another_clock)
    assert unnamed not in find_unnamed(TOPIC, lake, now_ms)
    aged = lambda path: by_another_clock(path, skew_days - 8 * (path == unnamed))  # noqa: E731
    monkeypatch.setattr(lake.store, "linked_at_ms", aged)
    assert unnamed in find_unnamed(TOPIC, lake, now_ms), "the control: a week later"
    assert lake.store.list("staging/clock") == {}


def test_what_is_compacted_again_while_digests_are_read_is_looked_up_again(lake: Lake) -> None:
    """[R-74] The file that had the rows a moment ago may be gone by now: no backup is needed."""
    first, _ = dropped(lake)
    (later, _) = [land(lake, offsets) for offsets in R[4:]]
    run_compact(lake)
    drop(lake)
    digests = Digests(another(lake))
    assert digests.of(later) == later.digest
    land(lake, R[3])
    run_compact(lake)
    assert vacuum(lake, EPOCH_MS + 8 * DAY_MS)[1] == []
    assert [digests.of(each) for each in first] == [each.digest for each in first]
    (path,) = (root(lake) / "tables").rglob("*.c-*")
    path.unlink()
    with pytest.raises(TableFileGone):
        Digests(another(lake)).of(later)


def test_a_range_that_is_replaced_while_it_is_audited_is_for_the_next_audit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-74] And compacted, and dropped: the table has none of the revision that the audit has read of, and needs none."""
    dropped(lake)
    other = another(lake)
    read = other.coverage

    def replaced(topic: str) -> Coverage:
        found = read(topic)
        land(lake, R[1], 1, b"w")
        run_compact(lake)
        assert drop(lake) == [DropVerdict(R[1])]
        return found

    monkeypatch.setattr(other, "coverage", replaced)
    assert check_published(TOPIC, other).violations == ()


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_dry_run_says_of_dropping_what_a_real_run_says(lake: Lake, *, is_dry: bool) -> None:
    """[R-72] What a real run keeps, with the reason, is not counted; and a dry one writes nothing."""
    _, path = compacted(lake)
    for offsets in R[4:]:
        land(lake, offsets)
    run_compact(lake)
    damage(path)
    verdicts = list(drop_range_files(TOPIC, lake, plan_dropping(TOPIC, lake, 2**53, 0), EPOCH_MS, dry_run=is_dry))
    assert [each.offsets for each in verdicts if each.reason] == R[:3]
    assert [each.offsets for each in verdicts if not each.reason] == R[4:]
    assert shown(lake) == (["0", "10", "20", "40", "50"] if is_dry else ["0", "10", "20"])
    assert [*another(lake).coverage(TOPIC).dropped()] == ([] if is_dry else R[4:])


def test_the_command_counts_what_would_be_dropped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-72] Without --apply, and it ends as the real one would."""
    _, path = compacted(lake)
    for offsets in R[4:]:
        land(lake, offsets)
    run_compact(lake)
    damage(path)
    policy = SimpleNamespace(target_file_bytes=10**9)
    edges = SimpleNamespace(
        lake=another(lake),
        decodings=Decodings(another(lake)),
        now_ms=lambda: 2**53,
        watch_step=no_step,
        settings=SimpleNamespace(has_raw_table=True),
    )
    monkeypatch.setattr(command, "find_topic", lambda name: SimpleNamespace(name=name, policy=policy, decode=None))
    monkeypatch.setattr(command, "open_edges", lambda: edges)
    found = CliRunner().invoke(command.compact, [TOPIC, "--drop-range-files-after", "0d"])
    assert "would drop 2 range files" in found.stdout and "would show their rows no more" in found.stdout
    assert isinstance(found.exception, RangeFilesKept) and "3 of 5 range files" in str(found.exception)
    assert shown(lake) == ["0", "10", "20", "40", "50"] and not another(lake).coverage(TOPIC).dropped()
    edges.now_ms = lambda: EPOCH_MS
    nothing = CliRunner().invoke(command.compact, [TOPIC, "--drop-range-files-after", "30d"])
    assert "would drop 0 range files" in nothing.stdout and "rows no more" not in nothing.stdout


def test_a_range_file_that_somebody_deleted_is_read_in_the_table(lake: Lake) -> None:
    """[R-62] What the table has was published: that its file in `data/` is gone takes no row out of a view."""
    land(lake, R[0])
    land(lake, R[1])
    append(lake)
    assert isinstance(lake.store, DiskStore)
    deleted = min(lake.store.folder.joinpath("data").rglob("*.parquet"))
    deleted.unlink()
    coverage = another(lake).coverage(TOPIC)
    assert sum(map(coverage.is_landed, coverage.manifests)) == 1, "the control: it counts as landed no more"
    assert view(lake) == [*range(20)]


def test_a_view_is_of_the_moment_when_it_is_opened(lake: Lake) -> None:
    """[R-62] Also where the table is empty yet: what is landed or appended later is not in it."""
    land(lake, R[0])
    duck = Duck(another(lake), [TOPIC])
    land(lake, R[1])
    append(lake)
    assert duck.query(f'SELECT count(*) FROM "{TOPIC}"')[1] == [(10,)]
    assert view(lake) == [*range(20)], "the control: another one"


def test_a_latest_table_that_cannot_be_read_now_is_not_called_damaged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-88] Else the next update would delete a good one: a store that does not answer says nothing of what is there."""
    table = LatestTable(lake, TOPIC)
    table.start(pa.schema([("key", pa.string())]), anew=False)
    real = deltalake.DeltaTable
    monkeypatch.setattr(deltalake, "DeltaTable", Mock(side_effect=OSError("connection refused")))
    with pytest.raises(LakeUnavailable, match=r"cannot read the table .*connection refused; nothing was written"):
        table.read()
    monkeypatch.setattr(deltalake, "DeltaTable", real)
    standing = table.read()
    assert standing is not None and not standing.damage, "the control"
    silent = Mock(table_uri="file:///lake", transaction_version=Mock(side_effect=DeltaError("connection refused")))
    with pytest.raises(LakeUnavailable, match=r"cannot read the table file:///lake: connection refused; nothing was"):
        replace(standing, table=silent).applied("some-id")
    assert standing.applied("some-id") is None, "the control"


def test_what_a_foreign_or_torn_commit_took_out_is_appended_again(lake: Lake) -> None:
    """Such a commit repeats no app transactions; those before it say what was in the table then."""
    for offsets in R[:4]:
        land(lake, offsets)
    append(lake)
    log = raw_table_log(TOPIC, lake.store)
    before = log.read()
    path = next(iter(before.files))
    remove = {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}
    entry = Path(lake.store.url(f"{log.folder}/_delta_log/{before.version + 1:020d}.json"))
    entry.write_text(json.dumps(remove) + "\n")
    assert len(raw_table_log(TOPIC, lake.store).read().files) == 3, "the fault"
    append(lake)
    assert sum(file.rows for file in raw_table_log(TOPIC, lake.store).read().files.values()) == 40
    assert check_table(TOPIC, another(lake)).violations == ()
    version = raw_table_log(TOPIC, lake.store).read().version
    append(lake)
    assert raw_table_log(TOPIC, lake.store).read().version == version, "once"
