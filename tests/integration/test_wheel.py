"""The wheel that is built from the tree: what it installs into an empty environment, and that dg finds the component there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from pipeline_defs.orchestration.home.project import plan_project, write_project
from pipeline_defs.settings import PROJECT
from tests.support.environment import plain_environment

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
TREE = ("pipeline_defs", "docs", "pyproject.toml", "README.md", "LICENSE")
DG = "from dagster_dg_cli.cli import main; main()"


def run(*command: str, cwd: Path) -> str:
    """Run a command away from the checkout and return what it printed."""
    env = plain_environment("PYTHON")
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, offline, in a copy of the tree: setuptools leaves its own folders there."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in TREE:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / name, tree)
    run(*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(out), str(tree), cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment, which sees this one's packages behind its own."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(*PIP, "--python", str(python), "install", "--no-index", "--no-deps", "--no-compile", str(wheel), cwd=folder)
    site = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_the_two_packages_and_nothing_else(wheel: Path) -> None:
    """Every file of the code with its data, the documents that `explain` prints, no demo's assets, no tests.

    The packages are listed by hand, so a new folder would be missing from the wheel, and only there.
    """
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"offsetlake", "pipeline_defs"}
    sources = (PROJECT / "pipeline_defs").rglob("*")
    package = {
        f"pipeline_defs/{path.relative_to(PROJECT / 'pipeline_defs').as_posix()}"
        for path in sources
        if path.is_file() and "__pycache__" not in path.parts
    }
    public = {name for name in package if name.startswith("pipeline_defs/offsetlake/")}
    documents = {f"pipeline_defs/docs/{path.name}" for path in (PROJECT / "docs").glob("*.md")}
    assert names == (package - public) | {name.removeprefix("pipeline_defs/") for name in public} | documents
    assert {"offsetlake/py.typed", "pipeline_defs/py.typed", "pipeline_defs/docs/runbook.md"} <= names


def test_what_is_installed_imports_runs_and_is_one_component(python: Path, tmp_path: Path) -> None:
    """`offsetlake` gives the component itself, not a second one; the checkout is not seen."""
    code = (
        "import offsetlake, pipeline_defs.component as c, json\n"
        "print(json.dumps([offsetlake.__file__, c.__file__, offsetlake.KafkaTopic is c.KafkaTopic, offsetlake.__all__]))"
    )
    public, component, is_same, names = json.loads(run(str(python), "-W", "ignore", "-c", code, cwd=tmp_path))
    assert all(Path(path).is_relative_to(python.parents[1]) for path in (public, component))
    assert is_same and names == ["KafkaTopic", "OffsetlakeError", "build_defs", "read"]
    explained = run(str(python.with_name("offsetlake")), "explain", "bad_key", cwd=tmp_path)
    assert "partition key is malformed" in " ".join(explained.split())


def test_dg_lists_the_component_in_a_project_of_init(python: Path, tmp_path: Path) -> None:
    """Through the entry point: the project itself names no module to look in."""
    project = tmp_path / "my_lake"
    write_project(plan_project(project, ["orders"], None))
    listed = json.loads(run(str(python), "-W", "ignore", "-c", DG, "list", "components", "--json", cwd=project))
    keys = [item["key"] for item in listed["items"]]
    assert [key for key in keys if "KafkaTopic" in key] == ["offsetlake.KafkaTopic"]
    assert "type: offsetlake.KafkaTopic" in (project / "my_lake" / "defs" / "orders" / "defs.yaml").read_text()
