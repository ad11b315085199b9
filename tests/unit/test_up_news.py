"""What `up` says while it runs: of files that are added or are wrong, and where Dagster's history does not answer."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.orchestration.home import dagster_home
from pipeline_defs.orchestration.home.dagster_home import why_silent
from pipeline_defs.orchestration.topic_set import Broken, TopicFiles
from pipeline_defs.topics import Topic

ORDERS, PAYMENTS = (Topic(name, Policy()) for name in ("orders", "payments"))


def test_a_file_that_is_added_is_told_of_and_what_is_wrong_of_one_once_until_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    up = importlib.import_module("pipeline_defs.cli.home.up")
    topics, contested = [ORDERS], list[Broken]()
    monkeypatch.setattr(up, "DISCOVER_SECONDS", -1.0)
    monkeypatch.setattr(up, "find_contested", lambda *_: contested)
    monkeypatch.setattr(up, "load_topics", lambda: TopicFiles(Mock(), {"orders": ORDERS, "payments": PAYMENTS}))
    files = up._Files(tmp_path, Mock(), TopicFiles(Mock(), {"orders": ORDERS}), topics)
    files.look()
    assert topics == [ORDERS], "the control: no file has changed"
    (tmp_path / "payments").mkdir()
    (tmp_path / "payments" / "defs.yaml").write_text("type: offsetlake.KafkaTopic\n")
    contested.append(Broken("shop.c", tmp_path / "payments", BadSetting("topic shop.c matches the patterns of two files")))
    for _ in range(2):
        files.look()
    assert topics == [ORDERS, PAYMENTS]
    told = capfd.readouterr()
    assert told.err.count("topic shop.c matches the patterns of two files") == 1
    assert "is right again" not in told.out
    contested.clear()
    for _ in range(2):
        files.look()
    assert capfd.readouterr().out.count("is right again") == 1


@pytest.mark.parametrize("free", [0, 2**30])
def test_a_full_disk_of_dagsters_home_is_named_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """SQLite calls it an I/O error; the statement, which may have a record's metadata, is not told."""
    monkeypatch.setattr(dagster_home, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free)))
    told = why_silent(OperationalError("INSERT INTO runs", {"secret": 1}, Exception("disk I/O error")), tmp_path)
    assert told == (f"disk I/O error: the disk of {tmp_path} is full, make room there" if not free else "disk I/O error")
