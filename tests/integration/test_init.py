"""`offsetlake init`: a project of one's own for the topics that a real broker has; and the wheel that has the component."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import uuid
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline_defs.adapters.kafka.kafka import Kafka
from pipeline_defs.adapters.system.project_folder import PROJECT, find_project
from pipeline_defs.core.errors import BadSetting, Refused
from pipeline_defs.lab.processes import plain_environment
from pipeline_defs.orchestration.home.project import package_name, plan_project, write_project
from pipeline_defs.settings import Settings, read_settings
from pipeline_defs.topic_files import load_topics
from tests.support.killing import run_module

NOBODY = "127.0.0.1:1"
Init = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # Dagster's, as it reads YAML


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the packages of the projects made here be found by nobody else."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def init(settings: Settings) -> Init:
    clean = plain_environment()

    def run(*arguments: str, servers: str | None = settings.bootstrap_servers) -> subprocess.CompletedProcess[str]:
        environment = clean | {"OFFSETLAKE_BOOTSTRAP_SERVERS": str(servers)}
        return run_module("pipeline_defs.cli", "init", *arguments, env=environment)

    return run


@pytest.fixture
def topics(settings: Settings) -> list[str]:
    """Two topics on the broker, one with a name that is no Python name."""
    names = [f"orders.v2-{uuid.uuid4().hex[:8]}", f"payments_{uuid.uuid4().hex[:8]}"]
    with Kafka(str(settings.bootstrap_servers)) as kafka:
        for name in names:
            kafka.create_topic(name, 3)
    return names


def test_every_topic_of_the_broker_gets_its_file(init: Init, topics: list[str], tmp_path: Path) -> None:
    made = init(str(tmp_path / "all20topics"))
    assert made.returncode == 0, made.stderr
    found = load_topics(tmp_path / "all20topics").topics
    assert set(topics) <= set(found)
    assert not [name for name in found if name.startswith("__")], "Kafka's own topics are nobody's to land"
    assert found[topics[0]].bootstrap_servers is None
    assert "offsetlake plan" in made.stdout


def test_the_brokers_that_init_was_given_are_kept_and_asked_by_doctor(
    init: Init, topics: list[str], settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U14: the machine names another broker, or none; the project's topics name theirs."""
    project = tmp_path / "asked"
    servers = str(settings.bootstrap_servers)
    made = init(str(project), "--topic", topics[0], "--bootstrap-servers", servers, servers=NOBODY)
    assert made.returncode == 0, made.stderr
    (topic,) = load_topics(project).topics.values()
    assert (topic.name, topic.bootstrap_servers) == (topics[0], servers)
    (project / ".offsetlake" / "jars").symlink_to(settings.jars)
    monkeypatch.chdir(project)
    asked = run_module(
        "pipeline_defs.cli", "doctor", "--json", env=plain_environment() | {"OFFSETLAKE_BOOTSTRAP_SERVERS": NOBODY}
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr
    found = {row["what"]: row["found"] for row in json.loads(asked.stdout)}
    assert servers in found["broker"] and NOBODY not in asked.stdout
    assert found["dagster home"].startswith(str(project / ".offsetlake" / "dagster"))


@pytest.mark.parametrize(
    ("folder", "arguments", "servers", "words"),
    [
        ("lake", ("--topic", "nope"), None, "nope: no such topic at"),
        ("lake", (), NOBODY, "the Kafka broker at 127.0.0.1:1 does not answer"),
        ("lake", ("--topics", "nope"), None, "No such option"),
        ("a%20b", (), None, "bad_setting.*%"),  # in which no database of Dagster's can be
    ],
)
@pytest.mark.usefixtures("topics")
def test_what_is_wrong_is_said_and_nothing_is_written(
    init: Init, settings: Settings, tmp_path: Path, folder: str, arguments: tuple[str, ...], servers: str | None, words: str
) -> None:
    refused = init(str(tmp_path / folder), *arguments, servers=servers or settings.bootstrap_servers)
    assert refused.returncode != 0
    assert re.search(words, refused.stderr, re.DOTALL) and "Traceback" not in refused.stderr
    assert not (tmp_path / folder).exists()


def test_a_folder_that_has_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(Refused, match=r"not an empty folder; nothing was written"):
        plan_project(tmp_path, ["orders"], None)
    with pytest.raises(Refused, match=r"not an empty folder"):
        plan_project(tmp_path / "mine.txt", ["orders"], None)
    assert plan_project(tmp_path / "empty", ["orders"], None), "the control"


def test_a_way_through_a_folder_that_is_not_there_leads_to_one_that_is(init: Init, topics: list[str], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("mine")
    refused = init(str(tmp_path / "new" / ".."), "--topic", topics[0])
    assert refused.returncode == 2 and "not an empty folder; nothing was written" in refused.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_commands_find_the_project_that_they_are_called_in(tmp_path: Path) -> None:
    """Relative paths are the project's, wherever in it one stands; elsewhere they are the checkout's."""
    project = tmp_path / "my_lake"
    write_project(plan_project(project, ["orders"], None))
    inside = project / "my_lake" / "defs" / "orders"
    assert find_project(inside) == project
    assert read_settings({}, project=find_project(inside)).lake == str(project / ".offsetlake" / "lake")
    assert find_project(tmp_path) == PROJECT
    (tmp_path / "pyproject.toml").write_text("[tool.dg]\ndirectory_type = 'workspace'\n")
    assert find_project(tmp_path) == PROJECT, "another dg project is not ours"
    (project / "gone").mkdir()
    (project / "gone" / "pyproject.toml").symlink_to(project / "nothing")
    with pytest.raises(BadSetting, match=r"gone/pyproject\.toml cannot be read"):
        find_project(project / "gone")
    for content in (b"<<<<<<< HEAD\n", b"\xff"):  # whose it is nobody knows: another project's lake would be written
        (project / "pyproject.toml").write_bytes(content)
        with pytest.raises(BadSetting, match=rf"{project}/pyproject.toml cannot be read, .* line 1"):
            find_project(inside)


@pytest.mark.parametrize(
    ("folder", "package"),
    [
        ("my_lake", "my_lake"),
        ("My Lake-2", "my_lake_2"),
        ("2026", "lake_2026"),
        ("kafka", "lake_kafka"),
        ("class", "lake_class"),
        ("über", "ber"),
        ("---", "lake"),
    ],
)
def test_a_package_is_named_for_its_folder_and_hides_no_other(folder: str, package: str) -> None:
    assert package_name(folder) == package


def test_names_that_yaml_or_dagster_would_read_as_something_else_load_as_they_are(tmp_path: Path) -> None:
    """Numbers, words for nothing, a hidden folder; Dagster makes a number of a quoted one too."""
    names = {"123", "1_000", "1e3", "0x1f", "null", "None", "true", "2013-01-01", ".hidden", "-", "_", "a-b", "a_b"}
    write_project(plan_project(tmp_path / "odd_names", sorted(names), None))
    assert set(load_topics(tmp_path / "odd_names").topics) == names


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
    """The packages are listed by hand, so a new folder would be missing from the wheel, and only there."""
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
