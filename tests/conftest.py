"""What every test of real parts shares: one broker, one Spark session, and a fresh world per test."""

import dataclasses
import gc
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from pipeline_defs.adapters.spark.engine import Engine
from pipeline_defs.adapters.spark.spark import SCAN_CONF
from pipeline_defs.adapters.spark.spark_server import stop_server
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.adapters.testbed.broker import Broker, start_broker, stop_broker
from pipeline_defs.cli import terminal
from pipeline_defs.lab.bench.costs.loopback import CountingProxy, s3_environment, s3_server, s3a_conf
from pipeline_defs.lab.bench.costs.spark_cluster import SparkCluster
from pipeline_defs.lab.drills.report import BROKER_PROPERTIES
from pipeline_defs.settings import Settings
from tests.support.dagster_up import hear_signals
from tests.support.killing import QUICK_JVM
from tests.support.world import World

JARS = Path(os.environ.get("OFFSETLAKE_HOME") or PROJECT / ".offsetlake").absolute() / "jars"
DRIVER_MEMORY = "2g"
os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_JVM)


# Each commit of Dagster's SQLite waits for a disk; what tests write is kept in memory where there is room enough
MEMORY, ROOM_BYTES = Path("/dev/shm"), 8 * 2**30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_configure() -> None:
    """Give signals their usual meaning here: who starts the tests in the background of a script has SIGINT ignored.

    Dagster would make SIGTERM be ignored as well, by this process and by all that it starts and would end by it.
    """
    hear_signals()


# take a minute and more, much of it waiting: begun first, or one worker would end alone
LONGEST = [
    *("orchestration/test_up.py", "docs/test_tutorial.py", "faults/test_engine.py", "integration/test_latest.py"),
    *("faults/test_power_cut.py", "faults/test_run_kills.py", "integration/test_bench.py", "browser/test_clicks.py"),
    *("faults/test_two_hosts.py", "integration/test_commands.py", "browser/test_derived.py"),
    *("model/test_latest_interleavings.py", "faults/test_compaction.py", "docs/test_reading.py"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(order)))


def shared(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return the folder of what all workers share: the one broker, or the one warm Spark."""
    base = factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the broker and the warm Spark once all workers are done."""
    factory: pytest.TempPathFactory | None = getattr(session.config, "_tmp_path_factory", None)
    if not os.environ.get("PYTEST_XDIST_WORKER") and factory is not None:
        try:
            stop_server(shared(factory, "engine"))
        finally:
            stop_broker(shared(factory, "broker"))


def pytest_unconfigure() -> None:
    """Let go of Hypothesis's hook, by which DuckDB's binding reports leaks at the end, in 14 lines below the summary."""
    gc.callbacks.clear()


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each command that is called here show its progress at once, as on a slow machine: no test may depend on it."""
    monkeypatch.setattr(terminal, "FIRST_SECONDS", 0.0)


@pytest.fixture
def one_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each connection to DuckDB a catalog of its own in one database, as making a database takes 20 ms of CPU.

    Settings are the database's: not for tests of memory, or of `Duck.ask`, which closes it.
    """
    database, names = duckdb.connect(config={"enable_external_file_cache": False}), map("c{}".format, count())

    def connect() -> duckdb.DuckDBPyConnection:
        name = next(names)
        return database.cursor().execute(f"ATTACH ':memory:' AS {name}; USE {name}")

    monkeypatch.setattr(duckdb, "connect", connect)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Broker:
    """The real Kafka broker that all tests of all workers share, whoever starts it; `pytest_sessionfinish` stops it."""
    directory = shared(tmp_path_factory, "broker")
    return start_broker(directory, jars=resolve_jars("broker", JARS), properties=BROKER_PROPERTIES)


@pytest.fixture(scope="session")
def settings(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of this session's machine; each world has its own lake and Dagster home."""
    home = tmp_path_factory.mktemp("home")
    (home / "jars").symlink_to(JARS)
    (home / "engine").symlink_to(shared(tmp_path_factory, "engine"))
    return Settings(
        home=home,
        lake=str(home / "lake"),
        bootstrap_servers=broker.bootstrap_servers,
        spark_master="local[2]",
        spark_driver_memory=DRIVER_MEMORY,
        dagster_home=home / "dagster",
    )


@pytest.fixture(scope="session")
def engine(settings: Settings) -> Engine:
    """The warm Spark that all tests of all workers share; `pytest_sessionfinish` stops it."""
    from pipeline_defs.resources import Adapters

    resolve_jars("spark", settings.jars)
    adapters = Adapters(settings)
    return adapters.engine(adapters.pyspark())


@pytest.fixture(scope="session")
def spark(engine: Engine) -> SparkSession:
    """A session of the warm Spark."""
    return engine.session(SCAN_CONF)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3-compatible server with a bucket `lake`."""
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture(scope="session")
def s3_seen(s3: str) -> Iterator[CountingProxy]:
    """The same server, seen through a proxy that counts."""
    with CountingProxy(s3) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def s3_cluster(s3_seen: CountingProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster that knows that server; its jars are half a gigabyte, so it is for long tests."""
    jars = (*resolve_jars("spark", JARS), *resolve_jars("s3a", JARS))
    with SparkCluster(tmp_path_factory.mktemp("cluster"), jars, s3a_conf(s3_seen.url)) as found:
        yield found


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of the bucket, which this process knows by its environment, as users tell it."""
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    return "s3://lake"


@pytest.fixture
def remote(s3_cluster: SparkCluster, bucket: str, settings: Settings, tmp_path: Path) -> Iterator[World]:
    """A world whose Spark is a cluster, on a machine that has no jars, with its lake in the bucket."""
    own = dataclasses.replace(settings, home=tmp_path / "home", spark_remote=s3_cluster.url)
    with World(own, tmp_path) as world:
        world.move_lake(f"{bucket}/{world.name}")
        yield world


@pytest.fixture
def world(settings: Settings, tmp_path: Path) -> Iterator[World]:
    """A fresh topic name, lake and Dagster instance on the shared broker and session."""
    with World(settings, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def other(world: World) -> World:
    """A second topic of that lake and Dagster instance."""
    return world.beside()


@pytest.fixture
def placed(world: World, request: pytest.FixtureRequest) -> World:
    """A world with its lake where the test's parameter says: on this `disk`, or in a `bucket`."""
    if request.param == "bucket":
        world.move_lake(f"{request.getfixturevalue('bucket')}/{world.name}")
    return world
