"""Files of a table merged, and tables compacted, without Spark, in this process."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.parquet import conform
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionVerdict
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.tables import dropping
from pipeline_defs.tables.compaction import compact, compact_table
from pipeline_defs.tables.decoded_compaction import DecodedTable
from pipeline_defs.tables.dropping import DropVerdict, plan_dropping
from tests.support.fake_log import TOPIC, fake_tools
from tests.support.strategies import EPOCH_MS


class ArrowFiles:
    """Merges as `SparkFiles` does."""

    def merge(self, what: str, sources: Sequence[Path], columns: pa.Schema, order: Sequence[str], folder: str) -> None:
        Path(folder).mkdir(parents=True)
        rows = pa.concat_tables([conform(pq.read_table(source), columns) for source in sources])
        pq.write_table(rows.sort_by([(name, "ascending") for name in order]), Path(folder) / "part.parquet")


def compact_raw(lake: Lake, on_step: StepWatcher = no_step, at_ms: int = EPOCH_MS) -> list[CompactionVerdict]:
    """Compact the raw table as `offsetlake compact --all --apply` does."""
    tools = fake_tools(lake, None, None, files=ArrowFiles(), now_ms=lambda: at_ms, on_step=on_step)
    return list(compact(TOPIC, _new_attempt(), tools, 2**30, every=True))


def drop_range_files(lake: Lake, on_step: StepWatcher = no_step) -> list[DropVerdict]:
    """Drop range files as `offsetlake compact --drop-range-files-after 0d --apply` does."""
    return list(dropping.drop_range_files(TOPIC, lake, plan_dropping(TOPIC, lake, 2**53, 0), EPOCH_MS, on_step))


def compact_decoded(lake: Lake, topic: str) -> list[CompactionVerdict]:
    """Compact a decoded table to one file of rows and one of dead letters."""
    tools = fake_tools(lake, None, None, files=ArrowFiles())
    return list(compact_table(DecodedTable(topic, Decodings(lake)), _new_attempt(), tools, 2**30, every=True))


def _new_attempt() -> Attempt:
    return Attempt(f"compact-{uuid.uuid4().hex[:6]}", "run", "test")
