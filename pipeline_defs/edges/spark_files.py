"""Spark on landed files: merges many into a sealed one, and cuts a sealed one into the very files that it was made of.

With the same rows, columns and options, the same writer comes to the same bytes; which bytes those must be is for others to
hold them against. Nothing here decides what is sealed or landed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.offsets import OffsetRange
from .engine import Engine
from .remote_file import File
from .spark import PARQUET_OPTIONS, SCAN_CONF, paths_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGES_PER_CUT = 100  # each is a condition that every row of a job is held against
_START = "__range_start"


class SparkFiles:
    """Merges and cuts files."""

    def __init__(self, engine: Engine, check: Callable[[], object] = lambda: None) -> None:
        """Keep what merges; `check` refuses that before it is asked to."""
        self._engine = engine
        self._check = check

    def merge(self, what: str, sources: Sequence[File], generation: int, folder: str) -> None:
        """Writes the rows of Parquet files of one Kafka partition to one file below `folder`, in offset order, as one task.

        Spark packs files into tasks by size, so one task has all of them, and sorts. Raises `ScanFailed`, then nothing
        counts.
        """
        self._write(
            f"merge {len(sources)} files of {what}",
            lambda session: _rows(session, sources, generation).coalesce(1).sortWithinPartitions("offset"),
            folder,
        )

    def cut(self, what: str, source: Path, ranges: Sequence[OffsetRange], folder: Path) -> dict[OffsetRange, Path]:
        """Writes the rows of each range, ascending and of one Kafka partition, to a file of its own below `folder`.

        One task per hundred ranges. Returns the files of those that have rows. Raises `ScanFailed`, then nothing counts.
        """
        files: dict[OffsetRange, Path] = {}
        for at in range(0, len(ranges), RANGES_PER_CUT):
            some, below = ranges[at : at + RANGES_PER_CUT], folder / f"{at:06d}"
            rows = partial(_by_range, source, some)
            self._write(f"cut {len(some)} ranges out of {what}", rows, str(below), _START)
            found = {offsets: next((below / f"{_START}={offsets.start}").glob("*.parquet"), None) for offsets in some}
            files |= {offsets: path for offsets, path in found.items() if path is not None}
        return files

    def _write(self, what: str, rows: Callable[[SparkSession], DataFrame], folder: str, *by: str) -> None:
        consequence = (
            "nothing became visible, and what is landed stays as it is; what needed it is tried again by the same "
            "command"
        )
        self._check()
        with self._engine.job(SCAN_CONF, what, consequence) as session:
            rows(session).write.mode("error").options(**PARQUET_OPTIONS, **self._engine.write_options).partitionBy(
                *by
            ).parquet(folder)


def _rows(session: SparkSession, sources: Sequence[File], generation: int) -> DataFrame:
    from pyspark.sql import functions as f

    rows = session.read.parquet(*paths_of(sources))
    # a column that is read counts as nullable: not so here
    return rows.withColumn("generation", f.lit(generation))


def _by_range(source: Path, ranges: Sequence[OffsetRange], session: SparkSession) -> DataFrame:
    from pyspark.sql import functions as f

    first, *others = ranges
    start = f.when(f.col("offset").between(first.start, first.end - 1), f.lit(first.start))
    for offsets in others:
        start = start.when(f.col("offset").between(offsets.start, offsets.end - 1), f.lit(offsets.start))
    rows = _rows(session, [source], first.generation)
    rows = rows.where(f.col("offset").between(first.start, ranges[-1].end - 1)).withColumn(_START, start)
    return rows.where(f.col(_START).isNotNull()).coalesce(1).sortWithinPartitions(_START, "offset")
