"""The class archive: Spark's JVM starts with it, another JVM is not disturbed by it, and it is made once."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_defs.edges.class_archive import ARCHIVE, archive_options, make_archive
from pipeline_defs.edges.java import find_java
from pipeline_defs.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_java(), *options, "-version"], capture_output=True, text=True, check=False)


def test_sparks_jvm_starts_with_the_archive(spark: SparkSession, settings: Settings) -> None:
    assert (settings.jars / ARCHIVE).is_file(), "make setup makes it"
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    given = list(jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert f"-XX:SharedArchiveFile={(settings.jars / ARCHIVE).absolute()}" in given


def test_an_archive_that_is_not_right_changes_nothing(tmp_path: Path) -> None:
    """Another JVM's archive, or half of one, is passed over without a word."""
    assert archive_options(tmp_path) == "", "the control: there is none"
    plain = run_java()
    (tmp_path / ARCHIVE).write_bytes(os.urandom(10_000))
    with_it = run_java(*shlex.split(archive_options(tmp_path)))
    assert (with_it.returncode, with_it.stdout) == (0, plain.stdout)
    assert with_it.stderr == plain.stderr.replace(", sharing", ""), "not a word but that none is in use"


def test_the_archive_is_made_once(settings: Settings) -> None:
    before = (settings.jars / ARCHIVE).stat()
    assert not make_archive(settings.jars)
    assert (settings.jars / ARCHIVE).stat() == before
