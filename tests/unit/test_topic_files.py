"""A defs.yaml: of a wrong one one clear error that names it; of one with a pattern which topics it has; others are unharmed."""
# ruff: noqa: E501  the table reads better with a case on a line

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dagster as dg
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from pipeline_defs.cli import show
from pipeline_defs.cli.commands import cli
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.decode.columns import Column, NotDdl, parse_ddl
from pipeline_defs.core.decode.decoders import Format, Side
from pipeline_defs.core.errors import BadSetting, LakeUnavailable, OffsetlakeError, Refused, UnknownTopic
from pipeline_defs.definitions import build_defs
from pipeline_defs.operate.metrics import read_metrics
from pipeline_defs.orchestration.assets.derived_config import read_side
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.orchestration.topic_set import TopicFiles, TopicPattern
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from pipeline_defs.topic_files import load_topics, read_topic_files
from pipeline_defs.topics import BROKEN_TOPICS
from tests.support.commands import samples_of
from tests.support.strategies import draws, mutate

HEAD = "type: offsetlake.KafkaTopic\nattributes:\n  topic: bad\n"
WHOLE = (
    HEAD
    + """  records_per_range: 20000
  max_age_seconds: 60
  start: 2026-01-31T10:00:00Z
  owners: ['team:data']
  tags: {team: data}
  description: what is in it
  bootstrap_servers: 127.0.0.1:9092
  group: my-lake.{topic}
  decode:
    key: {format: string}
    value: {format: json, inline_schema: 'id BIGINT, at TIMESTAMP'}
    dead_letters: {records: 10, share: 0.5}
  days: {event_time: value.at, start: 2013-01-01}
  latest: {sequence: value.id}
"""
)
PATTERN = "type: offsetlake.KafkaTopic\nattributes:\n  topics: bad.*\n"

