"""A raw table over real files without Spark: what finds rows of dropped files, and what is said on a bad day."""

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import DeltaError
from fsspec import AbstractFileSystem

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path, published_path
from pipeline_defs.adapters.tables import duck as duck_module
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.adapters.tables.latest_table import LatestTable
from pipeline_defs.cli.work import compact as command
from pipeline_defs.core import errors
from pipeline_defs.core.errors import BrokenPlanLog, DamagedFile, LakeUnavailable, Refused, TableFileGone
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.plan_step import LogState
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import MANY_FILES, CompactionOutcome, CompactionVerdict, RawGroup, find_groups
from pipeline_defs.core.tables.delta import Commit, Snapshot, apply
from pipeline_defs.core.tables.raw_table import compacted_name, file_of, find_due_by_files, name_of
from pipeline_defs.landing import staging_places
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.landing.attempt import Attempt, Work
from pipeline_defs.landing.auditing import check_published, check_table
from pipeline_defs.landing.landed_files import Digests, landed_files, why_changed
from pipeline_defs.landing.redo import verify_expired
from pipeline_defs.tables import deleting
from pipeline_defs.tables.deleting import DropVerdict, find_unnamed, may_have_leftovers, plan_dropping, vacuum
from tests.support.interleaving import SmallWorld, Writer, beside
from tests.support.lakes import again, damage, planned_lake
from tests.support.redecoding import Killed, compact_raw, drop_range_files, land_rows, stop_at
from tests.support.strategies import EPOCH_MS, TOPIC, World, landed

DAY_MS = 24 * 3_600_000
R = [OffsetRange(0, 0, start, start + 10) for start in range(0, 60, 10)]


def land(lake: Lake, offsets: OffsetRange, revision: int = 0, value: bytes = b"v") -> Manifest:
    return land_rows(lake, offsets, [value] * len(offsets), revision)


def land_each(lake: Lake, ranges: Iterable[OffsetRange]) -> list[Manifest]:
    return [land(lake, offsets) for offsets in ranges]


def view(lake: Lake) -> list[int]:
    """Return the offsets that a view shows that is opened now."""
    return [offset for (offset,) in Duck(again(lake), [TOPIC]).query(f'SELECT "offset" FROM "{TOPIC}" ORDER BY ALL')[1]]


def root(lake: Lake) -> Path:
    return Path(lake.store.root)


def compacted(lake: Lake) -> tuple[list[Manifest], Path]:
    """Land the first ranges and compact them to one file; return where that is, too."""
    manifests = land_each(lake, R[:3])
    (verdict,) = compact_raw(lake)
    assert verdict.outcome is CompactionOutcome.COMPACTED and verdict.file is not None
    return manifests, root(lake) / raw_table_log(TOPIC, lake.store).folder / verdict.file.path


def dropped(lake: Lake) -> tuple[list[Manifest], Path]:
    """Land, compact and drop the first ranges."""
    manifests, path = compacted(lake)
    assert drop_range_files(lake) == [DropVerdict(offsets) for offsets in R[:3]]
    return manifests, path


def shown(lake: Lake) -> list[str]:
    """Return the names of what a plain glob finds."""
    return sorted(path.name.split("-")[0].lstrip("0") or "0" for path in (root(lake) / "data").rglob("*.parquet"))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with planned ranges, in a folder whose name looks like a partition's."""
    return planned_lake(tmp_path / "env=prod", 60)


def test_what_is_dropped_is_landed_and_read_in_the_table(lake: Lake) -> None:
    """[R-72] No gap, nothing to land again; a glob shows what was not dropped, and a range says which file has its rows.

    What was staged for a file goes with it, and nothing is left in staging.
    """
    manifests, _ = compacted(lake)
    assert all(lake.store.exists(each.file.path) for each in manifests if each.file), "the control"
    before = {*(root(lake) / "staging").iterdir()}
    assert drop_range_files(lake) == [DropVerdict(offsets) for offsets in R[:3]]
    assert {*(root(lake) / "staging").iterdir()} <= before
    assert not any(lake.store.exists(each.file.path) for each in manifests if each.file)
    land(lake, R[3])
    append(lake)
    other = again(lake)
    assert shown(lake) == ["30"] and other.coverage(TOPIC).pending() == R[4:]
    _, rows = Duck(other, [TOPIC]).query("SELECT key, file = compacted_file FROM ranges WHERE state = 'landed' ORDER BY start")
    assert rows == [("0-0-10", True), ("0-10-20", True), ("0-20-30", True), ("0-30-40", None)]
    assert drop_range_files(lake) == [], "once"


