"""How a command begins and ends, and what it prints: literal, read at a glance, never silent for longer than 3 seconds.

What a newcomer types wrongly is refused in one clear line, and so is what goes wrong later: Ctrl-C at any moment, output that
cannot be written, warnings that are not the user's.
"""

import errno
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import click
import dagster as dg
import pytest
from click.testing import CliRunner
from dagster_shared.utils.warnings import BetaWarning, PreviewWarning, beta_warning, preview_warning
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sqlalchemy.exc import OperationalError

from pipeline_defs.cli import commands, main, show, terminal
from pipeline_defs.cli import terminal as bar
from pipeline_defs.cli.commands import cli
from pipeline_defs.cli.look import glance
from pipeline_defs.cli.work import read
from pipeline_defs.core.advice import command
from pipeline_defs.core.errors import BadSetting, EngineUnavailable, OffsetlakeError, Refused, UnknownTopic
from pipeline_defs.landing.auditing import Finding
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.orchestration.topic_set import TopicFiles
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT
from tests.support.reference import texts

FILLED = {"kafka_partition": "0", "offset": "0", "key": "0-0-1", "keys": "0-0-1", "path": "records.jsonl", "to": "latest"}
NOT_NAMES = ("", " ", "a b", "..", "../orders", "a/b", "ü", "x" * 250, "orders\n", "[/b]\x1b[31m")


# each command that takes a topic, with the parameter that it is
TAKING = {name: each for name in sorted(cli.commands) for each in cli.commands[name].params if each.name in {"topic", "topics"}}
assert {"plan", "land", "status", "produce", "init", "trace", "decode", "map"} <= TAKING.keys(), "the control"


