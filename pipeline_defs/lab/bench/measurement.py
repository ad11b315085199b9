"""The measurement: its own broker, lake and session in a temporary folder, all systems in turns, all gone at the end.

Touches nothing of the user's but the jars. A value of the load is JSON text: names that repeat, words, and random hex; zstd
halves it. Invariants: a run that did not read every record is an error, not a time; the same load is the same bytes each time,
and no two values are equal, so that no dictionary helps anyone.
"""

import importlib.metadata
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
from dagster_pyspark import LazyPySparkResource

from ...adapters.kafka.producer import Record
from ...adapters.spark.spark_server import read_server, stop_server
from ...adapters.spark.spark_serving import find_here
from ...adapters.system.jars import resolve_jars
from ...adapters.testbed.broker import Broker, start_broker, stop_broker
from ...core.errors import BadSetting
from ...resources import Adapters
from ...settings import SERVER, Settings
from ..processes import NotMeasured
from ..producing import produce_all
from .rounds import Load, Turn, order_of
from .systems import SYSTEMS, WRITES_NOTHING, Place
from .usage import read_processor, take, timed

SEED = 11
POOL_BYTES = 8 * 1024 * 1024  # more than a Parquet page or a Kafka batch, so that repeats are out of reach
_SYLLABLES = "ba co di fe gu ha jo ki la me no pu qua re si to ul ve wi xe ya zo tra ble ing er"
_STATES = ("created", "paid", "packed", "shipped", "delivered", "returned")
BROKER_HEAP = "1g"
PACKAGES = ("offsetlake", "pyspark", "pyarrow", "confluent-kafka", "dagster", "duckdb", "kafka-python")
T = TypeVar("T")
Tell = Callable[[str], None]
Part = Callable[[Settings, int, Tell], tuple[Mapping[str, Any], Sequence[str]]]
"""What measures a part in so many rounds, each in a world of its own; it returns what it found, and each aim that is missed."""


