"""Commands without TOPIC: what one topic is refused for does not keep them from the others."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import dagster as dg
import pytest
from click.testing import CliRunner

from pipeline_defs.core.errors import BrokenPlanLog
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.resources import Edges
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic
from tests.support.fake_log import TOPIC
from tests.support.interleaving import SmallWorld, watch_obstore

# the package has the commands under the names of their modules
land, losses, show = (importlib.import_module(f"pipeline_defs.cli.{name}") for name in ("work.land", "work.losses", "show"))


@pytest.fixture
def edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edges:
    """A lake of two topics; the first one has lost its plan log."""
    watch_obstore(monkeypatch)
    world = SmallWorld(tmp_path, "disk")
    world.land()
    for tree in ("data", "manifests", "plan"):
        shutil.copytree(tmp_path / tree / TOPIC, tmp_path / tree / "zzz")
    for path in [*(tmp_path / "plan/zzz").rglob("*.json"), *(tmp_path / "manifests/zzz").rglob("*.json")]:
        path.write_text(path.read_text().replace(f'"{TOPIC}"', '"zzz"'))
    shutil.rmtree(tmp_path / "plan" / TOPIC)
    monkeypatch.setattr(Edges, "kafka", lambda self, topic=None: world.kafka)
    return Edges(read_settings({"OFFSETLAKE_LAKE": str(tmp_path)}, tmp_path))


TOPICS = [Topic(TOPIC, Policy()), Topic("zzz", Policy())]


@pytest.mark.parametrize(("module", "command"), [(losses, losses.losses), (land, land.rebuild)])
def test_a_refused_topic_is_named_and_the_others_are_done(
    edges: Edges, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], module: ModuleType, command: click.Command
) -> None:
    """The control is the other topic alone. Where the refused one is asked for by its name, its error is the command's."""
    done: list[str] = []

    def ran(*arguments: str) -> tuple[int, Any]:
        done.clear()
        chosen = [topic for topic in TOPICS if not arguments or topic.name in arguments]
        monkeypatch.setattr(module, "find_topics", lambda name: (chosen, ()))
        monkeypatch.setattr(module, "open_edges", lambda: edges)
        monkeypatch.setattr(land, "open_instance", lambda home: dg.DagsterInstance.ephemeral())
        result = CliRunner().invoke(command, list(arguments))
        return result.exit_code, result.exception

    for name, honest in (("read_ledger", losses.read_ledger), ("rebuild_topic", land.rebuild_topic)):

        def watched(topic: Topic, *rest: Any, honest: Any = honest) -> Any:
            found = honest(topic, *rest)
            done.append(topic.name)
            return found

        monkeypatch.setattr(losses if name == "read_ledger" else land, name, watched)
    said: list[str] = []
    monkeypatch.setattr(show, "print_error", lambda error, where="": said.append(f"{where}{error.kind}"))

    assert ran("zzz")[0] == 0 and done == ["zzz"] and not said
    code, raised = ran()
    assert (code, done) == (1, ["zzz"]) and isinstance(raised, SystemExit)
    assert said == [f"topic {TOPIC}: broken_plan_log"]
    assert isinstance(ran(TOPIC)[1], BrokenPlanLog)
    capfd.readouterr()