WRONG: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "it is empty, expected `type` and `attributes`"),
    "a comment only": ("# nothing\n", "it is empty"),
    "a tab": ("type: offsetlake.KafkaTopic\nattributes:\n\ttopic: bad\n", r"line 3, column 1: .*'\\t'.*indent by spaces"),
    "a list": ("- a\n", "line 1: expected the keys `type` and `attributes`"),
    "a text": ("hello\n", "line 1: expected the keys `type` and `attributes`"),
    "a group with a space": (HEAD + "  group: 'my lake'\n", "`group`.*expected a consumer group's name of letters"),
    "a group of another topic's field": (HEAD + "  group: 'x.{name}'\n", "`group`.*expected a consumer group's name of letters"),
    "an empty group": (HEAD + "  group: ''\n", "`group`.*expected a consumer group's name of letters"),
    "no type": ("attributes: {topic: bad}\n", "`type` is missing"),
    "no topic": ("type: offsetlake.KafkaTopic\nattributes: {budget: 1}\n", "expected `topic`, or `topics` with a pattern, found neither"),
    "no attributes": ("type: offsetlake.KafkaTopic\n", "expected `topic`, or `topics` with a pattern, found neither"),
    "a topic and a pattern": (HEAD + "  topics: bad.*\n", "expected `topic`, or `topics` with a pattern, found both"),
    "what to leave out of one topic": (HEAD + "  exclude: bad.*\n", "expected `exclude` only beside `topics`"),
    "a pattern that is none": (PATTERN.replace("bad.*", "'bad('"), r"line 3: `topics`: 'bad\(' is no regular expression of RE2: missing \)"),
    "an empty pattern": (PATTERN.replace("bad.*", "''"), "line 3: `topics`: expected something"),
    "a pattern to leave out that is none": (PATTERN + "  exclude: '*'\n", "line 4: `exclude`: .* is no regular expression"),
    "days of a pattern without decode": (PATTERN + "  days: {start: 2013-01-01}\n", "`days` and no `decode`"),
    "another type": (HEAD.replace("KafkaTopic", "KafkaTopc"), "`type` is offsetlake.KafkaTopc, expected .*did you mean"),
    "a type without its package": (HEAD.replace("offsetlake.", ""), "`type` is KafkaTopic, expected offsetlake.KafkaTopic"),
    "a package that is not there": (HEAD.replace("offsetlake", "offsetlak"), "`type` is offsetlak.KafkaTopic"),
    "an anchor in itself": (HEAD + "  owners: &a [*a]\n", "found unconstructable recursive node"),
    "a key twice": (HEAD + "  topic: other\n", "line 4: `topic` is there twice, first in line 3"),
    "a key twice, deeper": (HEAD + "  tags: {a: b, c: d,\n    a: e}\n", "line 5: `a` is there twice, first in line 4"),
    "octal, newer": (HEAD + "  records_per_range: 0o10\n", "line 4: `records_per_range`: expected a number from 1 .*'0o10'"),
    "a word as a number": (HEAD + "  records_per_range: many\n", "line 4: .*expected a number from 1 to 2147483647 or auto, found 'many'"),
    "a number": (HEAD + "  start: 5\n", "line 4: `start`: start 5 is not one of earliest, latest, none, or an ISO 8601 timestamp"),
    "a time that is none": (HEAD + "  start: yesterday\n", "line 4: .*is not one of earliest, latest, none, or an ISO 8601 timestamp"),
    "less than no time": (HEAD + "  max_age_seconds: -1\n", "line 4: `max_age_seconds`: expected a number from 0"),
    "another word": (HEAD + "  isolation_level: dirty\n", "line 4: .*expected one of read_committed, read_uncommitted, found 'dirty'"),
    "a true": (HEAD + "  description: true\n", "line 4: `description`: expected a text, found true; in quotes"),
    "one owner": (HEAD + "  owners: me\n", r"line 4: `owners`: expected a list, `owners: \[me\]`, found a text"),
    "one tag": (HEAD + "  tags: me\n", "line 4: `tags`: expected keys with their values"),
    "a number as a topic": (HEAD.replace("bad", "123"), "line 3: `topic`: expected a text, found 123; in quotes it is a text"),
    "nothing as a number": (HEAD + "  records_per_range:\n", "line 4: `records_per_range`: expected a whole number, found nothing"),
    "a fraction": (HEAD + "  budget: 1.5\n", "line 4: `budget`: expected a whole number, found 1.5"),
    "not a number": (HEAD + "  max_age_seconds: .nan\n", "line 4: `max_age_seconds`: expected a number from 0"),
    "true as a number": (HEAD + "  decode: {}\n  latest: {sequence: true}\n", "line 5: `latest.sequence`: expected a text"),
    "fewer than no records": (HEAD + "  decode: {dead_letters: {records: -5}}\n", "`decode.dead_letters.records`: expected a number"),
    "a folder as a schema": (HEAD + "  decode: {value: {format: avro, schema_file: .}}\n", "is a directory"),
    "a device as a schema": (HEAD + "  decode: {value: {format: avro, schema_file: /dev/zero}}\n", "not below the project's folder"),
    "another's file as a schema": (HEAD + "  decode: {value: {format: avro, schema_file: ../../../etc/hostname}}\n", "not below the project's folder"),
    "a path with a NUL as a schema": (HEAD + '  decode: {value: {format: avro, schema_file: "a\\0b"}}\n', "cannot be read: embedded null byte"),
    "a mapping as a text": (HEAD + "  decode: {}\n  days: {start: 2013-01-01, event_time: {a: b}}\n", "line 5: `days`: expected a text, found a mapping"),
    "a template as a part": (HEAD + "  decode: '{{ env.HOME }}'\n", "line 4: `decode`: expected the fields .*, found a text"),
    "a number as an owner": (HEAD + "  owners: [5]\n", r"line 4: `owners\.0`: expected a text, found 5[^;]*; in quotes"),
    "no file as a schema": (HEAD + "  decode: {value: {format: avro, schema_file: nope}}\n", "no such file"),
    "a template of a name that is not there": (HEAD + "  decode: {value: {format: avro, registry: '{{ nope }}'}}\n", "the template '{{ nope }}' cannot be rendered: 'nope' is undefined"),
    "a template of a variable that is not set": (HEAD + "  bootstrap_servers: '{{ env.OFFSETLAKE_TEST_NOPE }}'\n", "line 4: `bootstrap_servers`: the template .* cannot be rendered: it gives nothing"),
    "a login before a template that cannot be rendered": (HEAD + "  bootstrap_servers: 'user:hush-4711@{{ nope }}:1'\n", "the template '{{ nope }}' cannot be rendered"),
    "a template that does not end": (HEAD + "  bootstrap_servers: 'a {{ b'\n", "line 4: `bootstrap_servers`: the template"),
    "a template as a topic": (HEAD.replace("bad", "'{{ env.HOME }}'"), "line 3: `topic`: topic name .* is not one Kafka allows"),
    "bytes that are no text": (HEAD.encode() + b"  description: \xe9\n", "line 4 has the byte 0xe9, expected UTF-8"),
    "UTF-16": (HEAD.encode("utf-16"), "line 1 has the byte 0xff, expected UTF-8"),
    "a control character": (HEAD + "  description: a\x1bb\n", "line 4: the character 0x1b is not allowed"),
    "an object": (HEAD + "  description: !!python/object:os.system {}\n", "could not determine a constructor for the tag .*python/object:os.system"),
    "beyond Unicode": (HEAD + '  description: "\\UFFFFFFFF"\n', "it is no YAML: "),
    "deep": (HEAD + "  owners: " + "[" * 3000 + "\n", "it is no YAML: maximum recursion depth"),
    "an unknown part": (HEAD + "foo: 1\n", "line 4: `foo`: there is no such field"),
    "an unknown field": (HEAD + "  recrds_per_range: 1\n", "line 4: `recrds_per_range`: there is no such field, did you mean"),
    "a wrong post_processing": (HEAD + "post_processing: {assetz: 1}\n", "`post_processing.assetz`: there is no such field"),
    "a module that is not there": (HEAD + "template_vars_module: nope.nope\n", "No module named 'nope'"),
    "a long topic": (HEAD.replace("bad", "b" * 9000), "line 3: `topic`: topic name 'bbb"),
    "a long start": (HEAD + f"  start: {'b' * 9000}\n", "line 4: `start`: start 'bbb"),
    "a long owner": (HEAD + f"  owners: [{'b' * 9000}]\n", "line 4: `owners`: owner 'bbb"),
    "a login at a broker": (HEAD + "  bootstrap_servers: user:hush-4711@k:9092\n", "line 4: `bootstrap_servers`: broker 1 is not host:port \\(not shown: it may have a login\\)"),
    "a login at a broker, by a template": (HEAD + "  bootstrap_servers: \"k:1,user:{{ 'hush' }}-4711@k:1\"\n", "`bootstrap_servers`: broker 2 is not host:port"),
    "a port that no broker has": (HEAD + "  bootstrap_servers: k:65536\n", "line 4: `bootstrap_servers`: broker 1 is not host:port .*; expected kafka-1:9092"),
    "a schema of a registry for json": (HEAD + "  decode: {value: {format: json, registry: 'http://r:1'}}\n", "decode json takes no `registry`, found one; expected it with avro, json_schema, protobuf"),
    "a subject of no registry": (HEAD + "  decode: {value: {format: json, inline_schema: a INT, subject: s}}\n", "expected `registry` beside it"),
    "a function as a type": (HEAD.replace("offsetlake.KafkaTopic", "os.system"), "`type` is os.system, expected offsetlake.KafkaTopic"),
    "a field of the topic beside attributes": (HEAD + "decode: {}\n", "line 4: `decode`: there is no such field beside .* fields of the topic are below `attributes`"),
    "a topic twice": (HEAD + "---\n" + HEAD, r"a topic has one defs\.yaml, found more: topic bad in several documents, parted by `---`, of .*defs\.yaml; "),
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("projects") / "wrong_files"
    path = [*sys.path]
    write_project(plan_project(folder, ["orders", "bad"], None))
    yield folder
    sys.path[:] = path


