"""Range files that were dropped, over real files without Spark: what finds their rows, and what is missing or was changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import manifest_path, published_path
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.errors import BrokenManifest, BrokenPlanLog, LakeUnavailable, Refused, TableFileGone
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.manifest import Manifest, StagedFile
from pipeline_defs.core.log.plan_step import Tail
from pipeline_defs.core.log.planning import Policy, plan
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.compaction import MANY_FILES, CompactionOutcome, CompactionVerdict, RawGroup, find_groups
from pipeline_defs.core.tables.delta import Commit, Snapshot, apply
from pipeline_defs.core.tables.raw_table import file_of, find_due_by_files, name_of
from pipeline_defs.landing.auditing import check_published, check_table, check_tiling
from pipeline_defs.landing.raw_table import append_landed
from pipeline_defs.landing.redo import verify_expired
from pipeline_defs.landing.standing import landed_files
from pipeline_defs.tables.compaction import RawTable
from pipeline_defs.tables.dropping import DropVerdict, plan_dropping
from pipeline_defs.tables.vacuum import vacuum
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
from tests.support.strategies import EPOCH_MS, TOPIC, World, decide, provenance

DAY_MS = 24 * 3_600_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Is a lake with six planned ranges."""
    return planned(tmp_path)


def test_what_is_dropped_is_landed_and_read_in_the_table(lake: Lake) -> None:
    """[R-72] No gap, nothing to land again, the digest holds, each row is there; a glob shows what was not dropped."""
    manifests, _ = dropped(lake)
    land(lake, R[3])
    other = another(lake)
    assert shown(lake) == ["30"] and view(lake) == [*range(40)]
    assert other.coverage(TOPIC).pending() == R[4:]
    for check in (check_tiling, check_published):
        assert check(TOPIC, other).violations == ()
    append_landed(TOPIC, other, lambda: EPOCH_MS)
    assert check_table(TOPIC, other).violations == ()
    with landed_files(manifests, other) as files:
        assert [pq.read_table(files[offsets].path)["offset"].to_pylist() for offsets in R[:3]] == [
            [*range(each.start, each.end)] for each in R[:3]
        ]
    _, rows = Duck(other, [TOPIC]).query("SELECT key, file = compacted_file FROM ranges WHERE state = 'landed' ORDER BY start")
    assert rows == [("0-0-10", True), ("0-10-20", True), ("0-20-30", True), ("0-30-40", None)]
    assert drop(lake) == [], "once"


def test_only_what_was_landed_long_ago_and_is_compacted_whole_is_dropped(lake: Lake) -> None:
    """[R-72] Not what is younger than asked for, not what is not compacted, not what has a second file."""
    manifests, _ = compacted(lake)
    land(lake, R[3])
    at = manifests[0].provenance.landed_at_ms
    assert plan_dropping(TOPIC, lake, at + 30 * DAY_MS - 1, 30 * 86_400) == []
    (found,) = plan_dropping(TOPIC, lake, at + 30 * DAY_MS, 30 * 86_400)
    assert [manifest.offsets for manifest in found.manifests] == R[:3]
    double = root(lake) / published_path(manifests[1]).replace(".parquet", ".attempt-1.parquet")
    double.write_bytes((root(lake) / published_path(manifests[1])).read_bytes())
    assert plan_dropping(TOPIC, another(lake), 2**53, 0) == []


def test_what_was_compacted_just_now_is_not_dropped(lake: Lake) -> None:
    """[R-72] However old its ranges are: who opened a view before still reads the range files."""
    for offsets in R[:3]:
        land(lake, offsets)
    run_compact(lake, at_ms=EPOCH_MS + 40 * DAY_MS)
    assert plan_dropping(TOPIC, lake, EPOCH_MS + 70 * DAY_MS - 1, 30 * 86_400) == []
    assert len(plan_dropping(TOPIC, lake, EPOCH_MS + 70 * DAY_MS, 30 * 86_400)) == 1


def test_a_drop_leaves_nothing_in_staging(lake: Lake) -> None:
    """[R-72] And takes what was staged for the file along."""
    manifests, _ = compacted(lake)
    assert all(lake.store.exists(each.file.path) for each in manifests if each.file), "the control"
    before = {*(root(lake) / "staging").iterdir()}
    drop(lake)
    assert {*(root(lake) / "staging").iterdir()} <= before
    assert not any(lake.store.exists(each.file.path) for each in manifests if each.file)


