"""The tutorial is typed from top to bottom, with the tests' broker as the reader's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pipeline_defs.settings import PROJECT, Settings
from tests.conftest import JARS
from tests.support.markdown import read_blocks
from tests.support.shell import Shell

TUTORIAL = (PROJECT / "docs" / "tutorial.md").read_text()


def test_the_tutorial_leads_from_a_broker_to_a_query(settings: Settings, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OFFSETLAKE_", "DAGSTER_"))}
    reader = Shell(
        tmp_path,
        clean
        | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KAFKA": str(settings.bootstrap_servers),
            "OFFSETLAKE_SPARK_DRIVER_MEMORY": "1g",
            "PYTHONPATH": str(PROJECT),
            "PYTHONUTF8": "1",
            "VIRTUAL_ENV": sys.prefix,
        },
    )
    home = tmp_path / "my_lake" / ".offsetlake"
    for block in read_blocks(TUTORIAL):
        assert block.language == "console", f"tutorial.md:{block.line}: nothing runs a block of {block.language}"
        reader.type_in(block, f"tutorial.md:{block.line}")
        if home.parent.exists() and not home.exists():
            home.mkdir()
            (home / "jars").symlink_to(JARS)  # not fetched again for the test
    assert home.joinpath("lake").is_dir(), "the lake is the reader's own, not the checkout's"
