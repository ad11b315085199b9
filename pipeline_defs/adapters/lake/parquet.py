"""Parquet files without Spark: reading footers, offsets, digests and rows, and writing rows."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...core.errors import DamagedFile, first_line
from ...core.log.manifest import StagedFile
from ...core.offsets import OffsetRange
from ...core.raw_columns import RAW_COLUMNS, RawType
from ..store.disk import REFUSALS
from ..store.remote_file import File, source

_ARROW_TYPES = {
    RawType.STRING: pa.string(),
    RawType.INTEGER: pa.int32(),
    RawType.LONG: pa.int64(),
    RawType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    RawType.BINARY: pa.binary(),
    RawType.HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
ROWS_AT_ONCE, BYTES_AT_ONCE = 8192, 32 * 1024 * 1024  # at most, of each batch of raw rows that is written
# what Spark writes of a raw record; a test holds the two together
RAW_SCHEMA = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in RAW_COLUMNS])


@dataclass(frozen=True, slots=True)
class PartFile:
    """One Parquet file that a scan staged: its footer's facts, before it is matched to a range.

    `partitions` and the offsets are the footer's minima and maxima; `rows` is never 0; `is_raw` says whether its columns are
    those of raw records.
    """

    path: File
    rows: int
    partitions: tuple[int, int]
    min_offset: int
    max_offset: int
    min_timestamp_ms: int | None
    max_timestamp_ms: int | None
    schema: dict[str, str]
    is_raw: bool


RESTORE = (
    "nothing was written; restore it from a backup of the lake, or, while Kafka has its records, `offsetlake land TOPIC --key "
    "KEY --on-change replace`"
)
STAGED = "nothing of it became visible; the next run reads its range again"


@contextmanager
def told_if_damaged(what: str, mend: str = RESTORE) -> Iterator[None]:
    """Turn errors in reading a file that is no whole Parquet file into `DamagedFile`, which says how to `mend` that."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in REFUSALS:  # the disk takes nothing: no file is damaged by that
            raise
        raise DamagedFile(f"{what} cannot be read: {first_line(error)}; it was cut short or changed; {mend}") from error


def files_of(folder: Path) -> list[Path]:
    """List the Parquet files of a folder."""
    return sorted(folder.glob("*.parquet"))


def read_part(path: File) -> PartFile | None:
    """Read the footer of a file; none if the file has no rows."""
    footer = pq.read_metadata(source(path))
    if not footer.num_rows:
        return None
    partitions, offsets, timestamps = (_min_max(footer, name) for name in ("partition", "offset", "timestamp"))
    if partitions is None or offsets is None:
        raise ValueError(f"{path} says nothing of its partitions and offsets")
    columns = footer.schema.to_arrow_schema()
    return PartFile(
        path=path,
        rows=footer.num_rows,
        partitions=partitions,
        min_offset=offsets[0],
        max_offset=offsets[1],
        min_timestamp_ms=timestamps[0] // 1000 if timestamps else None,
        max_timestamp_ms=timestamps[1] // 1000 if timestamps else None,
        schema={field.name: str(field.type) for field in columns},
        is_raw=_types(columns) == _types(RAW_SCHEMA),
    )


def _types(columns: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in columns]


def read_schema(path: File) -> pa.Schema:
    """Read the columns of a file."""
    return pq.read_schema(source(path))


def read_stretches(path: File) -> tuple[tuple[int, int], ...]:
    """Read the offset column as contiguous half-open stretches in file order; a repeated or lower offset begins another."""
    column = read_columns(path, "offset").column("offset")
    offsets = column.to_numpy()
    if not len(offsets):
        return ()
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))


def read_columns(path: File, *columns: str) -> pa.Table:
    """Read some columns of a file, or all of them; of a remote file no bytes of other columns are fetched."""
    with pq.ParquetFile(source(path), memory_map=True) as file:
        return file.read(columns=[*columns] or None)


def read_topics(path: File) -> list[str]:
    """Read the topics that a file has rows of, sorted."""
    with pq.ParquetFile(source(path), memory_map=True, read_dictionary=["topic"]) as file:
        return sorted(map(str, pc.unique(file.read(columns=["topic"]).column("topic")).to_pylist()))


def count_values(path: File, column: str) -> dict[str, int]:
    """Count the rows of each value of a column, as text, sorted; nulls are not counted."""
    counts = pc.value_counts(read_columns(path, column).column(column).drop_null())
    found = ((str(each["values"]), int(each["counts"])) for each in counts.to_pylist())
    return dict(sorted(found))


def read_errors(path: File, limit: int) -> list[tuple[int, str]]:
    """Read offset and error of the first dead letters of a file."""
    table = read_columns(path, "offset", "error").slice(0, limit)
    return [(row["offset"], row["error"]) for row in table.to_pylist()]


def read_rows(data: bytes, what: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of a whole file in memory as Python's values; raise `DamagedFile`, which calls it `what`."""
    with told_if_damaged(what):
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data), columns=list(columns)).to_pylist()
    return rows


def digest(path: File) -> str:
    """Return the sha256 of a file's bytes, in hex; raise `DamagedFile` if the disk cannot read them."""
    with told_if_damaged(f"file {path}"), path.open("rb") as file:
        return hashlib.file_digest(cast("FileIO", file), "sha256").hexdigest()


