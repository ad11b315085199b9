"""What `up` says while it runs: of files that are added or are wrong, and where Dagster's history does not answer."""

from __future__ import annotations

import errno
import importlib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from sqlalchemy.exc import OperationalError

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.orchestration.home import dagster_home, dagster_server
from pipeline_defs.orchestration.home.dagster_home import why_silent
from pipeline_defs.orchestration.home.dagster_server import DagsterServer, DagsterUnavailable
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


def test_a_history_that_does_not_answer_ends_nothing_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a full disk, say; also while a defs.yaml is read that somebody saved, which Dagster looks up there."""
    up = importlib.import_module("pipeline_defs.cli.home.up")
    silent = OperationalError("SELECT", {}, Exception("unable to open database file"))
    server = Mock(find_others=list, find_load_error=lambda: None, url="http://127.0.0.1:3000")
    looks = Mock(side_effect=[None, silent, silent, None, KeyboardInterrupt])
    fakes = {
        **dict.fromkeys(("_handle_signals", "_revive", "_end_hung", "_tell_news", "LandedSince", "FailedSince"), Mock()),
        "_services": lambda *_: nullcontext(server),
        "open_instance": lambda _: nullcontext(Mock()),
        "open_edges": lambda: Mock(settings=Mock(dagster_home=tmp_path)),
        "find_project": lambda: tmp_path,
        "find_other_config": lambda *_: None,
        "read_silence": lambda *_: None,
        "load_topics": lambda: TopicFiles(Mock(), {"orders": ORDERS}),
        "_Files": lambda *_: Mock(look=looks),
        "LOOKS_EVERY_SECONDS": 0.0,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(up, name, fake)
    told = CliRunner().invoke(up.up, []).output
    assert told.count("does not answer: unable to open database file") == 1 and told.count("answers again") == 1
    assert looks.call_count == 5 and told.endswith("everything is stopped; what is landed stays landed\n")


@pytest.mark.parametrize("error", [DagsterUnavailable("it did not come up"), OSError(errno.ENOSPC, "No space left on device")])
def test_a_dagster_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    """It ended, and was killed once more as it came up, or its disk is full: so many times in a while, for ever."""
    up = importlib.import_module("pipeline_defs.cli.home.up")
    server = DagsterServer(tmp_path, tmp_path)
    clock, started = [0.0], list[float]()
    monkeypatch.setattr(dagster_server, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def serve(port: int) -> None:
        started.append(clock[0])
        raise error

    monkeypatch.setattr(server, "_serve", serve)
    for now in range(0, 1300, 100):
        clock[0] = float(now)
        up._revive(server)
    assert started == [0, 100, 200, 600, 700, 800, 1200]
    assert capfd.readouterr().out.count(str(error)) == len(started)


@pytest.mark.parametrize("free", [0, 2**30])
def test_a_full_disk_of_dagsters_home_is_named_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """SQLite calls it an I/O error; the statement, which may have a record's metadata, is not told."""
    monkeypatch.setattr(dagster_home, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free)))
    told = why_silent(OperationalError("INSERT INTO runs", {"secret": 1}, Exception("disk I/O error")), tmp_path)
    assert told == (f"disk I/O error: the disk of {tmp_path} is full, make room there" if not free else "disk I/O error")
