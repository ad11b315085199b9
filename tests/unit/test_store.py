"""Put-if-absent has three answers; a lost one is settled by reading back, never by guessing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError

from pipeline_defs.core.errors import LakeUnavailable, OutcomeUnknown
from pipeline_defs.edges.store import Answer, Store

Copy = Callable[..., None]


def losing_the_answer(do: bool) -> Copy:
    """Is a copy whose answer is lost, after it was done or before."""
    honest = obstore.copy

    def copy(store: object, source: str, target: str, *, overwrite: bool) -> None:
        if do:
            honest(store, source, target, overwrite=overwrite)  # type: ignore[arg-type]
        raise GenericError("the connection was lost")

    return copy


def test_the_first_writer_commits_and_the_second_is_told(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "lake"))
    assert store.put_new("plan/0.json", b"first", "staging/a") is Answer.COMMITTED
    assert store.put_new("plan/0.json", b"second", "staging/b") is Answer.CONFLICT
    assert store.put_new("plan/0.json", b"first", "staging/c") is Answer.COMMITTED
    assert (store.get("plan/0.json"), store.list("staging")) == (b"first", {})


def test_a_lost_answer_of_a_write_that_happened_is_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-47]"""
    store = Store(str(tmp_path))
    monkeypatch.setattr(obstore, "copy", losing_the_answer(do=True))
    assert store.put_new("plan/0.json", b"ours", "staging/a") is Answer.COMMITTED


def test_a_lost_answer_where_another_was_first_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-47]"""
    store = Store(str(tmp_path))
    store.put_new("plan/0.json", b"theirs", "staging/a")
    monkeypatch.setattr(obstore, "copy", losing_the_answer(do=False))
    assert store.put_new("plan/0.json", b"ours", "staging/b") is Answer.CONFLICT


def test_a_lost_answer_that_reading_back_does_not_settle_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-47]"""
    store = Store(str(tmp_path))
    monkeypatch.setattr(obstore, "copy", losing_the_answer(do=False))
    with pytest.raises(OutcomeUnknown, match="ended without an answer and reading it back finds nothing yet"):
        store.put_new("plan/0.json", b"ours", "staging/a")
    monkeypatch.undo()
    assert store.put_new("plan/0.json", b"ours", "staging/a") is Answer.COMMITTED


@pytest.mark.parametrize("root", ["{0}/lake", "file://{0}/lake"])
def test_a_local_lake_may_be_a_path_or_a_file_url(tmp_path: Path, root: str) -> None:
    store = Store(root.format(tmp_path))
    store.put_new("data/x", b"1", "staging/a")
    assert (tmp_path / "lake" / "data" / "x").read_bytes() == b"1"
    assert store.url("data/x") == f"{tmp_path}/lake/data/x"


@pytest.mark.parametrize("root", ["{0}/a-file/lake", "gopher://somewhere/lake"])
def test_a_lake_that_cannot_be_opened_says_what_to_check(tmp_path: Path, root: str) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(LakeUnavailable, match="check that OFFSETLAKE_LAKE names a place"):
        Store(root.format(tmp_path)).check_writable("staging/probe")
