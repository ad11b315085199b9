"""Commands of `offsetlake` in this process, on a world's topic; and metrics as a table."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from pipeline_defs.adapters.telemetry.prometheus import Metric
from pipeline_defs.orchestration.topic_set import TopicFiles
from tests.support.redecoding import LandedTopic
from tests.support.world import World

Run = Callable[..., Result]


def commands_of(module: str, world: World | LandedTopic, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Have the commands of a module know a world, and its topic whatever it is called; return how to run one by its name."""
    commands = import_module(f"pipeline_defs.cli.{module}")  # a package has the command itself by the name of its module
    monkeypatch.setattr(commands, "open_adapters", lambda: world.adapters)
    monkeypatch.setattr(commands, "find_topic", lambda name: world.topic, raising=False)
    files = TopicFiles(dg.ComponentTree.for_test(), {world.topic.name: world.topic})
    monkeypatch.setattr(commands, "choose_topics", lambda name: files, raising=False)
    return lambda verb, *arguments: CliRunner().invoke(getattr(commands, verb), arguments)


def samples_of(metrics: Iterable[Metric]) -> Mapping[str, Mapping[tuple[str, ...], float]]:
    """Return of each name its values, by those of its labels."""
    return {each.name: {tuple(sample.labels.values()): sample.value for sample in each.samples} for each in metrics}