@pytest.fixture
def file(project: Path) -> Iterator[Path]:
    """The file that is wrong; the project is whole again afterwards."""
    file = project / "wrong_files" / "defs" / "bad" / "defs.yaml"
    file.write_text(HEAD)
    yield file
    if file.is_dir():
        file.rmdir()
    file.write_text(HEAD)


def write(file: Path, text: str | bytes) -> None:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())


def assert_clear(text: str, file: Path) -> None:
    """One message for a person: it names the file, and has nothing of what libraries say for programmers."""
    assert str(file) in text and "hush" not in text and "4711" not in text
    assert not re.search(r"errors\.pydantic\.dev|input_value|input_type|Traceback|set_int_max_str|Explained|\n", text), text
    assert len(text) < 1_500


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_error_of_one_topic(project: Path, file: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    text, reason = WRONG[name]
    write(file, text)
    found = load_topics(project)
    assert set(found.topics) == {"orders"}
    (broken, *more) = found.broken
    assert not more
    assert re.search(reason, broken.error.message), broken.error.message
    assert_clear(broken.error.message, file)
    with pytest.raises(UnknownTopic) as told:  # of a topic that this file may have been about
        show.find_topic("another")
    assert broken.error.message in str(told.value)


def test_a_folder_in_place_of_the_file_and_one_that_may_not_be_read(project: Path, file: Path) -> None:
    file.unlink()
    file.mkdir()
    (broken,) = load_topics(project).broken
    assert "is a directory" in broken.error.message
    file.rmdir()
    for to in (file, file.with_name("gone.yaml")):
        file.symlink_to(to)
        found = load_topics(project)
        assert set(found.topics) == {"orders"}
        (broken,) = found.broken
        assert_clear(broken.error.message, file)
        file.unlink()
    file.write_text(HEAD + "  decode: {value: {format: json, schema_file: loop}}\n")
    (project / "loop").symlink_to(project / "loop")
    (broken,) = load_topics(project).broken
    assert "which cannot be read: Symlink loop from" in broken.error.message
    file.unlink()
    os.mkfifo(file)
    (broken,) = load_topics(project).broken
    assert "it is a device, a pipe or a socket" in broken.error.message, "nobody waits for who would write to it"
    file.unlink()
    file.write_text(HEAD + "  bootstrap_servers:\n  description:\n")
    assert set(load_topics(project).topics) == {"orders", "bad"}, "nothing behind a colon is as if it were not there"


@pytest.mark.parametrize("text", ["def broken(:\n", "import not_there_at_all\n", "1 / 0\n"])
def test_a_wrong_python_file_takes_no_topic_along(project: Path, text: str) -> None:
    """A person's own definitions lie beside those of the topics."""
    file = project / "wrong_files" / "defs" / "own.py"
    file.write_text(text)
    try:
        found = load_topics(project)
        defs = build_defs(project=project)
    finally:
        file.unlink()
    assert set(found.topics) == set(found.names) == {"orders", "bad"}
    (broken,) = found.broken
    assert re.search(r"own\.py cannot be used: (Syntax|ModuleNotFound|ZeroDivision)Error: .*; correct", broken.error.message)
    (tell,) = (each for each in defs.sensors or () if isinstance(each, dg.SensorDefinition) and each.name == BROKEN_TOPICS)
    with dg.build_sensor_context() as context, pytest.raises(OffsetlakeError, match=r"own\.py cannot be used"):
        tell(context)


def test_no_project_and_one_without_its_folder_of_topics_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an installed package finds it in any folder, and as git gives it, which keeps no empty folder."""
    with pytest.raises(Refused, match=rf"there is no project in {tmp_path} or above it, expected .*offsetlake init NAME"):
        read_topic_files(tmp_path)
    folder = tmp_path / "no_topics"
    write_project(plan_project(folder, [], None))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(BadSetting, match=r"no_topics cannot be imported: .* No module named 'no_topics.defs'; expected"):
        load_topics(folder)
    (folder / "no_topics" / "defs").mkdir()
    assert not load_topics(folder).topics


OTHERWISE = "  description: '1_000'\n  tags: {a: 'yes', b: '1_0', c: '010'}\n"
RIGHT: dict[str, tuple[str, dict[str, object]]] = {
    "everything": (WHOLE, {}),
    "a byte order mark": ("\ufeff" + HEAD, {}),
    "Windows' lines": (HEAD.replace("\n", "\r\n"), {}),
    "texts that look otherwise": (HEAD + OTHERWISE, {"description": "1_000", "tags": {"a": "yes", "b": "1_0", "c": "010"}}),
    "braces in prose": (HEAD + "  description: 'a {{ x }} {% b #}'\n", {"description": "a {{ x }} {% b #}"}),
    "an anchor": (HEAD + "  decode: {key: &a {format: string}, value: *a}\n", {}),
    "a template": (HEAD + "  bootstrap_servers: '{{ env.OFFSETLAKE_TEST_BROKERS }}'\n", {"bootstrap_servers": "k:1"}),
}


@pytest.mark.parametrize(("text", "read"), RIGHT.values(), ids=RIGHT)
def test_what_is_right_loads_as_it_is_written(
    project: Path, file: Path, text: str, read: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setenv("OFFSETLAKE_TEST_BROKERS", "k:1")
    write(file, text)
    found = load_topics(project)
    assert not found.broken and set(found.topics) == {"bad", "orders"}
    assert {name: getattr(found.topics["bad"], name) for name in read} == read


def test_two_files_of_one_topic_are_both_left_out_and_named(project: Path, file: Path) -> None:
    """Of two one would be taken, and nobody would know which; a topic that is in one of the two is named too."""
    write(file, HEAD.replace("bad", "orders"))
    found = load_topics(project)
    assert not found.topics and len(found.broken) == 2
    assert all(str(file) in each.error.message and "defs/orders" in each.error.message for each in found.broken)
    write(file, HEAD.replace("bad", "orders") + "---\n" + HEAD)
    found = load_topics(project)
    assert not found.topics and [each.name for each in found.broken] == ["orders", "orders", "bad"]
    assert (
        "topic bad has no file of its own: a topic has one defs.yaml, found more: topic orders" in found.broken[2].error.message
    )


def test_code_locations_load_others_and_name_the_wrong_file(project: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where definitions are only checked, by `dg check defs`, the file is the error."""
    write(file, "")
    environment = {"DAGSTER_HOME": str(project / ".home"), "OFFSETLAKE_HOME": str(project / ".offsetlake")}
    adapters = Adapters(read_settings(environment, project))
    definitions = build_defs(adapters, project=project)
    sensors = {sensor.name: sensor for sensor in definitions.sensors or ()}
    assert {"land_pending", "watch"} <= sensors.keys()
    assert definitions.resolve_job_def("land_orders")
    tell = sensors[BROKEN_TOPICS]
    assert isinstance(tell, dg.SensorDefinition) and tell.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.build_sensor_context() as context, pytest.raises(OffsetlakeError, match="it is empty") as caught:
        tell(context)
    assert_clear(str(caught.value).partition("bad: ")[2], file)
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")
    with pytest.raises(OffsetlakeError, match="it is empty"):
        build_defs(adapters, project=project)
    write(file, HEAD)
    sensors = {sensor.name: sensor for sensor in build_defs(adapters, project=project).sensors or ()}
    tell = sensors[BROKEN_TOPICS]
    assert isinstance(tell, dg.SensorDefinition)
    with dg.build_sensor_context() as context:
        assert tell(context) == dg.SkipReason("all files can be used"), "so that it is known to be over"


@pytest.mark.usefixtures("clean_environment")
def test_commands_name_the_wrong_file_and_go_on_with_others(project: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, "attributes: [")
    monkeypatch.chdir(project)
    monkeypatch.setenv("OFFSETLAKE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(show, "PATIENCE_SECONDS", 0.2)
    runner = CliRunner()
    counted = runner.invoke(cli, ["sql", "SELECT count(*) FROM orders"])
    assert counted.exit_code == 0, counted.output
    shown = runner.invoke(cli, ["status", "--json"])
    kinds = {each["topic"]: each["kind"] for each in json.loads(shown.stdout)}
    assert kinds == {"orders": "broker_unavailable", "bad": "bad_setting"} and shown.exit_code == 1
    refused = runner.invoke(cli, ["map", "bad"])
    assert isinstance(refused.exception, OffsetlakeError)
    assert_clear(str(refused.exception), file)


def test_metrics_count_a_wrong_file_as_a_topic_that_is_not_up(project: Path, file: Path, tmp_path: Path) -> None:
    write(file, "")
    adapters = Adapters(read_settings({"OFFSETLAKE_LAKE": str(tmp_path)}, project))
    with dg.DagsterInstance.ephemeral() as instance:
        families = samples_of(read_metrics([], adapters, instance, load_topics(project).broken))
    assert families["offsetlake_up"] == {("bad",): 0}
    assert families["offsetlake_topic_error"] == {("bad", "bad_setting"): 1}


def test_no_text_takes_another_topic_along(project: Path, file: Path) -> None:
    """Whatever bytes are there: a topic, or one clear error."""
    for seed, dice in draws(60):
        write(file, mutate(dice, WHOLE.encode()))
        found = load_topics(project)
        assert "orders" in found.topics or any("orders" in each.error.message for each in found.broken), f"seed {seed}"
        for each in found.broken:
            assert_clear(each.error.message, file)


ORDERS = r"""type: offsetlake.KafkaTopic
attributes:
  topics: "orders\\..*"
  exclude: '.*\.test'
  max_age_seconds: 7
  group: lake.{topic}
"""


@pytest.fixture
def patterned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a topic of its own, `orders.own`, and a pattern of topics."""
    folder = tmp_path / f"by_pattern_{uuid.uuid4().hex[:8]}"  # a package is imported once
    write_project(plan_project(folder, ["orders.own"], None))
    add(folder, "all", ORDERS)
    monkeypatch.syspath_prepend(folder)
    return folder


def add(project: Path, name: str, text: str) -> None:
    file = project / project.name / "defs" / name / "defs.yaml"
    file.parent.mkdir(exist_ok=True)
    write(file, text)


def read(project: Path, *planned: str) -> TopicFiles:
    return read_topic_files(project, lambda: planned)


@pytest.mark.parametrize("name", ["orders.eu", "orders.eu.test", "orders", "my-orders.eu", "orders.eu\n", "__orders.eu"])
def test_a_pattern_is_of_the_whole_name(name: str) -> None:
    """[R-98] The first one is the control; none takes long, for whoever may create topics chooses names."""
    assert not TopicPattern("(a+)+b").matches("a" * 249)
    assert TopicPattern(r"(__)?orders\..*", r".*\.test").matches(name) is (name == "orders.eu")


def test_the_topics_of_a_pattern_are_those_that_the_lake_has(patterned: Path) -> None:
    """[R-98] Where it cannot be read, other topics are there."""
    found = read(patterned, "orders.eu", "orders.us", "orders.eu.test", "orders.own", "payments")
    assert not found.broken and set(found.topics) == {"orders.own", "orders.eu", "orders.us"}
    assert set(found.found) == {"orders.eu", "orders.us"}
    topic = found.topics["orders.eu"]
    assert (topic.policy.max_age_seconds, topic.group) == (7, "lake.orders.eu")
    assert found.topics["orders.own"].policy.max_age_seconds == 60, "its own file says what it is"
    found = read_topic_files(patterned, Mock(side_effect=LakeUnavailable("the fault")))
    assert set(found.topics) == {"orders.own"} and "the fault" in found.broken[0].error.message
    assert found.patterns, "and they are found as soon as it can be"


def test_a_command_may_name_one_of_which_nothing_is_planned_yet(patterned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(read(patterned).topics) == {"orders.own"}
    monkeypatch.setattr(show, "read_topics", lambda: read(patterned))
    assert [show.find_topic(name).name for name in ("orders.new", "orders.own")] == ["orders.new", "orders.own"]
    for name in ("orders.eu.test", "payments"):
        with pytest.raises(UnknownTopic, match=r"has no defs\.yaml"):
            show.find_topic(name)


def test_a_topic_whose_own_file_is_wrong_is_not_landed_by_a_pattern(patterned: Path) -> None:
    """[R-98] It would be landed by settings that nobody chose for it."""
    add(patterned, "orders.own", "type: offsetlake.KafkaTopic\nattributes: {topic: orders.own, budget: many}\n")
    found = read(patterned, "orders.own", "orders.eu")
    assert set(found.topics) == {"orders.eu"} and [each.name for each in found.broken] == ["orders.own"]
    assert found.find("orders.own") is None


def test_a_topic_of_two_patterns_is_left_out_and_both_files_are_named(patterned: Path) -> None:
    """[R-98]"""
    add(patterned, "eu", ORDERS.replace("orders", ".*").replace(".*\\\\..*", ".*eu"))
    found = read(patterned, "orders.eu", "orders.us")
    assert set(found.topics) == {"orders.own", "orders.us"}
    (broken,) = found.broken
    assert broken.name == "orders.eu" and "orders.eu" in found.names
    assert all(f"defs/{name}/defs.yaml" in broken.error.message for name in ("all", "eu"))
    with pytest.raises(BadSetting, match="matches the patterns of"):
        read(patterned).find("orders.eu")
    assert [topic.name for topic in read(patterned).find_new(["orders.eu", "orders.us"])] == ["orders.us"], "it hides no other"


def test_each_topic_of_a_pattern_is_an_asset_of_its_own(patterned: Path) -> None:
    environment = {"DAGSTER_HOME": str(patterned / ".home"), "OFFSETLAKE_HOME": str(patterned / ".offsetlake")}
    adapters = Adapters(read_settings(environment, patterned))
    for name in ("orders.eu", "orders-eu", "payments"):
        (Path(adapters.settings.lake) / "plan" / name).mkdir(parents=True)
    keys = build_defs(adapters, project=patterned).resolve_all_asset_keys()
    assert {key.path[1] for key in keys if key.path[0] == "raw"} == {"orders.own", "orders.eu"}
    assert dg.AssetKey(["kafka", "orders.eu"]) in keys


def load(text: str) -> Any:
    """Read the attributes of a defs.yaml as Dagster does."""
    return KafkaTopic.resolve_from_yaml(f"topic: orders\n{text}").as_topic()


def record(record_name: str, /, **fields: object) -> dict[str, object]:
    """Return a record of Avro with fields of these types."""
    return {"type": "record", "name": record_name, "fields": [{"name": name, "type": each} for name, each in fields.items()]}


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
ORDER = record("Order", id="long", ordered_at=MICROS, inner=["null", record("In", day="int")], either=["int", "string"])
PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Order {
  int64 id = 1; google.protobuf.Timestamp ordered_at = 2; In inner = 3; repeated int32 many = 4; map<string, int32> by = 5;
  message In { int32 day = 1; } }"""
INNER = {"type": "object", "properties": {"day": {"type": "integer"}}}
JSON_SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}, "ordered_at": {"type": "string"}, "inner": INNER}}
DDL = "id BIGINT NOT NULL, ordered_at TIMESTAMP, inner STRUCT<day: INT>, tags MAP<STRING, STRING>, at DATE, note STRING"
SCHEMAS = {"json": DDL, "avro": json.dumps(ORDER), "protobuf": PROTO, "json_schema": json.dumps(JSON_SCHEMA)}