@pytest.mark.parametrize("days", [0, 40])
def test_only_what_was_landed_and_compacted_whole_long_ago_is_dropped(lake: Lake, days: int) -> None:
    """[R-72] Not what is younger than asked for, not what is not compacted, not what has a second file.

    However old its ranges are: who opened a view before they were compacted still reads the range files.
    """
    manifests = land_each(lake, R[:3])
    at = manifests[0].provenance.landed_at_ms + days * DAY_MS
    compact_raw(lake, at_ms=at)
    land(lake, R[3])
    assert plan_dropping(TOPIC, lake, at + 30 * DAY_MS - 1, 30 * 86_400) == []
    (found,) = plan_dropping(TOPIC, lake, at + 30 * DAY_MS, 30 * 86_400)
    assert [manifest.offsets for manifest in found.manifests] == R[:3]
    double = root(lake) / published_path(manifests[1]).replace(".parquet", ".attempt-1.parquet")
    double.write_bytes((root(lake) / published_path(manifests[1])).read_bytes())
    assert plan_dropping(TOPIC, again(lake), 2**53, 0) == []


def test_a_drop_that_cannot_be_read_or_that_no_step_plans_is_told(lake: Lake) -> None:
    """[R-75] Else its offsets would be pending, or be planned anew, in other ranges, and landed a second time."""
    dropped(lake)
    mark = root(lake) / manifest_path(TOPIC, R[1], 1)
    whole = mark.read_text()
    mark.write_text("{")
    with pytest.raises(errors.BrokenManifest, match=r"cannot be read.*restore it from a backup"):
        again(lake).coverage(TOPIC)
    mark.write_text(whole)
    for tree in ("plan", "manifests"):
        (root(lake) / tree).rename(root(lake) / f"{tree}-lost")
    with pytest.raises(BrokenPlanLog, match=f"tables/raw/{TOPIC}, and neither a plan log nor manifests: they are lost"):
        again(lake).coverage(TOPIC)
    (root(lake) / "manifests-lost").rename(root(lake) / "manifests")
    with pytest.raises(BrokenPlanLog, match="newer steps are lost"):
        again(lake).coverage(TOPIC)


def test_nothing_of_a_file_is_dropped_while_a_range_of_it_stands_otherwise(lake: Lake) -> None:
    """[R-72] Replaced, and the table has not heard of it yet: the next compaction has all of them as they are."""
    compacted(lake)
    land(lake, R[1], 1, b"w")
    assert plan_dropping(TOPIC, again(lake), 2**53, 0) == []
    compact_raw(lake)
    assert drop_range_files(again(lake)) == [DropVerdict(offsets) for offsets in R[:3]] and view(lake) == [*range(30)]


def test_what_is_replaced_while_it_is_dropped_stays(lake: Lake) -> None:
    """[R-73] After the mark, before the file goes: the newer file is kept, and said so."""
    compacted(lake)
    found = drop_range_files(lake, stop_at("drop_marked", lambda: land(again(lake), R[1], 1, b"w")))
    assert found == [DropVerdict(R[0]), DropVerdict(R[1], "it was replaced meanwhile"), DropVerdict(R[2])]
    append(lake)
    assert shown(lake) == ["10"] and view(lake) == [*range(30)]
    assert check_table(TOPIC, again(lake)).violations == ()