def staged_file(part: PartFile, lake_path: str) -> StagedFile:
    """Return the part, a file of this machine, as a manifest names it; `lake_path` is where the lake has it staged."""
    assert isinstance(part.path, Path)
    return staged_as(part, lake_path, part.path.stat().st_size, digest(part.path))


def staged_as(part: PartFile, lake_path: str, size: int, sha256: str) -> StagedFile:
    """Return the part as a manifest names it, of `size` bytes; `lake_path` is where the lake has it staged."""
    return StagedFile(
        path=lake_path,
        bytes=size,
        sha256=sha256,
        rows=part.rows,
        min_offset=part.min_offset,
        max_offset=part.max_offset,
        min_timestamp_ms=part.min_timestamp_ms,
        max_timestamp_ms=part.max_timestamp_ms,
    )


def write_empty(path: Path, columns: Sequence[str] = RAW_SCHEMA.names) -> None:
    """Write a file without rows, with the columns of raw records, or some of them."""
    pq.write_table(RAW_SCHEMA.empty_table().select(list(columns)), path, compression="zstd")


def write_raw(rows: Iterator[Sequence[object]], path: Path) -> None:
    """Write raw rows, each with its values in the order of the columns, to a file."""
    with pq.ParquetWriter(path, RAW_SCHEMA, compression="zstd") as writer:
        for chunk in _chunks(rows):
            columns = zip(RAW_SCHEMA, zip(*chunk, strict=True), strict=True)
            writer.write_batch(pa.record_batch([pa.array(values, field.type) for field, values in columns], RAW_SCHEMA))


def _chunks(rows: Iterator[Sequence[object]]) -> Iterator[list[Sequence[object]]]:
    chunk, size = list[Sequence[object]](), 0
    for row in rows:
        chunk.append(row)
        size += sum(map(_size_of, row))
        if len(chunk) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _size_of(value: object) -> int:
    """Return the bytes of a key or value, about those of all headers; else 0: small."""
    if isinstance(value, bytes):
        return len(value)
    return sum(len(name) + len(content or b"") for name, content in value) if isinstance(value, list) else 0


def read_ranges(path: Path, ranges: Sequence[OffsetRange]) -> Iterator[tuple[OffsetRange, pa.Table]]:
    """Yield the rows of each of some ascending ranges from a file in offset order, which is read through once."""
    waiting = list(reversed(ranges))
    with pq.ParquetFile(path) as file:
        parts: list[pa.RecordBatch] = []
        for batch in file.iter_batches():
            if not waiting:
                return
            offsets = batch.column("offset").to_numpy()
            while waiting:
                start, end = np.searchsorted(offsets, (waiting[-1].start, waiting[-1].end)).tolist()
                parts.append(batch.slice(start, end - start))
                if end == len(offsets):  # the next batch may have more of it
                    break
                yield waiting.pop(), pa.Table.from_batches(parts, file.schema_arrow)
                parts = []
        while waiting:
            yield waiting.pop(), pa.Table.from_batches(parts, file.schema_arrow)
            parts = []


def write(rows: pa.Table, path: Path) -> None:
    """Write rows to a file whose exact bytes do not matter."""
    pq.write_table(rows, path, compression="zstd")


def write_only(file: File, ranges: Sequence[OffsetRange], columns: pa.Schema, target: Path) -> None:
    """Write a file's rows of some ranges to another file, in these columns and in the file's order, batch by batch."""
    with pq.ParquetFile(source(file)) as read, pq.ParquetWriter(target, columns, compression="zstd") as writer:
        for batch in read.iter_batches():
            writer.write_table(conform(rows_of_ranges(pa.Table.from_batches([batch]), ranges), columns))


def rows_of_ranges(rows: pa.Table, ranges: Sequence[OffsetRange]) -> pa.Table:
    """Return the rows of disjoint ranges."""
    generations, partitions, offsets = (rows[name].to_numpy() for name in ("generation", "partition", "offset"))
    chosen = np.zeros(len(rows), bool)
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in sorted(ranges):
        lanes.setdefault((each.generation, each.partition), []).append((each.start, each.end))
    for (generation, partition), bounds in lanes.items():
        starts, ends = np.array(bounds).T
        at = np.searchsorted(starts, offsets, "right") - 1
        is_inside = (at >= 0) & (offsets < ends[at])
        chosen |= is_inside & (generations == generation) & (partitions == partition)
    return rows.filter(pa.array(chosen))


def conform(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows in these columns and their types: null in a column that the rows lack."""
    arrays = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def _min_max(footer: pq.FileMetaData, column: str) -> tuple[int, int] | None:
    """Read an integer column's minimum and maximum over all row groups from the footer; none if it is null in all rows.

    Timestamps are micros.
    """
    leaf = next((number for number in range(footer.num_columns) if footer.schema.column(number).path == column), None)
    if leaf is None:
        raise ValueError(f"no column {column}")
    chunks = (footer.row_group(group).column(leaf).statistics for group in range(footer.num_row_groups))
    found = [each for each in chunks if each is not None and each.has_min_max]
    return (min(each.min_raw for each in found), max(each.max_raw for each in found)) if found else None
