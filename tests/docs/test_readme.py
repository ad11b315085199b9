"""The README is run from top to bottom in a clone: who types what it says sees what it shows."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_defs.adapters.testbed.broker import stop_broker
from pipeline_defs.settings import PROJECT
from tests.conftest import JARS
from tests.support.markdown import is_shown, read_blocks
from tests.support.shell import Shell, open_shell

pytestmark = pytest.mark.scenario

README = (PROJECT / "README.md").read_text()
TREE = ("Makefile", "assets", "dagster.yaml", "pipeline_defs", "pyproject.toml", "workspace.yaml")


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Shell]:
    """Has its own lake, Dagster home and broker, all at their defaults below the clone; only the jars are shared."""
    folder = tmp_path / "clone"
    home = folder / ".offsetlake"
    home.mkdir(parents=True)
    (home / "jars").symlink_to(JARS)
    for name in TREE:
        (shutil.copytree if (PROJECT / name).is_dir() else shutil.copy2)(PROJECT / name, folder / name)
    yield open_shell(folder, folder)
    stop_broker(home / "broker")


def test_every_block_of_the_readme_does_what_it_shows(clone: Shell) -> None:
    """Console blocks are typed, files are written where they are named, SQL and Python are run; nothing is passed by."""
    for block in read_blocks(README):
        where = f"README.md:{block.line}"
        if block.language == "console":
            clone.type_in(block, where)
        elif block.language == "yaml":
            assert block.file is not None, f"{where} names no file"
            (clone.folder / block.file).parent.mkdir(parents=True)
            (clone.folder / block.file).write_text(block.text)
        elif block.language == "sql":
            query = "import duckdb, sys; print(duckdb.sql(sys.argv[1]).fetchall())"
            rows = clone.run(sys.executable, "-c", query, block.text)
            assert sum(int(count) for count in re.findall(r"\(\d+, (\d+), \d+\)", rows)) == 1000, f"{where}: {rows}"
        elif block.language == "python":
            shown = "".join(f"{said}\n" for said in re.findall(r"^print\(.*\)  # (.*)$", block.text, re.MULTILINE))
            printed = clone.run(sys.executable, "-c", block.text)
            assert shown and is_shown(shown, printed), f"{where} printed {printed}"
        else:
            pytest.fail(f"{where} is a block of {block.language or 'no language'}, which nothing runs")
    assert {path.parent.name for path in (clone.folder / ".offsetlake/lake/data").rglob("*.parquet")} == {"p0000", "p0001"}