def decoded(name: str, schema: str | None = None, side: str = "value", **more: str) -> str:
    fields = {"format": name, "inline_schema": schema or SCHEMAS[name], **more}
    return f"decode: {{{side}: {json.dumps(fields)}}}\n"


LOOPS = (
    *('{"$ref": "#"}', '{"$dynamicRef": "#"}', '{"allOf": [{"$ref": "#"}]}'),
    '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
    '{"properties": {"x": {"$ref": "#/properties/y"}, "y": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/x"}]}}}',
)
MAP_OF_N = {"type": "map", "values": {"type": "array", "items": "N"}}
ENUM_E, FIXED_E = {"type": "enum", "name": "E", "symbols": ["a"]}, {"type": "fixed", "name": "E", "size": 1}
WRONG_SCHEMAS = [
    ("json", "id BIGNIT, at TIMESTAMP", "`id` has the type BIGNIT, which Spark does not have, did you mean `BIGINT`\\?"),
    ("json", "id BIGINT, at DATETIME", "`at` has the type DATETIME, which Spark does not have, did you mean TIMESTAMP\\?"),
    ("json", "id, at TIMESTAMP", "`id` has no type, expected such as BIGINT or STRING behind 'id'"),
    ("json", "id BIGINT at TIMESTAMP", "expected a comma behind the type of `id`, found at behind 'id BIGINT'"),
    ("json", "a STRUCT<b: INT, c: ARRAY<INT>", "expected > for the end of STRUCT<...> of `a`, found the end"),
    ("json", "id INT, ID INT", "`ID` is there twice, in this or another case"),
    ("json", "  ", "it is empty"),
    ("json", '{"type": "object"}', "expected a column's name, found {"),
    ("avro", "{", "Expecting property name"),
    ("avro", '{"type": "array", "items": 5}', r"the whole\[\] is 5, expected a type"),
    ("avro", "5", "expected a JSON object, list or string, found 5"),
    ("avro", '{"type": "recrod", "name": "R"}', "has the type recrod, which nobody defines, did you mean `record`"),
    ("avro", json.dumps(ORDER).replace('"long"', '"lnog"', 1), "whole.id has the type lnog, .*did you mean `long`"),
    ("avro", '{"type": "fixed", "name": "F", "size": 2147483647}', "2,147,483,647 bytes, expected at most 67,108,864"),
    ("avro", '{"type": "fixed", "name": "F", "namespace": "x", "size": 67108865}', "fixed x.F has 67,108,865 bytes"),
    ("avro", json.dumps(record("N", next=["null", "N"])), "record N contains itself at .*next"),
    ("avro", json.dumps(record("a.N", n=MAP_OF_N)), r"record a.N contains itself at the whole.n\{\}\[\]"),
    ("avro", '{"type": "fixed", "name": "F", "size": -1}', "fixed F has the size -1, expected a number of bytes from 0"),
    ("avro", '{"type": "fixed", "name": "F"}', "fixed F has the size null"),
    ("avro", '{"type": "fixed", "name": "F", "size": true}', "fixed F has the size true"),
    ("avro", "[]", "the whole is a union of nothing"),
    ("avro", '[["null", "int"], "string"]', "the whole is a union directly in a union"),
    ("avro", '["int", "int"]', "the whole is a union that has int twice"),
    ("avro", '{"type": "record", "fields": []}', "the whole is of type record and has no `name`"),
    ("avro", '{"type": "record", "name": "A"}', "record A has no list of `fields`"),
    ("avro", '{"type": "record", "name": "A", "fields": [{"name": "a"}]}', "record A has a field without a `name` or a `type`"),
    ("avro", '{"type": "array"}', "the whole is of type array and has no `items`"),
    ("avro", json.dumps([ENUM_E, {"type": "array", "items": FIXED_E}]), r"E is defined twice, again at the whole\[\]"),
    ("avro", json.dumps(record("A", a="int", A="int")), "fields differ in case only: A.a, A.A"),
    ("avro", '{"a": ' + "9" * 5000 + "}", "a number has too many digits to be read"),
    ("json_schema", '{"a": ' + "9" * 5000 + "}", "a number has too many digits to be read"),
    *(("json_schema", each, "its references lead back to themselves") for each in LOOPS),
    ("json", "a DECIMAL(39, 2)", r"`a` is DECIMAL\(39,2\), expected at most 38 digits"),
    ("json", "m MAP<INT, STRING>", "m: expected MAP<STRING, ...>, found MAP<INT, ...>; nothing was decoded"),
    ("json", "s STRUCT<a: ARRAY<MAP<STRING, map<date, INT>>>>", r"s.a\[\]\{\}: expected MAP<STRING, ...>, found MAP<DATE"),
    ("json", "MAP<MAP<STRING, INT>, INT>", "the whole: expected MAP<STRING, ...>, found MAP<MAP, ...>"),
    *(("json", f"a STRUCT<b: {each}>", f"it has {each.split()[0]}") for each in ("VARIANT", "VOID", "INTERVAL DAY")),
    ("json", "a STRUCT<b: STRUCT<>>", "`a.b` is a STRUCT of no fields"),
    ("avro", json.dumps(record("a b", n="int")), "record a b has the name 'a b', expected letters, digits and _"),
    ("avro", json.dumps(record("x.A", **{"n-1": "int"})), "record x.A has the name 'n-1'"),
    ("avro", json.dumps({**ENUM_E, "symbols": ["A", "B", "A"]}), "enum E has A twice"),
    ("json", "a DECIMAL(2,5)", r"`a` is DECIMAL\(2,5\), expected at most 38 digits"),
    ("protobuf", "message {", "it is no Protobuf schema: .*Expected message name"),
    ("protobuf", 'syntax = "proto3"; message A { A a = 1; }', "A contains itself"),
    ("protobuf", 'edition = "2023"; message A { int32 a = 1; }', "editions are not supported, expected proto2 or proto3;"),
    ("json_schema", '{"type": "objec"}', "objec"),
    ("json_schema", "{", "Expecting property name"),
    ("json_schema", '{"$ref": "http://127.0.0.1:9/x"}', "nothing is fetched"),
    ("json_schema", '{"properties": {"in": {"anyOf": [{"properties": {"a": {}, "A": {}}}]}}}', "differ in case only: a, A"),
    ("json_schema", '{"$schema": "http://example.com/mine"}', "Unknown meta-schema"),
]