def test_what_is_dropped_while_trees_are_listed_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-73] [R-75] After the marks were read, or after the files were: no range counts as gone."""
    compacted(lake)
    other, listed = again(lake), []

    def drop_first(prefix: str, *_: str) -> None:
        if prefix == f"data/{TOPIC}" and not listed:
            listed.append(prefix)
            drop_range_files(again(lake))

    beside(monkeypatch, other.store, "list", drop_first)
    assert other.coverage(TOPIC).pending() == R[3:] and listed


def test_a_compacted_file_that_is_gone_is_read_no_more_while_range_files_are_there(lake: Lake) -> None:
    """[R-62] A view shows the range files then, and the audit says what to do; done, the table is whole."""
    _, path = compacted(lake)
    path.unlink()
    assert view(lake) == [*range(30)]
    violations = check_table(TOPIC, lake).violations
    assert "is not there" in violations[0] and "move" in violations[1]
    (path.parent).rename(path.parent.with_name("away"))
    append(lake)
    assert check_table(TOPIC, lake).violations == ()


def test_rows_that_are_nowhere_are_named_by_whoever_needs_them(lake: Lake) -> None:
    """[R-74] The compacted file of dropped ranges was changed, or is gone: audit, redo, reading and views say which."""
    manifests, path = dropped(lake)
    content = path.read_bytes()
    for spoil, said in ((damage, "restore that from a backup"), (Path.unlink, "is not there, expected")):
        path.write_bytes(content)
        spoil(path)
        published = check_published(TOPIC, lake).violations
        assert len(published) == 3 and all(said in each and str(path) in each for each in published)
        assert "restore these files from a backup" in check_table(TOPIC, lake).violations[-1]
        assert str(path) in str(verify_expired(R[0], manifests[0], "Kafka has deleted it", lake, Digests(lake)).violations)
        with pytest.raises(TableFileGone, match="was dropped, and"), landed_files(manifests, lake):
            pass
    with pytest.raises(TableFileGone, match="does not have its rows any more"):
        view(lake)


def test_a_table_that_is_gone_with_dropped_rows_is_not_made_anew_without_them(lake: Lake) -> None:
    """[R-74] The next run says so, and so do the views; the folder brought back, all is as before."""
    _, path = dropped(lake)
    away = path.parent.with_name("away")
    path.parent.rename(away)
    with pytest.raises(TableFileGone, match=r"does not have 3 ranges whose files were dropped: .* restore its folder"):
        append(again(lake))
    duck = Duck(again(lake), [TOPIC, "other"])
    assert duck.query("SELECT count(*) FROM other")[1] == [(0,)]
    with pytest.raises(TableFileGone, match="restore the table's folder from a backup"):
        duck.query(f'SELECT * FROM "{TOPIC}"')
    with pytest.raises(Refused, match="Referenced column"):
        duck.query(f'SELECT "{TOPIC}" FROM other')
    away.rename(path.parent)
    assert view(lake) == [*range(30)]


def test_a_compaction_that_is_overtaken_leaves_the_table_as_the_other_made_it(lake: Lake) -> None:
    """[R-62] By another compaction, say, between reading and committing."""
    land_each(lake, R[:3])
    inner = list[CompactionVerdict]()
    (outer,) = compact_raw(lake, stop_at("compaction_named", lambda: inner.extend(compact_raw(again(lake)))))
    assert (inner[0].outcome, outer.outcome) == (CompactionOutcome.COMPACTED, CompactionOutcome.OVERTAKEN)
    log = raw_table_log(TOPIC, lake.store)
    (file,) = log.read().files.values()
    assert inner[0].file is not None and file.path == inner[0].file.path
    assert [path for path in lake.store.list(log.folder) if ".c-" in path] == [f"{log.folder}/{file.path}"]


@pytest.mark.parametrize("step", ["compaction_read", "compaction_verified", "compaction_named", ""])
def test_an_empty_range_that_gets_rows_beside_a_compaction_is_in_the_table_once(lake: Lake, step: str) -> None:
    """[R-62] A person has it read anew at another isolation level, say; without a step, after the compaction has ended."""
    land(lake, R[0]), land_rows(lake, R[1], []), land(lake, R[2])

    def replace_it() -> None:
        land(lake, R[1], revision=1)
        append(lake)

    (verdict,) = compact_raw(lake, stop_at(step, replace_it) if step else no_step)
    assert verdict.outcome is (CompactionOutcome.OVERTAKEN if step else CompactionOutcome.COMPACTED)
    if not step:
        replace_it()
    for _ in range(2):
        rows = deltalake.DeltaTable(str(root(lake) / "tables" / "raw" / TOPIC)).to_pyarrow_table(columns=["offset"])
        assert sorted(rows["offset"].to_pylist()) == view(lake) == [*range(30)]
        assert check_table(TOPIC, again(lake)).violations == ()
        assert [each.outcome for each in compact_raw(lake)] in ([], [CompactionOutcome.COMPACTED])


def test_an_empty_range_that_gets_rows_and_loses_them_beside_a_compaction_overtakes_it(lake: Lake) -> None:
    """[R-62] Its files are as before, and it would stand in the compacted file at a revision that was replaced, for good."""
    land(lake, R[0]), land_rows(lake, R[1], []), land(lake, R[2])

    def replace_twice() -> None:
        land(lake, R[1], revision=1)
        append(lake)
        land_rows(lake, R[1], [], 2)
        append(lake)

    outcomes = [each.outcome for each in compact_raw(lake, stop_at("compaction_verified", replace_twice))]
    assert outcomes == [CompactionOutcome.OVERTAKEN]
    assert [each.outcome for each in compact_raw(again(lake))] == [CompactionOutcome.COMPACTED]
    assert [each.offsets for each in drop_range_files(again(lake))] == [R[0], R[2]]
    assert view(lake) == [*range(10), *range(20, 30)]


def test_a_table_of_very_many_small_files_is_compacted_whatever_they_weigh(tmp_path: Path) -> None:
    """[R-65] One more than a thousand. Fewer wait until they weigh enough; and so does a large one with few behind it."""
    lake, topic, log_state = Lake(str(tmp_path)), World(), LogState()
    topic.grow(0, MANY_FILES + 2)
    while step := plan(log_state, topic.observe(log_state), Policy(records_per_range=1), EPOCH_MS):
        lake.commit_step(step)
        log_state = step.after(log_state)
    log = lake.read_plan_log(TOPIC)

    def groups(files: int, first_bytes: int) -> list[RawGroup]:
        sizes = dict(zip(log.ranges, [first_bytes, *[4_000] * (files - 1)], strict=False))
        files_of = {offsets: replace(file, bytes=size) for offsets, size in sizes.items() if (file := landed(offsets).file)}
        coverage = Coverage(log, {offsets: replace(landed(offsets), file=file) for offsets, file in files_of.items()}, sizes)
        due = find_due_by_files(coverage, Snapshot())
        table = apply(Commit([file_of(each, name_of(each)) for each in due.adds], {}, due.transactions), Snapshot())
        return find_groups(coverage, table, 10**9)

    assert groups(MANY_FILES, 4_000) == []
    assert [len(group.files) for group in groups(MANY_FILES + 1, 4_000)] == [MANY_FILES + 1]
    assert groups(MANY_FILES + 1, 10**8) == [], "the control: the large one is not written again, so the others are too few"
    assert [len(group.files) for group in groups(MANY_FILES + 2, 10**8)] == [MANY_FILES + 1]


def test_a_range_that_was_replaced_by_no_row_is_in_the_table_without_a_file(lake: Lake) -> None:
    """[R-63] Its rows leave the table, be they compacted or not, and nothing is due or amiss by it."""
    for number, manifest in enumerate(land_each(lake, R[:3])[:2]):
        land_rows(lake, manifest.offsets, [], 1)
        append(lake)
        assert check_table(TOPIC, again(lake)).violations == ()
        assert sorted(set(range(30)) - set(view(lake))) == [*range(10 + number * 10)]
        compact_raw(lake)
    assert raw_table_log(TOPIC, lake.store).read().transactions["settled"] == 5


@pytest.mark.parametrize("names", [["Flights", "flights"], ["ranges"], ["Losses"]])
def test_a_topic_that_duckdb_cannot_tell_from_another_has_no_view(lake: Lake, names: list[str]) -> None:
    """Identifiers are read without case: instead of the wrong rows there is an error that says so."""
    duck = Duck(lake, [*names, "other"])
    assert duck.query("SELECT count(*) FROM other")[1] == [(0,)]
    with pytest.raises(Refused, match=f"topic {names[-1]} has no view: DuckDB cannot tell it from"):
        duck.query(f'SELECT * FROM main."{names[-1]}"' if len(names) > 1 else f'SELECT * FROM decoded."{names[-1]}"')


class IllStore(AbstractFileSystem):  # type: ignore[misc]
    protocol = "ill"

    def glob(self, path: str, **_: object) -> list[str]:
        return [path]

    def open(self, path: str, *_: object, **__: object) -> None:
        raise ConnectionResetError(f"{path}: connection reset")


def test_a_store_that_gives_no_file_takes_one_view_and_blames_no_statement(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    land_each(lake, R[:2])
    monkeypatch.setattr(lake.store, "filesystem", IllStore)
    duck = Duck(lake, [TOPIC])
    with pytest.raises(LakeUnavailable, match=r"does not give a file: .*connection reset; nothing was changed; ask again"):
        duck.query("SELECT * FROM 'ill://x.parquet'")
    monkeypatch.setattr(duck_module, "file_at", lambda *_: "'ill://x.parquet'")
    duck = Duck(lake, [TOPIC])
    assert duck.query("SELECT count(*) FROM ranges")[1] == [(len(R),)]
    with pytest.raises(LakeUnavailable, match="does not give a file"):
        duck.query(f'SELECT * FROM "{TOPIC}"')


def append(lake: Lake, on_step: StepWatcher = no_step) -> int:
    return append_landed(TOPIC, lake, lambda: EPOCH_MS, on_step=on_step)


def rot(path: Path) -> None:
    """Put a whole Parquet file with other rows in its place."""
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
            append(again(lake))
        (said,) = error.value.violations
        assert str(path) in said and "expected" in said
        table = raw_table_log(TOPIC, lake.store).read()
        assert (table.version, {file.rows for file in table.files.values()}) == (2, {30, 10}), "the others, once"
    land(lake, R[4])
    with pytest.raises(DamagedFile):
        compact_raw(again(lake))
    assert len(raw_table_log(TOPIC, lake.store).read().files) == 2, "the others are compacted too"
    path.write_bytes(content)
    append(again(lake))
    assert check_table(TOPIC, again(lake)).violations == () and view(lake) == [*range(50)]


@pytest.mark.parametrize(("module", "name"), [(pq, "write_table"), (staging_places, "canonicalize")])
def test_a_full_disk_under_a_cut_is_said(lake: Lake, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    """[R-63] As anywhere: with the place, and that the next run goes on; the table stays as it was."""
    compacted(lake)
    land(lake, R[1], 1, b"w")
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(module, name, full)
        with pytest.raises(LakeUnavailable, match=r"No space left .* make room on that disk"):
            append(again(lake))
    append(again(lake))
    assert check_table(TOPIC, again(lake)).violations == ()


@pytest.mark.parametrize(
    ("spoil", "told"), [(damage, "nothing was compacted with it"), (Path.unlink, f"is not there.* `offsetlake audit {TOPIC}`")]
)
def test_a_file_of_the_table_that_is_spoilt_is_not_compacted(lake: Lake, spoil: Callable[[Path], None], told: str) -> None:
    """[R-61] It is named, with what to do, and the table stays as it was."""
    land_each(lake, R[:2])
    append(again(lake))
    before = raw_table_log(TOPIC, lake.store).read()
    path = root(lake) / f"tables/raw/{TOPIC}" / next(iter(before.files))
    spoil(path)
    (verdict,) = compact_raw(lake)
    (said,) = verdict.violations
    assert verdict.outcome is CompactionOutcome.FAILED and raw_table_log(TOPIC, lake.store).read() == before
    assert re.search(f"{re.escape(str(path))}.*{told}", said) and "Errno" not in said


def test_rows_that_stand_again_under_a_later_revision_are_dropped_again(lake: Lake) -> None:
    """[R-72] The compacted file has the very bytes of the one before: what was said of that is not said of this revision."""
    _, path = dropped(lake)
    bytes_before = path.read_bytes()
    land(lake, R[1], 1)
    append(again(lake))
    (verdict,) = compact_raw(lake)
    assert verdict.file is not None
    assert (path.parent / verdict.file.path).read_bytes() == bytes_before, "the control: equal bytes"
    assert again(lake).coverage(TOPIC).dropped() == dict.fromkeys(R[:3], 0)
    assert drop_range_files(lake) == [DropVerdict(R[1])]
    coverage = again(lake).coverage(TOPIC)
    assert coverage.dropped() == {R[0]: 0, R[1]: 1, R[2]: 0} and coverage.is_landed(R[1]) and view(lake) == [*range(30)]


def test_a_range_without_rows_is_not_dropped(lake: Lake) -> None:
    """[R-72] Its file of no rows stays in `data/`: the table has none of it, and is not asked for it."""
    manifests, _ = compacted(lake)
    land_rows(lake, manifests[1].offsets, [], 1)
    append(again(lake))
    compact_raw(lake)
    assert drop_range_files(lake) == [DropVerdict(R[0]), DropVerdict(R[2])] and drop_range_files(again(lake)) == []
    assert shown(lake) == ["10"] and view(lake) == [*range(10), *range(20, 30)]
    newest = again(lake).newest(manifests[1])
    newest = again(lake).commit_manifest(newest.dropped(EPOCH_MS))
    again(lake).delete_given_up(newest)
    assert shown(lake) == [] and check_published(TOPIC, again(lake)).violations == (), "as somebody else has dropped it"
    assert view(lake) == [*range(10), *range(20, 30)]
    with landed_files([newest], again(lake)) as files:
        assert pq.read_table(files[R[1]].path).num_rows == 0


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("cure", ["replace", "drop"])
def test_a_range_file_that_rots_behind_its_mark_is_mended(tmp_path: Path, cure: str) -> None:
    """[R-73] By what the audit advises, or by the drop's end: the table has the rows."""
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    world.has_raw_table = True
    world.land()
    world.compact()
    with pytest.raises(Killed):
        world.drop(on_step=stop_at("drop_marked"))
    damage(min((tmp_path / "data").rglob("*.parquet")))
    assert {each.outcome for each in world.land("redo")} == {Outcome.FAILED, Outcome.UNCHANGED}
    assert len(check_published(TOPIC, world.lake).violations) == 1
    if cure == "replace":
        world.land("replace")
    else:
        world.drop()
    assert check_published(TOPIC, world.lake).violations == ()
    assert world.landed_offsets() == dict.fromkeys(range(6), 1)
    world.drop()
    assert world.shown() == {} and world.landed_offsets() == dict.fromkeys(range(6), 1)


