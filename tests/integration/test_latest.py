"""Latest by key: equal to a full recomputation, whatever comes late, is redone, or is at it at the same time.

What is right is said by one SQL statement over all that is decoded.
"""

import dataclasses
import errno
import json
import random
import shutil
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.store.object_store import RemoteStore
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.adapters.tables.delta_log import said_by_delta
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.adapters.tables.latest_table import LatestTable
from pipeline_defs.adapters.tables.latest_winners import SHARES, find_damage
from pipeline_defs.adapters.tables.sql_text import file_at
from pipeline_defs.adapters.tables.topic_rows import find_latest
from pipeline_defs.cli.launching import InProcessRuns, Launched
from pipeline_defs.cli.terminal import Shown
from pipeline_defs.cli.work.read import run_audit
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import BadSetting, BrokenTable, LakeUnavailable, Refused
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.plan_step import Watermarks
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.log.topic_state import PartitionState, TopicState
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import Finding
from pipeline_defs.operate.reports import trace_row
from pipeline_defs.orchestration.assets.latest_asset import RECOMPUTED, check_share
from pipeline_defs.orchestration.home.dead_runs import end_dead_runs
from pipeline_defs.orchestration.pulse.ticking import DerivedTick, run_latest_tick
from pipeline_defs.resources import Adapters
from pipeline_defs.tables.latest import DueUpdate, LatestTools, Updated, find_due, update
from tests.support.decoded import DecodedTopic, Rows, table_files
from tests.support.killing import PLACES, everywhere, stopped_at
from tests.support.readers import LoopingReader
from tests.support.redecoding import compact_decoded, stop_at
from tests.support.strategies import EPOCH_MS
from tests.support.world import World

RANGE, LATER = OffsetRange(0, 0, 0, 20), OffsetRange(0, 0, 20, 40)
KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "string": (pa.string(), lambda n: f"k{n}"),
    "binary": (pa.binary(), lambda n: b"\x00k%d\xff" % n),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), lambda n: {"a": n, "b": None if n % 3 else "x"}),
}
VALUES = pa.struct([("n", pa.int64()), ("version", pa.int64())])


class State:
    """A topic with its latest table in a lake of its own."""

    def __init__(self, folder: str) -> None:
        self.topic = DecodedTopic(Lake(folder), f"t{uuid.uuid4().hex[:8]}", pa.string())
        self.config = Latest()
        self.marks: Sequence[dict[int, int]] = ()

    def tools(self, on_step: StepWatcher = no_step) -> LatestTools:
        lake = Lake(self.topic.lake.store.root)  # as another process, which has read nothing yet
        now = lambda: time.time_ns() // 1_000_000  # noqa: E731
        return LatestTools(Decodings(lake), now, on_step)

    def update(self, *, full: bool = False, on_step: StepWatcher = no_step) -> Updated:
        attempt = Attempt(f"update-{uuid.uuid4().hex[:8]}", "no-run", "test")
        return update(self.topic.name, self.config, attempt, self.tools(on_step), full=full)

    def check(self) -> list[Finding]:
        """Return what the check finds of each share of the keys."""
        return [check_share(self.topic.name, self.config, share, self.tools()) for share in range(SHARES)]

    @property
    def has_work(self) -> bool:
        return find_due(self.topic.name, self.config, self.tools().decodings).has_work

    def recomputed(self) -> list[tuple[Any, ...]]:
        return self.topic.recomputed(self.marks, self.config.sequence or "NULL::BIGINT")

    def assert_right(self) -> None:
        assert self.topic.shown() == self.recomputed()
        assert not [path for path in self.topic.lake.store.list("staging") if "update-" in path]

    @property
    def folder(self) -> Path:
        return Path(self.topic.lake.store.url(f"tables/latest/{self.topic.name}"))

    @property
    def files(self) -> list[Path]:
        return [Path(uri) for uri in DeltaTable(str(self.folder)).file_uris()]

    @property
    def last_entry(self) -> Path:
        return max((self.folder / "_delta_log").glob("*.json"))


@pytest.fixture
def state(request: pytest.FixtureRequest, tmp_path: Path) -> State:
    """A topic in a lake on a disk, or in a `bucket` where the test's parameter says so."""
    if getattr(request, "param", "disk") == "bucket":
        return State(f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}")
    request.getfixturevalue("one_database")
    return State(str(tmp_path / "lake"))


def draw_rows(draw: random.Random, offsets: OffsetRange, key: Callable[[int], Any]) -> Rows:
    """Draw what a range decodes to: of some offsets nothing, tombstones, records without a key, times in any order."""
    rows = dict[int, tuple[Any, ...]]()
    for at in range(offsets.start, offsets.end):
        if draw.random() < 0.85:
            version = draw.choice([None, *range(9)])
            value = None if draw.random() < 0.3 else {"n": draw.randrange(1000), "version": version}
            name = None if draw.random() < 0.05 else key(draw.randrange(14))
            rows[at] = (name, value, EPOCH_MS + draw.randrange(50))
    return rows


