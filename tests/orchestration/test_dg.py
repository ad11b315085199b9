"""The project as Dagster's own tools see it: `dg` and workspace.yaml find the same definitions under the same name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from pipeline_defs.settings import PROJECT


def run(*command: str, home: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name(command[0])
    env = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETLAKE_")}
    return subprocess.run(
        [str(tool), *command[1:]],
        cwd=PROJECT,
        env=env | {"OFFSETLAKE_HOME": str(home), "DAGSTER_HOME": str(home), "VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
    )


def test_dg_lists_the_definitions(tmp_path: Path) -> None:
    listed = run("dg", "list", "defs", "--json", home=tmp_path)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    keys = {asset["asset_key"] for asset in found["assets"]}
    assert {"raw/flights", "kafka/flights"} <= keys
    assert {sensor["name"] for sensor in found["sensors"]} >= {"land_pending"}
    assert {job["name"] for job in found["jobs"]} >= {"land_flights", "audit", "compact_tables"}


def test_workspace_yaml_loads_the_same_location(tmp_path: Path) -> None:
    """One location name, or sensor state would split in two between `dg dev` and `dagster dev -w workspace.yaml`."""
    validated = run("dagster", "definitions", "validate", "-w", "workspace.yaml", home=tmp_path)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    assert "offsetlake" in validated.stdout + validated.stderr
    workspace = yaml.safe_load((PROJECT / "workspace.yaml").read_text())
    (location,) = workspace["load_from"]
    assert location["python_module"]["location_name"] == "offsetlake"
    assert 'code_location_name = "offsetlake"' in (PROJECT / "pyproject.toml").read_text()