def test_a_dropped_range_that_no_step_plans_is_a_lost_step(lake: Lake) -> None:
    """[R-75] Else its offsets would be planned anew, in other ranges, and landed a second time."""
    dropped(lake)
    for tree in ("plan", "manifests"):
        (root(lake) / tree).rename(root(lake) / f"{tree}-lost")
    with pytest.raises(BrokenPlanLog, match=f"tables/raw/{TOPIC}, and neither a plan log nor manifests: they are lost"):
        another(lake).coverage(TOPIC)
    (root(lake) / "manifests-lost").rename(root(lake) / "manifests")
    with pytest.raises(BrokenPlanLog, match="newer steps are lost"):
        another(lake).coverage(TOPIC)


def test_nothing_of_a_file_is_dropped_while_a_range_of_it_stands_otherwise(lake: Lake) -> None:
    """[R-72] Replaced, and the table has not heard of it yet: the next compaction has all of them as they are."""
    compacted(lake)
    land(lake, R[1], 1, b"w")
    assert plan_dropping(TOPIC, another(lake), 2**53, 0) == []
    run_compact(lake)
    assert drop(another(lake)) == [DropVerdict(offsets) for offsets in R[:3]] and view(lake) == [*range(30)]


def test_landing_never_publishes_again_what_was_dropped(lake: Lake) -> None:
    """[R-73] Not by an attempt that stood still since it committed the range: its rows would be shown by a glob again."""
    manifests, _ = dropped(lake)
    assert another(lake).publish(manifests[0]) is not None
    assert shown(lake) == [] and another(lake).is_published(manifests[0])


def test_a_dropped_range_is_replaced(lake: Lake) -> None:
    """[R-63] [R-73] The new revision is in `data/`, its siblings are read in what is left of the compacted file."""
    dropped(lake)
    land(lake, R[1], 1, b"w")
    assert view(lake) == [*range(30)], "before the table has it"
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
    assert view(lake) == [*range(30)] and shown(lake) == ["10"]
    table = raw_table_log(TOPIC, lake.store).read()
    assert sorted(file.rows for file in table.files.values()) == [10, 10, 10]
    assert check_table(TOPIC, another(lake)).violations == () and check_published(TOPIC, another(lake)).violations == ()
    values = Duck(another(lake), [TOPIC]).query(f'SELECT DISTINCT "value" FROM "{TOPIC}" WHERE "offset" BETWEEN 10 AND 19')
    assert values[1] == [(b"w",)]
    run_compact(lake)
    assert drop(lake) == [DropVerdict(R[1])]
    assert view(lake) == [*range(30)] and shown(lake) == []
    assert vacuum(lake, EPOCH_MS + 10**12) and view(lake) == [*range(30)]


def test_what_is_replaced_while_it_is_dropped_stays(lake: Lake) -> None:
    """[R-73] After the mark, before the file goes: the newer file is kept, and said so."""
    compacted(lake)

    def replaced(step: str, key: str = "", **_: object) -> None:
        if (step, key) == ("drop_marked", R[0].key):
            land(another(lake), R[1], 1, b"w")

    found = drop(lake, replaced)
    assert found == [DropVerdict(R[0]), DropVerdict(R[1], "it was replaced meanwhile"), DropVerdict(R[2])]
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
    assert shown(lake) == ["10"] and view(lake) == [*range(30)]
    assert check_table(TOPIC, another(lake)).violations == ()


