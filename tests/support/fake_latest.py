"""Latest by key without Spark: `SparkLatest` in plain Python, for keys that Python compares as Spark does (no fractions).

`test_the_fake_finds_what_spark_finds` holds one against the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_defs.adapters.spark.spark_latest import NEVER_MS, Inputs, Source
from pipeline_defs.adapters.tables.latest_table import FIELDS, POSITION, SEQUENCE
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.latest import Latest

Row = dict[str, Any]
START = datetime(1970, 1, 1, tzinfo=UTC)
MARKS = (pa.field("_forced", pa.bool_()), pa.field("_gone", pa.bool_()))


class FakeLatest:
    """Finds the latest records by key as `SparkLatest` does, and writes one file."""

    def stage(self, topic: str, inputs: Inputs, schema: pa.Schema, config: Latest, folder: Path) -> None:
        rows = [*_candidates(inputs.fresh, config)]
        present = [row for path in inputs.present for row in read_rows(path)]
        lost = {_hashable(row["key"]): row["key"] for row in present if _lies_in(row, inputs.changed)}
        if lost:
            rows += (row for row in _candidates(inputs.everything, config) if _hashable(row["key"]) in lost)
        if inputs.with_present:
            kept = (row for row in present if not _lies_in(row, inputs.changed))
            found, columns = [*_winners([*rows, *kept]).values()], schema
        else:
            best, columns = _winners(rows), pa.schema([*schema, *MARKS])
            found = [row | {"_forced": key in lost, "_gone": False} for key, row in best.items()]
            found += [{"key": key, "_forced": True, "_gone": True} for name, key in lost.items() if name not in best]
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(found, columns), folder / "part.parquet")


def read_rows(path: Path) -> list[Row]:
    """Read all rows of a small file."""
    rows: list[Row] = pq.ParquetFile(path).read(use_threads=False).to_pylist()
    return rows


def _candidates(sources: Sequence[Source], config: Latest) -> Iterator[Row]:
    for each in sources:
        placed = each.stretch.placed
        reached, rows = placed.reached_ms, read_rows(each.path)
        rows = [row for row in rows if _lies_in(row, [each.stretch.offsets])]
        for row in sorted(rows, key=lambda row: int(row["offset"])):
            at_ms = (row["timestamp"] - START) // timedelta(milliseconds=1)
            reached = at_ms if reached is None else max(reached, at_ms)
            if row["key"] is not None:
                found = {name: row[name] for name in FIELDS}
                found |= {"_deleted": row["value"] is None, "_epoch": placed.epoch}
                found["_reached"] = NEVER_MS if reached is None else reached
                if config.sequence:
                    found[SEQUENCE] = _field(row, config.sequence)
                yield found


def _field(row: Row, path: str) -> Any:
    found: Any = row
    return reduce(lambda value, name: None if value is None else value.get(name), path.split("."), found)


def _winners(rows: Iterable[Row]) -> dict[Any, Row]:
    best: dict[Any, Row] = {}
    for row in rows:
        key = _hashable(row["key"])
        if key not in best or _rank(row) > _rank(best[key]):
            best[key] = row
    return best


def _rank(row: Row) -> tuple[Any, ...]:
    sequence = row.get(SEQUENCE)
    return (sequence is not None, 0 if sequence is None else sequence, *(row[name] for name in POSITION))


def _hashable(key: Any) -> Any:
    return tuple(sorted(key.items())) if isinstance(key, dict) else key


def _lies_in(row: Row, ranges: Iterable[OffsetRange]) -> bool:
    place = row["generation"], row["partition"]
    return any((each.generation, each.partition) == place and each.start <= row["offset"] < each.end for each in ranges)
