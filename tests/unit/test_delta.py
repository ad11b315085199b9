"""What may be committed to a Delta log, and what cannot be read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_defs.adapters.store.stores import open_store
from pipeline_defs.adapters.tables.delta_log import DeltaLog
from pipeline_defs.core.errors import BrokenTable
from pipeline_defs.core.tables.delta import Commit, File, Snapshot, apply, check, from_json, to_json
from tests.support.intercepting import beside

A, B = (File(f"{name}.parquet", 10, 0, {"numRecords": 1}) for name in "ab")
TABLE = apply(Commit([A], transactions={"g0/p0": 5}), Snapshot())
SCHEMA = '{"type":"struct","fields":[]}'


def log_in(folder: Path) -> DeltaLog:
    """Is the log of a new table, in whose folder both files lie."""
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
    ],
)
def test_a_commit_that_would_break_a_law_is_not_written(commit: Commit, onto: Snapshot, violation: str, tmp_path: Path) -> None:
    """[R-81] No file twice, no name a second time, no app transaction backwards."""
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


@pytest.mark.parametrize("data", [b"{", b"[]\n", b'{"add":{}}', b'{"add":{"path":"a","size":1}}', b"\xff", b""])
def test_a_torn_commit_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(BrokenTable, match=r"t/1.json is no commit of a Delta log: .* move the table's folder away"):
        from_json(data, "t/1.json")


def test_a_commit_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
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


def test_a_version_that_follows_none_since_the_folder_was_moved_away_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
