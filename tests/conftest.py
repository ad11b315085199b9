"""What every test of real parts shares: one broker, one Spark session, and a fresh world per test."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline_defs.cli import progress
from pipeline_defs.drills.report import BROKER_PROPERTIES
from pipeline_defs.edges.broker import Broker, start_broker, stop_broker
from pipeline_defs.edges.jars import resolve_jars
from pipeline_defs.settings import PROJECT, Settings
from tests.support.dagster_up import hear_signals
from tests.support.killing import QUICK_JVM
from tests.support.world import PATIENCE_SECONDS, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    "test_demo.py",
    "test_tutorial.py",
    "test_up.py",
    "test_power_cut.py",
    "test_readme.py",
    "test_clicks.py",
    "test_derived.py",
    "test_termination.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first."""
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each command that is called here show its progress at once, as on a slow machine: no test may depend on it."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Is a real Kafka broker for the whole session."""
    directory = tmp_path_factory.mktemp("broker")
    jars = resolve_jars("broker", JARS)
    yield start_broker(directory, jars=jars, properties=BROKER_PROPERTIES, timeout_seconds=PATIENCE_SECONDS)
    stop_broker(directory)


@pytest.fixture(scope="session")
def settings(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Are the settings of this session's machine; each world has its own lake and Dagster home."""
    home = tmp_path_factory.mktemp("home")
    (home / "jars").symlink_to(JARS)
    return Settings(
        home=home,
        lake=str(home / "lake"),
        bootstrap_servers=broker.bootstrap_servers,
        spark_master="local[2]",
        spark_driver_memory=DRIVER_MEMORY,
        dagster_home=home / "dagster",
    )


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """Is one warm Spark session; runs in this process share it."""
    from dagster_pyspark import LazyPySparkResource

    from pipeline_defs.resources import Edges

    edges = Edges(settings)
    resolve_jars("spark", settings.jars)
    session = LazyPySparkResource(spark_config=edges.spark_conf()).spark_session
    yield session
    session.stop()


@pytest.fixture
def world(settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """Is a fresh topic name, lake and Dagster instance on the shared broker and session."""
    with World(settings, tmp_path, f"t{uuid.uuid4().hex[:10]}") as fresh:
        yield fresh