def test_a_file_that_is_gone_before_its_commit_is_in_no_version(lake: Lake) -> None:
    """[R-81] A vacuum, or a power cut, took it away: of a compaction, and of what is left of a file that was cut."""

    def lose(step: str, **_: object) -> None:
        if step in {"compaction_named", "link_to_table"}:
            for path in (root(lake) / log.folder).glob("*.c-*"):
                if path.name not in log.read().files:
                    path.unlink()

    log = raw_table_log(TOPIC, lake.store)
    land_each(lake, R[:3])
    append(again(lake))
    before = log.read()
    (verdict,) = compact_raw(lake, lose)
    assert verdict.outcome is CompactionOutcome.FAILED and "is not there any more" in verdict.violations[0]
    assert log.read() == before
    compact_raw(lake)
    before = log.read()
    land(lake, R[1], 1, b"w")
    with pytest.raises(LakeUnavailable, match="is not there any more"):
        append(again(lake), lose)
    assert log.read() == before
    append(again(lake))
    assert check_table(TOPIC, again(lake)).violations == () and view(lake) == [*range(30)]


def test_the_vacuum_deletes_nothing_of_a_table_that_misses_a_file(lake: Lake) -> None:
    """[R-84] What is left of an earlier version may be all that there is of some rows."""
    _, path = compacted(lake)
    small = sorted((root(lake) / "tables").rglob("*.r000.parquet"))
    content = path.read_bytes()
    path.unlink()
    deleted, (error,) = vacuum(lake, EPOCH_MS + 8 * DAY_MS)
    assert deleted == [] and error.kind == "damaged_file"
    assert f"{path} is not there; nothing of the table was deleted" in str(error)
    assert may_have_leftovers(lake, EPOCH_MS + 8 * DAY_MS), "so that somebody is told"
    path.write_bytes(content)
    assert len(vacuum(lake, EPOCH_MS + 8 * DAY_MS)[0]) == len(small) == 3, "the control"


