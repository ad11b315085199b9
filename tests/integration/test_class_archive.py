"""Class archives: Spark's JVM and the broker's start with them, another JVM is not disturbed, they are made once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pipeline_defs.adapters.spark.spark_server import CONNECT_MODE, read_server
from pipeline_defs.adapters.system.java import archive_options, class_archive, find_java
from pipeline_defs.adapters.testbed.broker import Broker
from pipeline_defs.adapters.testbed.class_archive import make_archive
from pipeline_defs.settings import Settings

if TYPE_CHECKING:
    from pipeline_defs.adapters.spark.engine import Engine


@pytest.fixture
def warm(engine: Engine, settings: Settings) -> psutil.Process:
    """The JVM of the tests' warm Spark."""
    assert engine.session({}).version
    server = read_server(settings.engine_folder)
    assert server is not None
    return psutil.Process(server.jvm.pid)


def run_java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_java(), *options, "-version"], capture_output=True, text=True, check=False)


def test_each_jvm_starts_with_its_archive_which_is_made_once(warm: psutil.Process, broker: Broker, settings: Settings) -> None:
    for what, jvm in (("spark", warm), ("broker", psutil.Process(broker.pid))):
        archive = class_archive(settings.jars, what).resolve()
        assert archive.is_file(), "make setup makes it"
        assert str(archive) in {found.path for found in jvm.memory_maps()}
        before = archive.stat()
        assert not make_archive(settings.jars, what)
        assert archive.stat() == before
    assert Path(warm.cwd()).is_relative_to(settings.engine_folder.resolve()), "U12: also where one lands from the project"


def test_an_archive_that_is_not_right_changes_nothing(tmp_path: Path) -> None:
    """Another JVM's archive, or half of one, is passed over without a word."""
    assert archive_options(tmp_path, "spark") == [], "the control: there is none"
    plain = run_java()
    class_archive(tmp_path, "spark").write_bytes(os.urandom(10_000))
    with_it = run_java(*archive_options(tmp_path, "spark"))
    assert (with_it.returncode, with_it.stdout) == (0, plain.stdout)
    assert with_it.stderr == plain.stderr.replace(", sharing", ""), "not a word but that none is in use"


@pytest.mark.long
def test_making_the_archives_leaves_nothing_in_the_folder_it_is_done_in(settings: Settings, tmp_path: Path) -> None:
    """U12: `make setup` is run in the project's root, where Spark would make a folder `artifacts`."""
    jars, folder = tmp_path / "jars", tmp_path / "project"
    jars.mkdir()
    folder.mkdir()
    for what in ("spark", "broker"):
        (jars / what).symlink_to(settings.jars / what)
    command = [sys.executable, "-W", "ignore", "-m", "pipeline_defs.adapters.testbed.class_archive", str(jars)]
    plain = {name: value for name, value in os.environ.items() if name != CONNECT_MODE}  # which other tests have set
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=plain)
    assert class_archive(jars, "spark").is_file(), "the control: it was made"
    assert [each.name for each in folder.iterdir()] == []
