"""What a command prints is literal and read at a glance, and nothing that takes longer than 3 seconds is silent."""

from __future__ import annotations

import io
import json
import re
import time
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipeline_defs.cli import commands, show, terminal
from pipeline_defs.cli import progress as bar
from pipeline_defs.cli.commands import cli
from pipeline_defs.cli.look import glance
from pipeline_defs.cli.work import read
from pipeline_defs.core.errors import UnknownTopic
from pipeline_defs.landing.auditing import Finding
from pipeline_defs.orchestration.topic_set import TopicFiles
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT

HOSTILE = (
    "[/b]",
    "[true]",
    "[bold red]loud[/bold red]",
    "[link=http://evil]x[/link]",
    ":smile:",
    "\x1b[2J\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\x",
    "\x9b31m",
    "a\rb\x08\x0b\x0c",
    "\u202eexe.txt\u2066",
    "\ud800",
    "\\[x]",
    "[@click=app.bell]x[/]",
)
STEERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "B"}
texts = st.sampled_from(HOSTILE) | st.text(st.characters() | st.sampled_from("[]/\\\x1b\x9b\x07\r:"), max_size=40)
cells = st.recursive(
    texts | st.binary(max_size=20) | st.none() | st.integers() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
NO_TOPICS = TopicFiles(dg.ComponentTree.for_test(), {})


class Screen:
    """What a person would see; by default wide enough that nothing is folded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, width: int = 2000) -> None:
        self.file = io.StringIO()
        console = terminal.Terminal(file=self.file, width=width, force_terminal=False)
        for module in (show, glance, read, bar, commands):
            for name in ("OUT", "ERRORS"):
                monkeypatch.setattr(module, name, console, raising=False)

    def text(self) -> str:
        return self.file.getvalue()


def controls(text: str) -> list[str]:
    """Return the characters of a text that a terminal might obey, or that show another order than there is."""
    return [
        each
        for each in text
        if each not in "\n\t" and (unicodedata.category(each) in {"Cc", "Cs"} or unicodedata.bidirectional(each) in STEERING)
    ]


@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=3), name=texts)
def test_tables_obey_no_record(rows: list[tuple[Any, Any]], name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        screen = Screen(patch)
        show.print_table(name, [name, "other"], rows)
    assert controls(screen.text().replace("\x85", "\n")) == []


@given(text=texts)
def test_what_is_printed_is_what_the_record_says(text: str) -> None:
    """Nothing of it is swallowed: each line stands there, with pictures for what a terminal would obey."""
    finding = Finding("check", "one", (text,))
    trouble: dict[str, Any] = {"topic": "t", "kind": "k", "error": "e", "next_action": text, "partitions": []}
    trouble["tables"] = [{"table": "decoded", "error": text, "kind": "k"}]
    with pytest.MonkeyPatch.context() as patch:
        screen = Screen(patch)
        show.print_table("title", ["value"], [[text]])
        read.print_findings("t", [finding])
        glance.print_status([trouble], 0, by_partition=False)
    printed = screen.text()
    assert controls(printed) == []
    for line in terminal.visible(text).split("\n"):
        assert "\t" in line or printed.count(line.strip()) >= 4, printed


@pytest.fixture
def no_topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OFFSETLAKE_LAKE", str(tmp_path))
    monkeypatch.setattr(read, "load_topics", lambda: NO_TOPICS)


@pytest.mark.usefixtures("no_topics")
def test_sql_shows_a_record_as_it_is() -> None:
    """The record that ended `sql` with a traceback; `--json` stays exact, and nested values are no Python code."""
    moment = "{'at': TIMESTAMP '2013-01-01 05:15:00'}"
    statement = f"""SELECT '{{"x": "[/b]"}}' AS value, chr(27) || '[31m' AS esc, {moment} AS nested"""
    shown = CliRunner().invoke(cli, ["sql", statement])
    assert shown.exception is None, shown.stdout
    assert '{"x": "[/b]"}' in shown.stdout and "␛[31m" in shown.stdout
    assert '{"at": "2013-01-01T05:15:00"}' in shown.stdout
    exact = CliRunner().invoke(cli, ["sql", statement, "--json"])
    nested = {"at": "2013-01-01T05:15:00"}
    assert json.loads(exact.stdout) == [{"value": '{"x": "[/b]"}', "esc": "\x1b[31m", "nested": nested}]


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    """U16: as Python writes them; nobody reads base64. What is text is shown as text: the control."""
    with pytest.MonkeyPatch.context() as patch:
        screen = Screen(patch)
        show.print_table("dead letters", ["value"], [[b"\xff\x00{"], [b"{}"]])
    assert r"b'\xff\x00{'" in screen.text() and "/wB7" not in screen.text()
    assert "{}" in screen.text() and "b'{}'" not in screen.text()


def test_an_error_with_what_was_typed_is_literal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["offsetlake", "explain", "[/b]\x1b[31m"])
    with pytest.raises(SystemExit):
        commands.run()
    said = capsys.readouterr().err
    assert "[/b]" in said and controls(said) == []


def test_help_lists_every_command_once_under_what_it_is_for_with_whole_lines() -> None:
    """Nobody reads 30 commands in one list, each cut off with three dots."""
    shown = CliRunner().invoke(cli, ["--help"]).stdout
    listed = [cli.commands[name] for section in commands.SECTIONS.values() for name in section]
    assert sorted(command.name for command in listed if command.name) == sorted(cli.commands)
    assert all(f"{title}:" in shown for title in commands.SECTIONS) and "..." not in shown.partition("Options:")[2]
    words = " ".join(shown.split())
    assert [each.name for each in listed if " ".join(commands.first_sentence(each).split()) not in words] == []


@pytest.mark.usefixtures("no_topics")
@pytest.mark.parametrize(
    ("expression", "size"),
    [
        (r"repeat('\xFF\x00'::BLOB, 6000000)", "12,000,000 bytes"),
        ("repeat('ä', 6000000)", "6,000,000 characters"),
        (r"{'at': repeat('\xFF\x00'::BLOB, 6000000)}", "characters"),
    ],
)
def test_sql_shows_the_beginning_of_a_large_value_and_its_size(expression: str, size: str) -> None:
    """One record of 12 MB kept `sql` busy for minutes; `--json` has all of it: the control."""
    shown = CliRunner().invoke(cli, ["sql", f"SELECT {expression} AS value"])
    said = re.sub(r"[│\s]+", " ", shown.stdout)  # a cell is folded
    assert shown.exception is None and f"{size} in all" in said, said
    assert len(shown.stdout) < 20_000
    whole = CliRunner().invoke(cli, ["sql", f"SELECT {expression} AS value", "--json"])
    assert len(json.dumps(json.loads(whole.stdout))) > 6_000_000


@pytest.mark.usefixtures("no_topics")
def test_sql_says_that_a_table_is_not_the_topic_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic `ranges` has no view, and the statement that means it asks the table without a word."""
    for name, is_said in (("ranges", True), ("orders", False)):
        monkeypatch.setattr(read, "load_topics", lambda name=name: SimpleNamespace(names=(name,)))
        shown = CliRunner().invoke(cli, ["sql", "SELECT count(*) FROM ranges"])
        assert shown.exception is None, shown.output
        assert ("note: topic ranges has no view" in shown.stderr) is is_said, shown.stderr


def test_a_value_that_can_be_shown_whole_is_not_cut() -> None:
    for value in ("x" * show.LONGEST_SHOWN, b"\xff" * 100, 12345, None):
        assert "in all" not in str(show.cell(value))


NOW_MS = 1_700_000_000_000
BILLIONS = 4_294_967_296
FIRST_SECONDS = bar.FIRST_SECONDS  # before a fixture changes it


def document(topic: str, **changed: Any) -> dict[str, Any]:
    row = {
        "partition": 11,
        "landed_offset": BILLIONS,
        "end_offset": BILLIONS + 123_456_789,
        "lag": 123_456_789,
        "lag_seconds": 7200.0,
        "pending_ranges": 1234,
        "failed_ranges": 3,
        "last_landed_at_ms": NOW_MS - 95_000,
        "seconds_to_loss": 90_000.0,
        "open_transactions": [],
    }
    totals = {
        "lag": 12 * 123_456_789,
        "lag_bytes": 2**40,
        "lag_seconds": 7200.0,
        "landed_per_second": 123_456.7,
        "pending_ranges": 14_808,
        "failed_ranges": 36,
        "landed_ranges": 99_999,
        "seconds_to_loss": 90_000.0,
        "next_action": "nothing to do: everything is landed",
    }
    return {"topic": topic, "generation": 2, **totals, "partitions": [row], "tables": [], **changed}


def test_a_hundred_columns_are_enough_for_billions(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, width=100)
    glance.print_status([document("flights")], NOW_MS, by_partition=True)
    text = screen.text()
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 100, text
    (total,) = [line for line in lines if "│ flights" in line]
    (partition,) = [line for line in lines if "4,294,967,296" in line]
    assert [word.strip() for word in total.split("│")[1:-1]] == [
        *("flights", "1,481,481,468", "1.0 TiB", "2 h", "123,457", "14,808", "36", "99,999", "25 h")
    ]
    assert [word.strip() for word in partition.split("│")[1:-1]] == [
        *("11", "4,294,967,296", "4,418,424,085", "123,456,789", "2 h", "1,234", "3", "95 s ago", "25 h")
    ]
    assert "flights: nothing to do: everything is landed" in lines


def test_a_terminal_that_is_too_narrow_hides_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines go on in the next ones."""
    screen = Screen(monkeypatch, width=20)
    glance.print_status([document("flights")], NOW_MS, by_partition=False)
    assert all(part in screen.text() for part in ("14,808", "99,999", "25 h"))


def test_a_topic_that_the_broker_lacks_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, width=100)
    error = {"error": "no such topic", "kind": "unknown_topic"}
    absent = {"topic": "absent", **error, "next_action": "create it", "partitions": [], "tables": []}
    glance.print_status([absent, document("flights")], NOW_MS, by_partition=False)
    text = screen.text()
    assert "unknown_topic" in text and "no such topic" in text and "absent: create it" in text and "│ flights" in text


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, " .*3/12"), (False, r": 3 of 12 in \d+ s, .*s left\n")])
def test_a_terminal_gets_a_bar_and_a_pipe_lines(*, is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are literal: in a terminal, where Rich itself moves the cursor, none of it comes from the text."""
    out, deadline = io.StringIO(), time.monotonic() + 60
    monkeypatch.setattr(bar, "ERRORS", terminal.Terminal(file=out, force_terminal=is_terminal, width=200))
    monkeypatch.setattr(bar, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(bar, "EVERY_SECONDS", 0.02)  # the first line may be there before anything is done
    with bar.progress("landing [/b]\x1b]0;title\x07", 12) as work:
        work.update(3, 12)
        while not re.search(f"landing \\[/b]␛]0;title␇{shown}", out.getvalue()):
            assert time.monotonic() < deadline, out.getvalue()
            time.sleep(0.01)


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that runs a hundred quick commands reads none of it; and 3 seconds are never silent."""
    out = io.StringIO()
    monkeypatch.setattr(bar, "ERRORS", Console(file=out))
    assert FIRST_SECONDS < 3
    monkeypatch.setattr(bar, "FIRST_SECONDS", 600)  # what is quick, however slow this machine is
    with bar.progress("asking DuckDB"):
        pass
    assert out.getvalue() == ""


TOPIC_COMMANDS = (
    *("plan x", "land x --pending", "backfill x --all", "status x", "losses x", "accept-loss x 0-0-1", "map x"),
    *("trace x 0 7", "audit x", "metrics x", "rebuild x", "compact x"),
    *("decode x --due", "dead-letters x", "latest x"),
)


@pytest.mark.parametrize("line", TOPIC_COMMANDS)
def test_no_command_reads_the_project_in_silence(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading Dagster and the topics takes seconds on a slow machine: what is waited for is said, by every bar."""
    out = io.StringIO()
    monkeypatch.setattr(bar, "ERRORS", Console(file=out, width=120))
    monkeypatch.setattr(bar, "FIRST_SECONDS", 0.02)
    deadline = time.monotonic() + 60

    def load() -> TopicFiles:
        while not out.getvalue():
            assert time.monotonic() < deadline, "nothing is said"
            time.sleep(0.01)
        return NO_TOPICS

    monkeypatch.setattr(show, "load_topics", load)
    assert isinstance(CliRunner().invoke(cli, line.split()).exception, UnknownTopic)
