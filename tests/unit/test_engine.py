"""The engine where no Spark is: what is said, how soon, and what is not started for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from dagster_pyspark import LazyPySparkResource

from pipeline_defs.core.errors import BadSetting, DiskRefuses, EngineUnavailable, ScanFailed
from pipeline_defs.edges.engine import Engine, first_cause, scan_failed
from pipeline_defs.edges.processes import free_ports
from pipeline_defs.resources import Edges
from pipeline_defs.settings import IN_PROCESS, SERVER, read_settings


@pytest.fixture
def edges(tmp_path: Path) -> Edges:
    return Edges(read_settings({"OFFSETLAKE_HOME": str(tmp_path / "home")}, tmp_path))


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port where somebody speaks gRPC and knows nothing of Spark: they count the calls and hang up."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None)


def test_a_remote_that_nobody_answers_at_is_told_at_once_and_nothing_is_started(edges: Edges) -> None:
    """[R-77] `spark.remote` names another's Spark: ours is not its replacement."""
    (port,) = free_ports(1)
    remote = LazyPySparkResource(spark_config={"spark.remote": f"sc://localhost:{port}/;token=secret"})
    with pytest.raises(EngineUnavailable, match=f"does not answer at localhost:{port}: nobody listens there") as told:
        edges.engine(remote).session({})
    assert "secret" not in str(told.value)
    assert not edges.settings.engine_folder.exists()


def test_a_remote_that_is_no_spark_is_told_with_its_words(edges: Edges, deaf: int) -> None:
    remote = LazyPySparkResource(spark_config={"spark.remote": f"sc://localhost:{deaf}"})
    with pytest.raises(EngineUnavailable, match=f"does not answer at localhost:{deaf}: .*UNIMPLEMENTED"):
        edges.engine(remote).session({})


def test_one_engine_is_shared_by_all_that_have_the_same_configuration(edges: Edges) -> None:
    assert edges.engine(edges.pyspark()) is edges.engine(edges.pyspark())
    other = LazyPySparkResource(spark_config={**edges.spark_conf(), "spark.app.name": "another"})
    assert edges.engine(other) is not edges.engine(edges.pyspark())


def test_homes_that_share_their_jars_have_the_same_configuration(tmp_path: Path) -> None:
    """Else those of a machine that share a server would replace it by turns."""
    (tmp_path / "jars").mkdir()
    found = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "jars").symlink_to(tmp_path / "jars")
        found.append(Edges(read_settings({"OFFSETLAKE_HOME": str(tmp_path / name)}, tmp_path)).spark_conf())
    assert found[0] == found[1]


def test_an_engine_that_there_is_not_is_refused(tmp_path: Path) -> None:
    assert read_settings({}, tmp_path).engine == SERVER
    assert read_settings({"OFFSETLAKE_ENGINE": "in-process"}, tmp_path).engine == IN_PROCESS
    with pytest.raises(BadSetting, match="OFFSETLAKE_ENGINE is 'cluster', expected server or in-process"):
        read_settings({"OFFSETLAKE_ENGINE": "cluster"}, tmp_path)


def test_whoever_asks_for_a_server_that_cannot_start_is_told_why(tmp_path: Path) -> None:
    """And is asked each time: the next job may find one."""
    asked: list[int] = []

    def find_url() -> str:
        asked.append(threading.get_ident())
        raise EngineUnavailable("it did not start")

    engine = Engine(find_url)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="did not start"), engine.job({}, "land", "nothing is lost"):
            pytest.fail("no job is begun")
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("boom", "boom"),
        ("", "RuntimeError"),
        ("(org.apache.X) \nFound it, so it is\n default", "Found it, so it is"),
        (
            "Job aborted\n\nJVM stacktrace:\na.B\n\tat c\nCaused by: d.E: first\n\tat f\nCaused by: g.H: last\n",
            "g.H: last",
        ),
    ],
)
def test_what_java_said_is_told_by_its_innermost_cause(said: str, cause: str) -> None:
    assert first_cause(RuntimeError(said)) == cause


def test_a_full_disk_is_told_apart_whatever_job_found_it() -> None:
    def told(cause: str) -> type[Any]:
        return type(
            scan_failed("land", RuntimeError(f"Job aborted\nCaused by: java.io.IOException: {cause}"), "nothing")
        )

    assert [told("No space left on device"), told("Connection reset")] == [DiskRefuses, ScanFailed]
