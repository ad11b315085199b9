"""The benchmark's parts on real parts: small loads, the same code. Figures are not held against their aims here."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline_defs.adapters.spark.spark_server import read_server
from pipeline_defs.core.landing.tiling import tiling_violations
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.lab.bench import measurement, watched
from pipeline_defs.lab.bench.costs import (
    append_cost,
    backlog,
    client_cost,
    decode_cost,
    driver_bytes,
    history,
    run_cost,
    topics_cost,
    upsert,
)
from pipeline_defs.lab.bench.costs.decode_cost import VALUES
from pipeline_defs.lab.bench.costs.upsert import DeltaState
from pipeline_defs.lab.bench.measurement import Bench, Part, run_part
from pipeline_defs.lab.bench.rounds import Load
from pipeline_defs.lab.cli.parts import DERIVED_AIMS, ENGINE_AIMS, measure_derived, measure_engine
from pipeline_defs.lab.processes import NotMeasured
from pipeline_defs.settings import Settings
from tests.support.world import World

pytestmark = pytest.mark.scenario


def told(text: str) -> None:
    assert text


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads that take seconds where they take minutes."""
    for module in (client_cost, append_cost, run_cost, watched, driver_bytes):
        monkeypatch.setattr(module, "LOAD", Load(module.LOAD.topic, 100, 20, 10, 2))
    for part, small in {
        decode_cost: {"LOAD": Load(decode_cost.LOAD.topic, 1_000, 20, 5, 2), "WARM_UPS": 0},
        run_cost: {"IDLE_SECONDS": 1.0},
        backlog: {"RANGES": 6},
        upsert: {**dict.fromkeys(("STATE", "LARGE"), upsert.UpsertState(500, 200)), "WARM_UPS": 1, "LARGE_ROUNDS": 1},
        topics_cost: {"POLICY": Policy(max_age_seconds=1), "WARM_UP_SECONDS": 2, "SECONDS": 2},
    }.items():
        for name, value in small.items():
            monkeypatch.setattr(part, name, value)


