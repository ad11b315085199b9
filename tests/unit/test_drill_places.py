"""Where drills run: on this machine, or on a cluster with the lake in a bucket, as the settings name them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from pipeline_defs.core.errors import BadSetting
from pipeline_defs.lab.cli.drill import drill
from pipeline_defs.lab.drills.catalog import DRILLS
from pipeline_defs.lab.drills.report import choose
from pipeline_defs.lab.drills.systems import OURS
from pipeline_defs.settings import Settings


@pytest.fixture
def here(tmp_path: Path) -> Settings:
    """Settings of a machine that knows no bucket and no cluster."""
    return Settings(
        home=tmp_path,
        lake=str(tmp_path / "lake"),
        bootstrap_servers=None,
        spark_master="local[1]",
        spark_driver_memory="1g",
        dagster_home=tmp_path / "dagster",
    )


def test_a_place_that_no_setting_names_is_refused(here: Settings) -> None:
    with pytest.raises(BadSetting, match="expected s3://bucket/prefix; nothing was started"):
        choose((), 0, 1, 0, "s3", "local").check(here)
    with pytest.raises(BadSetting, match="OFFSETLAKE_SPARK_REMOTE, which is not set"):
        choose((), 0, 1, 0, "disk", "cluster").check(here)
    there = replace(here, lake="s3://bucket/drills", spark_remote="sc://localhost:1")
    choose((), 0, 1, 0, "s3", "cluster").check(there)  # the control


def test_elsewhere_ours_alone_is_drilled_without_what_only_this_machine_has() -> None:
    names = ("no_fault", "fill_disk", "lose_leader", "kill_at_written")
    assert len(choose(names, 0, 1, 0, "disk", "local").drills) + 1 == len(names)
    for lake, engine in (("s3", "local"), ("disk", "cluster"), ("s3", "cluster")):
        chosen = choose((), 0, 1, 0, lake, engine)
        assert not chosen.acks and {drill.systems for drill in chosen.drills} == {(OURS,)}
        assert not any(drill.is_of_disk for drill in chosen.drills) and len(chosen.drills) > len(DRILLS) // 2
        for name in names[1:]:
            with pytest.raises(BadSetting, match=f"^{name}: of this machine's disk"):
                choose([name], 0, 1, 0, lake, engine)


@pytest.mark.parametrize(("name", "text"), [("OFFSETLAKE_LAKE", "/nowhere/lake"), ("OFFSETLAKE_SPARK_MASTER", "nonsense")])
def test_nothing_is_said_to_start_where_places_or_settings_are_wrong(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is a drill that begins."""
    said = StringIO()
    monkeypatch.setattr("pipeline_defs.lab.cli.drill.ERRORS", Console(file=said, force_terminal=True))
    monkeypatch.setattr("pipeline_defs.lab.drills.report.run_drills", lambda *_: {"drills": []})
    with monkeypatch.context() as wrong:
        wrong.setenv(name, text)
        assert isinstance(CliRunner().invoke(drill, ["--lake", "s3"]).exception, BadSetting)
    assert said.getvalue() == ""
    CliRunner().invoke(drill, [])
    assert "starting broker and Spark" in said.getvalue()