def test_a_record_has_waited_for_the_first_version_that_has_it(state: State) -> None:
    """[R-90] What is decoded again makes nobody's wait longer; the control is a range that comes for the first time."""
    table = LatestTable(state.topic.lake, state.topic.name)
    state.topic.put(OffsetRange(0, 0, 40, 60), {n: (f"k{n}", {"n": n}) for n in range(40, 60)})
    state.update()
    waits = []
    for offsets, revision in ((RANGE, 0), (RANGE, 1), (LATER, 0)):
        state.topic.put(offsets, {n: (f"k{n}", {"n": n}) for n in range(offsets.start, offsets.end)}, revision)
        state.update()
        waits.append(sum(wait.rows for wait in table.read_waits(table.read(), 0)))
    assert waits == [40, 40, 60]


@pytest.mark.parametrize(
    ("kind", "sequence", "seed"),
    [
        ("struct", None, 2),
        ("binary", None, 4),
        ("string", "value.version", 3),
        *(
            pytest.param(kind, sequence, seed, marks=pytest.mark.long)
            for seed in range(10, 14)
            for kind in KEYS
            for sequence in (None, "value.version")
        ),
    ],
)
def test_any_history_is_equal_to_a_full_recomputation(kind: str, sequence: str | None, seed: int, state: State) -> None:
    """[R-87] Late ranges, redone ones, tombstones, a recreated generation, keys in several partitions, in any order."""
    draw = random.Random(seed)
    key_type, key = KEYS[kind]
    state.topic.key_type = key_type
    state.config, state.topic.value_type = Latest(sequence), VALUES
    lanes = [(0, 0), (0, 1), (1, 0)]
    ranges = [OffsetRange(*lane, at, at + 6) for lane in lanes for at in range(0, 12, 6)]
    draw.shuffle(ranges)
    revisions: dict[OffsetRange, int] = {}
    while ranges:
        for offsets in [ranges.pop() for _ in range(min(len(ranges), draw.randint(1, 4)))]:
            state.topic.put(offsets, draw_rows(draw, offsets, key))
            revisions[offsets] = 0
        if draw.random() < 0.7:
            redone = draw.choice(sorted(revisions))
            revisions[redone] += 1
            state.topic.put(redone, draw_rows(draw, redone, key), revisions[redone])
        if draw.random() < 0.6:
            compact_decoded(state.topic.lake, state.topic.name)
        assert state.update().has_committed
        state.assert_right()
    shown = state.topic.shown()
    assert state.update() == Updated(), "there is nothing more to do"
    assert state.update(full=True).rebuilt
    assert state.topic.shown() == shown


@pytest.mark.parametrize("state", PLACES, indirect=True)
def test_two_updates_at_once_lose_nothing(state: State) -> None:
    """[R-87] Both have seen the same version; one commits, the other is told, looks again and finds nothing due."""
    state.topic.put(RANGE, {0: ("a", {"n": 1}), 1: ("b", {"n": 2}), 2: ("c", None)})
    state.update()
    state.topic.put(LATER, {20: ("a", {"n": 3}), 21: ("b", None), 22: ("d", {"n": 4})})
    both = threading.Barrier(2)
    refused = []

    def meet(step: str, **fields: object) -> None:
        if step == "read_decoded" and not both.broken:
            with suppress(threading.BrokenBarrierError):
                both.wait(60)
            both.abort()
        if step == "commit_latest" and not fields["committed"]:
            refused.append(step)

    with ThreadPoolExecutor(2) as pool:
        done = [future.result() for future in [pool.submit(state.update, on_step=meet) for _ in range(2)]]
    assert refused == ["commit_latest"], "the fault: one was overtaken"
    assert sorted(each.has_committed for each in done) == [False, True]
    state.assert_right()
    rows = Duck(state.topic.lake, [state.topic.name]).query(f'SELECT count(*) FROM latest."{state.topic.name}"')[1]
    assert rows == [(len(state.topic.shown()),)], "what the view shows"


def test_a_range_that_is_decoded_again_while_it_is_read_is_the_next_updates(state: State) -> None:
    """[R-87] A version is read, whatever is committed beside it; the check of a table that is behind says so."""
    state.topic.put(RANGE, {0: ("a", {"n": 1})})
    state.update(on_step=stop_at("read_decoded", lambda: state.topic.put(RANGE, {1: ("b", {"n": 2})}, 1)))
    assert [row[4] for row in state.topic.shown()] == ["a"], "the fault: it is behind"
    found = check_share(state.topic.name, state.config, 0, state.tools())
    assert found.violations == (f"latest/{state.topic.name} has 1 decoded ranges to read; update it, then check",)
    audited = check_share(state.topic.name, state.config, 0, state.tools(), may_wait=True)
    assert (audited.passed, audited.looked_at) == (
        True,
        f"nothing, as latest/{state.topic.name} has 1 decoded ranges to read at the next update",
    )
    state.update()
    state.assert_right()
    assert [row[4] for row in state.topic.shown()] == ["b"], "that the key a has no record any more is seen"


def test_a_torn_table_without_a_decoded_one_is_said_to_be_broken(state: State) -> None:
    """[R-90] Somebody has moved the decoded table away, as the audit advised of it: nothing can be compared."""
    state.topic.put(RANGE, {0: ("a", {"n": 1})})
    state.update()
    state.last_entry.write_bytes(b"{")
    shutil.rmtree(state.topic.lake.store.url(f"tables/decoded/{state.topic.name}"))
    (said,) = check_share(state.topic.name, state.config, 0, state.tools()).violations
    assert said.startswith(f"latest/{state.topic.name} is broken: ") and said.endswith("the next update makes it anew")