@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(("name", "schema", "reason"), WRONG_SCHEMAS)
def test_a_wrong_schema_is_said_when_definitions_load(side: str, name: str, schema: str, reason: str) -> None:
    """Of keys and of values, with the side and the reason; nothing has run."""
    with pytest.raises(OffsetlakeError, match=f"`decode.{side}`.*{reason}") as caught:
        load(decoded(name, schema, side))
    assert len(caught.value.message) < 900
    assert not re.search(r"absl|set_int_max|TypeError|KeyError|parser\.cc", caught.value.message)


LOOK_WRONG = [
    ("json_schema", json.dumps({"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#"}}}})),
    ("avro", json.dumps(record("A", a={"type": "fixed", "name": "F", "size": 0}, b="F"))),
    ("avro", '{"type": "fixed", "name": "F", "size": 67108864}'),
    ("json", "a DECIMAL(38, 38), b DECIMAL(1)"),
]


@pytest.mark.parametrize(("name", "schema"), [*SCHEMAS.items(), *LOOK_WRONG])
def test_a_right_schema_loads_and_so_does_one_that_a_registry_has(name: str, schema: str) -> None:
    """The control: a tree refers to the whole for its parts, a type may be named again; no registry is asked."""
    assert load(decoded(name, schema)).decode.value.schema == schema
    if name != "json":
        anywhere = f"decode: {{value: {{format: {name}, registry: 'http://127.0.0.1:9'}}}}\n"
        assert load(f"{anywhere}days: {{start: 2013-01-01, event_time: value.any.thing}}")