def values(load: Load) -> Iterator[bytes]:
    """Yield the values of a load, each of exactly its size and each another."""
    chance = random.Random(SEED + load.value_bytes)  # noqa: S311 (no secret)
    syllables = _SYLLABLES.split()
    vocabulary = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(4000)]
    pool = [_body(load.value_bytes, chance, vocabulary) for _ in range(max(64, POOL_BYTES // load.value_bytes))]
    for number in range(load.records):
        head = b'{"order_id":%09d,' % number
        yield head + pool[number % len(pool)][: load.value_bytes - len(head)]


def produce(bootstrap_servers: str, load: Load, records: Iterable[bytes] | None = None) -> None:
    """Produce the load to its topic, or other values, in turn to each Kafka partition; the keys are customers."""
    keyed = (
        Record(b"customer-%07d" % (number * 7919 % 1_000_003), value, partition=number % load.kafka_partitions)
        for number, value in enumerate(values(load) if records is None else records)
    )
    produce_all(bootstrap_servers, load.topic, keyed, "nothing was measured")


def _body(size: int, chance: random.Random, vocabulary: list[str]) -> bytes:
    parts: list[str] = []
    length = 0
    while length < size:
        part = (
            f'"state":"{chance.choice(_STATES)}","sum":{chance.randint(1, 99999)},'
            f'"trace":"{chance.randbytes(16).hex()}","note":"{" ".join(chance.choices(vocabulary, k=6))}",'
        )
        parts.append(part)
        length += len(part)
    return "".join(parts)[:size].encode()


@dataclass(frozen=True, slots=True)
class Bench:
    """The benchmark's own world while it runs; `session_seconds` is what starting Spark took."""

    adapters: Adapters
    pyspark: LazyPySparkResource
    folder: Path
    session_seconds: float
    first_job_seconds: float
    jvm_pid: int

    def fill(self, load: Load, tell: Tell, records: Iterable[bytes] | None = None) -> None:
        """Create the topic of a load and produce that to it, or other values."""
        tell(f"{load.topic}: producing {load.records:,} records")
        self.adapters.kafka().create_topic(load.topic, load.kafka_partitions)
        produce(self.adapters.bootstrap_servers(), load, records)


def require_own_spark(settings: Settings, *, is_warm: bool) -> None:
    """Refuse settings by which another Spark than the one that is started here would be measured; raises `BadSetting`."""
    if settings.spark_remote is not None:
        raise BadSetting(
            "OFFSETLAKE_SPARK_REMOTE names a Spark, expected none: the benchmark measures the one that it starts; nothing was "
            "started; unset it"
        )
    if is_warm and settings.engine != SERVER:
        raise BadSetting(
            f"OFFSETLAKE_ENGINE is {settings.engine}, expected {SERVER}: a part measures the warm Spark; nothing "
            "was started; unset it"
        )


@contextmanager
def own_broker(settings: Settings, folder: Path, **options: Any) -> Iterator[tuple[Settings, Broker]]:
    """Start a broker below a folder, with options of `start_broker`; give settings whose home that is.

    What was started in it is stopped in the end, Ctrl-C included.
    """
    broker = start_broker(folder / "broker", jars=resolve_jars("broker", settings.jars), **options)
    try:
        (folder / "jars").symlink_to(settings.jars)
        yield replace(settings, home=folder, bootstrap_servers=broker.bootstrap_servers, kafka_properties=None), broker
    finally:
        stop_server(folder / "engine")
        stop_broker(folder / "broker")


@contextmanager
def open_bench(settings: Settings, tell: Tell) -> Iterator[Bench]:
    """Start broker and session in a temporary folder; stop and delete both, Ctrl-C included."""
    with tempfile.TemporaryDirectory(prefix="offsetlake-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        tell("starting Kafka")
        with own_broker(settings, folder, java_options=[f"-Xmx{BROKER_HEAP}"]) as (own, _):
            adapters = Adapters(replace(own, lake=str(folder / "lake"), dagster_home=folder / "dagster"))
            tell("starting Spark")
            pyspark = adapters.pyspark()
            engine = adapters.engine(pyspark)
            started = time.perf_counter()
            session = engine.session({})
            session_seconds = time.perf_counter() - started
            first_job_seconds = timed(session.range(10).count)
            found = find_here() or read_server(adapters.settings.engine_folder)
            assert found is not None, "it has just answered"
            try:
                yield Bench(adapters, pyspark, folder, session_seconds, first_job_seconds, found.jvm.pid)
            finally:
                engine.close()


def measure(bench: Bench, load: Load, systems: Sequence[str], rounds: int, tell: Tell) -> Iterator[Turn]:
    """Produce the load, warms every system up, then let them take turns; yield each turn as it ends."""
    size = f"{load.value_bytes:,} B"
    bench.fill(load, tell)
    for number in range(rounds + 1):
        for system in order_of(systems, number):
            tell(f"{size}: {'warm-up' if number == 0 else f'round {number} of {rounds}'}, {system}")
            yield _take_turn(bench, load, system, number)


def _take_turn(bench: Bench, load: Load, system: str, number: int) -> Turn:
    with tempfile.TemporaryDirectory(dir=bench.folder) as out:
        place = Place(load, bench.adapters, bench.pyspark, Path(out))
        taken = take(SYSTEMS[system](place), bench.jvm_pid)
        rows, size, files = _count(place.out / "data")
        if system not in WRITES_NOTHING:
            check_rows(system, rows, load)
        return Turn(system, number, taken, rows, size, files, place.steps)


def _count(folder: Path) -> tuple[int, int, int]:
    paths = list(folder.rglob("*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in paths), sum(p.stat().st_size for p in paths), len(paths)


def count_rows(folder: Path) -> int:
    """Count the rows of all Parquet files below a folder."""
    return _count(folder)[0]


def check_rows(who: str, rows: int, load: Load) -> None:
    """Raise `NotMeasured` where not every record has become a row."""
    if rows != load.records:
        raise NotMeasured(f"{who} gave {rows:,} rows of {load.records:,} records of {load.topic}")


def environment(settings: Settings) -> dict[str, object]:
    """Return the facts of this machine and its packages that times depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": read_processor(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "is_bytecode_kept": not sys.dont_write_bytecode,  # else each process compiles a checkout's modules anew
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "spark_master": settings.spark_master,
        "spark_driver_memory": settings.spark_driver_memory,
        "broker_heap": BROKER_HEAP,
    }


def repeat(act: Callable[[int], T], what: str, rounds: int, tell: Tell, warm_ups: int = 1) -> list[T]:
    """Do something once per round, which it is given the number of; return what all came to, the warm-ups first."""
    found = []
    for number in range(1 - warm_ups, rounds + 1):
        tell(f"{what}: {f'{number} of {rounds}' if number > 0 else 'warm-up'}")
        found.append(act(number))
    return found


def run_part(measure: Part, settings: Settings, rounds: int, tell: Tell) -> dict[str, Any]:
    """Measure a part on the warm Spark; return its document, with how busy the machine was before it and after."""
    load_before = os.getloadavg()
    found, missed = measure(settings, rounds, tell)
    return {
        **found,
        "missed_targets": missed,
        "rounds": rounds,
        "environment": {
            **environment(settings),
            "engine": settings.engine,
            "load_average_before": [round(each, 2) for each in load_before],
            "load_average_after": [round(each, 2) for each in os.getloadavg()],
        },
    }
