"""Readers of a lake that read again and again until they are told to stop: in a thread, or as processes; and a user's Spark.

`python -m tests.support.readers KIND TABLES LAKE TOPIC FOLDER` reads each of TABLES at its newest snapshot, in turn, and writes
a line of JSON for each read to FOLDER/KIND.jsonl, until FOLDER/stop is there. A kind may be two, which take turns: `a+b`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.system.java import archive_options
from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.adapters.tables.duck import Duck, connect
from tests.conftest import JARS
from tests.support.killing import QUICK_JVM

PLACE = 'generation, "partition", "offset"'
FIRST = 2  # offsets below are of a record that was aborted: a replace takes it away
STOP = "stop"
DELTA_SPARK = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
VIEWS = {"raw": ("main",), "decoded": ("decoded", "dead_letters"), "latest": ("latest",)}


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a table: all of its rows, how many of them are different ones, how many a replace leaves alone.

    Times are ns of the machine's monotonic clock, by which processes can be compared.
    """

    table: str
    began_ns: int
    ended_ns: int
    rows: int = 0
    distinct: int = 0
    kept: int = 0
    error: str = ""


def count_in(source: str, table: str) -> str:
    """Return SQL that counts the rows of a source: all, different ones, and those that no replace takes away."""
    what = '"key"' if table == "latest" else f"({PLACE})"
    return f'SELECT count(*), count(DISTINCT {what}), count(*) FILTER ("offset" >= {FIRST}) FROM {source}'


def count_files(lake: Lake, files: Sequence[str], table: str) -> tuple[int, int, int]:
    with connect(lake) as connection:
        sql = count_in(f"read_parquet({list(files)}, union_by_name = true)", table)
        (found,) = connection.execute(sql).fetchall()
    return found


def read_by_duckdb(lake: Lake, topic: str) -> Callable[[str], tuple[int, int, int]]:
    """Read the files that delta-rs says by DuckDB."""
    return lambda table: count_files(lake, DeltaTable(lake.store.url(f"tables/{table}/{topic}")).file_uris(), table)


def read_by_views(lake: Lake, topic: str) -> Callable[[str], tuple[int, int, int]]:
    """Read the views of `offsetlake sql`, opened anew by each read."""

    def read(table: str) -> tuple[int, int, int]:
        duck = Duck(Lake(lake.store.root), [topic])
        _, views = duck.query("SELECT table_schema FROM information_schema.tables WHERE table_name = $1", [topic])
        selects = [
            f'SELECT {PLACE}, {"NULL" if table == "decoded" else ""} "key" FROM {tree}."{topic}"'
            for tree in VIEWS[table]
            if (tree,) in views
        ]
        (found,) = duck.query(count_in(f"({' UNION ALL '.join(selects)})", table))[1]
        return found[0], found[1], found[2]

    return read


def read_by_spark(lake: Lake, topic: str) -> Callable[[str], tuple[int, int, int]]:
    """Read by delta-spark, in one session for all reads."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    builder = SparkSession.builder
    for name, value in DELTA_SPARK.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def read(table: str) -> tuple[int, int, int]:
        rows = spark.read.format("delta").load(lake.store.url(f"tables/{table}/{topic}").replace("s3://", "s3a://"))
        what = ["key"] if table == "latest" else ["generation", "partition", "offset"]
        (found,) = rows.agg(f.count("*"), f.count_distinct(*what), f.count_if(rows["offset"] >= FIRST)).collect()
        return found[0], found[1], found[2]

    def read_again_where_a_type_changed(table: str) -> tuple[int, int, int]:
        """Read as docs/reading.md says: Delta refuses what was analysed before another version."""
        try:
            return read(table)
        except AnalysisException as error:
            if error.getCondition() != "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS":
                raise
            return read(table)

    return read_again_where_a_type_changed


READERS = {"duckdb": read_by_duckdb, "views": read_by_views, "spark": read_by_spark}


def time_read(table: str, read: Callable[[str], tuple[int, int, int]]) -> Read:
    """Read once; an error is what was read."""
    began = time.monotonic_ns()
    try:
        rows, distinct, kept = read(table)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told, and no read may end with one)
        return Read(table, began, time.monotonic_ns(), error=repr(error))
    return Read(table, began, time.monotonic_ns(), rows, distinct, kept)


class ReaderDied(Exception):
    """A reader that ended while it was to read, with the end of its log."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Readers that read, and where they write what they read."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]]
    tables: Sequence[str]

    def reads(self, kind: str) -> list[Read]:
        """Return what one of them has read so far."""
        path = self.folder / f"{kind}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [Read(**json.loads(line)) for line in lines if line.endswith("\n")]

    def have_read_since(self, began_ns: int) -> bool:
        """Return whether each has begun to read each table since, and ended; raise where one has died."""
        for kind, process in self.processes.items():
            if process.poll() is not None:
                raise ReaderDied((self.folder / f"{kind}.log").read_text()[-3000:])
        return all(
            {read.table for read in self.reads(kind) if read.began_ns >= began_ns} == {*self.tables} for kind in self.processes
        )


