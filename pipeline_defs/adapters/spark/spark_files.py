"""Spark on the files of a table: merges many into one, reads them, or takes their digests where they lie.

Nothing here decides what a table has. No byte of a file whose digest is taken comes here; Spark reads it as one value of a row,
so it must fit into an executor's memory and be below 2 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from ..lake.parquet import RAW_SCHEMA
from ..store.remote_file import File
from ..tables.topic_rows import Part, TableRows, within
from .engine import Engine
from .spark import SCAN_CONF, paths_of, write_parquet

if TYPE_CHECKING:
    from pyarrow import Schema
    from pyspark.sql import DataFrame, SparkSession


class SparkFiles:
    """Merges of files, each as one task, which sorts all rows: Spark by itself packs files into tasks by size."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def merge(self, what: str, sources: Sequence[File], columns: Schema, order: Sequence[str], folder: str) -> None:
        """Write the rows of files to one file below `folder`, in columns that hold all of them, ordered by some.

        Raises `ScanFailed`; then nothing counts.
        """
        consequence = "nothing became visible, the table stays as it is; the next compaction tries it again"
        with self._engine.job(SCAN_CONF, f"merge {len(sources)} files of {what}", consequence) as session:
            rows = read_as(session, columns, sources).coalesce(1).sortWithinPartitions(*order)
            write_parquet(rows, self._engine, folder)


def read_parts(session: SparkSession, root: str, parts: Iterable[Part]) -> DataFrame:
    """Return the rows of some parts of a lake, which Spark knows by the URL or path `root`."""
    from pyspark.sql import DataFrame

    parts = list(parts)
    frames = [read_as(session, RAW_SCHEMA, [f"{root}/{part.path}" for part in parts if part.is_whole])]
    frames += [
        read_as(session, RAW_SCHEMA, [f"{root}/{part.path}"]).where(_quoted(within(part.stretches)))
        for part in parts
        if not part.is_whole
    ]
    return reduce(DataFrame.union, frames)


def read_table(session: SparkSession, root: str, rows: TableRows) -> DataFrame:
    """Return rows of a derived table."""
    found = read_as(session, rows.schema, [f"{root}/{path}" for path in rows.paths])
    return found.where(_quoted(rows.where)).drop(*rows.hidden)


def _quoted(condition: str) -> str:
    """Return a condition with names quoted as in Spark."""
    return condition.replace('"', "`")


def read_as(session: SparkSession, schema: Any, files: Sequence[File | str]) -> DataFrame:
    """Read files as rows of an Arrow schema that holds all of them: null in the columns that a file lacks."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not files:
        return session.createDataFrame([], columns)
    return session.read.schema(columns).parquet(*paths_of(files))


@dataclass(frozen=True, slots=True)
class Digest:
    """Size and sha256, in hex, of one file."""

    bytes: int
    sha256: str


def read_digests(engine: Engine, urls: Sequence[str]) -> Mapping[str, Digest]:
    """Return the digest of each Parquet file at some URLs, files or folders, by its own URL.

    Raises `ScanFailed` or `EngineUnavailable`.
    """
    from pyspark.sql import functions as f

    consequence = "nothing became visible; what needed it is tried again"
    with engine.job(SCAN_CONF, f"read the digests of {len(urls)} files or folders", consequence) as session:
        files = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load([*urls])
        rows = files.select("path", "length", f.sha2("content", 256).alias("sha256")).collect()
    return {row["path"]: Digest(row["length"], row["sha256"]) for row in rows}
