"""Layers: what each folder may import, and which files may read the environment; the syntax trees are walked.

And what a run's process loads before it does anything: it costs CPU once per run.
"""

from __future__ import annotations

import ast
import gc
import importlib
import multiprocessing
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pipeline_defs"

# foreign system -> the packages that speak to it; those of none are libraries, as pyarrow's tables in memory are
SYSTEMS = {
    "Kafka": ["kafka"],
    "Spark": ["pyspark", "py4j", "grpc"],
    "object store": ["obstore"],
    "Parquet": ["pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet"],
    "Delta": ["deltalake"],
    "DuckDB": ["duckdb"],
    "Prometheus": ["prometheus_client"],
    "alerts": ["apprise"],
    "OpenLineage": ["openlineage"],
    "Schema Registry": ["confluent_kafka.schema_registry"],
    None: [
        *("avro", "pyarrow", "numpy", "httpx2", "javaproperties", "google.protobuf", "grpc_tools", "jsonschema_rs", "pandas"),
        *("ptars", "stamina", "rich", "click", "yaml", "dotenv"),
    ],
}

# who may name os.environ, and why
ENVIRONMENT = {
    "settings.py": "the only reader of settings",
    "adapters/system/project_folder.py": "fills it up from `.env`; knows which home is another process's",
    "adapters/system/java.py": "through an argument's default",
    "adapters/system/processes.py": "hands it to a child process",
    "adapters/spark/spark_server.py": "hands it to a child process, with a token",
    "adapters/spark/spark_session.py": "marks this process as a client of Spark; has gRPC print its errors alone",
    "adapters/spark/spark_serving.py": "has the token, and sets what Spark in this process looks at",
    "adapters/testbed/class_archive.py": "sets JAVA_HOME for pyspark's launcher",
    "orchestration/home/dagster_server.py": "sets what Dagster's processes inherit",
    "orchestration/home/run_locks.py": "finds the home of the Dagster process that it is in",
    "orchestration/pulse/topic_discovery.py": "hands it to a child process, with `.env` as it is now",
    "orchestration/home/waking_launcher.py": "sees whether `offsetlake up` would start what it ends",
    "lab/drills/peers.py": "hides from pyspark that this process is a client of Spark",
    "lab/drills/children.py": "has a child forget what its parent is",
    "lab/processes.py": "hands it to a child process, with another lake",
    "lab/bench/costs/spark_cluster.py": "hands it to a child process, with a token",
}

SETTINGS = ("settings.py", "adapters/system/project_folder.py")  # what can be set is seen there

# the ground first: a folder, or a file beside them, imports what stands before it, so it reaches nothing else through others
LAYERS = [
    *("core", "core/log", "core/login", "core/tables", "core/landing", "core/decode"),
    *("adapters/system", "adapters/testbed", "adapters/telemetry", "adapters/store", "adapters/lake", "adapters/kafka"),
    *("adapters/tables", "adapters/spark", "adapters/formats"),
    *("settings.py", "landing", "tables", "topics.py", "resources.py"),
    *("orchestration/home", "orchestration/runs", "orchestration/map", "orchestration/assets"),
    *("orchestration", "orchestration/pulse", "orchestration/upkeep", "operate"),
    *("component.py", "topic_files.py", "definitions.py", "cli", "cli/home", "cli/look", "cli/work"),
    *("lab", "lab/bench", "lab/bench/costs", "lab/drills", "lab/cli"),
]
FREE_OF_DAGSTER = LAYERS[: LAYERS.index("topics.py")]

# the third-party packages that a folder below Dagster may import; an adapter's are those of its one system
PACKAGES = {"core": set[str](), "landing": {"stamina"}, "tables": {"pyarrow"}}