@contextmanager
def reading(
    kinds: Collection[str],
    tables: Sequence[str],
    lake: Lake,
    topic: str,
    folder: Path,
    environment: Mapping[str, str],
    wait_until: Callable[[Callable[[], bool]], None],
) -> Iterator[Reading]:
    """Have readers of some kinds read while the context lasts, and end by themselves after it.

    One is started once the one before it has read: it would take the machine from that, which may be a Spark that starts.
    """
    folder.mkdir()
    paths = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "JAVA_HOME", "TMPDIR"}}
    readers = Reading(folder, {}, tables)
    with ExitStack() as opened:
        for kind in kinds:
            log = opened.enter_context((folder / f"{kind}.log").open("wb"))
            command = [sys.executable, "-m", __name__, kind, ",".join(tables), lake.store.root, topic, str(folder)]
            readers.processes[kind] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**paths, "PYTHONPATH": str(PROJECT), **environment}
            )
            opened.callback(readers.processes[kind].kill)
            wait_until(lambda: readers.have_read_since(0))
        yield readers
        (folder / STOP).touch()
        for kind, process in readers.processes.items():
            assert process.wait(120) == 0, (folder / f"{kind}.log").read_text()[-3000:]


def main(kind: str, tables: str, root: str, topic: str, folder: str) -> None:
    readers = [READERS[each](Lake(root), topic) for each in kind.split("+")]
    with (Path(folder) / f"{kind}.jsonl").open("a") as file:
        while not (Path(folder) / STOP).exists():
            for table, read in product(tables.split(","), readers):
                found: dict[str, Any] = asdict(time_read(table, read))
                file.write(json.dumps(found) + "\n")
                file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])


Rows = list[tuple[Any, ...]]


class LoopingReader:
    """Who reads as long as its context lasts; `errors` are what it could not read, or not have seen."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._stop = threading.Event()

    def read(self) -> None:
        """Read once, and keep what it saw."""
        raise NotImplementedError

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read in a thread as long as the context lasts."""
        thread = threading.Thread(target=self._read_on)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def ask(self, folder: Path, question: Callable[[], Rows]) -> Rows | None:
        """Ask of files that are exchanged; none where there is no answer.

        DuckDB opens a file twice in a query: where it is exchanged in between, the query ends with an error. It counts as one
        only where no file was exchanged meanwhile.
        """
        before = _versions(folder)
        try:
            return question()
        except duckdb.Error as error:
            if _versions(folder) == before:
                self.errors.append(str(error))
            return None

    def _read_on(self) -> None:
        while not self._stop.is_set():
            self.read()


def _versions(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*.parquet")}


def spark_defaults(folder: Path, jars: Sequence[Path], conf: Mapping[str, str]) -> Mapping[str, str]:
    """Write the defaults of a small Spark below a folder; return the variables by which it finds them and starts quickly.

    Neither the folder nor the jars are in its JVM's own class path, which is that of the class archive.
    """
    folder.mkdir()
    settings = {
        **conf,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(archive_options(JARS, "spark")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # by which Delta lists: 10,000 tasks
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(map(str, jars)),
    }
    defaults = folder / "spark-defaults.conf"
    defaults.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return {"PYSPARK_SUBMIT_ARGS": f"--properties-file {defaults} pyspark-shell", "JDK_JAVA_OPTIONS": QUICK_JVM}
