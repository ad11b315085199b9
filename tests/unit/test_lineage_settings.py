"""Whether OpenLineage is configured is asked of its own variables and file; without any it stays off."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_defs.settings import read_settings


@pytest.mark.parametrize(
    ("environment", "is_on"),
    [
        ({}, False),
        ({"OPENLINEAGE_NAMESPACE": "x"}, False),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:5000"}, True),
        ({"OPENLINEAGE_CONFIG": "lineage.yml"}, True),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, True),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:5000", "OPENLINEAGE_DISABLED": "True"}, False),
    ],
)
def test_its_own_variables_turn_it_on(
    environment: dict[str, str], is_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_settings(environment).lineage is is_on


@pytest.mark.parametrize("place", ["openlineage.yml", ".openlineage/openlineage.yml"])
def test_its_own_file_turns_it_on(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("transport: {type: console}\n")
    assert read_settings({}).lineage
    assert not read_settings({"OPENLINEAGE_DISABLED": "true"}).lineage
