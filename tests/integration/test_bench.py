"""The benchmark's part `engine` on real parts: small loads, the same code. Figures are not held against their aims here."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline_defs.bench import backlog, client_cost, measurement
from pipeline_defs.bench.engine import AIMS, Profile, run_engine_bench
from pipeline_defs.bench.measurement import Bench, WrongCount
from pipeline_defs.bench.rounds import Load
from pipeline_defs.bench.run_cost import PARTS, RUN
from pipeline_defs.edges.spark_server import read_server
from pipeline_defs.settings import Settings
from tests.support.world import World

SMALL = Load(100, 20, 10, 2)


def told(text: str) -> None:
    assert text


@pytest.fixture
def bench(world: World, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A world of the benchmark on the broker and the Spark that all tests share."""
    for module in (client_cost, backlog):
        monkeypatch.setattr(module, "TOPIC", f"{world.name}-{module.__name__.rpartition('.')[2]}")
    return Bench(world.edges, world.edges.pyspark(), world.folder, 0.0, 0.0, os.getpid())


def test_a_client_and_a_backlog_are_measured(bench: Bench) -> None:
    client = client_cost.measure_client(bench, 1, told, SMALL)
    assert 0.1 < client["cpu_seconds"]["median"] < client["seconds"]["median"] * (os.cpu_count() or 1)
    found = backlog.measure_backlog(bench, 1, told, 6)
    assert len(found["ranges_per_second"]["all"]) == 1


def test_a_client_that_wrote_too_little_has_no_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_cost, "count_rows", lambda folder: measurement.count_rows(folder) - 1)
    with pytest.raises(client_cost.ClientFailed, match="wrote 19 rows of 20"):
        client_cost.measure_client(bench, 1, told, SMALL)


def test_a_backlog_that_is_not_all_landed_has_no_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "count_rows", lambda folder: measurement.count_rows(folder) - 1)
    with pytest.raises(WrongCount, match="are landed"):
        backlog.measure_backlog(bench, 1, told, 3)


@pytest.mark.long
def test_the_whole_part_is_measured_and_leaves_nothing_behind(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    small = Profile(
        rounds=1, idle_seconds=1.0, run=SMALL, client=SMALL, visible=SMALL, backlog_ranges=6, driver_bytes=SMALL
    )
    report = run_engine_bench(replace(settings, home=settings.home), small, told)
    found = report["engine"]
    assert found["spread"].keys() == {*AIMS, "backlog_ranges_per_second"}
    assert all(found[name] == figure["median"] > 0 for name, figure in found["spread"].items())
    parts = found["details"]["run"]["median_by_part"]
    assert parts.keys() == set(PARTS)
    assert parts[RUN] > 0.5, "the run's process has ended before it is looked at, and is counted even so"
    assert report["environment"]["load_average_before"]
    assert list(tmp_path.iterdir()) == []
    assert read_server(tmp_path) is None