def test_what_is_dropped_while_trees_are_listed_is_found(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-73] [R-75] After the marks were read, or after the files were: no range counts as gone."""
    compacted(lake)
    other, listed = another(lake), []
    read = other.store.list

    def list_late(prefix: str, after: str | None = None) -> dict[str, int]:
        if prefix == f"data/{TOPIC}" and not listed:
            listed.append(prefix)
            drop(another(lake))
        return read(prefix, after)

    monkeypatch.setattr(other.store, "list", list_late)
    assert other.coverage(TOPIC).pending() == R[3:] and listed


def test_a_compacted_file_that_was_changed_drops_nothing(lake: Lake) -> None:
    """[R-72] It is named, and the range files stay."""
    _, path = compacted(lake)
    damage(path)
    found = drop(lake)
    assert len(found) == 3 and all(str(path) in str(verdict.reason) for verdict in found)
    assert shown(lake) == ["0", "10", "20"] and not another(lake).coverage(TOPIC).dropped()
    assert "move" in check_table(TOPIC, lake).violations[-1]


def test_a_compacted_file_that_is_gone_is_read_no_more_while_range_files_are_there(lake: Lake) -> None:
    """[R-62] A view shows the range files then, and the audit says what to do; done, the table is whole."""
    _, path = compacted(lake)
    path.unlink()
    assert view(lake) == [*range(30)]
    violations = check_table(TOPIC, lake).violations
    assert "is not there" in violations[0] and "move" in violations[1]
    (path.parent).rename(path.parent.with_name("away"))
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
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
        assert str(path) in str(verify_expired(R[0], manifests[0], "Kafka has deleted it", lake).violations)
        with pytest.raises(TableFileGone, match="was dropped, and"), landed_files(manifests, lake):
            pass
    with pytest.raises(TableFileGone, match="does not have its rows any more"):
        view(lake)


def test_a_table_that_is_gone_with_dropped_rows_is_not_made_anew_without_them(lake: Lake) -> None:
    """[R-74] The next run says so, and so do the views; the folder brought back, all is as before."""
    _, path = dropped(lake)
    away = path.parent.with_name("away")
    path.parent.rename(away)
    with pytest.raises(LakeUnavailable, match="cannot add range"):
        append_landed(TOPIC, another(lake), lambda: EPOCH_MS)
    duck = Duck(another(lake), [TOPIC, "other"])
    assert duck.query("SELECT count(*) FROM other")[1] == [(0,)]
    with pytest.raises(TableFileGone, match="restore the table's folder from a backup"):
        duck.query(f'SELECT * FROM "{TOPIC}"')
    with pytest.raises(Refused, match="Referenced column"):
        duck.query(f'SELECT "{TOPIC}" FROM other')
    away.rename(path.parent)
    assert view(lake) == [*range(30)]


def test_a_drop_that_cannot_be_read_says_what_to_do(lake: Lake) -> None:
    """[R-75] Without it its range would count as pending, and be landed again where Kafka has it."""
    dropped(lake)
    mark = root(lake) / manifest_path(TOPIC, R[1], 1)
    mark.write_text("{")
    with pytest.raises(BrokenManifest, match=r"cannot be read.*restore it from a backup"):
        another(lake).coverage(TOPIC)


def test_a_compaction_that_is_overtaken_leaves_the_table_as_the_other_made_it(lake: Lake) -> None:
    """[R-62] By another compaction, or by a replace, between reading and committing."""
    for offsets in R[:3]:
        land(lake, offsets)
    inner = list[CompactionVerdict]()

    def overtake(step: str, **_: object) -> None:
        if step == "compaction_named" and not inner:
            inner.extend(run_compact(another(lake)))

    (outer,) = run_compact(lake, overtake)
    assert (inner[0].outcome, outer.outcome) == (CompactionOutcome.COMPACTED, CompactionOutcome.OVERTAKEN)
    log = raw_table_log(TOPIC, lake.store)
    (file,) = log.read().files.values()
    assert inner[0].file is not None and file.path == inner[0].file.path
    assert [path for path in lake.store.list(log.folder) if ".c-" in path] == [f"{log.folder}/{file.path}"]

    def replaced(step: str, **_: object) -> None:
        if step == "compaction_named":
            land(another(lake), R[4], 1, b"w")
            append_landed(TOPIC, another(lake), lambda: EPOCH_MS)

    for offsets in R[3:]:
        land(lake, offsets)
    (verdict,) = run_compact(lake, replaced)
    assert verdict.outcome is CompactionOutcome.OVERTAKEN
    assert check_table(TOPIC, another(lake)).violations == () and view(lake) == [*range(60)]


def test_a_group_ends_at_a_gap_and_at_what_stands_otherwise(lake: Lake) -> None:
    """[R-61] Nothing is compacted across a range that is to be landed yet, or with one that was replaced since."""
    for offsets in (R[0], R[1], R[3], R[4]):
        land(lake, offsets)
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
    one, other = RawTable(TOPIC, lake).find(10**9, every=True)
    assert (one.offsets, other.offsets) == (OffsetRange(0, 0, 0, 20), OffsetRange(0, 0, 30, 50))
    land(lake, R[1], 1, b"w")
    assert [group.offsets for group in RawTable(TOPIC, another(lake)).find(10**9, every=True)] == [other.offsets]
    land(lake, R[2])
    append_landed(TOPIC, another(lake), lambda: EPOCH_MS)
    (group,) = RawTable(TOPIC, another(lake)).find(10**9, every=True)
    assert group.offsets == OffsetRange(0, 0, 0, 50)


def test_a_table_of_very_many_small_files_is_compacted_whatever_they_weigh(tmp_path: Path) -> None:
    """[R-65] One more than a thousand. Fewer wait until they weigh enough; and so does a large one with few behind it."""
    lake, topic, tail = Lake(str(tmp_path)), World(), Tail()
    topic.grow(0, MANY_FILES + 2)
    while step := plan(tail, topic.observe(tail), Policy(records_per_range=1), EPOCH_MS):
        lake.commit_step(step)
        tail = step.after(tail)
    log = lake.read_plan_log(TOPIC)

    def groups(files: int, first_bytes: int) -> list[RawGroup]:
        sizes = dict(zip(log.ranges, [first_bytes, *[4_000] * (files - 1)], strict=False))
        coverage = Coverage(log, {offsets: manifest_of(offsets, size) for offsets, size in sizes.items()}, sizes)
        due = find_due_by_files(coverage, Snapshot())
        table = apply(Commit([file_of(each, name_of(each)) for each in due.adds], {}, due.transactions), Snapshot())
        return find_groups(coverage, table, 10**9)

    assert groups(MANY_FILES, 4_000) == []
    assert [len(group.files) for group in groups(MANY_FILES + 1, 4_000)] == [MANY_FILES + 1]
    assert groups(MANY_FILES + 1, 10**8) == [], "the control: the large one is not written again, so the others are too few"
    assert [len(group.files) for group in groups(MANY_FILES + 2, 10**8)] == [MANY_FILES + 1]


def manifest_of(offsets: OffsetRange, size: int) -> Manifest:
    file = StagedFile("staging/x", size, "ab" * 32, 1, offsets.start, offsets.start, EPOCH_MS, EPOCH_MS)
    return Manifest(TOPIC, offsets, file, (), provenance(offsets), 0, schema={})


def test_a_range_that_was_replaced_by_no_row_is_in_the_table_without_a_file(lake: Lake) -> None:
    """[R-63] Its rows leave the table, be they compacted or not, and nothing is due or amiss by it."""
    manifests = [land(lake, offsets) for offsets in R[:3]]
    for number in range(2):
        replace_by_nothing(lake, manifests[number])
        append_landed(TOPIC, lake, lambda: EPOCH_MS)
        assert check_table(TOPIC, another(lake)).violations == ()
        assert sorted(set(range(30)) - set(view(lake))) == [*range(10 + number * 10)]
        run_compact(lake)
    assert raw_table_log(TOPIC, lake.store).read().transactions["settled"] == 5


def test_a_file_of_the_table_that_was_changed_is_not_compacted(lake: Lake) -> None:
    """[R-61] It is named, and the table stays as it was."""
    for offsets in R[:3]:
        land(lake, offsets)
    append_landed(TOPIC, lake, lambda: EPOCH_MS)
    log = raw_table_log(TOPIC, lake.store)
    before = log.read()
    damage(root(lake) / log.folder / next(iter(before.files)))
    (verdict,) = run_compact(lake)
    assert verdict.outcome is CompactionOutcome.FAILED and "nothing was compacted with it" in verdict.violations[0]
    assert log.read() == before


@pytest.mark.parametrize("names", [["Flights", "flights"], ["ranges"], ["Losses"]])
def test_a_topic_that_duckdb_cannot_tell_from_another_has_no_view(lake: Lake, names: list[str]) -> None:
    """Identifiers are read without case: instead of the wrong rows there is an error that says so."""
    duck = Duck(lake, [*names, "other"])
    assert duck.query("SELECT count(*) FROM other")[1] == [(0,)]
    with pytest.raises(Refused, match=f"(?i)topic {names[-1]} has no view: DuckDB cannot tell it from"):
        duck.query(f'SELECT * FROM main."{names[-1]}"' if len(names) > 1 else f'SELECT * FROM decoded."{names[-1]}"')


def test_a_view_takes_no_column_from_the_folder_of_the_lake(tmp_path: Path) -> None:
    """A lake below `env=prod` has the columns that any other has."""
    lake, topic = Lake(str(tmp_path / "env=prod")), World()
    topic.grow(0, 10)
    step = decide(Tail(), topic.observe(Tail()), Policy(records_per_range=10), EPOCH_MS)
    lake.commit_step(step)
    land(lake, R[0])
    assert "env" not in Duck(lake, [TOPIC]).query(f'SELECT * FROM "{TOPIC}"')[0]