EVENT_TIMES = [
    ("json", "value.orderd_at", "no column orderd_at in value, which is of id, .*did you mean `value.ordered_at`"),
    ("json", "value.Ordered_At", "did you mean `value.ordered_at`"),
    ("json", "ordered_at", "no column ordered_at in the row, .*did you mean `value.ordered_at`"),
    ("json", "value", "found a struct"),
    ("json", "value.note", "found a text"),
    ("json", "value.id", "found a integer|found an integer"),
    ("json", "value.id.more", "no column more in value.id, which is a"),
    ("json", "timestmp", "did you mean `timestamp`"),
    ("avro", "value.inner.dya", "no column dya in value.inner, which is of day"),
    ("avro", "value.order_at", "did you mean `value.ordered_at`"),
    ("protobuf", "value.ordered_att", "did you mean `value.ordered_at`"),
    ("protobuf", "value.many", "found a list"),
    ("json_schema", "value.ordered_at", "found a text"),
]


@pytest.mark.parametrize(("name", "path", "reason"), EVENT_TIMES)
def test_an_event_time_that_is_no_time_is_said_when_definitions_load(name: str, path: str, reason: str) -> None:
    with pytest.raises(OffsetlakeError, match=f"event time {path} of `days` in defs.yaml: .*({reason})"):
        load(f"{decoded(name)}days: {{start: 2013-01-01, event_time: {path}}}")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, "timestamp") for name in SCHEMAS),
        *((name, "value.ordered_at") for name in ("json", "avro", "protobuf")),
        *((name, "value.inner.day, unit: s") for name in SCHEMAS),
        *(("json", "value.at"), ("avro", "value.either, unit: s"), ("avro", "value.either")),
    ],
)
def test_an_event_time_that_is_a_time_loads(name: str, path: str) -> None:
    """The control; of what is not known, a union's, nothing is refused."""
    assert load(f"{decoded(name)}days: {{start: 2013-01-01, event_time: {path}}}").days is not None


