"""`offsetlake map --out` writes a file into a folder that is there, and makes none."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline_defs.cli.commands import cli
from pipeline_defs.core.errors import UnknownTopic


def test_a_map_is_drawn_into_no_folder_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of broker or lake before; a folder that is there is the control: then the topic is looked for."""

    def find_topic(name: str) -> None:
        raise UnknownTopic(f"topic {name} has no defs.yaml")

    monkeypatch.setattr("pipeline_defs.cli.map.find_topic", find_topic)
    missing = tmp_path / "a" / "map.html"
    refused = CliRunner().invoke(cli, ["map", "nobodys", "--out", str(missing)])
    assert f"there is no folder {missing.parent}" in str(refused.exception)
    assert list(tmp_path.iterdir()) == []
    unknown = CliRunner().invoke(cli, ["map", "nobodys", "--out", str(tmp_path / "map.html")])
    assert "topic nobodys has no defs.yaml" in str(unknown.exception)
