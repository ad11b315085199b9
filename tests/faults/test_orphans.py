"""What crashes leave in staging is swept, and nothing that anybody needs. The clock is an argument: nobody waits."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.landing.auditing import check_published, check_tiling
from pipeline_defs.landing.sweeping import SWEEP_AFTER_SECONDS, find_orphans, sweep_orphans
from pipeline_defs.settings import PROJECT
from tests.support.killing import stopped_at
from tests.support.world import World


def later(world: World) -> int:
    """Is the moment after which nothing that is in staging now can be of a living run."""
    return world.edges.now_ms() + int((SWEEP_AFTER_SECONDS + 60) * 1000)


def sweep(world: World, now_ms: int) -> list[str]:
    return [orphan.name for orphan in sweep_orphans(world.edges.lake, now_ms)]


def staged(world: World) -> list[Path]:
    return list((world.lake_folder / "staging").rglob("*.parquet"))


def everything_but_staging(world: World) -> dict[Path, bytes]:
    found = (path for path in world.lake_folder.rglob("*") if path.is_file())
    attempts = {"staging", "begun"}
    return {path: path.read_bytes() for path in found if path.relative_to(world.lake_folder).parts[0] not in attempts}


def one_range_landed_and_one_planned(world: World) -> None:
    world.create_topic()
    world.send_numbered(100)
    world.plan_and_land()
    world.send_numbered(100)
    world.tick()


def test_what_a_killed_attempt_staged_is_swept_and_nothing_else(world: World) -> None:
    """Not while a run may be at work on it, and never a published file; the range lands as ever.

    [R-58]
    """
    one_range_landed_and_one_planned(world)
    before = everything_but_staging(world)
    with stopped_at(world, "land", "stage"):
        assert len(staged(world)) == 1
        assert sweep(world, world.edges.now_ms()) == [], "the control: it is alive"
    assert sweep(world, world.edges.now_ms()) == [], "the control: it may be"
    (orphan,) = find_orphans(world.edges.lake, later(world), SWEEP_AFTER_SECONDS)
    assert orphan.bytes >= staged(world)[0].stat().st_size
    assert staged(world), "finding deletes nothing"
    assert sweep(world, later(world)) == [orphan.name]
    assert list((world.lake_folder / "staging").iterdir()) == []
    assert everything_but_staging(world) == before
    world.tick()
    world.launch()
    world.assert_all_landed_once()


def test_what_is_committed_and_not_published_stays_until_it_is(world: World) -> None:
    """[R-58] However old: its manifest has decided, and the staged file is what will be published."""
    one_range_landed_and_one_planned(world)
    with stopped_at(world, "land", "commit"):
        assert len(world.coverage.manifests) == 2
        assert [offsets.key for offsets in world.pending] == ["0-100-200"], "committed and not published"
    assert len(staged(world)) == 1
    assert sweep(world, later(world)) == []
    (verdict,) = world.land()
    assert verdict.outcome is Outcome.ROLLED_FORWARD
    assert len(sweep(world, later(world))) == 1, "the control: now nobody needs it"
    assert staged(world) == []
    world.assert_all_landed_once()
    assert check_published(world.name, world.edges.lake).passed


def test_what_a_replace_has_still_to_exchange_stays_until_it_is(world: World) -> None:
    """[R-58] Between the new revision of a manifest and the exchange the old file stands; the staged one is needed."""
    world.create_topic()
    world.with_policy(isolation_level="read_uncommitted")
    world.send_aborted(partition=0, value=b"aborted")
    world.send_numbered(5)
    world.plan_and_land()
    assert len(world.rows()) == 6
    world.with_policy(isolation_level="read_committed")
    with stopped_at(world, "replace", "commit"):
        assert len(world.rows()) == 6, "committed and not exchanged"
    assert len(staged(world)) == 1
    assert sweep(world, later(world)) == []
    (verdict,) = world.land()
    assert verdict.outcome is Outcome.ROLLED_FORWARD
    assert len(world.rows()) == 5
    sweep(world, later(world))
    assert list((world.lake_folder / "staging").iterdir()) == [], "the control: now nobody needs anything"
    world.assert_all_landed_once()
    assert check_tiling(world.name, world.edges.lake).passed


def test_any_number_may_sweep_at_once(world: World) -> None:
    """[R-58] Every topic's nightly audit does, at the same minute: what another has deleted is as good."""
    for number in range(40):
        folder = world.lake_folder / "staging" / f"dead-{number}" / "0-0-100_1" / "_temporary"
        folder.mkdir(parents=True)
        (folder / ".part.crc").write_bytes(b"x")
    (world.lake_folder / "staging" / "plan-dead").write_bytes(b"a planner died")
    with ThreadPoolExecutor(8) as pool:
        swept = list(pool.map(lambda _: sweep(world, later(world)), range(8)))
    assert {name for names in swept for name in names} == {"plan-dead", *(f"dead-{n}" for n in range(40))}
    assert list((world.lake_folder / "staging").iterdir()) == []


def test_a_sweep_waits_for_longer_than_any_run_may_last() -> None:
    """[R-58] The longest is what dagster.yaml lets run monitoring end."""
    longest = re.search(r"max_runtime_seconds: (\d+)", (PROJECT / "dagster.yaml").read_text())
    assert longest is not None and int(longest[1]) < SWEEP_AFTER_SECONDS


def test_the_command_shows_first_and_then_deletes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-58] `offsetlake sweep`, then with --apply."""
    orphan = world.lake_folder / "staging" / "dead" / "part.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(bytes(10))
    command = importlib.import_module("pipeline_defs.cli.work.compact")  # the package has the command itself by this name
    monkeypatch.setattr(command, "open_edges", lambda: world.edges)
    run: Callable[..., str] = lambda *arguments: CliRunner().invoke(command.sweep, arguments).stdout  # noqa: E731
    run("--apply")
    assert orphan.exists(), "the control: it was written just now"
    moment = later(world)
    world.edges.now_ms = lambda: moment
    assert "would sweep 1 orphan of" in run()
    assert orphan.exists()
    run("--older-than", "24", "--apply")
    assert orphan.exists()
    assert "swept 1 orphan of" in run("--apply")
    assert not orphan.parent.exists()