def test_a_file_that_cannot_be_deleted_keeps_no_other_from_the_vacuum(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-84] It is told, once for a table."""
    compacted(lake)
    refused = LakeUnavailable("no permission")
    with monkeypatch.context() as patched:
        patched.setattr(lake.store, "delete", Mock(side_effect=[refused, None, refused]))
        deleted, errors_of_tables = vacuum(lake, EPOCH_MS + 8 * DAY_MS)
    assert len(deleted) == 1 and errors_of_tables == [refused]
    assert len(vacuum(lake, EPOCH_MS + 8 * DAY_MS)[0]) == 3, "the control"


def test_of_a_latest_table_what_no_version_has_goes_after_a_week(tmp_path: Path) -> None:
    """[R-84] A MERGE that died leaves such a file. That delta-rs cannot open a lake is told, and ends no other table."""
    folder = tmp_path / "lake" / "tables" / "latest" / "orders"
    ours = CommitProperties(custom_metadata={"offsetlake": "0"})
    write_deltalake(str(folder), pa.table({"key": ["a"], "_deleted": [False]}), commit_properties=ours)
    shutil.copytree(tmp_path / "lake", tmp_path / "lake[1]")
    old, new = (folder / f"part-0000{at}-7b0c4d4e-60a5-4810-8c6f-4ee84255ba1c-c000.snappy.parquet" for at in range(2))
    for path in (old, new):
        path.write_bytes(b"of nobody")
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (week_ago, week_ago))
    assert vacuum(Lake(str(tmp_path / "lake")), EPOCH_MS) == ([f"tables/latest/orders/{old.name}"], [])
    assert not old.exists() and new.exists()
    deleted, (error,) = vacuum(Lake(str(tmp_path / "lake[1]")), EPOCH_MS)
    assert deleted == [] and "cannot be opened by delta-rs" in str(error)


@pytest.mark.parametrize("skew_days", [-30, 30])
def test_an_unnamed_file_ages_by_the_clock_that_dated_it(lake: Lake, monkeypatch: pytest.MonkeyPatch, skew_days: int) -> None:
    """[R-84] The file system's: it may run behind this machine, so that a file of a moment ago looks a month old."""
    compacted(lake)
    unnamed = f"{raw_table_log(TOPIC, lake.store).folder}/{compacted_name(R[3], '7c1b')}"
    lake.store.put_new(unnamed, b"x", "staging/t")
    linked_at_ms, now_ms = lake.store.linked_at_ms, time.time_ns() // 1_000_000

    def by_another_clock(path: str, days: int = skew_days) -> int | None:
        at_ms = linked_at_ms(path)
        return None if at_ms is None else at_ms + days * DAY_MS

    monkeypatch.setattr(lake.store, "linked_at_ms", by_another_clock)
    assert unnamed not in find_unnamed(TOPIC, lake, now_ms)
    monkeypatch.setattr(lake.store, "linked_at_ms", lambda path: by_another_clock(path, skew_days - 8 * (path == unnamed)))
    assert unnamed in find_unnamed(TOPIC, lake, now_ms), "the control: a week later"
    assert lake.store.list("staging/clock") == {}


