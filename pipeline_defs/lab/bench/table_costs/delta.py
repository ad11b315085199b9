"""The same state as a Delta table, as users of delta-rs keep one: the winners of each batch, merged into what stands.

It keeps no tombstones, so a record that comes late or again is not told from a new one: right only while ranges come in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from ....adapters.tables.latest_columns import FIELDS

ORDER = [(name, "descending") for name in ("generation", "partition", "offset")]


class DeltaState:
    """Keeps the latest record of each key in a Delta table below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def update(self, files: Sequence[Path]) -> None:
        """Merge Parquet files of decoded records into the table; the first ones become it."""
        winners = find_winners(files)
        if not DeltaTable.is_deltatable(str(self.folder)):
            write_deltalake(str(self.folder), winners.filter(pc.is_valid(winners["value"])))
            return
        merge = DeltaTable(str(self.folder)).merge(
            winners, "present.key = fresh.key", source_alias="fresh", target_alias="present"
        )
        merge = merge.when_matched_delete("fresh.value IS NULL").when_matched_update_all()
        merge.when_not_matched_insert_all("fresh.value IS NOT NULL").execute()

    def places(self) -> set[tuple[int, int]]:
        """Return Kafka partition and offset of each record of the table."""
        return places_of(DeltaTable(str(self.folder)).to_pyarrow_table(columns=["partition", "offset"]))


def find_winners(files: Sequence[Path]) -> pa.Table:
    """Find the latest record of each key: a merge takes one per key, and refuse two."""
    read = pa.concat_tables([pq.ParquetFile(file).read(columns=[*FIELDS]) for file in files])
    ordered = read.sort_by(ORDER)
    numbered = ordered.append_column("number", pa.array(range(len(ordered)), pa.int64()))
    first = numbered.group_by("key").aggregate([("number", "min")])
    return ordered.take(first["number_min"])


def places_of(shown: pa.Table) -> set[tuple[int, int]]:
    """Return Kafka partition and offset of each row."""
    return set(zip(shown["partition"].to_pylist(), shown["offset"].to_pylist(), strict=True))
