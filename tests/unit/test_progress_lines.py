"""Progress of commands: nothing that takes longer than 3 seconds is silent, in a terminal or in a pipe."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from rich.console import Console

from pipeline_defs.cli import progress as command
from pipeline_defs.cli import show
from pipeline_defs.cli.commands import cli
from pipeline_defs.core.errors import UnknownTopic
from pipeline_defs.orchestration.topic_set import TopicFiles
from tests.support.topics import NO_TOPICS

FIRST_SECONDS = command.FIRST_SECONDS


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Shows the progress of work that waits until something has been shown of it."""

    def run(*, is_terminal: bool) -> str:
        out = io.StringIO()
        monkeypatch.setattr(command, "ERRORS", Console(file=out, force_terminal=is_terminal, width=120))
        deadline = time.monotonic() + 60
        with command.progress("landing flights", 12) as work:
            work.count(3, 12)
            while not {"3/12", "3 of 12"} & set(re.findall(r"\d+(?:/| of )12", out.getvalue())):
                assert time.monotonic() < deadline, out.getvalue()
                time.sleep(0.01)
        return out.getvalue()

    return run


def test_a_pipe_gets_a_line_with_done_total_rate_and_time_left(
    shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(command, "EVERY_SECONDS", 0.02)  # the first line may be there before anything is done
    line = shown(is_terminal=False).splitlines()[-1]
    assert re.match(r"landing flights: 3 of 12 in \d+ s, ", line)
    assert line.endswith("s left")


def test_a_terminal_gets_a_bar(shown: Callable[..., str]) -> None:
    assert "3/12" in shown(is_terminal=True)


def test_what_is_quick_says_nothing(shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that runs a hundred quick commands reads none of it; and 3 seconds are never silent."""
    out = io.StringIO()
    monkeypatch.setattr(command, "ERRORS", Console(file=out))
    assert FIRST_SECONDS < 3
    monkeypatch.setattr(command, "FIRST_SECONDS", 600)  # what is quick, however slow this machine is
    with command.progress("asking DuckDB"):
        pass
    assert out.getvalue() == ""


TOPIC_COMMANDS = (
    *("plan x", "land x --pending", "backfill x --all", "status x", "losses x", "accept-loss x 0-0-1", "map x"),
    *("trace x 0 7", "audit x", "metrics x", "rebuild x", "compact x"),
    *("decode x --due", "dead-letters x", "latest x"),
)


@pytest.mark.parametrize("line", TOPIC_COMMANDS)
def test_no_command_reads_the_project_in_silence(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading Dagster and the topics takes seconds on a slow machine: what is waited for is said, by every command."""
    out = io.StringIO()
    monkeypatch.setattr(command, "ERRORS", Console(file=out, width=120))
    monkeypatch.setattr(command, "FIRST_SECONDS", 0.02)
    deadline = time.monotonic() + 60

    def load() -> TopicFiles:
        while not out.getvalue():
            assert time.monotonic() < deadline, "nothing is said"
            time.sleep(0.01)
        return NO_TOPICS

    monkeypatch.setattr(show, "load_topics", load)
    assert isinstance(CliRunner().invoke(cli, line.split()).exception, UnknownTopic)
