"""What crashes leave in staging is swept by command and job, and nothing that anybody needs. Nobody waits for the clock."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline_defs.landing.sweeping import SWEEP_AFTER_SECONDS, sweep_orphans
from pipeline_defs.orchestration.upkeep.housekeeping import SWEEP
from pipeline_defs.settings import PROJECT
from tests.support.commands import commands_of
from tests.support.pulse import requests_of, run_job
from tests.support.world import World

LATER_MS = int((SWEEP_AFTER_SECONDS + 60) * 1000)  # from then on nothing that is in staging now can be of a living run


@pytest.fixture
def orphan(world: World) -> Path:
    """What a crash left in staging just now."""
    orphan = world.lake_folder / "staging" / "dead" / "part.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(bytes(10))
    return orphan


def age(orphan: Path) -> None:
    for path in (orphan, orphan.parent):
        os.utime(path, (time.time() - 4 * 3600,) * 2)


def test_any_number_may_sweep_at_once(world: World) -> None:
    """[R-58] Every topic's nightly audit does, at the same minute: what another has deleted is as good."""
    for number in range(40):
        folder = world.lake_folder / "staging" / f"dead-{number}" / "0-0-100_1" / "_temporary"
        folder.mkdir(parents=True)
        (folder / ".part.crc").write_bytes(b"x")
    (world.lake_folder / "staging" / "plan-dead").write_bytes(b"a planner died")
    with ThreadPoolExecutor(8) as pool:
        swept = list(pool.map(lambda _: sweep_orphans(world.edges.lake, world.edges.now_ms() + LATER_MS), range(8)))
    assert {each.name for found in swept for each in found} == {"plan-dead", *(f"dead-{n}" for n in range(40))}
    assert list((world.lake_folder / "staging").iterdir()) == []


def test_a_sweep_waits_for_longer_than_any_run_may_last() -> None:
    """[R-58] The longest is what dagster.yaml lets run monitoring end."""
    longest = re.search(r"max_runtime_seconds: (\d+)", (PROJECT / "dagster.yaml").read_text())
    assert longest is not None and int(longest[1]) < SWEEP_AFTER_SECONDS


def test_the_command_shows_first_and_then_deletes(world: World, orphan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-58] `offsetlake sweep`, then with --apply."""
    commands = commands_of("work.compact", world, monkeypatch)
    run: Callable[..., str] = lambda *arguments: commands("sweep", *arguments).stdout  # noqa: E731
    run("--apply")
    assert orphan.exists(), "the control: it was written just now"
    world.later(LATER_MS)
    assert "would sweep 1 orphan of" in run()
    assert orphan.exists()
    assert "swept 0 orphans of" in run("--apply"), "by the clock of the lake it was written just now"
    age(orphan)
    run("--older-than", "24", "--apply")
    assert orphan.exists()
    assert "swept 1 orphan of" in run("--apply")
    assert not orphan.parent.exists()


def test_the_job_runs_where_there_is_something(world: World, orphan: Path) -> None:
    """[R-58] Its schedule launches nothing for what was written just now."""
    assert requests_of(world, SWEEP) == [], "the control: it was written just now"
    assert run_job(world, SWEEP).success and orphan.exists()
    world.later(LATER_MS)
    assert len(requests_of(world, SWEEP)) == 1
    assert run_job(world, SWEEP).success and orphan.exists(), "by the clock of the lake it was written just now"
    age(orphan)
    assert run_job(world, SWEEP).success and not orphan.exists()