def test_a_compacted_file_is_read_once_for_all_dropped_ranges_that_kafka_has_no_more(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-22] Read once for each range, a file of 2,000 ranges would be read 2,000 times."""
    manifests, path = dropped(lake)
    looks = Mock(wraps=why_changed)
    monkeypatch.setattr("pipeline_defs.landing.landed_files.why_changed", looks)
    work = Work(TOPIC, lake.coverage(TOPIC), Attempt("a", "run", "test"), Mock(lake=lake), Mock())
    verdicts = [verify_expired(each.offsets, each, "it is gone", lake, work.digests) for each in manifests]
    assert {each.outcome for each in verdicts} == {Outcome.EXPIRED} and len(verdicts) == 3
    assert [call.args[0].path for call in looks.call_args_list] == [path.name]


def test_what_is_compacted_again_while_digests_are_read_is_looked_up_again(lake: Lake) -> None:
    """[R-74] The file that had the rows a moment ago may be gone by now: no backup is needed."""
    first, _ = dropped(lake)
    (later, _) = land_each(lake, R[4:])
    compact_raw(lake)
    drop_range_files(lake)
    digests = Digests(again(lake))
    assert digests.of(later) == later.digest
    land(lake, R[3])
    compact_raw(lake)
    assert vacuum(lake, EPOCH_MS + 8 * DAY_MS)[1] == []
    assert [digests.of(each) for each in first] == [each.digest for each in first]
    (path,) = (root(lake) / "tables").rglob("*.c-*")
    path.unlink()
    with pytest.raises(TableFileGone):
        Digests(again(lake)).of(later)


def test_a_range_replaced_while_it_is_audited_is_for_the_next_audit(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-74] And compacted, and dropped: the table has none of the revision that the audit has read of, and needs none."""
    dropped(lake)
    other = again(lake)

    def replace_and_drop(_: str) -> None:
        land(lake, R[1], 1, b"w")
        compact_raw(lake)
        assert drop_range_files(lake) == [DropVerdict(R[1])]

    beside(monkeypatch, other, "coverage", after=replace_and_drop)
    assert check_published(TOPIC, other).violations == ()