@pytest.fixture
def bench(world: World, small: None, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A world of the benchmark on the broker and the Spark that all tests share."""
    for module in (backlog, topics_cost, history):
        monkeypatch.setattr(module, "TOPIC", f"{world.name}-{module.__name__.rpartition('.')[2]}")
    for module in (client_cost, append_cost, decode_cost):
        rename(monkeypatch, module, world.name)
    return Bench(world.adapters, world.adapters.pyspark(), world.folder, 0.0, 0.0, os.getpid())


def rename(monkeypatch: pytest.MonkeyPatch, module: Any, prefix: str) -> None:
    """Have a part take a topic that is not there yet."""
    monkeypatch.setattr(module, "LOAD", replace(module.LOAD, topic=f"{prefix}-{module.LOAD.topic}"))


def test_client_and_backlog_are_measured_unless_they_wrote_too_little(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_cost.measure_client(bench, 1, told)
    assert 0.1 < client["cpu_seconds"]["median"] < client["seconds"]["median"] * (os.cpu_count() or 1)
    found = backlog.measure_backlog(bench, 1, told)
    assert len(found["ranges_per_second"]["all"]) == 1
    rename(monkeypatch, client_cost, "again")
    monkeypatch.setattr(backlog, "TOPIC", f"{backlog.TOPIC}-2")
    for module in (client_cost, backlog):
        monkeypatch.setattr(module, "count_rows", lambda folder: measurement.count_rows(folder) - 1)
    with pytest.raises(NotMeasured, match="a client gave 19 rows of 20"):
        client_cost.measure_client(bench, 1, told)
    with pytest.raises(NotMeasured, match="landing gave"):
        backlog.measure_backlog(bench, 1, told)


def test_topics_are_measured_under_a_dagster_that_is_up(bench: Bench) -> None:
    """H: what arrives at all of them is seen, by runs of which no two wait, and each record's time counts."""
    found = topics_cost.measure_count(bench, 2, told)
    assert found["records"] >= 2 * 20, "two topics of 20 records a second"
    assert found["p95_wait_seconds"] > 1 and found["queued_max"] <= 1 and found["cpu_share"] > 0


def test_a_long_history_is_laid_out_as_a_real_one_and_read_by_processes_of_their_own(bench: Bench) -> None:
    """H: what is written at once is whole to the audit, and the run lands ten ranges behind it."""
    found = history.measure_history(bench, 60, told)
    figures = [*(f"{what}_seconds" for what in ("open", "planning_tick", "tick", "run", "status", "trace")), "peak_mb"]
    assert list(found) == ["ranges", *figures]
    assert all(found[figure] > 0 for figure in figures if figure not in {"open_seconds", "tick_seconds"})
    coverage = bench.adapters.lake.coverage(history.TOPIC)
    assert len(coverage.manifests) == 60 + history.NEW_RANGES and coverage.pending() == []
    assert tiling_violations(coverage) == []


def test_updates_come_to_the_same_as_the_merges_of_delta_rs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = upsert.measure_upsert(bench, 1, told)
    assert 400 < found["keys"] < 500, "tombstones have taken some away"
    for figure in (found["to_delta_rs"], found["update"]["cpu_seconds"], found["delta_rs"]["seconds"]):
        assert len(figure["all"]) == 1 and figure["least"] > 0
    large = upsert.measure_large(bench, told)
    assert len(large["seconds"]["all"]) == 1
    assert large["table_bytes"] > 0 and large["peak_bytes"]["least"] > 1_000_000 < large["jvm_peak_bytes"]["least"]
    assert not (bench.folder / "upsert").exists()
    merge = DeltaState.update
    monkeypatch.setattr(DeltaState, "update", lambda state, files: merge(state, files[1:]))
    with pytest.raises(NotMeasured, match="to other records"):
        upsert.measure_upsert(bench, 1, told)


def test_the_append_is_a_share_of_the_landing_that_it_is_in(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = append_cost.measure_append(bench, 1, told)
    for share, append, whole in zip(
        *(found[name]["all"] for name in ("append_to_landing", "append_seconds", "seconds")), strict=True
    ):
        assert 0 < append < whole and share == pytest.approx(append / (whole - append), abs=0.01)
    rename(monkeypatch, append_cost, "again")
    monkeypatch.setattr(append_cost, "count_rows", lambda folder: measurement.count_rows(folder) - 1)
    with pytest.raises(NotMeasured, match="19 rows of 20 records"):
        append_cost.measure_append(bench, 1, told)


def test_decoding_is_measured_beside_landing_the_same_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = decode_cost.measure_decoding(bench, 1, told)
    assert {"landing_json", "json", "avro", "compact_json"} <= found["seconds"].keys()
    seconds = {name: each["median"] for name, each in found["seconds"].items()}
    for kind in ("json", "avro"):
        ratio = found["ratios"][f"{kind}_to_landing"]["median"]
        assert ratio == pytest.approx(seconds[kind] / seconds[f"landing_{kind}"], rel=0.05)
    rounds = iter(range(1, 100))
    rename(monkeypatch, decode_cost, "again")
    monkeypatch.setattr(decode_cost, "WARM_UPS", 1)
    monkeypatch.setattr(decode_cost, "VALUES", {"json": VALUES["json"]})
    monkeypatch.setattr(decode_cost, "_take_round", lambda bench, kind: (1.0, {kind: next(rounds)}))
    assert decode_cost.measure_decoding(bench, 1, told)["seconds"]["json"]["all"] == [2.0], "a warm-up does not count"


ENGINE_FIGURES = {f"engine.{name}" for name in (*ENGINE_AIMS, "backlog_ranges_per_second")}


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("measure", "named"), [(measure_derived, {*DERIVED_AIMS}), (measure_engine, ENGINE_FIGURES)])
def test_a_part_leaves_nothing(
    measure: Part, named: set[str], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = run_part(measure, settings, 1, told)
    figures = {
        f"{section}.{name}": (found[name], figure["median"])
        for section, found in report.items()
        for name, figure in (found["spread"].items() if section in {each.partition(".")[0] for each in named} else ())
    }
    assert figures.keys() == named
    assert all(told == median > 0 for told, median in figures.values())
    if measure is measure_engine:
        assert figures["engine.run_cpu_seconds"][0] > 0.5, "the run's process has ended before it is looked at, and is counted"
    assert report["environment"]["load_average_before"]
    assert list(tmp_path.iterdir()) == []
    assert read_server(tmp_path) is None
