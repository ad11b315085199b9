"""A defs.yaml with a pattern: which topics it has, and which it leaves to others."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import dagster as dg
import pytest

from pipeline_defs.adapters.kafka.topic_pattern import TopicPattern
from pipeline_defs.cli import show
from pipeline_defs.core.errors import BadSetting, LakeUnavailable, UnknownTopic
from pipeline_defs.definitions import build_defs
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.orchestration.topic_set import TopicFiles
from pipeline_defs.resources import Edges
from pipeline_defs.settings import read_settings
from pipeline_defs.topic_files import read_topic_files

ORDERS = r"""type: offsetlake.KafkaTopic
attributes:
  topics: "orders\\..*"
  exclude: '.*\.test'
  max_age_seconds: 7
  group: lake.{topic}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A project with a topic of its own, `orders.own`, and a pattern of topics."""
    folder, path = tmp_path / f"by_pattern_{uuid.uuid4().hex[:8]}", [*sys.path]  # a package is imported once
    write_project(plan_project(folder, ["orders.own"], None))
    write(folder, "all", ORDERS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path[:] = path


def write(project: Path, name: str, text: str) -> None:
    file = project / project.name / "defs" / name / "defs.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def read(project: Path, *planned: str) -> TopicFiles:
    return read_topic_files(project, lambda: planned)


@pytest.mark.parametrize("name", ["orders.eu", "orders.eu.test", "orders", "my-orders.eu", "orders.eu\n", "__orders.eu"])
def test_a_pattern_is_of_the_whole_name(name: str) -> None:
    """[R-98] The first one is the control; none takes long, for whoever may create topics chooses names."""
    assert not TopicPattern("(a+)+b").matches("a" * 249)
    assert TopicPattern(r"(__)?orders\..*", r".*\.test").matches(name) is (name == "orders.eu")


def test_the_topics_of_a_pattern_are_those_that_the_lake_has(project: Path) -> None:
    """[R-98]"""
    found = read(project, "orders.eu", "orders.us", "orders.eu.test", "orders.own", "payments")
    assert not found.broken and set(found.topics) == {"orders.own", "orders.eu", "orders.us"}
    assert set(found.found) == {"orders.eu", "orders.us"}
    topic = found.topics["orders.eu"]
    assert (topic.policy.max_age_seconds, topic.group) == (7, "lake.orders.eu")
    assert found.topics["orders.own"].policy.max_age_seconds == 60, "its own file says what it is"


def test_a_command_may_name_one_of_which_nothing_is_planned_yet(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic that is excluded it says by which file: its rows may be in the lake, and nobody knows why it is not shown."""
    assert set(read(project).topics) == {"orders.own"}
    monkeypatch.setattr(show, "read_topics", lambda: read(project))
    assert [show.find_topic(name).name for name in ("orders.new", "orders.own")] == ["orders.new", "orders.own"]
    with pytest.raises(UnknownTopic, match=r"orders\.eu\.test is left out by `exclude` in .*defs/all"):
        show.find_topic("orders.eu.test")
    with pytest.raises(UnknownTopic, match=r"has no defs\.yaml"):
        show.find_topic("payments")


def test_a_topic_whose_own_file_is_wrong_is_not_landed_by_a_pattern(project: Path) -> None:
    """[R-98] It would be landed by settings that nobody chose for it."""
    write(project, "orders.own", "type: offsetlake.KafkaTopic\nattributes: {topic: orders.own, budget: many}\n")
    found = read(project, "orders.own", "orders.eu")
    assert set(found.topics) == {"orders.eu"} and [each.name for each in found.broken] == ["orders.own"]
    assert found.find("orders.own") is None


def test_a_topic_of_two_patterns_is_left_out_and_both_files_are_named(project: Path) -> None:
    """[R-98]"""
    write(project, "eu", ORDERS.replace("orders", ".*").replace(".*\\\\..*", ".*eu"))
    found = read(project, "orders.eu", "orders.us")
    assert set(found.topics) == {"orders.own", "orders.us"}
    (broken,) = found.broken
    assert broken.name == "orders.eu" and "orders.eu" in found.names
    assert all(f"defs/{name}/defs.yaml" in broken.error.message for name in ("all", "eu"))
    with pytest.raises(BadSetting, match="matches the patterns of"):
        read(project).find("orders.eu")
    assert [topic.name for topic in read(project).find_new(["orders.eu", "orders.us"])] == ["orders.us"], "it hides no other"


def test_where_the_lake_cannot_be_read_other_topics_are_there(project: Path) -> None:
    found = read_topic_files(project, Mock(side_effect=LakeUnavailable("the fault")))
    assert set(found.topics) == {"orders.own"} and "the fault" in found.broken[0].error.message
    assert found.patterns, "and they are found as soon as it can be"


def test_each_topic_of_a_pattern_is_an_asset_of_its_own(project: Path) -> None:
    environment = {"DAGSTER_HOME": str(project / ".home"), "OFFSETLAKE_HOME": str(project / ".offsetlake")}
    edges = Edges(read_settings(environment, project))
    for name in ("orders.eu", "orders-eu", "payments"):
        (Path(edges.settings.lake) / "plan" / name).mkdir(parents=True)
    keys = build_defs(edges, project=project).resolve_all_asset_keys()
    assert {key.path[1] for key in keys if key.path[0] == "raw"} == {"orders.own", "orders.eu"}
    assert dg.AssetKey(["kafka", "orders.eu"]) in keys