@cache
def syntax(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def files(*folders: str) -> list[str]:
    found = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    return sorted(path.relative_to(PACKAGE).as_posix() for path in found)


def imports(file: str) -> Iterator[str]:
    """Yield the absolute dotted name of all that a file imports, wherever in the file, `TYPE_CHECKING` included."""
    here = ("pipeline_defs", *Path(file).parent.parts)
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def foreign(file: str) -> set[str]:
    """The set of top-level third-party packages a file imports."""
    tops = {name.partition(".")[0] for name in imports(file)}
    return {top for top in tops if top not in sys.stdlib_module_names and top not in {"pipeline_defs", "assets"}}


def systems(file: str) -> set[str | None]:
    """The set of foreign systems a file speaks to; a package that is not in SYSTEMS is a decision to take."""
    names = [f"{name}." for name in imports(file) if name.partition(".")[0] in foreign(file)]
    speaks = {f"{package}.": system for system, packages in SYSTEMS.items() for package in packages}
    return {next(speaks[package] for package in speaks if name.startswith(package)) for name in names} - {None}


def names_environment(file: str) -> bool:
    nodes = list(ast.walk(syntax(file)))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return "os" in modules or bool(attributes & {"environ", "environb", "getenv", "getenvb"})


def layer_of(file: str) -> str:
    """Return the folder of a file, or the file itself where it lies beside the folders."""
    folder = Path(file).parent.as_posix()
    return file if folder == "." else folder


def module_file(name: str) -> str | None:
    """Return the file of a module of ours, or of the module that a name is of; none for what is not ours."""
    parts = name.split(".")
    if parts[0] != "pipeline_defs":
        return None
    for end in (len(parts), len(parts) - 1):
        path = "/".join(parts[1:end])
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if (PACKAGE / file).is_file():
                return file
    raise AssertionError(f"{name} is no module")


OURS = [file for file in files("") if file != "__init__.py" and not file.startswith("offsetlake/")]


def test_every_folder_is_a_layer() -> None:
    assert {layer_of(file) for file in OURS if file != "adapters/__init__.py"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_what_stands_before_it(layer: str) -> None:
    """So imports run downwards only, and there is no circle between two folders."""
    may = {*LAYERS[: LAYERS.index(layer) + 1]}
    upwards = [
        (file, name)
        for file in OURS
        if layer_of(file) == layer
        for name in imports(file)
        if (target := module_file(name)) not in {None, "__init__.py"}
        if layer_of(str(target)) not in may
    ]
    assert upwards == []


@pytest.mark.parametrize("layer", FREE_OF_DAGSTER)
def test_what_lies_below_dagster_does_not_know_it(layer: str) -> None:
    """Landing, planning, tables and the audit run, and are tested, without an orchestrator."""
    found = {package for file in OURS if layer_of(file) == layer for package in foreign(file)}
    assert not any(package.startswith("dagster") for package in found)
    if (room := layer.partition("/")[0]) in PACKAGES:
        assert found <= PACKAGES[room]


def test_core_has_nothing_impure_to_reach_for() -> None:
    """No clock, disk, network, Dagster or Spark."""
    impure = {"os", "io", "pathlib", "socket", "subprocess", "time", "datetime", "random", "secrets", "uuid", "threading"}
    arithmetic = {"datetime.date"}  # as long as nobody asks it for today
    for file in files("core"):
        assert {name.partition(".")[0] for name in {*imports(file)} - arithmetic} & impure == set(), file
        assert not any(isinstance(node, ast.Attribute) and node.attr == "today" for node in ast.walk(syntax(file))), file


def test_an_adapter_imports_at_most_one_foreign_system() -> None:
    assert [file for file in files("adapters") if len(systems(file)) > 1] == []


def test_only_the_files_with_a_reason_name_the_environment_and_settings_alone_a_variable_of_ours() -> None:
    """What is read elsewhere cannot be seen by who reads `settings.py` to know what can be set."""
    assert {file for file in files(".") if names_environment(file)} == set(ENVIRONMENT)
    for file in files("."):
        for node in ast.walk(syntax(file)) if "OFFSETLAKE_" in (PACKAGE / file).read_text() else ():
            if isinstance(node, ast.Call | ast.Subscript) and "environ" in ast.unparse(node).partition("OFFSETLAKE_")[0]:
                assert "'OFFSETLAKE_" not in ast.unparse(node) or file in SETTINGS, ast.unparse(node)


def test_nothing_imports_the_package_for_users() -> None:
    """`offsetlake` is how it is installed; imported by its folder too, its module would be loaded twice."""
    theirs = ("offsetlake", "pipeline_defs.offsetlake")
    assert [file for file in files("") for name in imports(file) if name.startswith(theirs)] == []


def test_every_file_opens_with_a_charter_of_at_most_six_lines() -> None:
    """What lives here, what must not, the invariant; `adapters/lake/lake.py` draws the tree of the lake in its own."""
    for file in OURS:
        charter = ast.get_docstring(syntax(file)) or ""
        prose = [line for line in charter.splitlines() if line.strip() and not line.startswith("    ")]
        assert 1 <= len(prose) <= 6, file


def test_a_class_has_a_name_of_its_own() -> None:
    """One word, one meaning: of a name in an error or a log there is one place to look."""
    names = Counter(n.name for file in OURS for n in ast.walk(syntax(file)) if isinstance(n, ast.ClassDef) and n.name[0] != "_")
    assert [name for name, count in names.items() if count > 1] == []


def test_the_walk_sees_what_it_must_see() -> None:
    """Control: relative, late and TYPE_CHECKING imports are found, and the mapped ones are really there."""
    assert "pipeline_defs.core.offsets.OffsetRange" in set(imports("core/log/planning.py"))
    assert "pipeline_defs.core.errors.ScanFailed" in set(imports("adapters/spark/engine.py"))
    assert foreign("adapters/spark/spark_serving.py") == {"pyspark", "py4j"}
    assert foreign("adapters/lake/parquet.py") == {"numpy", "pyarrow"}
    places = ("lake/parquet", "store/store", "system/java")
    assert [systems(f"adapters/{place}.py") for place in places] == [{"Parquet"}, {"object store"}, set()]
    assert "dagster" in foreign("orchestration/pulse/ticking.py")
    assert names_environment("settings.py")


def test_what_a_docstring_names_by_its_module_is_there() -> None:
    """`core.log.expiry`, say, or a function of it."""
    named = {name for file in OURS for name in re.findall(r"`(core(?:\.[a-z_]+)+)`", (PACKAGE / file).read_text())}
    assert named
    for name in named:
        *folders, last = name.split(".")
        module = PACKAGE.joinpath(*folders, f"{last}.py")
        inside = PACKAGE.joinpath(*folders[:-1], f"{folders[-1]}.py")
        assert module.is_file() or (inside.is_file() and f"def {last}(" in inside.read_text()), name


def count_frozen(answers: multiprocessing.SimpleQueue[int]) -> None:
    """Load Dagster and then this package, and tell how much the collector does not look at."""
    for name in ("dagster", "pipeline_defs"):
        importlib.import_module(name)
    answers.put(gc.get_freeze_count())


def test_a_process_of_a_run_searches_dagster_for_no_garbage() -> None:
    """Dagster spawns a process per run, as here; what it has loaded when it loads this package stays."""
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.SimpleQueue()
    child = spawn.Process(target=count_frozen, args=(answers,))
    child.start()
    frozen = answers.get()
    child.join()
    assert frozen > 10_000
    assert gc.get_freeze_count() == 0, "the control: this process was not spawned so, and ends as any other"


@pytest.mark.parametrize(("loaded", "is_frozen"), [("json", True), ("duckdb", False)])
def test_a_command_ends_without_a_search_for_garbage(loaded: str, is_frozen: bool) -> None:
    """It would take longer than many a command; DuckDB would call what is not collected leaks."""
    tell = f"import atexit, gc, sys, {loaded}; atexit.register(lambda: print(gc.get_freeze_count() > 0))"
    code = f"{tell}; from pipeline_defs.cli import main; sys.argv[1:] = ['--version']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == (str(is_frozen), "")


def test_definitions_load_nothing_that_few_runs_need() -> None:
    """Spark's client and what it needs is loaded by the first scan; DuckDB by who asks a question of the lake."""
    late = ["duckdb", "pandas", "grpc_status", "pyspark.sql.connect", "confluent_kafka", "pipeline_defs.cli"]
    code = f"import sys, pipeline_defs.definitions; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
