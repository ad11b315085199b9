"""Files of a table merged, and a decoded table compacted, without Spark, in this process."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.parquet import conform
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.core.tables.compaction import CompactionVerdict
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.tables.compaction import compact_table
from pipeline_defs.tables.decoded_compaction import DecodedTable
from tests.support.fake_log import fake_tools


class ArrowFiles:
    """Merges as `SparkFiles` does."""

    def merge(self, what: str, sources: Sequence[Path], columns: pa.Schema, order: Sequence[str], folder: str) -> None:
        Path(folder).mkdir(parents=True)
        rows = pa.concat_tables([conform(pq.read_table(source), columns) for source in sources])
        pq.write_table(rows.sort_by([(name, "ascending") for name in order]), Path(folder) / "part.parquet")


def compact_decoded(lake: Lake, topic: str) -> list[CompactionVerdict]:
    """Compact a decoded table to one file of rows and one of dead letters."""
    attempt = Attempt(f"compact-{uuid.uuid4().hex[:6]}", "run", "test")
    tools = fake_tools(lake, None, None, files=ArrowFiles())
    return list(compact_table(DecodedTable(topic, Decodings(lake)), attempt, tools, 2**30, every=True))
