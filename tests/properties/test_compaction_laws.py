"""What compaction makes of a raw table, over random topics and histories: rows stay, files become few."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from pipeline_defs.core.errors import BrokenTable
from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.manifest import StagedFile
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.compaction import FOOTER_BYTES, RawGroup, find_groups, verify_compacted, weight_of
from pipeline_defs.core.tables.delta import Commit, Snapshot, apply, check
from pipeline_defs.core.tables.raw_table import (
    RangeFiles,
    compacted_file,
    compacted_name,
    find_due_by_files,
    offsets_of,
    revision_in,
)
from tests.properties.test_raw_table_laws import History, histories
from tests.support.strategies import EPOCH_MS, TOPIC, first_step, landed

TARGETS = st.integers(1, 200_000)
STAGED = StagedFile("staging/x", 10, "0" * 64, 5, 0, 9, EPOCH_MS, EPOCH_MS)


def compacted(group: RawGroup, number: int = 0) -> Commit:
    """Return the commit that a compaction of a group makes."""
    first = min(int(file.stats["minValues"]["offset"]) for file in group.files if file.rows)
    last = max(int(file.stats["maxValues"]["offset"]) for file in group.files if file.rows)
    size = max(1, group.bytes // 2 - FOOTER_BYTES)
    staged = replace(STAGED, bytes=size, rows=group.rows, min_offset=first, max_offset=last)
    name = compacted_name(group.offsets, f"id-{number}")
    file = compacted_file(name, group.offsets, staged, group.revisions, EPOCH_MS, group.weight_bytes)
    return Commit([file], {each.path: EPOCH_MS for each in group.files}, is_compaction=True)


def compact(coverage: Coverage, table: Snapshot, target_bytes: int, *, every: bool) -> Snapshot:
    for number, group in enumerate(find_groups(coverage, table, target_bytes, every=every)):
        commit = compacted(group, table.version * 1000 + number)
        check(commit, table, "t")
        table = apply(commit, table)
    return table


def replaced(*revisions: int) -> History:
    """Return a history of neighbours, each landed at a revision."""
    log = PlanLog(TOPIC, (first_step(10 * len(revisions)),))
    pairs = zip(log.ranges, revisions, strict=True)
    return History(log, {offsets: replace(landed(offsets), revision=revision) for offsets, revision in pairs})


def with_a_gap() -> History:
    """Return a history of which the range in the middle is pending."""
    history = replaced(0, 0, 0, 0, 0)
    del history.manifests[[*history.log.ranges][2]]
    return history


@given(histories(), TARGETS, st.booleans())
@example(with_a_gap(), 200_000, True)
def test_what_is_compacted_is_landed_contiguous_and_disjoint(history: History, target_bytes: int, every: bool) -> None:
    """[R-61] No range is left out between the first and the last, and none is in two groups."""
    history.append()
    coverage, taken = history.coverage, set[OffsetRange]()
    for group in find_groups(coverage, history.table, target_bytes, every=every):
        event("a group")
        inside = [o for o in coverage.states() if o.place == group.offsets.place and o.start in group.offsets]
        assert {coverage.states()[offsets] for offsets in inside} == {State.LANDED}
        assert sum(map(len, inside)) == len(group.offsets)
        assert {each.start: coverage.manifests[each].revision for each in inside} == group.revisions
        assert len(group.files) > 1 and taken.isdisjoint(inside)
        assert all(
            one.stats["maxValues"]["offset"] < other.stats["minValues"]["offset"] for one, other in pairwise(group.files)
        )
        taken.update(inside)


@given(st.sampled_from([0, 1]))
def test_a_compacted_file_is_left_alone_while_a_range_of_it_is_landed_no_more(number: int) -> None:
    """[R-61] Its rows may be all that is left of that range."""
    history = replaced(0, 0, 0, 0)
    later = [(offsets, history.manifests.pop(offsets)) for offsets in [*history.log.ranges][2:]]
    history.append()
    history.table = compact(history.coverage, history.table, 200_000, every=True)
    history.manifests.update(later)
    history.append()
    for gone, expected in (([], [OffsetRange(0, 0, 0, 40)]), ([[*history.log.ranges][number]], [OffsetRange(0, 0, 20, 40)])):
        history.gone.update(gone)
        groups = find_groups(history.coverage, history.table, 200_000, every=True)
        assert [group.offsets for group in groups] == expected


@given(histories(), TARGETS, st.booleans())
@example(replaced(0, 1, 2), 200_000, True)
def test_compaction_keeps_each_range_at_its_revision_and_owes_nothing(history: History, target_bytes: int, every: bool) -> None:
    """[R-61] [R-62] Each range is in the table in its revision, nothing is due by it, and again it compacts nothing."""
    history.append()
    coverage, before = history.coverage, RangeFiles(history.table)
    table = compact(coverage, history.table, target_bytes, every=every)
    after = RangeFiles(table)
    assert [*after.overlaps()] == []
    assert sum(file.rows for file in table.files.values()) == sum(file.rows for file in history.table.files.values())
    for offsets in coverage.manifests:
        one, other = before.find(offsets), after.find(offsets)
        if one is not None:
            assert other is not None and revision_in(one, offsets) == revision_in(other, offsets)
    assert find_due_by_files(coverage, table).is_none(table)
    assert find_groups(coverage, table, target_bytes, every=every) == []


@given(histories(), TARGETS)
def test_the_open_tail_waits_until_it_weighs_enough(history: History, target_bytes: int) -> None:
    """[R-61] What is compacted unasked weighs the target, or cannot grow any more: a large file stands behind it."""
    history.append()
    for group in find_groups(history.coverage, history.table, target_bytes):
        weight = group.weight_bytes
        others = [file for file in history.table.files.values() if offsets_of(file).start >= group.offsets.end]
        assert weight >= target_bytes or any(weight_of(file) >= target_bytes for file in others)


@given(histories(), TARGETS, st.data())
def test_a_range_that_is_replaced_after_it_was_compacted_is_cut_out(
    history: History, target_bytes: int, data: st.DataObject
) -> None:
    """[R-63] The compacted file goes, the newer revision comes, and what is to be cut out of it is just that range."""
    history.append()
    table = compact(history.coverage, history.table, target_bytes, every=True)
    groups = [file for file in table.files.values() if file.path not in history.table.files]
    if not groups:
        return
    event("something was compacted")
    file = data.draw(st.sampled_from(groups))
    within = offsets_of(file)
    ranges = [each for each in history.manifests if within.start <= each.start and each.end <= within.end]
    ranges = [each for each in ranges if each.place == within.place]
    offsets = data.draw(st.sampled_from(sorted(ranges)))
    history.manifests[offsets] = replace(history.manifests[offsets], revision=history.manifests[offsets].revision + 1)
    due = find_due_by_files(history.coverage, table)
    assert due.cuts == {file.path: [offsets]} and due.removes == [file.path]
    assert [manifest.offsets for manifest in due.adds] == [offsets] * (history.manifests[offsets].file is not None)


def test_a_compaction_that_changes_the_number_of_rows_is_not_committed() -> None:
    """[R-61] Whatever else went wrong before."""
    staged = replace(STAGED, rows=3)
    one, two = (compacted_file(f"{n}.parquet", OffsetRange(0, 0, n, n + 10), staged, {}, 1) for n in (0, 10))
    table = apply(Commit([one]), Snapshot())
    check(Commit([two], {one.path: 1}, is_compaction=True), table, "t")
    fewer = replace(two, stats={**two.stats, "numRecords": 2})
    with pytest.raises(BrokenTable, match="3 rows would become 2 by a compaction"):
        check(Commit([fewer], {one.path: 1}, is_compaction=True), table, "t")


def test_a_staged_file_that_is_not_its_files_is_refused() -> None:
    """[R-61] Too many rows, too few, in another order, elsewhere, or other ones: each is named."""
    files = [compacted_file(f"{n}.parquet", OffsetRange(0, 0, n, n + 10), STAGED, {}, 1) for n in (0, 10)]
    group = RawGroup(files, "0-0-20", OffsetRange(0, 0, 0, 20), {0: 0, 10: 0})
    assert verify_compacted("t", group, 10, [(0, 5), (10, 15)], None) == []
    for rows, runs, difference, said in (
        (9, [(0, 5), (10, 14)], None, "its files have 10 rows, its footer says 9"),
        (10, [(10, 15), (0, 5)], None, "offset 0 follows 14"),
        (10, [(0, 5), (18, 23)], None, "found offsets 0 to 22, outside of it"),
        (10, [(0, 5), (10, 15)], "column value differs", "column value differs"),
    ):
        (violation,) = verify_compacted("t", group, rows, runs, difference)
        assert said in violation
