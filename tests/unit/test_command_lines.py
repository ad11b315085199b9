"""What a newcomer types wrongly: each command refuses it in one clear line, before anything is asked, read or written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pipeline_defs.cli.commands import cli
from pipeline_defs.core.command_lines import command
from pipeline_defs.core.errors import BadSetting, OffsetlakeError, Refused, UnknownTopic
from pipeline_defs.orchestration.home.project import plan_project, write_project
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


@pytest.fixture(autouse=True)
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
