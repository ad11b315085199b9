"""How a command begins and ends: what a newcomer types wrongly is refused in one clear line, and so is what goes wrong later.

Ctrl-C at any moment, output that cannot be written, warnings that are not the user's.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner
from dagster_shared.utils.warnings import BetaWarning, PreviewWarning, beta_warning, preview_warning
from sqlalchemy.exc import OperationalError

from pipeline_defs.cli import commands, main
from pipeline_defs.cli.commands import cli
from pipeline_defs.core.command_lines import command
from pipeline_defs.core.errors import BadSetting, OffsetlakeError, Refused, UnknownTopic
from pipeline_defs.lab.environment import plain_environment
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.settings import PROJECT
from tests.support.messages import texts

FILLED = {"kafka_partition": "0", "offset": "0", "key": "0-0-1", "keys": "0-0-1", "path": "records.jsonl", "to": "latest"}
NOT_NAMES = ("", " ", "a b", "..", "../orders", "a/b", "ü", "x" * 250, "orders\n", "[/b]\x1b[31m")


# each command that takes a topic, with the parameter that it is
TAKING = {name: each for name in sorted(cli.commands) for each in cli.commands[name].params if each.name in {"topic", "topics"}}


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
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the newcomer stands, with nothing exported."""
    monkeypatch.chdir(folder)
    for name in ("OFFSETLAKE_HOME", "OFFSETLAKE_LAKE", "DAGSTER_HOME", "OFFSETLAKE_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def refused(words: list[str]) -> OffsetlakeError:
    found = CliRunner().invoke(cli, words)
    assert isinstance(found.exception, OffsetlakeError), f"{words}: {found.exception!r}\n{found.output}"
    assert "\n" not in str(found.exception)
    return found.exception


def test_commands_of_topics_are_found() -> None:
    assert {"plan", "land", "status", "produce", "init", "trace", "decode", "map"} <= TAKING.keys()


@pytest.mark.parametrize("command", TAKING)
def test_a_name_that_no_topic_can_have_is_refused_alike(project: Path, command: str) -> None:
    before = sorted(project.rglob("*"))
    for name in NOT_NAMES:
        error = refused(typed(command, name))
        assert type(error) is Refused and "is not one Kafka allows" in str(error), error
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize("command", sorted(TAKING.keys() - {"init", "produce"}))
def test_a_topic_that_nobody_has_configured_is_refused_with_those_there_are(project: Path, command: str) -> None:
    before = sorted(project.rglob("*.json"))
    error = refused(typed(command, "ordres"))
    assert isinstance(error, UnknownTopic), error
    assert "known are orders, did you mean `orders`?" in str(error)
    assert sorted(project.rglob("*.json")) == before


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
    found = {where.partition(":")[0] for where, text in texts() if by_hand.search(text)}
    assert found <= {"demo.py"}
    assert by_hand.search("offsetlake plan {} --apply"), "the control"


FULL, EXPLAINING = Path("/dev/full"), "pipeline_defs.cli.home.doctor.find_text"
INTERRUPTING = """
import os, signal
print("click is being imported", flush=True)
os.kill(os.getpid(), signal.SIGINT)
print("import goes on", flush=True)
"""
# a process between, and no `preexec_fn`: what other tests have loaded, gRPC's threads say, may print between fork and exec
BEFORE = "import os, signal, sys; exec(sys.argv[1]); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


def start(folder: Path, *arguments: str, before: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a process that has done something `before` it became that."""
    environment = plain_environment("PYTHONUNBUFFERED")
    environment |= {"OFFSETLAKE_HOME": str(folder / "home"), "PYTHONPATH": f"{folder}{os.pathsep}{PROJECT}"}
    command = [sys.executable, "-c", BEFORE, before, "-m", "pipeline_defs.cli", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, env=environment, cwd=folder, text=True, check=False, **streams)  # type: ignore[call-overload,no-any-return]


def test_ctrl_c_while_a_command_imports_ends_it_with_one_line(tmp_path: Path) -> None:
    """The first seconds of each command are imports."""
    (tmp_path / "click.py").write_text(INTERRUPTING)
    ended = start(tmp_path, "plan", "orders", before="signal.signal(signal.SIGINT, signal.SIG_DFL)")
    assert ended.stdout == "click is being imported\n", "the control: the signal came then"
    assert ended.stderr == "interrupted before anything was begun: nothing was done\n"
    assert ended.returncode == -signal.SIGINT


def test_ctrl_c_that_a_shell_ignores_stays_ignored(tmp_path: Path) -> None:
    """A job in the background of a script is not ended by the Ctrl-C that ends the one in front."""
    (tmp_path / "click.py").write_text(INTERRUPTING + "raise SystemExit(7)")
    ended = start(tmp_path, "plan", before="signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert "import goes on" in ended.stdout and ended.returncode == 7


@pytest.mark.parametrize("where", ["pipeline_defs.cli.commands.load_env_file", EXPLAINING])
def test_ctrl_c_ends_a_command_with_130(where: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert ending(monkeypatch, Mock(side_effect=KeyboardInterrupt), where) == commands.INTERRUPTED
    assert "".join(capfd.readouterr()) == f"{commands.INTERRUPTED_TEXT}\n"


@pytest.mark.skipif(not FULL.exists(), reason="Linux has it")
@pytest.mark.parametrize("arguments", [["explain"], ["sql", "SELECT 1", "--json"]])
def test_output_that_cannot_be_written_is_one_message(arguments: list[str], tmp_path: Path) -> None:
    """What Rich prints as what click does; the control is each other command that is called here."""
    with FULL.open("w") as full:
        ended = start(tmp_path, *arguments, stdout=full)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
    (line,) = [each for each in ended.stderr.splitlines() if each.startswith("error")]
    assert "output_unwritable: stdout cannot be written: no space left on device" in line


def test_a_stdout_that_is_closed_is_one_message(tmp_path: Path) -> None:
    """As by a shell's `>&-`; Python has no stream then."""
    ended = start(tmp_path, "engine", "status", "--json", stdout=None, before="os.close(1)")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "output_unwritable: stdout cannot be written: it is closed" in ended.stderr


def test_another_error_of_the_system_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for error in (OSError(errno.ENOSPC, "No space left on device"), FileNotFoundError(errno.ENOENT, "No such file", "x")):
        with pytest.raises(type(error), match="No s"):
            ending(monkeypatch, Mock(side_effect=error))
    assert "unwritable" not in (told := capfd.readouterr().err) and "unusable" not in told


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_file_that_cannot_be_used_is_one_message(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As of a home that somebody has begun with sudo; the control is each other error, which is told as it is."""
    refuses = OSError(number, os.strerror(number), "home/broker/.lock")
    assert ending(monkeypatch, Mock(side_effect=refuses)) == 1
    assert f"file_unusable: home/broker/.lock cannot be used: {os.strerror(number).lower()}" in capfd.readouterr().err


def test_a_history_that_is_locked_is_one_message_without_its_statement(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As by a daemon that was stopped in the middle of a write."""
    locked = OperationalError("INSERT INTO event_logs", {"event": "secret"}, Exception("database is locked"))
    assert ending(monkeypatch, Mock(side_effect=locked)) == 1
    told = capfd.readouterr().err
    assert "history_unavailable: Dagster's history does not answer: database is locked" in told
    assert "event_logs" not in told and "secret" not in told


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