def compact_twice_and_damage(lake: Lake) -> Path:
    """Have two compacted files, of which the first, which is returned, was changed."""
    _, path = compacted(lake)
    land_each(lake, R[4:])
    compact_raw(lake)
    damage(path)
    return path


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_dry_run_says_of_dropping_what_a_real_run_says(lake: Lake, *, is_dry: bool) -> None:
    """[R-72] What a real run keeps, with the changed file as the reason, is not counted; and a dry one writes nothing."""
    path = compact_twice_and_damage(lake)
    verdicts = list(deleting.drop_range_files(TOPIC, lake, plan_dropping(TOPIC, lake, 2**53, 0), EPOCH_MS, dry_run=is_dry))
    assert [each.offsets for each in verdicts if str(path) in str(each.reason)] == R[:3]
    assert [each.offsets for each in verdicts if not each.reason] == R[4:]
    assert shown(lake) == (["0", "10", "20", "40", "50"] if is_dry else ["0", "10", "20"])
    assert [*again(lake).coverage(TOPIC).dropped()] == ([] if is_dry else R[4:])
    assert ("move" if is_dry else "restore") in check_table(TOPIC, lake).violations[-1]


def test_the_command_counts_what_would_be_dropped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-72] Without --apply, and it ends as the real one would."""
    compact_twice_and_damage(lake)
    policy, settings = SimpleNamespace(target_file_bytes=10**9), SimpleNamespace(has_raw_table=True)
    own = {"lake": again(lake), "decodings": Decodings(again(lake)), "settings": settings}
    adapters = SimpleNamespace(now_ms=lambda: 2**53, watch_step=no_step, **own)
    monkeypatch.setattr(command, "find_topic", lambda name: SimpleNamespace(name=name, policy=policy, decode=None))
    monkeypatch.setattr(command, "open_adapters", lambda: adapters)
    found = CliRunner().invoke(command.compact, [TOPIC, "--drop-range-files-after", "0d"])
    assert "would drop 2 range files" in found.stdout and "would show their rows no more" in found.stdout
    assert isinstance(found.exception, errors.RangeFilesKept) and "3 of 5 range files" in str(found.exception)
    assert shown(lake) == ["0", "10", "20", "40", "50"] and not again(lake).coverage(TOPIC).dropped()
    adapters.now_ms = lambda: EPOCH_MS
    nothing = CliRunner().invoke(command.compact, [TOPIC, "--drop-range-files-after", "30d"])
    assert "would drop 0 range files" in nothing.stdout and "rows no more" not in nothing.stdout


def test_a_view_has_what_the_table_had_when_it_was_opened(lake: Lake) -> None:
    """[R-62] Also where it is empty yet: what is landed or appended later is not in it, nor a column of the folder's.

    What the table has was published: that its file in `data/` is gone takes no row out of a view.
    """
    land(lake, R[0])
    duck = Duck(again(lake), [TOPIC])
    land(lake, R[1])
    append(again(lake))
    names, rows = duck.query(f'SELECT * FROM "{TOPIC}"')
    assert len(rows) == 10 and "env" not in names
    assert view(lake) == [*range(20)], "the control: another one"
    min((root(lake) / "data").rglob("*.parquet")).unlink()
    coverage = again(lake).coverage(TOPIC)
    assert sum(map(coverage.is_landed, coverage.manifests)) == 1, "the control: it counts as landed no more"
    assert view(lake) == [*range(20)]


def test_a_latest_table_that_cannot_be_read_now_is_not_called_damaged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-88] Else the next update would delete a good one: a store that does not answer says nothing of what is there."""
    table = LatestTable(lake, TOPIC)
    table.start(pa.schema([("key", pa.string())]), anew=False)
    real = deltalake.DeltaTable
    monkeypatch.setattr(deltalake, "DeltaTable", Mock(side_effect=OSError("connection refused")))
    with pytest.raises(LakeUnavailable, match=r"cannot read the table .*connection refused; nothing was written"):
        table.read()
    monkeypatch.setattr(deltalake, "DeltaTable", real)
    snapshot = table.read()
    assert snapshot is not None and not snapshot.damage, "the control"
    silent = Mock(table_uri="file:///lake", transaction_version=Mock(side_effect=DeltaError("connection refused")))
    with pytest.raises(LakeUnavailable, match=r"cannot read the table file:///lake: connection refused; nothing was"):
        replace(snapshot, table=silent).applied("some-id")
    assert snapshot.applied("some-id") is None, "the control"


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("entry", ['{"torn', '{"add": {"path": "x.parquet", "size": 1, "stats": "{}", "tags": {}}}'])
def test_landing_does_not_rest_on_a_raw_table_that_cannot_be_read(tmp_path: Path, entry: str) -> None:
    """[R-81] Its log is torn, or has a file of somebody else's: a range whose file is lost is read again all the same."""
    world = SmallWorld(tmp_path, "disk", records=6, grid=3)
    world.has_raw_table = True
    assert {each.outcome for each in world.land()} == {Outcome.LANDED}
    log = world.folder / f"tables/raw/{world.coverage.log.topic}/_delta_log"
    (log / f"{len([*log.glob('*.json')]):020d}.json").write_text(f"{entry}\n")
    min((world.folder / "data").rglob("*.parquet")).unlink()
    world.drop_staging()
    world.lake = world.open(Writer())
    assert [each.outcome for each in world.land()] == [Outcome.LANDED]


