"""What commands say to who asks too early, too much, or for what is nearly there."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline_defs.core.errors import BadKey, Refused
from pipeline_defs.settings import Settings
from tests.support.world import World

Run = Callable[..., Result]


@pytest.fixture
def quiet(settings: Settings, tmp_path: Path) -> Iterator[World]:
    """A topic on the broker with 40 young records, for which no Spark is needed."""
    with World(settings, tmp_path, f"t{uuid.uuid4().hex[:10]}") as world:
        world.with_policy(records_per_range=1000, max_age_seconds=600)
        world.fill(40)
        yield world


@pytest.fixture
def run(quiet: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    command = importlib.import_module("pipeline_defs.cli.work.land")
    monkeypatch.setattr(command, "open_edges", lambda: quiet.edges)
    monkeypatch.setattr(command, "find_topic", lambda name: quiet.topic)
    return lambda verb, *arguments: CliRunner().invoke(getattr(command, verb), [quiet.name, *arguments])


def test_a_plan_says_that_a_tail_waits_for_its_age_and_how_to_cut_it(quiet: World, run: Run) -> None:
    """Before the log is opened and after; once the tail is cut nothing waits: the control."""
    for arguments in ([], ["--apply"], []):
        said = run("plan", *arguments).stdout
        assert f"40 offsets of {quiet.name} wait, the oldest for " in said
        assert f"10 min old; to cut now: offsetlake plan {quiet.name} --apply --through-end" in said
    waiting = json.loads(run("plan", "--json").stdout)["waiting"]
    assert waiting["offsets"] == 40 and 0 <= waiting["age_seconds"] < 600
    cut = run("plan", "--apply", "--through-end").stdout
    assert "planned 1 range" in cut and "1 ranges" not in cut and "wait" not in cut
    assert json.loads(run("plan", "--json").stdout)["waiting"] is None


def test_a_key_that_is_nearly_there_is_answered_with_the_one_that_is(quiet: World, run: Run) -> None:
    """Also where all is planned, so that `plan` has no key to show."""
    quiet.plan()
    refused = run("land", "--key", "0-0-41")
    assert isinstance(refused.exception, BadKey)
    assert "0-0-41 (the nearest there is: 0-0-40)" in str(refused.exception)
    assert f"`offsetlake backfill {quiet.name} --all` lists those there are" in str(refused.exception)
    nowhere = run("land", "--key", "7-0-41")
    assert isinstance(nowhere.exception, BadKey) and "nearest" not in str(nowhere.exception)


def test_pending_and_a_partition_together_are_refused_with_what_each_means(run: Run) -> None:
    refused = run("land", "--pending", "--key", "0-0-40")
    assert isinstance(refused.exception, Refused)
    assert "--pending is every range" in str(refused.exception) and "is one range" in str(refused.exception)
