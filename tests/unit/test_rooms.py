"""Each file stays in its room: what it may import, and who may read the environment; the syntax tree is walked."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pipeline_defs"

# package -> the foreign system that it speaks to; none for a library, as pyarrow's tables in memory are
SYSTEMS: dict[str, str | None] = {
    "kafka": "Kafka",
    "pyspark": "Spark",
    "py4j": "Spark",
    "grpc": "Spark",
    "avro": None,
    "obstore": "object store",
    "pyarrow.dataset": "Parquet",
    "pyarrow.fs": "Parquet",
    "pyarrow.parquet": "Parquet",
    "pyarrow": None,
    "numpy": None,
    "deltalake": "Delta",
    "duckdb": "DuckDB",
    "prometheus_client": "Prometheus",
    "apprise": "alerts",
    "openlineage": "OpenLineage",
    "confluent_kafka.schema_registry": "Schema Registry",
    "httpx2": None,
    "javaproperties": None,
    "google.protobuf": None,
    "grpc_tools": None,
    "jsonschema_rs": None,
    "pandas": None,
    "ptars": None,
    "stamina": None,
    "rich": None,
    "click": None,
    "yaml": None,
}

# who may name os.environ, and why
ENVIRONMENT = {
    "settings.py": "the only reader of settings",
    "edges/java.py": "through an argument's default",
    "edges/processes.py": "hands it to a child process",
    "edges/spark_server.py": "hands it to a child process, with a token",
    "edges/spark_session.py": "marks this process as a client of Spark, as pyspark does, and has gRPC print its errors alone",
    "edges/spark_serving.py": "has the token, and sets what Spark in this process looks at",
    "resources.py": "sets JAVA_HOME for pyspark's launcher",
    "edges/class_archive.py": "sets JAVA_HOME for pyspark's launcher",
    "dagster_server.py": "sets what Dagster's processes inherit",
    "run_locks.py": "finds the home of the Dagster process that it is in",
    "drills/children.py": "has a child forget what its parent is",
    "bench/driver_bytes.py": "hands it to a child process, with another lake",
    "bench/history.py": "hands it to a child process, with another lake",
    "bench/spark_cluster.py": "hands it to a child process, with a token",
}

WITHOUT_DAGSTER = [
    "attempt.py",
    "landing.py",
    "committing.py",
    "staging.py",
    "redo.py",
    "planner.py",
    "auditing.py",
    "compaction.py",
]


@cache
def syntax(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def files(*folders: str) -> list[str]:
    found = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]
    return sorted(path.relative_to(PACKAGE).as_posix() for path in found)


def imports(file: str) -> Iterator[str]:
    """Yields the absolute dotted name of all that a file imports, wherever in the file, `TYPE_CHECKING` included."""
    here = ("pipeline_defs", *Path(file).parent.parts)
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def foreign(file: str) -> set[str]:
    """Is the set of top-level third-party packages a file imports."""
    tops = {name.partition(".")[0] for name in imports(file)}
    return {top for top in tops if top not in sys.stdlib_module_names and top not in {"pipeline_defs", "assets"}}


def systems(file: str) -> set[str]:
    """Is the set of foreign systems a file speaks to; a package that is not in SYSTEMS is a decision to take."""
    found = set()
    for name in imports(file):
        if name.partition(".")[0] in foreign(file):
            package = next(package for package in SYSTEMS if f"{name}.".startswith(f"{package}."))
            found.add(SYSTEMS[package])
    return {system for system in found if system is not None}


def names_environment(file: str) -> bool:
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "getenvb"}:
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            return True
    return False


@pytest.mark.parametrize("file", files("core"))
def test_core_imports_the_standard_library_and_itself_only(file: str) -> None:
    """Pure code has no clock, disk, network, Dagster or Spark to reach for."""
    assert foreign(file) == set()
    ours = {name for name in imports(file) if name.startswith("pipeline_defs")}
    assert all(name.startswith("pipeline_defs.core.") for name in ours)
    impure = {
        "os",
        "io",
        "pathlib",
        "socket",
        "subprocess",
        "time",
        "datetime",
        "random",
        "secrets",
        "uuid",
        "threading",
    }
    arithmetic = {"datetime.date"}  # as long as nobody asks it for today
    assert {name.partition(".")[0] for name in {*imports(file)} - arithmetic} & impure == set()
    assert not any(isinstance(node, ast.Attribute) and node.attr == "today" for node in ast.walk(syntax(file)))


@pytest.mark.parametrize("file", files("edges"))
def test_an_edge_imports_at_most_one_foreign_system(file: str) -> None:
    assert len(systems(file)) <= 1


@pytest.mark.parametrize("file", files("edges"))
def test_an_edge_imports_core_and_other_edges_only(file: str) -> None:
    """Imports point inwards: an edge knows nothing of landing, Dagster or settings."""
    ours = {name.split(".")[1] for name in imports(file) if name.startswith("pipeline_defs.")}
    assert ours <= {"core", "edges"}


@pytest.mark.parametrize("file", [*files("core", "edges"), *WITHOUT_DAGSTER])
def test_the_protocol_does_not_know_dagster(file: str) -> None:
    """Landing, planning and the audit run, and are tested, without an orchestrator."""
    assert not any(package.startswith("dagster") for package in foreign(file))


def test_only_the_files_with_a_reason_name_the_environment() -> None:
    """What is not in `settings.py` cannot be seen by who reads it to know what can be set."""
    assert {file for file in files(".") if names_environment(file)} <= set(ENVIRONMENT)


def test_no_file_but_settings_reads_a_variable_of_ours() -> None:
    for file in files("."):
        for node in ast.walk(syntax(file)):
            if (
                isinstance(node, ast.Call | ast.Subscript)
                and "environ" in ast.unparse(node).partition("OFFSETLAKE_")[0]
            ):
                assert "'OFFSETLAKE_" not in ast.unparse(node) or file == "settings.py", ast.unparse(node)


def test_nothing_imports_the_package_for_users() -> None:
    """`offsetlake` is how it is installed; imported by its folder too, its module would be loaded twice."""
    importing = [
        file
        for file in files("")
        for name in imports(file)
        if name.startswith(("offsetlake", "pipeline_defs.offsetlake"))
    ]
    assert importing == []


def test_every_file_opens_with_a_charter_of_at_most_six_lines() -> None:
    """What lives here, what must not, the invariant; `edges/lake.py` draws the tree of the lake in its own."""
    for file in files("core"):
        charter = ast.get_docstring(syntax(file)) or ""
        prose = [line for line in charter.splitlines() if line.strip() and not line.startswith("    ")]
        assert file == "core/__init__.py" or 1 <= len(prose) <= 6, file


def test_the_walk_sees_what_it_must_see() -> None:
    """Control: relative, late and TYPE_CHECKING imports are found, and the mapped ones are really there."""
    assert "pipeline_defs.core.offsets.OffsetRange" in set(imports("core/planning.py"))
    assert "pipeline_defs.core.errors.ScanFailed" in set(imports("edges/engine.py"))
    assert foreign("edges/spark_serving.py") == {"pyspark", "py4j"}
    assert foreign("edges/parquet.py") == {"numpy", "pyarrow"}
    assert [systems(f"edges/{name}.py") for name in ("parquet", "store", "java")] == [
        {"Parquet"},
        {"object store"},
        set(),
    ]
    assert "dagster" in foreign("ticking.py")
    assert names_environment("settings.py")
