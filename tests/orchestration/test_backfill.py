"""Backfills as a real Dagster daemon executes them, while its sensor lands what arrives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline_defs.core.errors import DaemonUnavailable
from pipeline_defs.core.landing.selection import choose_missing
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.lab.bench.location import read_marks, write_location
from pipeline_defs.orchestration.assets.raw_asset import land_config
from pipeline_defs.orchestration.backfill.backfilling import BackfillRequest, follow_backfill, launch_backfill
from pipeline_defs.orchestration.backfill.choosing import Choice, select_ranges
from pipeline_defs.orchestration.runs.ledger import accept_loss
from pipeline_defs.orchestration.runs.siblings import BACKFILL_TAG
from pipeline_defs.settings import PROJECT
from tests.support.commands import commands_of
from tests.support.world import PATIENCE_SECONDS, World

pytestmark = pytest.mark.scenario

DAEMON = """
from dagster._daemon import controller
from dagster._daemon.cli import cli
controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1  # between two looks at backfills, where Dagster's own is 30
cli()
"""


@contextmanager
def running_daemon(world: World) -> Iterator[Path]:
    """Run Dagster's daemon while the context is open, once it says that it is there; give the folder of its marks."""
    folder = world.folder / "location"
    command = [sys.executable, "-c", DAEMON, "run", "-w", str(write_location(folder, world.settings, world.topic))]
    env = {**os.environ, "DAGSTER_HOME": str(world.settings.dagster_home), "PYTHONPATH": str(PROJECT)}
    with (world.folder / "daemon.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=PROJECT)
        try:
            world.wait_until(lambda: "BACKFILL" in world.instance.get_daemon_heartbeats())
            yield folder
        finally:
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) is not None


def launch(world: World, ranges: list[OffsetRange]) -> str:
    return launch_backfill(world.topic, BackfillRequest(ranges, redo=False), world.edges, world.instance)


def reporters(world: World, backfill: str | None = None) -> dict[str, set[str]]:
    """Says of each key which runs, of one backfill or of none, have reported it."""
    events = world.instance.fetch_materializations(world.topic.asset_key, limit=1_000).records
    runs = {run.run_id for run in world.instance.get_runs() if run.tags.get(BACKFILL_TAG) == backfill}
    found: dict[str, set[str]] = {}
    for event in events:
        if event.run_id in runs and event.partition_key is not None:
            found.setdefault(event.partition_key, set()).add(event.run_id)
    return found


def test_scattered_failed_and_missing_ranges_beside_the_sensor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-16] Two backfills at once, and records that the sensor lands meanwhile; each does its own and nothing twice.

    Five scattered ranges that are landed are five runs to Dagster, and one or two scans; they end unchanged.
    """
    commands = commands_of("work.backfill", world, monkeypatch)
    world.fill(1000, 300)
    world.tick()
    world.delete_records(1, 40)
    (launched,) = world.try_launch()
    assert not launched.succeeded
    with pytest.raises(DaemonUnavailable, match="has never run"):
        launch(world, list(world.coverage.log.ranges))
    failed = list(select_ranges(Choice(failed=True), world.topic, world.coverage, world.edges, world.instance).ranges)
    assert [offsets.key for offsets in failed] == ["1-0-100"]
    accept_loss(world.topic, "1-0-100", world.edges, "test")
    for place in [place for place in world.sent if place[0] == 1 and place[1] < 40]:
        del world.sent[place]
    before = world.coverage.manifests
    scattered = [o for o in world.coverage.log.ranges if o.partition == 0 and o.start % 200 == 0]
    assert len(scattered) == 5
    world.send_numbered(250, 0)
    world.plan()
    missing = list(choose_missing(world.coverage).ranges)
    assert len(missing) == 4 and missing[0] == failed[0]
    with running_daemon(world) as location:
        first = launch(world, missing)
        world.send_numbered(50, 1)
        keys = [word for offsets in scattered for word in ("--key", offsets.key)]
        result = commands("backfill", world.name, *keys, "--on-change", "replace", "--apply")
        assert result.exit_code == 0 and "has ended: 5 ranges in 5 runs" in result.stdout, (result.stdout, result.exception)
        second = result.stdout.partition("launched backfill ")[2].split()[0]
        states = follow_backfill(world.topic.landing, first, [offsets.key for offsets in missing], world.instance)
        world.wait_until(lambda: next(states).has_ended)
        state = next(follow_backfill(world.topic.landing, first, [offsets.key for offsets in missing], world.instance))
        assert state.has_succeeded and state.done == {offsets.key for offsets in missing}, state
        for backfill, ranges in ((first, missing), (second, scattered)):
            assert set(reporters(world, backfill)) == {o.key for o in ranges}, "just what was chosen, and nothing else"
        world.wait_until(lambda: not world.pending and len(world.rows()) == len(world.sent))
        marks = read_marks(location)
    world.assert_all_landed_once()
    now = world.coverage.manifests
    assert {offsets: now[offsets] for offsets in before} == before, "what was landed stays, byte for byte"
    assert len(set.union(*reporters(world, second).values())) <= 2 < len(scattered)
    assert sum(mark["step"] == "scan" for mark in marks) <= 6, marks
    configs = [run.run_config for run in world.instance.get_runs() if run.tags.get(BACKFILL_TAG) == second]
    assert configs == [land_config(world.topic, "replace")] * 5, "what the launchpad takes, a backfill takes too"
    assert "1-300-350" in reporters(world), "the sensor landed what arrived, outside of any backfill"
