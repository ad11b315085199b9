"""Event times of Parquet files: which days the rows of a file are of, and what a day's file says of itself in its footer.

Reads one column, through pyarrow. Invariant: every row is counted, once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..core.calendar import FIRST, LAST, NO_DAY, SECONDS_A_DAY, day_of
from ..core.days import UNITS, EventTime, Kind
from .remote_file import File, source

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
NOTE = "offsetlake.day"
ARROW_UNITS = {**UNITS, "ns": 1_000_000_000}


def find_kind(path: File | pa.NativeFile, event_time: EventTime) -> tuple[Kind | None, str]:
    """Says what kind of time a file's column is, none where it is no time, and in words what is there."""
    found: pa.DataType = pa.struct([*pq.read_schema(_source(path))])
    at = ""
    for name in event_time.parts:
        if not pa.types.is_struct(found) or found.get_field_index(name) < 0:
            names = ", ".join(field.name for field in found) if pa.types.is_struct(found) else ""
            return None, f"no column {name} in {at or 'the row'}, which is {f'of {names}' if names else found}"
        found = found.field(name).type
        at = f"{at}.{name}" if at else name
    return _kind(found), str(found)


def _kind(found: pa.DataType) -> Kind | None:
    if pa.types.is_timestamp(found):
        return "timestamp"
    if pa.types.is_date(found):
        return "date"
    return "integer" if pa.types.is_signed_integer(found) else None


def count_days(path: File | pa.NativeFile, event_time: EventTime) -> dict[str, int]:
    """Counts the rows of each day, sorted; what has no time that a calendar has, or no such column, is of no day."""
    kind, _ = find_kind(path, event_time)
    if not event_time.accepts(kind):
        rows = pq.read_metadata(_source(path)).num_rows
        return {NO_DAY: rows} if rows else {}
    column = pq.ParquetFile(_source(path), memory_map=True).read(columns=[event_time.path]).column(event_time.parts[0])
    for name in event_time.parts[1:]:
        column = pc.struct_field(column, name)
    values = column.drop_null()
    numbers = _days(values, event_time)
    is_day = (numbers >= FIRST) & (numbers <= LAST)
    found, counts = np.unique(numbers[is_day], return_counts=True)
    days = {day_of(int(number)): int(rows) for number, rows in zip(found, counts, strict=True)}
    none = len(column) - int(is_day.sum())
    return {**days, NO_DAY: none} if none else days


def count_days_of(path: Path, sha256: str, event_time: EventTime) -> dict[str, int] | None:
    """Counts as `count_days` does, in a file of just these bytes; none where another one has taken its place."""
    with pa.memory_map(str(path)) as file:
        if hashlib.sha256(file.read_buffer()).hexdigest() != sha256:
            return None
        file.seek(0)
        return count_days(file, event_time)


def _source(path: File | pa.NativeFile) -> Path | BinaryIO | pa.NativeFile:
    return path if isinstance(path, pa.NativeFile) else source(path)


def _days(values: pa.ChunkedArray, event_time: EventTime) -> Numbers:
    """Is of each value the number of its day since 1970-01-01; days before are whole days too."""
    if pa.types.is_date(values.type):
        numbers: Numbers = values.cast(pa.date32()).cast(pa.int32()).to_numpy().astype(np.int64)
        return numbers
    unit = ARROW_UNITS[values.type.unit] if pa.types.is_timestamp(values.type) else UNITS[event_time.unit or "s"]
    numbers = values.cast(pa.int64()).to_numpy()
    return numbers // (SECONDS_A_DAY * unit)


def count_late(path: Path, day: str) -> int:
    """Counts the rows of a day's file whose record was written after the day had ended."""
    column = pq.read_table(path, columns=["timestamp"], memory_map=True).column("timestamp").drop_null()
    end = np.datetime64(day, "D") + np.timedelta64(1, "D")
    return int((column.to_numpy() >= end.astype("datetime64[us]")).sum())


def read_note(path: Path) -> tuple[str | None, int]:
    """Reads what a day's file says of itself, none where it says nothing, and its number of rows.

    Raises `ValueError` for what is no Parquet file, in the words of who read it.
    """
    try:
        footer = pq.read_metadata(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error).rstrip(".")) from error
    note = (footer.metadata or {}).get(NOTE.encode())
    return (None if note is None else note.decode()), footer.num_rows


def write_empty_day(like: Path, path: Path, note: str) -> None:
    """Writes a day's file with the columns of another one, without rows, that says `note` of itself."""
    schema = pq.read_schema(like)
    kept = {key: value for key, value in (schema.metadata or {}).items() if key != NOTE.encode()}
    pq.write_table(schema.with_metadata({**kept, NOTE: note}).empty_table(), path, compression="zstd")
