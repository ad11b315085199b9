"""The latest records by key in plain Python, for keys that Python compares as DuckDB does (no fractions).

`test_the_winners_are_those_of_plain_python` holds one against the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline_defs.adapters.tables.latest_columns import FIELDS, POSITION, SEQUENCE
from pipeline_defs.adapters.tables.latest_winners import NEVER_MS, Inputs
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.latest import Latest, Stretch

Row = dict[str, Any]
START = datetime(1970, 1, 1, tzinfo=UTC)


def find_winners(inputs: Inputs, config: Latest, folder: Path) -> list[Row]:
    """Find the rows of an update, as `Winners` does; files are below `folder`."""
    rows = [*_candidates(inputs.fresh, config, folder)]
    present = [row for path in inputs.present for row in read_rows(folder / path)]
    lost = {_hashable(row["key"]): row["key"] for row in present if _lies_in(row, inputs.changed)}
    if lost:
        rows += (row for row in _candidates(inputs.everything, config, folder) if _hashable(row["key"]) in lost)
    if inputs.with_present:
        return [*_winners([*rows, *(row for row in present if not _lies_in(row, inputs.changed))]).values()]
    best = _winners(rows)
    found = [row | {"_forced": key in lost, "_gone": False} for key, row in best.items()]
    return found + [{"key": key, "_forced": True, "_gone": True} for name, key in lost.items() if name not in best]


def read_rows(path: Path) -> list[Row]:
    rows: list[Row] = pq.ParquetFile(path).read(use_threads=False).to_pylist()
    return rows


def _candidates(stretches: Sequence[Stretch], config: Latest, folder: Path) -> Iterator[Row]:
    for each in stretches:
        placed = each.placed
        reached, rows = placed.reached_ms, read_rows(folder / placed.path)
        rows = [row for row in rows if _lies_in(row, [each.offsets])]
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
    return any(each.place == place and each.start <= row["offset"] < each.end for each in ranges)
