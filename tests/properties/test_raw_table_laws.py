"""The raw table held against what is landed, over random histories: each range once, files become few; and its log."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from pipeline_defs.adapters.store.object_store import open_store
from pipeline_defs.adapters.tables.delta_log import DeltaLog
from pipeline_defs.core.errors import BrokenTable
from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Acceptance, Claim
from pipeline_defs.core.log.manifest import Manifest, StagedFile
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables import raw_table
from pipeline_defs.core.tables.compaction import FOOTER_BYTES, RawGroup, find_groups, verify_compacted, weight_of
from pipeline_defs.core.tables.delta import Commit, File, Snapshot, apply, check, from_json, replay, to_json, without_files
from pipeline_defs.core.tables.raw_table import RangeFiles, compacted_file, find_due, find_due_by_files, offsets_of
from tests.support.interleaving import beside
from tests.support.strategies import EPOCH_MS, TOPIC, Script, first_step, landed, landings, lists_of, log_of, logs

ACTIONS = ["land", "replace", "lose the file", "claim", "accept", "append", "append"]


@dataclass
class History:
    """A topic, its table, and the commits that made it."""

    log: PlanLog
    manifests: dict[OffsetRange, Manifest] = field(default_factory=dict)
    gone: set[OffsetRange] = field(default_factory=set)
    claims: dict[OffsetRange, Claim] = field(default_factory=dict)
    accepted: dict[OffsetRange, Acceptance] = field(default_factory=dict)
    table: Snapshot = field(default_factory=Snapshot)
    commits: list[bytes] = field(default_factory=list)

    @property
    def coverage(self) -> Coverage:
        files = {offsets: each.file.bytes for offsets, each in self.manifests.items() if each.file}
        published = {offsets: size for offsets, size in files.items() if offsets not in self.gone}
        return Coverage(self.log, self.manifests, published, accepted=self.accepted, claims=self.claims)

    def due(self) -> raw_table.Due:
        """Return what is due, by the app transactions where they say it: then the files say the same."""
        by_files = find_due_by_files(self.coverage, self.table)
        by_head = find_due(self.coverage, without_files(self.table))
        if by_head is not None:
            assert by_head == by_files
        return by_files

    def append(self) -> None:
        due = self.due()
        if due.is_none(self.table):
            return
        adds = [raw_table.file_of(each, raw_table.name_of(each)) for each in due.adds]
        commit = Commit(adds, dict.fromkeys(due.removes, 1), due.transactions)
        check(commit, self.table, "t")
        self.commits.append(to_json(commit, f"id-{len(self.commits)}", EPOCH_MS))
        for name, version in self.table.transactions.items():
            assert commit.transactions[name] >= version
        self.table = apply(commit, self.table)


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Draw a topic, and what befalls it."""
    history = History(draw(logs()))
    ranges = list(history.log.ranges)[: draw(st.sampled_from([5, 10**6]))]  # few, for more to befall each
    if not ranges:
        return history
    for action in draw(lists_of(st.sampled_from(ACTIONS), 0, 24)):
        befall(history, action, draw(st.sampled_from(ranges)), draw)
    return history


def befall(history: History, action: str, offsets: OffsetRange, draw: st.DrawFn) -> None:
    known = history.manifests.get(offsets)
    if action == "append":
        history.append()
    elif action == "lose the file":
        history.gone ^= {offsets}
    elif action == "claim" and history.coverage.states()[offsets] is State.PENDING:
        history.claims[offsets] = Claim(TOPIC, offsets, "attempt-1", "run-1", EPOCH_MS)
    elif action == "accept" and history.coverage.states()[offsets] is State.CLAIMED:
        history.accepted[offsets] = Acceptance(TOPIC, offsets, (offsets.start, offsets.end), "me", EPOCH_MS)
    elif offsets in history.accepted or (known is None) != (action == "land"):
        return
    elif action == "land":
        history.manifests[offsets] = draw(landings(offsets)).manifest
    elif action == "replace" and known is not None and known.file is not None:
        history.manifests[offsets] = replace(draw(landings(offsets, least_rows=1)).manifest, revision=known.revision + 1)


def in_table(history: History) -> dict[OffsetRange, int]:
    return {offsets_of(file): raw_table.revision_in(file, offsets_of(file)) for file in history.table.files.values()}


def expected(history: History) -> Mapping[OffsetRange, int]:
    """Return the revision that the table has of each range: the landed one, or what it had before its file was lost."""
    coverage, found = history.coverage, in_table(history)
    for offsets, manifest in history.manifests.items():
        if coverage.is_landed(offsets) and manifest.file is not None:
            found[offsets] = manifest.revision
    return found