def test_what_a_foreign_or_torn_commit_took_out_is_appended_again(lake: Lake) -> None:
    """Such a commit repeats no app transactions; those before it say what was in the table then."""
    land_each(lake, R[:4])
    append(again(lake))
    log = raw_table_log(TOPIC, lake.store)
    before = log.read()
    remove = {"remove": {"path": next(iter(before.files)), "deletionTimestamp": 1, "dataChange": True}}
    Path(lake.store.url(f"{log.folder}/_delta_log/{before.version + 1:020d}.json")).write_text(json.dumps(remove) + "\n")
    assert len(raw_table_log(TOPIC, lake.store).read().files) == 3, "the fault"
    append(again(lake))
    assert sum(file.rows for file in raw_table_log(TOPIC, lake.store).read().files.values()) == 40
    assert check_table(TOPIC, again(lake)).violations == ()
    version = raw_table_log(TOPIC, lake.store).read().version
    append(again(lake))
    assert raw_table_log(TOPIC, lake.store).read().version == version, "once"


@pytest.mark.parametrize("what", ["hint", "torn", "gone"])
def test_a_checkpoint_at_which_other_readers_fail_is_named_and_written_anew_by_night(lake: Lake, what: str) -> None:
    """[R-84] Ours goes by the commits, so that nobody else would notice for up to a hundred versions."""
    land_each(lake, R[:3])
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
    log = raw_table_log(TOPIC, lake.store)
    log.write_checkpoint()
    folder, whole = root(lake) / log.folder / "_delta_log", log.read()
    assert check_table(TOPIC, lake).passed and not may_have_leftovers(lake, EPOCH_MS), "the control"
    (path,) = folder.glob("*.checkpoint.parquet")
    if what == "hint":
        (folder / "_last_checkpoint").write_text('{"version": 7, "size": 1}')
    else:
        path.write_bytes(path.read_bytes()[:-9]) if what == "torn" else path.unlink()
    with pytest.raises(DeltaError):
        deltalake.DeltaTable(str(folder.parent))
    assert log.read() == whole, "the fault is of other readers"
    (named,) = check_table(TOPIC, lake).violations
    assert "some readers cannot open the table; the nightly job `sweep_staging` writes it anew" in named
    assert may_have_leftovers(lake, EPOCH_MS) and vacuum(lake, EPOCH_MS) == ([], [])
    assert len(deltalake.DeltaTable(str(folder.parent)).file_uris()) == len(whole.files)
    assert check_table(TOPIC, lake).passed and log.read() == whole