@pytest.mark.parametrize("name", ["json", "protobuf"])
def test_latest_records_by_a_map_are_refused_whatever_the_format(name: str) -> None:
    with pytest.raises(OffsetlakeError, match=r"`latest`, and `decode\.key` with a MAP"):
        load(f"{decoded(name, side='key')}latest: {{}}")


FIELDS = [
    ("topc: x", "topc", "topic"),
    ("record_per_range: 5", "record_per_range", "records_per_range"),
    ("isolation: read_committed", "isolation", "isolation_level"),
    ("decode: {valu: {format: string}}", "decode.valu", "value"),
    ("decode: {value: {format: json, inline_schem: x}}", "decode.value.inline_schem", "inline_schema"),
    ("decode: {value: {format: json, inlineSchema: x}}", "decode.value.inlineSchema", "inline_schema"),
    ("decode: {dead_letter: {records: 1}}", "decode.dead_letter", "dead_letters"),
    ("decode: {dead_letters: {record: 1}}", "decode.dead_letters.record", "records"),
    ("days: {start: 2013-01-01, eventtime: timestamp}", "days.eventtime", "event_time"),
    ("latest: {sequnce: value.n}", "latest.sequnce", "sequence"),
    ("days: {start: 2013-01-01, zzz: 1}", "days.zzz", None),
]