@given(histories())
def test_the_table_has_each_landed_range_once_whatever_happened_before(history: History) -> None:
    """[R-81] Also what a run that died had left out, and the newest revision of what was read again."""
    wanted = expected(history)
    history.append()
    assert in_table(history) == wanted
    assert len(history.table.files) == len(wanted)
    assert history.due().is_none(history.table), "nothing is due a second time"
    for each in raw_table.violations(history.coverage, history.table):
        assert "sha256" in each, each


@given(histories())
def test_below_an_app_transaction_nothing_is_missing(history: History) -> None:
    """[R-82] Who reads up to there has each row of the Kafka partition that there will ever be: lost and skipped count."""
    history.append()
    coverage, table = history.coverage, RangeFiles(history.table)
    for offsets, state in coverage.states().items():
        if offsets.start >= history.table.transactions.get(f"g{offsets.generation}/p{offsets.partition}", 0):
            continue
        manifest = coverage.manifests.get(offsets)
        is_in = table.find(offsets) is not None or (manifest is not None and manifest.file is None)
        is_left_out = offsets in coverage.log.skipped and state is not State.LANDED  # that may be landed all the same
        assert is_in or is_left_out or state is State.LOST or offsets in coverage.accepted


def test_what_a_table_has_in_other_ranges_or_lacks_and_was_dropped_is_named() -> None:
    """[R-81] As where a backup has an older plan log, or an older table: its app transactions alone do not say it."""
    history = History(log_of(Script(Policy(10, max_age_seconds=0), True, [("grow", (0, 40))]).play()))
    first, second, third, _ = history.log.ranges
    history.manifests[first], other = landed(first), landed(replace(second, end=second.end - 3))
    history.append()
    for each in (second, third):
        history.manifests[each] = landed(each)
    file = raw_table.file_of(other, raw_table.name_of(other))
    ends = {"g0/p0": other.offsets.end, "g0/p0/end": other.offsets.end, "settled": 2}
    newer, older = apply(Commit([file], {}, ends), history.table), history.table
    assert find_due(history.coverage, without_files(newer)) is None
    assert raw_table.find_clashes(history.coverage, RangeFiles(newer)) == [
        f"range {second.text(TOPIC)}: the table has {other.offsets.text(TOPIC)} in its place, which no plan step has"
    ]
    assert raw_table.find_clashes(history.coverage, RangeFiles(older)) == []
    assert find_due(history.coverage, without_files(older)) is not None
    history.manifests[third] = history.manifests[third].dropped(EPOCH_MS)
    assert find_due(history.coverage, without_files(older)) is None
    (lacking,) = raw_table.find_lacking(history.coverage, RangeFiles(older))
    assert lacking.startswith(f"range {third.text(TOPIC)}:")
    named = [each.split(":")[0] for each in raw_table.violations(history.coverage, newer)]
    assert named == [f"range {each.text(TOPIC)}" for each in (second, third, second, other.offsets)]


@given(histories())
def test_the_log_read_back_is_the_table(history: History) -> None:
    """[R-81] Delta's JSON says all that is known of a table, and any prefix of it is a table that once was."""
    history.append()
    assert replay(from_json(each, "t") for each in history.commits) == history.table


TARGETS = st.integers(1, 200_000)
STAGED = StagedFile("staging/x", 10, "0" * 64, 5, 0, 9, EPOCH_MS, EPOCH_MS)