def upsert_twice(state: State) -> None:
    state.topic.put(RANGE, {n: (f"k{n}", {"n": n}) for n in range(9)})
    state.update()
    state.topic.put(LATER, {20: ("k1", {"n": 20}), 21: ("k2", None)})
    state.update()


def leave_checkpoint_alone(state: State) -> None:
    """Have delta-rs read a version of which the entry is gone: without a checkpoint it reads the version before."""
    DeltaTable(str(state.folder)).create_checkpoint()
    state.last_entry.unlink()


def cut(path: Path, at: Callable[[bytes], int]) -> None:
    path.write_bytes(path.read_bytes()[: at(path.read_bytes())])


def append_foreign(state: State) -> None:
    """Have another writer double a row."""
    write_deltalake(str(state.folder), DeltaTable(str(state.folder)).to_pyarrow_table().slice(0, 1), mode="append")


def delete_foreign(state: State) -> None:
    """Have another writer take a row, and commit once more without any: the last entry does not tell."""
    table = DeltaTable(str(state.folder))
    table.delete("key = 'k1'")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert json.loads(state.last_entry.read_text().splitlines()[0])["commitInfo"]["operation"] == "VACUUM END", "the fault"


# what tears, and why it is made anew
TORN: dict[str, tuple[Callable[[State], object], str]] = {
    "empty": (lambda state: cut(state.last_entry, lambda _: 0), "is torn: it is cut off"),
    "torn": (lambda state: cut(state.last_entry, lambda _: 700), "its log cannot be read"),
    "at_a_line": (lambda state: cut(state.last_entry, lambda text: text.index(b'{"remove"')), "is torn: it is cut off"),
    "last_line": (lambda state: cut(state.last_entry, lambda text: text.rstrip().rindex(b"\n") + 1), "is torn: it is cut off"),
    "entry_gone": (leave_checkpoint_alone, "is missing"),
    "file_gone": (lambda state: state.files[0].unlink(), "is missing"),
    "file_short": (lambda state: cut(state.files[0], lambda _: 100), "has 100 bytes, expected"),
    "no_log": (lambda state: shutil.rmtree(state.folder / "_delta_log"), "its log cannot be read"),
}


@pytest.mark.parametrize("name", TORN)
def test_what_a_power_cut_tears_is_made_anew_under_another_id(name: str, state: State) -> None:
    """[R-88] No reader is given it until then."""
    break_it, why = TORN[name]
    upsert_twice(state)
    before, right = DeltaTable(str(state.folder)).metadata().id, state.topic.shown()
    assert not state.has_work, "the control"
    assert find_latest(state.topic.name, state.topic.lake).paths, "the control"
    break_it(state)
    assert state.has_work
    with pytest.raises(BrokenTable, match="makes it anew"):
        find_latest(state.topic.name, state.topic.lake)
    assert why in state.update().rebuilt
    assert state.topic.shown() == right == state.recomputed()
    assert DeltaTable(str(state.folder)).metadata().id != before, "readers are told"