@pytest.mark.parametrize(("text", "where", "known"), FIELDS)
def test_an_unknown_field_is_told_which_one_was_meant(text: str, where: str, known: str | None) -> None:
    """With its line, and nothing of what Dagster calls its models; one like no other is told those there are."""
    said = f", did you mean `{known}`" if known else "; there are start, event_time, unit"
    with pytest.raises(ValidationError, match=rf"(?s){where} at <string>:2.*no such field{said}") as caught:
        load(text)
    assert "Extra inputs" not in str(caught.value) and "Model." not in str(caught.value)


def test_columns_are_read_as_spark_reads_them() -> None:
    """Held against Spark itself in tests/integration/test_json.py. A side without a schema has its own column."""
    integer, text = Column("integer"), Column("text")
    assert parse_ddl("BIGINT") == parse_ddl(" bigint ") == integer
    assert parse_ddl("date DATE") == Column("struct", {"date": Column("date")})
    assert parse_ddl("a: INT, `b c`: STRING") == Column("struct", {"a": integer, "b c": text})
    nested = "a STRUCT<x: INT, y: ARRAY<MAP<STRING, DECIMAL(10, 2)>>> NOT NULL COMMENT 'a, b>', b CHAR(3)"
    many = Column("list", inner=(Column("map", inner=(text, Column("decimal"))),))
    assert parse_ddl(nested) == Column("struct", {"a": Column("struct", {"x": integer, "y": many}), "b": text})
    with pytest.raises(NotDdl, match="nested more than 30 levels deep"):
        parse_ddl("a " + "ARRAY<" * 200 + "INT" + ">" * 200)
    assert read_side(Side(), "key") == Column("binary")
    assert read_side(Side(Format.STRING), "key") == Column("text")
