"""The asset of docs/dagster.md is loaded with a project's topics, and follows what lands."""

from __future__ import annotations

import importlib
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.definitions import build_defs
from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.settings import PROJECT
from tests.integration.test_decoding import configure, decode_in_runs, event
from tests.support.markdown import read_blocks
from tests.support.world import World

DAGSTER = (PROJECT / "docs" / "dagster.md").read_text()
SIZES = dg.AssetKey("order_sizes")


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's, as it reads YAML
def test_an_asset_of_ones_own_reads_each_range(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the partitions of the raw asset, and is asked for where one of them landed."""
    block, _ = [each for each in read_blocks(DAGSTER) if each.language == "python"]
    project = tmp_path / f"lake_{world.name}"
    write_project(plan_project(project, [world.name], None))
    (project / project.name / "defs" / "order_sizes.py").write_text(block.text.replace("orders", world.name))
    monkeypatch.setenv("OFFSETLAKE_LAKE", world.settings.lake)
    monkeypatch.chdir(project)
    defs = build_defs(world.edges, project=project)

    world.fill(150, 0)
    world.tick()
    before = dg.evaluate_automation_conditions(defs, world.instance)
    assert before.get_num_requested(SIZES) == 0, "nothing has landed yet"
    world.launch()
    keys = world.materialized()
    assert keys == {"0-0-100", "0-100-150"}
    after = dg.evaluate_automation_conditions(defs, world.instance, cursor=before.cursor)
    assert after.get_requested_partitions(SIZES) == keys

    sizes = defs.resolve_assets_def(SIZES)
    assert sizes.partitions_def == world.topic.partitions
    for key, count in (("0-0-100", 100), ("0-100-150", 50)):
        assert dg.materialize([sizes], partition_key=key, instance=world.instance).success
        said = {name: value.value for name, value in world.events(SIZES)[-1].metadata.items()}
        assert said == {"rows": count, "largest": len(b"v99") if count == 100 else len(b"v149")}


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")
def test_an_asset_of_ones_own_reads_each_day(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for the days that have news, and reads just these."""
    _, block = [each for each in read_blocks(DAGSTER) if each.language == "python"]
    (tmp_path / "order_totals.py").write_text(block.text.replace("orders", world.name))
    monkeypatch.syspath_prepend(tmp_path)
    totals = importlib.import_module("order_totals").order_totals
    monkeypatch.setenv("OFFSETLAKE_LAKE", world.settings.lake)
    configure(world)
    world.create_topic()
    defs = build_defs(world.edges, topics=dg.Definitions.merge(world.definitions, dg.Definitions(assets=[totals])))
    before = dg.evaluate_automation_conditions(defs, world.instance)
    world.send([event("2013-01-01", 1), event("2013-01-01", 2), event("2013-01-05", 3)])
    world.plan_and_land()
    decode_in_runs(world)
    after = dg.evaluate_automation_conditions(defs, world.instance, cursor=before.cursor)
    assert after.get_requested_partitions(totals.key) == {"2013-01-01", "2013-01-05"}
    assert dg.materialize([totals], partition_key="2013-01-01", instance=world.instance).success
    assert [each.metadata["rows"].value for each in world.events(totals.key)] == [2]