def typed(command: str, topic: str) -> list[str]:
    """Return a command line that is right but for the topic."""
    words = [command]
    if command == "init":
        return ["init", "my_lake", "--topic", topic]
    for each in cli.commands[command].params:
        if each is TAKING[command]:
            words.append(topic)
        elif each.required or (command, each.name) in {("land", "pending"), ("backfill", "every")}:
            option = [each.opts[-1]] if isinstance(each, click.Option) else []
            words += [*option, *([] if getattr(each, "is_flag", False) else [FILLED[str(each.name)]])]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of topic `orders`, whose broker does not answer; one, since its package is imported by name."""
    folder = tmp_path_factory.mktemp("newcomer") / "typed_wrongly"
    write_project(plan_project(folder, ["orders"], "127.0.0.1:1"))
    (folder / "records.jsonl").write_text("{}\n")
    return folder


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> Path:
    """The folder in which the newcomer stands, with nothing exported."""
    monkeypatch.chdir(folder)
    return folder


def refused(words: list[str]) -> OffsetlakeError:
    found = CliRunner().invoke(cli, words)
    assert isinstance(found.exception, OffsetlakeError), f"{words}: {found.exception!r}\n{found.output}"
    assert "\n" not in str(found.exception)
    return found.exception


@pytest.mark.parametrize("command", TAKING)
def test_a_name_that_no_topic_can_have_or_has_is_refused_alike(project: Path, command: str) -> None:
    """One that nobody has configured with those that there are."""
    before = sorted(project.rglob("*"))
    for name in NOT_NAMES:
        error = refused(typed(command, name))
        assert type(error) is Refused and "is not one Kafka allows" in str(error), error
    assert sorted(project.rglob("*")) == before
    if command not in {"init", "produce"}:
        error = refused(typed(command, "ordres"))
        assert isinstance(error, UnknownTopic) and "known are orders, did you mean `orders`?" in str(error), error
        assert sorted(project.rglob("*.json")) == sorted(each for each in before if each.suffix == ".json")


BOTH = "--pending is every range of orders that is not landed, --key KEY is one range, landed or not"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["land", "orders", "--pending", "--key", "0-0-1"], f"{BOTH}: give one of the two"),
        (["land", "orders"], "say either --pending or --key"),
        (["produce", "orders", "--file", "records.jsonl", "--replicas", "2"], "say --partitions as well"),
        (["produce", "orders", "--file", "records.jsonl", "--raw", "--key-field", "k"], "leave --key"),
        (["produce", "orders", "--file", "records.jsonl", "--acks", "0", "--idempotence"], "contradict each other"),
        (["produce", "orders", "--file", "records.jsonl", "--transactional-id", ""], "--transactional-id is empty"),
        (["map", "orders", "--out", ""], "--out is empty"),
        (["produce", "__consumer_offsets", "--file", "records.jsonl"], "__consumer_offsets is Kafka's own"),
    ],
)
def test_what_contradicts_itself_or_says_too_little_is_refused(words: list[str], said: str) -> None:
    error = refused(words)
    assert isinstance(error, Refused | BadSetting) and said in str(error), error


@pytest.mark.parametrize("topic", ["orders", "-dash", "--pending", "-", "a.b_c-"])
def test_a_command_that_is_told_works_as_it_stands(topic: str) -> None:
    """Each name that Kafka allows, as a shell reads the line and click the words."""
    for verb, rest in TOLD:
        words = shlex.split(command(verb, topic, *rest))
        assert words[:2] == ["offsetlake", verb]
        with cli.commands[verb].make_context(verb, words[2:], resilient_parsing=False) as context:
            assert context.params["topic"] == topic, words
            assert context.params.get("keys", ()) == tuple(each for each in rest if each[0].isdigit()), words
            given = {opt for word in rest for opt in word.split() if opt.startswith("--")}
            flags = {opt for each in context.command.params for opt in each.opts if context.params[str(each.name)] is True}
            assert given <= flags | {"--key"}, words


TOLD = [
    *(("plan", ()), ("plan", ("--apply --through-end",)), ("land", ("--pending",)), ("land", ("--key", "0-0-1"))),
    *(("losses", ()), ("accept-loss", ("0-0-1",)), ("latest", ("--rebuild",))),
]


def test_no_message_puts_a_topic_behind_a_command_by_itself() -> None:
    """One that begins with a dash would be taken for an option."""
    by_hand = re.compile(r"offsetlake (?!explain\b)[a-z-]+ \{")
    assert {where.partition(":")[0] for where, text in texts() if by_hand.search(text)} <= {"demo.py"}
    assert by_hand.search("offsetlake plan {} --apply"), "the control"


EXPLAINING = "pipeline_defs.cli.home.doctor.find_text"


@pytest.mark.parametrize("where", ["pipeline_defs.cli.commands.load_env_file", EXPLAINING])
def test_ctrl_c_ends_a_command_with_130(where: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert ending(monkeypatch, Mock(side_effect=KeyboardInterrupt), where) == commands.INTERRUPTED
    assert "".join(capfd.readouterr()) == f"{commands.INTERRUPTED_TEXT}\n"


UNUSABLE = "file_unusable: home/broker/.lock cannot be used: "
LOCKED = OperationalError("INSERT INTO event_logs", {"event": "secret"}, Exception("database is locked"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        *(
            (OSError(number, os.strerror(number), "home/broker/.lock"), f"{UNUSABLE}{os.strerror(number).lower()}")
            for number in (errno.EACCES, errno.EROFS, errno.ENOSPC)
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "file_unusable: stdout, or a file, cannot be used: no space left"),
        (LOCKED, "history_unavailable: the command: Dagster's history does not answer: database is locked"),
    ],
)
def test_what_cannot_be_used_is_one_message(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a home that somebody has begun with sudo, or a history, without its statement, of a daemon stopped in mid write.

    The control is each other error, which is told as it is.
    """
    assert ending(monkeypatch, Mock(side_effect=error)) == 1
    told = capfd.readouterr().err
    assert said in told and "event_logs" not in told and "secret" not in told
    with pytest.raises(FileNotFoundError, match="No such"):
        ending(monkeypatch, Mock(side_effect=FileNotFoundError(errno.ENOENT, "No such file", "x")))
    assert "unusable" not in capfd.readouterr().err