def refuse_nobody(state: State) -> None:
    DeltaTable(str(state.folder)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


@pytest.mark.parametrize(
    ("change", "name"), [(append_foreign, "WRITE"), (delete_foreign, "DELETE"), (refuse_nobody, "SET TBLPROPERTIES")]
)
def test_what_another_writer_changes_is_written_anew_in_one_commit(
    change: Callable[[State], None], name: str, state: State
) -> None:
    """[R-88] No reader is given it until then, nor less than all afterwards: whoever reads an earlier version goes on."""
    upsert_twice(state)
    before, right = DeltaTable(str(state.folder)), state.topic.shown()
    change(state)
    changed = DeltaTable(str(state.folder)).version()
    with pytest.raises(BrokenTable, match=f"another writer has changed it: {name}"):
        find_latest(state.topic.name, state.topic.lake)
    assert state.update().rebuilt == f"another writer has changed it: {name}"
    assert state.topic.shown() == right == state.recomputed() and find_latest(state.topic.name, state.topic.lake).paths
    after = DeltaTable(str(state.folder))
    assert (after.metadata().id, after.version()) == (before.metadata().id, changed + 1)
    if change is not delete_foreign:  # which vacuums, too
        assert before.to_pyarrow_table().num_rows == 9


def test_a_table_that_delta_rs_may_not_write_any_more_says_what_to_do(state: State) -> None:
    """[R-88] [R-90] Nor do rows stand in the error; the control: what it says helps."""
    upsert_twice(state)
    DeltaTable(str(state.folder)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(LakeUnavailable, match=r"append-only.*; where it goes on so, move the folder away"):
        state.update()
    shutil.rmtree(state.folder)
    state.update()
    state.assert_right()
    error = CommitFailedError("Invariant violations: [n < 0]. Preview of invalid data: | k1 | 4711 |")
    assert said_by_delta(error) == "Invariant violations: [n < 0]. "


def test_nobody_is_given_a_table_that_is_being_made(state: State) -> None:
    """[R-85] Its first version has no rows yet: nor does it after whoever made it has died."""
    state.topic.put(RANGE, {0: ("a", {"n": 1})})

    def look() -> None:
        with pytest.raises(BrokenTable, match="it is being made"):
            find_latest(state.topic.name, state.topic.lake)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        state.update(on_step=stop_at("read_decoded", look))
    with pytest.raises(BrokenTable, match="it is being made"):
        find_latest(state.topic.name, state.topic.lake)
    state.update()
    assert find_latest(state.topic.name, state.topic.lake).paths
    state.assert_right()


@pytest.mark.parametrize("config", [Latest(), Latest("value.n")])  # the second writes all rows anew
def test_what_another_writer_commits_beside_an_update_is_not_hidden_by_it(config: Latest, state: State) -> None:
    """[R-88] delta-rs would commit ours onto it, and the table would pass for ours."""
    upsert_twice(state)
    state.topic.put(OffsetRange(0, 0, 40, 60), {40: ("k5", {"n": 40})})
    state.config = config
    told, once = list[str](), [append_foreign]

    def beside(step: str, **fields: Any) -> None:
        told.append(f"{step} {fields.get('committed', '')}".strip())
        if step == "read_decoded" and once:
            once.pop()(state)

    assert state.update(on_step=beside).rebuilt == "another writer has changed it: WRITE"
    assert told.index("commit_latest False") < told.index("commit_latest True"), "the fault"
    state.assert_right()


def test_what_delta_rs_refuses_is_not_called_overtaken(state: State) -> None:
    """[R-90] Twenty tries would fail alike, and then blame others that are not there."""
    upsert_twice(state)
    table = LatestTable(state.topic.lake, state.topic.name)
    refuse = Mock(side_effect=CommitFailedError("the table is append-only"))
    snapshot = table.read()
    assert snapshot is not None
    with pytest.raises(LakeUnavailable, match=r"cannot write .*: the table is append-only; where it goes on so"):
        table._commit(snapshot, refuse)
    append_foreign(state)
    assert not table._commit(snapshot, refuse), "the control: somebody was faster"


def test_in_a_bucket_the_second_to_make_a_table_anew_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-88] No lock holds there, so nothing that another one may have made anew is deleted: of two one commits."""
    state = State(f"{bucket}/{uuid.uuid4().hex}")
    topic = state.topic
    folder = f"tables/latest/{topic.name}"
    topic.put(RANGE, {n: (f"k{n}", {"n": n}) for n in range(20)})
    state.update()
    name = next(path for path in topic.lake.store.list(folder) if path.endswith(".parquet"))
    topic.lake.store.delete(name)
    others, deleted = list[Updated](), []
    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "delete", lambda _, path: deleted.append(path))
        state.update(on_step=stop_at("read_decoded", lambda: others.append(state.update())))
    assert "is missing" in others[0].rebuilt, "the fault: both have seen it"
    assert folder not in deleted
    assert topic.shown() == topic.recomputed() and len(topic.shown()) == 20


def test_columns_grow_and_what_cannot_be_gone_on_from_is_made_anew(state: State, tmp_path: Path) -> None:
    """[R-88]"""
    state.topic.put(RANGE, {0: ("a", {"n": 1}), 1: (None, {"n": 9}), 2: ("b", {"n": 2})})
    state.update()
    state.topic.value_type = pa.struct([("n", pa.int64()), ("more", pa.string())])
    state.topic.put(LATER, {20: ("a", {"n": 3, "more": "x"})})
    assert state.update() == Updated(1, "", has_committed=True)
    assert [row[4:] for row in state.topic.shown()] == [("b", {"n": 2, "more": None}), ("a", {"n": 3, "more": "x"})], (
        "a record without a key is no state"
    )
    state.assert_right()
    state.config = Latest("value.n")
    assert state.update().rebuilt == "defs.yaml names another order"
    state.assert_right()
    shutil.rmtree(tmp_path / "lake/tables/decoded")
    state.topic.key_type = pa.binary()
    state.topic.put(OffsetRange(0, 0, 40, 50), {40: (b"a", {"n": 3, "more": "x"})})
    assert state.update().rebuilt == "it is of another decoded table"
    state.assert_right()


def test_where_no_record_is_decoded_any_more_no_key_is_left(state: State) -> None:
    """[R-88] By a schema that none of them has, say: then the decoded table has no column of theirs."""
    state.topic.put(RANGE, {0: ("a", {"n": 1}), 1: ("b", {"n": 2})})
    state.update()
    assert len(state.topic.shown()) == 2, "the control"
    state.topic.put(RANGE, {}, revision=1)
    assert state.update().has_committed and state.topic.shown() == []
    assert not state.has_work
    state.topic.put(LATER, {20: ("a", {"n": 3})})
    state.update()
    state.assert_right()
    state.topic.put(LATER, {}, revision=1)
    shutil.rmtree(state.folder)
    assert state.update() == Updated(), "there is nothing to make a table of"


@pytest.mark.parametrize(
    ("kind", "sequence", "why"),
    [
        (pa.int64(), "value.nothing", "found no field nothing among n; nothing was written"),
        (pa.float64(), "value.n", "found type double"),
        (pa.map_(pa.string(), pa.timestamp("us")), None, "a time without a zone in a map"),
    ],
)
def test_what_no_table_can_be_made_of_is_refused_first(kind: pa.DataType, sequence: str | None, why: str, state: State) -> None:
    """[R-88] A sequence that is no field or has no order; a map of local times, of which delta-rs says so only then."""
    state.config, state.topic.value_type = Latest(sequence), pa.struct([("n", kind)])
    state.topic.put(RANGE, {0: ("a", {"n": None})})
    with pytest.raises(BadSetting, match=why):
        state.update()
    assert not state.folder.exists()


def test_fractions_are_keys_and_a_time_without_a_zone_is_a_value(state: State) -> None:
    """All NaN are one key, and both zeros."""
    state.topic.key_type = pa.struct([("x", pa.list_(pa.float64()))])
    state.topic.value_type = pa.struct([("at", pa.timestamp("us"))])
    at = datetime(2013, 1, 1)  # noqa: DTZ001
    state.topic.put(RANGE, {n: ({"x": [n / 2]}, {"at": at}) for n in range(20)})
    state.update()
    later = [-0.0, float("nan"), float("nan"), 1.0]
    for at_offset, found in enumerate(later, 20):
        state.topic.put(
            OffsetRange(0, 0, at_offset, at_offset + 1), {at_offset: ({"x": [found]}, {"at": at + timedelta(days=at_offset)})}
        )
        state.update()
    shown = state.topic.shown()
    assert [row[2] for row in shown] == [1, *range(3, 21), 22, 23]
    assert shown[-1][5] == {"at": at + timedelta(days=23)}


def test_many_small_files_become_few(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that only insert add a file each."""
    monkeypatch.setattr("pipeline_defs.tables.latest.MOST_FILES", 3)
    counts = []
    for number in range(5):
        state.topic.put(OffsetRange(0, 0, number, number + 1), {number: (f"k{number}", {"n": number})})
        state.update()
        counts.append(len(state.files))
        state.assert_right()
    assert max(counts) == 3
    assert counts[-1] < 3


def spoil(path: Path) -> None:
    """Change bytes in the middle of a file, as a disk may; its size and its footer stay."""
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def spoil_schema(path: Path) -> None:
    """Change the schema that Arrow keeps in a footer, which delta-rs reads and DuckDB does not."""
    before, name, after = path.read_bytes().partition(b"ARROW:schema")
    path.write_bytes(before + name + after[:20] + bytes(100) + after[120:])


def test_a_store_that_does_not_answer_is_no_damage(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-88] Else the table would be made anew of a fault of the network; a file that is gone, the control, is damage."""
    path = "tables/latest/x.parquet"
    assert "No files found" in find_damage(path, state.topic.lake)
    monkeypatch.setattr(state.topic.lake.store, "local_copy", Mock(side_effect=TimeoutError(errno.ETIMEDOUT, "timed out")))
    with pytest.raises(LakeUnavailable, match="timed out"):
        find_damage(path, state.topic.lake)


@pytest.mark.parametrize("harm", [spoil, spoil_schema])
def test_a_damaged_file_of_the_table_is_found_by_the_update_that_reads_it(harm: Callable[[Path], None], state: State) -> None:
    """[R-88] Log and size are right, so nobody knows before; one that delta-rs alone cannot read the audit does not see."""
    upsert_twice(state)
    right = state.topic.shown()
    for file in state.files:
        harm(file)
    if harm is spoil:
        with pytest.raises(duckdb.Error):
            state.topic.shown()
        assert all("cannot be read: " in each.violations[0] and "--rebuild" in each.violations[0] for each in state.check())
    else:
        assert state.topic.shown() == right
    state.topic.put(OffsetRange(0, 0, 40, 60), {40: ("k5", {"n": 40})})
    assert f"{'its rows ' if harm is spoil_schema else ''}cannot be read: " in state.update().rebuilt
    state.assert_right()
    assert {row[4] for row in state.topic.shown()} == {row[4] for row in right}


@pytest.mark.parametrize("name", ["file_gone", "last_line"])
def test_a_broken_table_stays_until_all_that_is_decoded_is_whole(name: str, state: State, tmp_path: Path) -> None:
    """[R-88] It is made anew of that alone: what is left of it may be all that there is."""
    upsert_twice(state)
    lost = tmp_path / "lake" / find_due(state.topic.name, state.config, state.tools().decodings, full=True).placed[RANGE].path
    data = lost.read_bytes()
    break_it, _ = TORN[name]
    break_it(state)
    before = {path: path.read_bytes() for path in state.folder.rglob("*") if path.is_file()}
    spoil(lost)
    with pytest.raises(BrokenTable, match=r"is gone or was changed; the latest table of topic .* stays as it is"):
        state.update()
    assert {path: path.read_bytes() for path in state.folder.rglob("*") if path.is_file()} == before
    lost.write_bytes(data)
    assert state.update().rebuilt
    state.assert_right()


def test_a_file_of_the_table_that_goes_while_it_is_updated_is_told(state: State) -> None:
    """[R-88] The update after it makes the table anew."""
    upsert_twice(state)
    state.topic.put(OffsetRange(0, 0, 40, 60), {40: ("k5", {"n": 40})})
    lose = stop_at("read_decoded", state.files[0].unlink)
    with pytest.raises(LakeUnavailable, match=r"\.parquet is gone; what stands stays as it is.*the next update tries again"):
        state.update(on_step=lose)
    assert "is missing" in state.update().rebuilt
    state.assert_right()


@pytest.mark.parametrize("how", ["cut", "empty", "spoilt"])
def test_a_damaged_decoded_file_is_named_with_what_makes_it_again(how: str, state: State) -> None:
    """[R-91] Nothing of what it says is told; the table stays as it was."""
    upsert_twice(state)
    before, files = state.topic.shown(), {*table_files(state.topic.lake, state.topic.name)}
    offsets = OffsetRange(0, 0, 40, 60)
    state.topic.put(offsets, {at: (f"k{at}", {"n": at}) for at in range(40, 60)})
    path = Path(*({*table_files(state.topic.lake, state.topic.name)} - files))
    if how == "spoilt":
        spoil(path)
    else:
        path.write_bytes(path.read_bytes()[: 300 if how == "cut" else 0])
    with pytest.raises(
        BrokenTable, match=rf"{path.name}, a file of the decoded table, is gone or was changed; .*--key {offsets.key}"
    ):
        state.update()
    assert state.topic.shown() == before


def test_values_as_wide_as_a_broker_takes_go_through_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-87] Winners are found by keys and places alone: 400 MB of values, and memory for a few files of 20 MB."""
    monkeypatch.setattr("pipeline_defs.adapters.tables.latest_winners.MEMORY", "200MB")
    state, text = State(str(tmp_path / "lake")), "v" * 1_000_000
    state.topic.value_type = pa.struct([("n", pa.string())])
    for start in range(0, 400, 20):
        rows = {at: (f"k{at % 250}", {"n": f"{at}{text}"}) for at in range(start, start + 20)}
        state.topic.put(OffsetRange(0, 0, start, start + 20), rows)
    state.update()
    state.topic.put(OffsetRange(0, 0, 400, 401), {400: ("k0", {"n": text})})
    state.update()
    shown = {row[4]: row[2] for row in state.topic.shown()}
    assert shown == {f"k{n}": n + 250 if n < 150 else n for n in range(250)} | {"k0": 400}


def test_the_check_compares_all_that_later_updates_go_by(state: State) -> None:
    """[R-87] A wrong place in the order shows nothing until a later record loses against it; nor may a key stand twice."""
    upsert_twice(state)
    table = DeltaTable(str(state.folder))
    right = table.version()
    assert all(each.passed for each in state.check()), "the control"
    ours = CommitProperties(custom_metadata={"offsetlake": "0"})  # what another writer does is no question of a check
    second = "timestamp + INTERVAL '1 second'"
    others = {"_deleted": "NOT _deleted", "_reached": "_reached + 1", "_epoch": "_epoch + 1", "timestamp": second}
    for column, other in others.items():
        table.update(updates={column: other}, predicate="key = 'k3'", commit_properties=ours)
        assert [each.passed for each in state.check()].count(False) == 1, column
        table.restore(right, commit_properties=ours)
    write_deltalake(table, table.to_pyarrow_table(), mode="append", commit_properties=ours)
    told = [text for each in state.check() for text in each.violations]
    assert told and all("--rebuild" in text for text in told)
    state.update(full=True)
    state.assert_right()


class Reader(LoopingReader):
    """Reads the table; each key has to be there once, with its old or its new record."""

    def __init__(self, topic: DecodedTopic, old: dict[str, int], new: dict[str, int]) -> None:
        super().__init__()
        self._topic, self._old, self._new = topic, old, new
        self._folder = Path(topic.lake.store.url(f"tables/latest/{topic.name}"))  # in a bucket no file is exchanged
        self.reads = 0

    def read(self) -> None:
        rows = self.ask(self._folder, self._topic.shown)
        if rows is None:
            return
        found = {row[4]: row[5]["n"] for row in rows}
        if len(rows) != len(self._old) or found not in (self._old, self._new):
            self.errors.append(str(rows))
        self.reads += 1


STEPS = ["read_decoded", "commit_latest"]
KINDS = [f"{kind} {step}" for kind in ("first", "anew") for step in ("rebuild_latest", *STEPS)]
QUICK = [("disk", "merge read_decoded"), ("bucket", "merge read_decoded"), ("disk", "anew rebuild_latest")]


@pytest.mark.parametrize(
    ("placed", "at"), everywhere([*(f"merge {step}" for step in STEPS), *KINDS], QUICK), indirect=["placed"]
)
def test_whoever_dies_between_two_steps_leaves_the_table_old_or_new(placed: World, at: str) -> None:
    """[R-87] SIGKILL while it is merged, made, or made anew, with a reader in a loop; the next update does what is missing."""
    world, (kind, step) = placed, at.split()
    topic, old = upserted(world), dict[str, int]()
    if kind != "first":
        old = {f"k{n}": n for n in range(20)}
        topic.put(RANGE, {at: (f"k{at}", {"n": at}) for at in range(20)})
        assert launch(world).succeeded
    topic.put(LATER, {at: (f"k{at - 20}", {"n": at}) for at in range(20, 40)})
    new = {f"k{n}": n + 20 for n in range(20)}
    if kind == "anew":
        world.topic = dataclasses.replace(world.topic, latest=Latest("value.n"))
    assert world.topic.latest is not None
    reader = Reader(topic, old, new)
    with reader.reading() if old else nullcontext():
        with stopped_at(world, "update", step):
            is_new = {row[4]: row[5]["n"] for row in topic.shown()} == new
            assert is_new == (step == "commit_latest"), "the fault: it was stopped in the middle"
        later = Adapters(world.settings, now_ms=lambda: time.time_ns() // 1_000_000 + 60_000)  # its back-off is over
        end_dead_runs(world.instance, later.now_ms())
        tick = run_latest_tick(world.topic, world.topic.latest, world.instance, later, world.known)
        assert tick.is_due != is_new, "the dead run does not keep the next one from being asked for"
        assert launch(world).succeeded
    assert not reader.errors
    assert reader.reads > 1 or not old
    assert topic.shown() == topic.recomputed()
    assert {row[4]: row[5]["n"] for row in topic.shown()} == new


def test_from_kafka_to_the_latest_record_through_dagster(world: World) -> None:
    """The sensor asks once something is decoded; the run's facts are the table's; the check finds what was tampered with."""
    config = Latest()
    world.topic = dataclasses.replace(world.topic, decode=Decode(Side(Format.STRING), Side(Format.STRING)), latest=config)
    world.create_topic(2)
    world.send({"partition": n % 2, "key": b"k%d" % (n % 7), "value": b"v%d" % n} for n in range(150))
    world.send([{"partition": 1, "key": b"k3", "value": None}, {"partition": 0, "key": None, "value": b"nobody"}])
    world.plan_and_land()
    assert run_latest_tick(world.topic, config, world.instance, world.adapters, world.known) == DerivedTick(), (
        "nothing is decoded yet"
    )
    world.decode()
    tick = run_latest_tick(world.topic, config, world.instance, world.adapters, world.known)
    assert tick.is_due and tick.waiting.startswith("2 ranges wait for an update")
    launched = launch(world)
    assert launched.succeeded, launched.reason
    (event,) = world.events(world.topic.latest_key)
    facts = {name: value.value for name, value in event.metadata.items()}
    topic = DecodedTopic(world.adapters.lake, world.name, pa.string(), pa.string())
    assert (facts["keys"], facts["tombstones"], facts["ranges_read"]) == (len(topic.shown()), 7 - len(topic.shown()), 2)
    assert topic.shown() == topic.recomputed()
    assert not run_latest_tick(world.topic, config, world.instance, world.adapters, world.known).is_due
    _, rows = Duck(world.adapters.lake, [world.name]).query(f'SELECT count(*) FROM latest."{world.name}"')
    assert rows == [(facts["keys"],)]
    places = {(1, 74): True, (1, 75): True, (0, 0): False}  # the newest of a key, its tombstone, and one of many before
    assert {place: trace_row(world.topic, *place, world.adapters)["is_latest"] for place in places} == places

    def look() -> DueUpdate:
        return find_due(world.name, config, world.adapters.decodings)

    assert not look().has_work, "the control"
    tools = world.adapters.latest_tools()
    findings = [check_share(world.name, config, share, tools) for share in range(SHARES)]
    assert [finding.violations for finding in findings] == [()] * SHARES
    assert sum(finding.facts["keys"] for finding in findings) == 7
    (audited,) = [
        each for each in run_audit(world.topic, world.adapters, "none", "", Shown("audit", None)) if each.check == RECOMPUTED
    ]
    assert audited.passed and audited.facts["ranges"] == 2
    DeltaTable(world.adapters.lake.store.url(f"tables/latest/{world.name}")).delete("key = 'k1'")
    found = [check_share(world.name, config, share, tools) for share in range(SHARES)]
    assert {each.violations for each in found} == {
        (f"latest/{world.name} is to be made anew: another writer has changed it: DELETE; update it, then check",)
    }
    assert look().has_work and look().why_anew == "another writer has changed it: DELETE"
    assert trace_row(world.topic, 1, 74, world.adapters)["is_latest"] is None, "no reader is given it"
    assert launch(world).succeeded
    assert topic.shown() == topic.recomputed() and not look().has_work


def upserted(world: World) -> DecodedTopic:
    """Give the world's topic a latest table; what is decoded is put there by hand."""
    world.topic = dataclasses.replace(world.topic, decode=Decode(), latest=Latest())
    return DecodedTopic(world.adapters.lake, world.name, pa.string())


def launch(world: World) -> Launched:
    adapters = Adapters(world.settings)
    return InProcessRuns(world.topic, adapters, world.instance).update_latest(full=False)


def test_a_lake_that_delta_rs_cannot_open_is_refused(tmp_path: Path) -> None:
    """It would end the whole process, with a panic of its own."""
    state = State(str(tmp_path / "lake[1]"))
    state.topic.put(RANGE, {0: ("a", {"n": 1})})
    with pytest.raises(Refused, match=r"found '\['; nothing was written; move the lake to a path without"):
        state.update()
    assert not state.folder.exists()


class Producer:
    """One producer that learns late of partitions that are added; its clock is right while keys move, and else wrong."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now_ms, self.known, self.is_steady = draw, EPOCH_MS, 1, True
        self.logs: list[list[tuple[str, dict[str, Any] | None, int]]] = [[]]
        self.last: dict[str, dict[str, Any] | None] = {}

    def send(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += 1
            key = f"k{self.draw.randrange(12)}"
            value = None if self.draw.random() < 0.2 else {"n": sum(map(len, self.logs))}
            at_ms = self.now_ms - (self.draw.randrange(30) if self.is_steady else 0)
            self.logs[zlib.crc32(key.encode()) % self.known].append((key, value, at_ms))
            self.last[key] = value

    def observe(self, topic: str) -> TopicState:
        return TopicState(topic, "id", {p: PartitionState(Watermarks(0, len(log))) for p, log in enumerate(self.logs)})

    def rows(self, offsets: OffsetRange) -> Rows:
        return dict(enumerate(self.logs[offsets.partition][offsets.start : offsets.end], offsets.start))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_after_partitions_were_added_a_key_has_what_its_producer_wrote_last(seed: int, state: State) -> None:
    """[R-87] Twice more partitions, planned far behind, decoded in any order, with ranges that are decoded again between."""
    draw = random.Random(seed)
    producer = Producer(draw)
    lake, policy = state.topic.lake, Policy(records_per_range=7, max_age_seconds=0, budget=2)

    def plan_once() -> bool:
        step = plan(lake.read_plan_log(state.topic.name).state, producer.observe(state.topic.name), policy, EPOCH_MS)
        return step is not None and lake.commit_step(step)

    producer.send(40)
    plan_once()
    for more in (2, 3):
        producer.is_steady = False
        producer.logs += [[] for _ in range(more - len(producer.logs))]
        producer.send(15)  # by old metadata
        producer.known = more
        producer.send(15)
        plan_once()  # the growth is noticed, and most of what was before is not planned
        producer.now_ms -= 1000
        producer.send(15)
        producer.is_steady = True
        producer.send(30)
    while plan_once():
        pass
    log = lake.read_plan_log(state.topic.name)
    state.marks = log.steps[-1].growths
    assert len(state.marks) == 2
    waiting, revisions = [*log.ranges], dict[OffsetRange, int]()
    draw.shuffle(waiting)
    while waiting:
        for offsets in [waiting.pop() for _ in range(min(len(waiting), 9))]:
            state.topic.put(offsets, producer.rows(offsets))
            revisions[offsets] = 0
        compact_decoded(lake, state.topic.name)  # a file then has ranges of several partitions
        redone = draw.choice(sorted(revisions))
        revisions[redone] += 1
        state.topic.put(redone, {} if revisions[redone] % 2 else producer.rows(redone), revisions[redone])
        state.update()
        assert state.topic.shown() == state.recomputed()
    for redone, revision in revisions.items():
        state.topic.put(redone, producer.rows(redone), revision + 1)
    state.update()
    shown = {row[4]: row[5] for row in state.topic.shown()}
    assert shown == {key: value for key, value in producer.last.items() if value is not None}
    moved = {
        key for key in producer.last if len({p for p, log in enumerate(producer.logs) for row in log if row[0] == key}) > 1
    }
    assert moved, "the fault: keys are in several partitions"


def test_values_are_read_of_no_file_without_a_winner(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-87] A redo looks at the keys of all that is decoded, and at the values of the files alone where its winners lie."""
    read = Counter[str]()
    for offsets in (RANGE, LATER):
        state.topic.put(offsets, {at: (f"k{at % 20}", {"n": at}) for at in range(offsets.start, offsets.end)})
    due = find_due(state.topic.name, state.config, state.tools().decodings)

    def note(lake: Lake, path: str) -> str:
        read[path] += 1
        return file_at(lake, path)

    monkeypatch.setattr("pipeline_defs.adapters.tables.latest_winners.file_at", note)
    state.update()
    assert [row[2] for row in state.topic.shown()] == [*range(20, 40)]
    assert read[due.placed[RANGE].path] == 1, "for its keys"
    assert read[due.placed[LATER].path] > 1, "the control"


def test_whole_numbers_and_fractions_of_one_column_stay_exact(state: State) -> None:
    """[R-91] DuckDB alone would read INT and FLOAT as FLOAT, in which 16,777,217 is 16,777,216."""
    exact = 2**24 + 1
    for number, kind in enumerate([pa.int32(), pa.float32()]):
        state.topic.value_type = pa.struct([("n", kind), ("deep", pa.list_(pa.struct([("n", kind)])))])
        offsets = OffsetRange(0, 0, number, number + 1)
        value = {"n": exact if not number else 0.5, "deep": [{"n": exact if not number else 0.5}]}
        state.topic.put(offsets, {number: (f"k{number}", value)})
    state.update()
    files = [row[5] for row in state.topic.shown()]
    assert files == [{"n": float(exact), "deep": [{"n": float(exact)}]}, {"n": 0.5, "deep": [{"n": 0.5}]}]
