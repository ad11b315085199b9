"""The raw table beside Dagster: runs append, ticks make good, the audit looks, and landing never waits for it."""

from __future__ import annotations

import pytest

from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.cli.progress import Shown
from pipeline_defs.cli.work.read import run_audit
from pipeline_defs.landing.auditing import check_table
from tests.support.redecoding import Killed, stop_at
from tests.support.world import World


def test_a_tick_appends_what_a_dead_run_left_out_and_a_table_that_is_broken_is_told_and_holds_nothing_up(world: World) -> None:
    """[R-81] A run appends before it ends; where it dies before that, the next tick does, and only then.

    A torn version stops the table, not the landing: ticks and the audit say what to do, and it helps.
    """
    world.keep_raw_table()
    world.fill(250)
    world.tick()
    world.launch()
    table = check_table(world.name, world.edges.lake)
    assert (table.violations, table.facts["rows"]) == ((), 250)
    world.send_numbered(100)
    world.plan()
    with pytest.raises(Killed):
        world.land(on_step=stop_at("link_to_table"))
    world.assert_all_landed_once()
    assert "landed, and not in the table" in check_table(world.name, world.edges.lake).violations[0]
    assert check_table(world.name, world.edges.lake, {*world.coverage.log.ranges}).passed, "while a run is at it"
    world.tick()
    found = check_table(world.name, world.edges.lake)
    assert (found.violations, found.facts) == ((), {"version": table.facts["version"] + 1, "rows": 350})
    world.tick()
    assert check_table(world.name, world.edges.lake).facts == found.facts, "what is whole is left alone"

    folder = world.folder / "lake" / raw_table_log(world.name, world.edges.lake.store).folder
    newest = max((folder / "_delta_log").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    world.send_numbered(50)
    tick = world.tick()
    assert any("move the table's folder away" in each for each in tick.stalled)
    world.launch()
    world.assert_all_landed_once()
    shown = Shown("audit", None)
    (audited,) = [each for each in run_audit(world.topic, world.edges, "none", "", shown) if each.check == "raw_table"]
    assert not audited.passed and "is no commit of a Delta log" in audited.violations[0]
    folder.rename(folder.with_name("broken"))
    assert world.tick().stalled == ()
    assert check_table(world.name, world.edges.lake).facts == {"version": 0, "rows": 400}
