"""Files of a table merged without Spark, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_defs.adapters.lake.parquet import conform


class ArrowFiles:
    """Merges as `SparkFiles` does."""

    def merge(self, what: str, sources: Sequence[Path], folder: str) -> None:
        Path(folder).mkdir(parents=True)
        rows = pa.concat_tables([pq.read_table(source) for source in sources]).sort_by("offset")
        pq.write_table(rows, Path(folder) / "part.parquet")

    def merge_as(self, what: str, sources: Sequence[Path], columns: pa.Schema, order: Sequence[str], folder: str) -> None:
        Path(folder).mkdir(parents=True)
        rows = pa.concat_tables([conform(pq.read_table(source), columns) for source in sources])
        pq.write_table(rows.sort_by([(name, "ascending") for name in order]), Path(folder) / "part.parquet")
