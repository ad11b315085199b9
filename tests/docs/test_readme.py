"""The README is run from top to bottom in a clone: who types what it says sees what it shows."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_defs.adapters.testbed.broker import stop_broker
from pipeline_defs.core.raw_columns import RAW_COLUMNS
from pipeline_defs.settings import PROJECT, VARIABLES
from tests.conftest import JARS
from tests.support.markdown import is_shown, read_blocks, read_table
from tests.support.shell import Shell

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
    ours = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    yield Shell(
        folder,
        ours
        | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(folder),
            "PYTHONUTF8": "1",
            "OFFSETLAKE_SPARK_DRIVER_MEMORY": "1g",
        },
    )
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


def test_every_make_target_that_a_document_names_exists() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    texts = [README, (PROJECT / "CONTRIBUTING.md").read_text()]
    named = {name for text in texts for name in re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize(("name", "most"), [("README.md", 120), ("docs/architecture.md", 100)])
def test_what_is_read_first_is_short(name: str, most: int) -> None:
    assert len((PROJECT / name).read_text().splitlines()) <= most


def test_the_readme_names_the_columns_of_a_landed_row() -> None:
    columns = ", ".join(f"`{column.name}`" for column in RAW_COLUMNS)
    assert f"A row is a record as it was: {columns}." in (PROJECT / "README.md").read_text()


def test_the_table_of_variables_is_the_one_that_the_settings_know() -> None:
    """Every variable with its default and its meaning, in the settings' own words and order."""
    expected = [(name, *(text.replace("`", "") for text in known)) for name, known in VARIABLES.items()]
    settings = (PROJECT / "docs" / "settings.md").read_text()
    assert read_table(settings, "| variable | default |") == expected


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a\n", "a  \n", True),
        ("a ... c\n", "a b c\n", True),
        ("a ... c\n", "a b\nc\n", False),
        ("...\nb\n", "b\n", True),
        ("...\nb\n", "x\ny\nb\n", True),
        ("a\n...\n", "a\n", True),
        ("a.c\n", "abc\n", False),
        ("", "a\n", False),
        ("a\n", "a\nb\n", False),
    ],
)
def test_what_counts_as_shown(shown: str, printed: str, expected: bool) -> None:
    """The control of the test above: what is not shown, or shown otherwise, is noticed."""
    assert is_shown(shown, printed) is expected
