"""README and tutorial are typed from top to bottom: who types what they say sees what they show."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest

from pipeline_defs.adapters.kafka.operations import Operations
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.adapters.testbed.broker import stop_broker
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.dagster_up import Terminal, run_ids, terminal
from tests.support.markdown import Shell, is_shown, open_shell, read_blocks, read_commands

pytestmark = pytest.mark.scenario

WRITTEN = {".dockerignore", ".env", ".gitignore", ".offsetlake", "dagster.yaml", "my_lake", "pyproject.toml", "workspace.yaml"}
STARTING = "starting Dagster, which takes some 20 seconds\n"
LANDED = re.compile(r"[\d:]{8} landed [\d,]+ ranges?, ([\d,]+) rows: orders [\d,]+")
TUTORIAL = (PROJECT / "docs" / "tutorial.md").read_text()


def test_the_tutorial_leads_from_a_broker_to_a_query(settings: Settings, tmp_path: Path) -> None:
    shell = open_shell(tmp_path, KAFKA=str(settings.bootstrap_servers), VIRTUAL_ENV=sys.prefix)
    home = tmp_path / "my_lake" / ".offsetlake"
    with ExitStack() as stack:
        stack.callback(Operations(str(settings.bootstrap_servers)).delete_topic, "orders")  # other tests' name, too
        up: Terminal | None = None
        for block in read_blocks(TUTORIAL):
            where = f"tutorial.md:{block.line}"
            (first, *_) = [*read_commands(block)] or [None]
            if first is not None and first.line == "offsetlake up":
                by_commands = runs_in(home / "dagster")
                up = stack.enter_context(terminal(["offsetlake", "up"], cwd=shell.folder, env=shell.environment))
                up.wait_for("Ctrl-C ends it")
                assert is_shown(first.output, up.text.removeprefix(STARTING)), f"{where}: {up.text}"
            elif block.language == "text":
                assert up is not None and LANDED.fullmatch(block.text.strip()), f"{where}: `up` says nothing such"
            else:
                assert block.language == "console", f"{where}: nothing runs a block of {block.language}"
                shell.type_in(block, where)
            if home.exists() and not (home / "jars").exists():
                (home / "jars").symlink_to(JARS)  # not fetched again for the test
        assert up is not None
        up.wait_until(lambda: rows_said(up) == 1000)
        assert by_commands and by_commands <= run_ids(up.url), "U1: the runs of the commands are in the UI"
        status = json.loads(shell.run("offsetlake", "status", "orders", "--json"))
        assert "nothing to do" in json.dumps(status), "status sees the daemon"
        dagster = json.loads((home / "up" / "dagster.json").read_text())
        assert up.end(signal.SIGINT) == 0, up.text
        with pytest.raises(ProcessLookupError):
            os.killpg(dagster["pid"], 0)
    assert home.joinpath("lake").is_dir(), "the lake is the reader's own, not the checkout's"
    assert {path.name for path in home.parent.iterdir()} == WRITTEN, "Spark and Dagster leave nothing beside these"


def runs_in(home: Path) -> set[str]:
    """Return the runs that a home of Dagster has."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        return {run.run_id for run in instance.get_runs()}


def rows_said(up: Terminal) -> int:
    """Return the rows of all lines that `up` has printed of what landed."""
    return sum(int(found[1].replace(",", "")) for found in map(LANDED.fullmatch, up.lines) if found)


README = (PROJECT / "README.md").read_text()
TREE = ("Makefile", "assets", "dagster.yaml", "pipeline_defs", "pyproject.toml", "workspace.yaml")


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Shell]:
    """A clone with its own lake, Dagster home and broker, all at their defaults below it; only the jars are shared."""
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
