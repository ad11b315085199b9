"""Two Dagsters started at one moment may want one port: neither takes the other's answer for its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline_defs.adapters.system.processes import Process, spawn_process
from pipeline_defs.orchestration.home import dagster_server
from pipeline_defs.orchestration.home.dagster_server import DagsterServer, PortTaken
from pipeline_defs.settings import PROJECT
from tests.support.fake_registry import Answering, serving


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, beside which is a workspace without a code location."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text((PROJECT / "dagster.yaml").read_text())
    (tmp_path / "workspace.yaml").write_text("load_from: []\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    return home


class Foreign(Answering):
    """Answers as the webserver of a Dagster with another home."""

    def do_POST(self) -> None:  # noqa: N802 (as http.server names it)
        self.told()
        info = 'local_artifact_storage: {config: {base_dir: "/another"}}'
        self.answer(200, json.dumps({"data": {"instance": {"info": info}}}).encode())


@contextmanager
def taken_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Have another take the preferred port after it was seen to be free and before Dagster listens at it."""
    port = dagster_server._free_port(0)
    others: list[int] = []

    def start(command: list[str], **given: Any) -> Process:
        if not others:
            others.append(opened.enter_context(serving(Foreign, port=port)))
        return spawn_process(command, **given)

    monkeypatch.setattr(dagster_server, "PREFERRED_PORT", port)
    monkeypatch.setattr(dagster_server, "spawn_process", start)
    with ExitStack() as opened:
        yield port


def test_a_port_that_another_took_a_moment_before_is_left_to_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = DagsterServer(home.parent / "up", home, home.parent / "workspace.yaml", project=home.parent)
    before = dict(os.environ), Path.cwd()
    with taken_as_it_starts(monkeypatch) as port, server:
        assert server.port != port
        assert server._answers_for_home()
        assert (dict(os.environ), Path.cwd()) == before, "whoever starts a Dagster goes on in its own environment"
    assert not server.is_running()


def test_a_port_that_a_person_named_is_not_exchanged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_as_it_starts(monkeypatch) as port:
        server = DagsterServer(home.parent / "up", home, home.parent / "workspace.yaml", project=home.parent, port=port)
        with pytest.raises(PortTaken, match=f"another program took http://127.0.0.1:{port}"), server:
            pass
    assert not server.is_running()


def test_a_log_that_has_become_long_is_begun_anew_and_what_is_written_meanwhile_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = DagsterServer(home.parent / "up", home, home.parent / "workspace.yaml", project=home.parent)
    server.trim_log()
    server.log.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(dagster_server, "LOG_BYTES", 10)
    with server.log.open("ab", buffering=0) as log:  # as Dagster's processes have it
        log.write(b"short")
        server.trim_log()
        assert server.log.read_bytes() == b"short", "the control"
        log.write(b" and now long")
        server.trim_log()
        log.write(b"new")
    assert server.log.read_bytes() == b"new"
    assert server.log.with_name("dagster.log.1").read_bytes() == b"short and now long"
