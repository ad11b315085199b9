"""The raw table held against what is landed, over random histories: each range once, and no app transaction says too much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.delivery import Acceptance, Claim
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.delta import Commit, Snapshot, apply, check, from_json, replay, to_json, without_files
from pipeline_defs.core.tables.raw_table import (
    Due,
    RangeFiles,
    file_of,
    find_clashes,
    find_due,
    find_due_by_files,
    find_lacking,
    name_of,
    offsets_of,
    revision_in,
    violations,
)
from tests.support.strategies import EPOCH_MS, TOPIC, Script, landed, landings, lists_of, log_of, logs

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

    def due(self) -> Due:
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
        commit = Commit([file_of(each, name_of(each)) for each in due.adds], dict.fromkeys(due.removes, 1), due.transactions)
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
        offsets = draw(st.sampled_from(ranges))
        befall(history, action, offsets, draw)
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
        newer = draw(landings(offsets, least_rows=1)).manifest
        history.manifests[offsets] = replace(newer, revision=known.revision + 1)


def in_table(history: History) -> dict[OffsetRange, int]:
    """Return the revision that the table has of each range."""
    return {offsets_of(file): revision_in(file, offsets_of(file)) for file in history.table.files.values()}


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
    for each in violations(history.coverage, history.table):
        assert "sha256" in each, each


@given(histories())
def test_below_an_app_transaction_nothing_is_missing(history: History) -> None:
    """[R-82] Who reads up to there has each row of the Kafka partition that there will ever be: lost and skipped count."""
    history.append()
    coverage, table = history.coverage, RangeFiles(history.table)
    for offsets, state in coverage.states().items():
        end = history.table.transactions.get(f"g{offsets.generation}/p{offsets.partition}", 0)
        if offsets.start >= end:
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
    file, ends = file_of(other, name_of(other)), {"g0/p0": other.offsets.end, "g0/p0/end": other.offsets.end, "settled": 2}
    newer, older = apply(Commit([file], {}, ends), history.table), history.table
    assert find_due(history.coverage, without_files(newer)) is None
    assert find_clashes(history.coverage, RangeFiles(newer)) == [
        f"range {second.text(TOPIC)}: the table has {other.offsets.text(TOPIC)} in its place, which no plan step has"
    ]
    assert (
        find_clashes(history.coverage, RangeFiles(older)) == [] and find_due(history.coverage, without_files(older)) is not None
    )
    history.manifests[third] = history.manifests[third].dropped(EPOCH_MS)
    assert find_due(history.coverage, without_files(older)) is None
    assert [each.split(":")[0] for each in find_lacking(history.coverage, RangeFiles(older))] == [f"range {third.text(TOPIC)}"]
    named = [each.split(":")[0] for each in violations(history.coverage, newer)]
    assert named == [f"range {each.text(TOPIC)}" for each in (second, third, second, other.offsets)]


@given(histories())
def test_the_log_read_back_is_the_table(history: History) -> None:
    """[R-81] Delta's JSON says all that is known of a table, and any prefix of it is a table that once was."""
    history.append()
    assert replay(from_json(each, "t") for each in history.commits) == history.table
