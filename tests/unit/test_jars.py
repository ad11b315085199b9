"""The jars that are used are the pinned ones, or none; what is missing is said with the next step. Needs no network."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from pipeline_defs.adapters.system import jars
from pipeline_defs.adapters.system.java import find_java
from pipeline_defs.adapters.testbed import class_archive
from pipeline_defs.core.errors import JarsUnavailable, JavaUnusable
from pipeline_defs.settings import PROJECT


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pins two small files as the Spark jars."""
    pins = {f"{name}.jar": hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two")}
    pins_file = tmp_path / "jars.sha256"
    pins_file.write_text("".join(f"{sha256}  spark/{name}\n" for name, sha256 in pins.items()))
    monkeypatch.setattr(jars, "PINS_FILE", pins_file)
    return pins


@pytest.fixture
def cache(tmp_path: Path, pins: dict[str, str]) -> Path:
    """Is a cache that has the pinned files."""
    cache = tmp_path / "cache"
    (cache / "spark").mkdir(parents=True)
    for name in pins:
        (cache / "spark" / name).write_text(name.removesuffix(".jar"))
    return cache


def test_pinned_files_are_used_without_java_or_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for _ in range(2):
        assert jars.resolve_jars("spark", cache) == (cache / "spark/one.jar", cache / "spark/two.jar")


def test_a_jar_with_another_sha256_is_refused_by_name(cache: Path, pins: dict[str, str]) -> None:
    wrong = cache / "spark/two.jar"
    wrong.write_text("tow")
    with pytest.raises(JarsUnavailable) as caught:
        jars.resolve_jars("spark", cache)
    assert str(caught.value) == (
        f"jar refused: {wrong} expected sha256 {pins['two.jar']}, found {hashlib.sha256(b'tow').hexdigest()}; it is "
        f"not the pinned file and was not used: remove {cache / 'spark'} and run `make setup` again, and if it comes "
        f"back ask who serves it"
    )


@pytest.mark.usefixtures("pins")
def test_without_java_nothing_is_resolved_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaUnusable, match="no Java found"):
        jars.resolve_jars("spark", tmp_path / "cache")
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [".lock"]


def test_a_cache_that_cannot_be_made_is_said_with_the_way_out(tmp_path: Path, pins: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JarsUnavailable, match=r"jar cache .*/file/jars cannot be written: Not a directory; name an"):
        jars.resolve_jars("spark", tmp_path / "file" / "jars")


def test_without_network_one_line_names_the_step_and_its_log(tmp_path: Path) -> None:
    """Real Ivy with nobody at its proxy; afterwards the cache has its log and lock, and no half directory."""
    nobody = "".join(f" -D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))
    command = [sys.executable, "-m", "pipeline_defs.adapters.system.jars", tmp_path / "jars"]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": nobody}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    log = tmp_path / "jars/ivy-broker.log"
    assert done.returncode == 1
    assert done.stderr == (
        f"resolving 47 broker jars, once, up to a minute (log: {log})\n"
        "setup: broker jars could not be resolved, Ivy gave exit code 1: check the network (the first run needs it) "
        f"and run `make setup` again (log: {log})\n"
    )
    assert "kafka_2.13" in log.read_text()
    assert sorted(path.name for path in (tmp_path / "jars").iterdir()) == [".lock", "ivy-broker.log"]


def test_the_spark_side_is_five_jars_at_the_version_of_pyspark() -> None:
    ours = ("spark-avro", "spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10")
    of_spark = [f"{name}_2.13-{importlib.metadata.version('pyspark')}.jar" for name in ours]
    assert sorted(jars.read_pins("spark")) == ["commons-pool2-2.12.0.jar", "kafka-clients-3.9.1.jar", *of_spark]


def test_every_pin_is_a_sha256_of_a_known_configuration() -> None:
    lines = jars.PINS_FILE.read_text().splitlines()
    pin = re.compile(r"[0-9a-f]{64}  ((broker|spark|s3a|delta)/[^/ ]+\.jar|registry/[^/ ]+\.tar\.gz)")
    assert all(map(pin.fullmatch, lines))
    assert len(lines) == sum(len(jars.read_pins(conf)) for conf in get_args(jars.JarsConf))
    only_tests_need = {"registry", "s3a", "delta"}  # 140, 560 and 8 MB
    assert set(get_args(jars.JarsConf)) - set(jars.SETUP) == only_tests_need, "setup does not fetch these"


def test_a_java_that_prints_no_utf8_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it prints its own options, before its version."""
    java = tmp_path / "java_home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_bytes(b"#!/bin/sh\nprintf 'Picked up -Dname=caf\\351\\nopenjdk version \"17.0.1\"\\n' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    assert find_java() == java
    assert 'caf\ufffd\nopenjdk version "17.0.1"' in class_archive._describe(tmp_path, "spark")