def compacted(group: RawGroup, number: int = 0) -> Commit:
    """Return the commit that a compaction of a group makes."""
    first = min(int(file.stats["minValues"]["offset"]) for file in group.files if file.rows)
    last = max(int(file.stats["maxValues"]["offset"]) for file in group.files if file.rows)
    size = max(1, group.bytes // 2 - FOOTER_BYTES)
    staged = replace(STAGED, bytes=size, rows=group.rows, min_offset=first, max_offset=last)
    name = raw_table.compacted_name(group.offsets, f"id-{number}")
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
        assert all(one.stats["maxValues"]["offset"] < two.stats["minValues"]["offset"] for one, two in pairwise(group.files))
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
        assert [group.offsets for group in find_groups(history.coverage, history.table, 200_000, every=True)] == expected


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
            assert other is not None and raw_table.revision_in(one, offsets) == raw_table.revision_in(other, offsets)
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
def test_a_range_replaced_after_it_was_compacted_is_cut_out(history: History, target_bytes: int, data: st.DataObject) -> None:
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


A, B = (File(f"{name}.parquet", 10, 0, {"numRecords": 1}) for name in "ab")
TWO_ROWS = replace(B, stats={"numRecords": 2})
WRITTEN = to_json(Commit([A], {B.path: 8}, {"g0/p0": 9}), "id", 0)
TABLE = apply(Commit([A], transactions={"g0/p0": 5}), Snapshot())
SCHEMA = '{"type":"struct","fields":[]}'


def log_in(folder: Path) -> DeltaLog:
    """The log of a new table, in whose folder both files lie."""
    store = open_store(str(folder))
    for file in (A, B):
        store.put_new(f"tables/t/{file.path}", b"0" * file.bytes, "staging/t")
    return DeltaLog(store, "tables/t", SCHEMA)


@pytest.mark.parametrize(
    ("commit", "onto", "violation"),
    [
        (Commit([B, B]), TABLE, "b.parquet is added a second time"),
        (Commit([A]), TABLE, "a.parquet is added, and version 0 has it"),
        (Commit([A], {A.path: 1}), TABLE, "a.parquet is added, and version 0 has it"),
        (Commit([A]), apply(Commit(removes={A.path: 1}), TABLE), "a.parquet is added, and an earlier version had it"),
        (Commit([B], {B.path: 1}), TABLE, "b.parquet is removed, and is not there"),
        (Commit(transactions={"g0/p0": 4}), TABLE, "app transaction g0/p0 goes back from 5 to 4"),
        (Commit([TWO_ROWS], {A.path: 1}, is_compaction=True), TABLE, "1 rows would become 2 by a compaction"),
    ],
)
def test_a_commit_that_would_break_a_law_is_not_written(commit: Commit, onto: Snapshot, violation: str, tmp_path: Path) -> None:
    """[R-81] No file twice, no name a second time, no app transaction backwards; [R-61] no row more by a compaction."""
    log = DeltaLog(open_store(str(tmp_path)), "tables/t", SCHEMA)
    with pytest.raises(BrokenTable, match=r"must not be written: ") as found:
        log.commit(commit, onto, 0)
    assert found.value.violations == (violation,)
    assert list(tmp_path.rglob("*.json")) == []


def test_of_two_writers_of_a_version_one_is_told_to_look_again(tmp_path: Path) -> None:
    """[R-81] Compare-and-swap: what was read of a version holds when the next one is written."""
    log = log_in(tmp_path)
    check(Commit([A]), Snapshot(), "t")
    assert log.commit(Commit([A], transactions={"x": 1}), Snapshot(), 7)
    assert not log.commit(Commit([B]), Snapshot(), 8)
    table = log.read()
    assert (table.version, set(table.files)) == (0, {A.path})
    assert log.commit(Commit([B], {A.path: 9}), table, 9)
    assert log.read() == replace(table, version=1, files={B.path: B}, removed={A.path: 9}, transactions={"x": 1})
    assert log.read_head() == Snapshot(1, {}, {"x": 1}), "each commit repeats all app transactions"


def test_a_commit_that_is_torn_or_gone_is_one_clear_error(tmp_path: Path) -> None:
    for data in (b"{", b"[]\n", b'{"add":{}}', b'{"add":{"path":"a","size":1}}', b"\xff", b""):
        with pytest.raises(BrokenTable, match=r"t/1.json is no commit of a Delta log: .* move the table's folder away"):
            from_json(data, "t/1.json")
    log = log_in(tmp_path)
    for each in (Commit([A]), Commit([B]), Commit(transactions={"x": 1})):
        assert log.commit(each, log.read(), 0)
    first, second, _ = sorted((tmp_path / "tables/t/_delta_log").iterdir())
    second.unlink()
    with pytest.raises(BrokenTable, match=r"is not there, and a later version is"):
        log.read()
    first.unlink()
    for read in (log.read, log.read_head):
        with pytest.raises(BrokenTable, match=r"begins with version 2, expected 0"):
            read()


@given(at=st.integers(0, 2_000), bit=st.integers(0, 7))
@example(at=WRITTEN.index(b"remove"), bit=0)
@example(at=WRITTEN.index(B.path.encode()), bit=0)
def test_a_commit_with_a_changed_bit_is_a_clear_error_or_says_the_same(at: int, bit: int) -> None:
    """[R-81] A removed path with another letter is one that no reader removes: each would have its rows twice."""
    data = bytearray(WRITTEN)
    data[at % len(data)] ^= 1 << bit
    with suppress(BrokenTable):
        assert from_json(bytes(data), "t/1.json") == from_json(WRITTEN, "t/1.json")


def test_a_version_that_follows_none_in_a_moved_folder_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-81] Between the last look at what it follows and its own name: nobody could read a log that begins with it."""
    log, store = log_in(tmp_path), type(open_store(str(tmp_path)))
    assert log.commit(Commit([A]), log.read(), 0)
    onto = log.read()
    beside(monkeypatch, store, "put_new", lambda *_: (tmp_path / "tables/t").rename(tmp_path / "away"))
    assert not log.commit(Commit([B]), onto, 0)
    assert list((tmp_path / "tables").rglob("*.json")) == [] and log.read_head() == Snapshot()


def test_a_path_reads_back_as_it_is() -> None:
    """Delta's paths are URLs: what a name may not have in one is escaped there."""
    file = File("a b%20.parquet", 1, 0, {"numRecords": 1}, {"t": "ä"})
    data = to_json(Commit([file]), "id", 0)
    assert b"a%20b%2520.parquet" in data
    assert from_json(data, "t").adds == [file]