def test_what_dagster_calls_beta_is_not_said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Hundreds of lines before the result of `land`; any other warning is shown: the control."""

    def warn(_: str) -> str:
        beta_warning("partitions")
        preview_warning("partitions")
        warnings.warn("records may be lost", UserWarning, stacklevel=1)
        return "text"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ending(monkeypatch, warn) == 0
    said = {each.category for each in caught}
    assert UserWarning in said and not said & {BetaWarning, PreviewWarning}, caught
    assert "text" in capfd.readouterr().out


def ending(monkeypatch: pytest.MonkeyPatch, does: Callable[..., object], where: str = EXPLAINING) -> object:
    """Return the exit code of a command that runs in this process, and does something in place of a function."""
    monkeypatch.setattr(where, does)
    monkeypatch.setattr("sys.argv", ["offsetlake", "explain", "refused"])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


HOSTILE = (
    *("[/b]", "[true]", "[bold red]loud[/bold red]", "[link=http://evil]x[/link]", ":smile:", "\x1b[2J\x1b[31m"),
    *("\x1b]0;title\x07", "\x1b]8;;http://evil\x1b\\x", "\x9b31m", "a\rb\x08\x0b\x0c", "\u202eexe.txt\u2066", "\ud800"),
    *("\\[x]", "[@click=app.bell]x[/]"),
)
STEERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "B"}
any_text = st.sampled_from(HOSTILE) | st.text(st.characters() | st.sampled_from("[]/\\\x1b\x9b\x07\r:"), max_size=40)
cells = st.recursive(
    any_text | st.binary(max_size=20) | st.none() | st.integers() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
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


@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=3), name=any_text)
def test_tables_obey_no_record(rows: list[tuple[Any, Any]], name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        screen = Screen(patch)
        show.print_table(name, [name, "other"], rows)
    assert controls(screen.text().replace("\x85", "\n")) == []


@given(text=any_text)
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


def test_bytes_that_are_no_text_are_shown_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """U16: as Python writes them; nobody reads base64. What is text is shown as text: the control."""
    screen = Screen(monkeypatch)
    show.print_table("dead letters", ["value"], [[b"\xff\x00{"], [b"{}"]])
    assert r"b'\xff\x00{'" in screen.text() and "/wB7" not in screen.text()
    assert "{}" in screen.text() and "b'{}'" not in screen.text()


def test_a_compaction_counts_what_was_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two at once one is overtaken; a dry run, which has no outcome yet, counts all: the control."""
    compact = importlib.import_module("pipeline_defs.cli.work.compact")
    screen, row = Screen(monkeypatch), {"table": "raw", "key": "k", "rows": 1, "bytes_before": 1, "bytes_after": 1}
    rows = [row | {"outcome": outcome, "files": files} for outcome, files in (("compacted", 3), ("overtaken", 6))]
    monkeypatch.setattr(compact, "OUT", show.OUT)
    compact._show("orders", rows, [], None, Mock(), dry_run=False)
    compact._show("orders", rows, [], None, Mock(), dry_run=True)
    said = [line.strip() for line in screen.text().splitlines()]
    assert "compacted 3 files of orders to 1" in said and "would compact 9 files of orders to 2" in said


def test_an_error_with_what_was_typed_is_literal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["offsetlake", "explain", "[/b]\x1b[31m"])
    with pytest.raises(SystemExit):
        commands.run()
    said = capsys.readouterr().err
    assert "[/b]" in said and controls(said) == []


def test_an_error_is_told_though_the_log_of_spark_is_another_users(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each command of another user of the home ended with a traceback; a log that was just written is named: the control."""
    theirs, ours = Mock(stat=Mock(side_effect=PermissionError)), tmp_path / "spark.log"
    ours.touch()
    monkeypatch.setattr(commands, "SPARK_LOGS", [theirs, ours])
    monkeypatch.setattr(commands, "cli", Mock(side_effect=EngineUnavailable("Spark cannot be used")))
    monkeypatch.setattr(commands.time, "time", lambda: 0.0)
    with pytest.raises(SystemExit):
        commands.run()
    said = capsys.readouterr().err
    assert "error engine_unavailable: Spark cannot be used" in said and said.count("what Spark says itself is in") == 1


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
    """One record of 12 MB kept `sql` busy for minutes; `--json` has all of it, and what can be shown whole: the controls."""
    shown = CliRunner().invoke(cli, ["sql", f"SELECT {expression} AS value"])
    said = re.sub(r"[│\s]+", " ", shown.stdout)  # a cell is folded
    assert shown.exception is None and f"{size} in all" in said, said
    assert len(shown.stdout) < 20_000
    whole = CliRunner().invoke(cli, ["sql", f"SELECT {expression} AS value", "--json"])
    assert len(json.dumps(json.loads(whole.stdout))) > 6_000_000
    assert not any("in all" in str(show.cell(value)) for value in ("x" * show.LONGEST_SHOWN, b"\xff" * 100, 12345, None))


@pytest.mark.usefixtures("no_topics")
def test_sql_says_that_a_table_is_not_the_topic_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic `ranges` has no view, and the statement that means it asks the table without a word."""
    for name, is_said in (("ranges", True), ("orders", False)):
        monkeypatch.setattr(read, "load_topics", lambda name=name: SimpleNamespace(names=(name,)))
        shown = CliRunner().invoke(cli, ["sql", "SELECT count(*) FROM ranges"])
        assert shown.exception is None, shown.output
        assert ("note: topic ranges has no view" in shown.stderr) is is_said, shown.stderr


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
    narrow = Screen(monkeypatch, width=20)
    glance.print_status([document("flights")], NOW_MS, by_partition=False)
    assert all(part in narrow.text() for part in ("14,808", "99,999", "25 h")), "its lines go on in the next ones"


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


LIMITED = """
import resource, sys
from pipeline_defs.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv.pop())))
try:
    main()
finally:
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("hard", "soft"), [(4_000, 4_000), (64, 64)])
def test_a_command_may_open_as_many_files_as_the_system_allows_not_as_its_shell_does(hard: int, soft: int) -> None:
    command = [sys.executable, "-c", LIMITED, "--version", str(hard)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == f"{soft} {hard}"
