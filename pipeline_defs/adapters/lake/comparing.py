"""Comparing the rows of Parquet files: what differs first, in words without any value.

A NaN is equal to the same NaN. A column that a file lacks is null in all of its rows: another version wrote the file.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...core.errors import first_line
from ...core.offsets import OffsetRange
from ..store.remote_file import File, source
from .parquet import conform, read_columns, rows_of_ranges

Rows: TypeAlias = pa.Table  # of one landed file or range


def differing_rows(landed: File, read_again: File, *, as_landed: bool = False) -> str | None:
    """Compare two files row by row; none if the rows are equal, else what differs first.

    `as_landed` leaves out the columns that the landed file lacks: the version that landed it did not know them.
    """
    before, after = read_columns(landed), read_columns(read_again)
    lacking = [name for name in after.column_names if as_landed and name not in before.column_names]
    return _differing(before, after.drop_columns(lacking))


def count_alone(rows: Rows, file: File | None) -> int | None:
    """Count the rows at offsets that a file lacks, all of them without a file; none if it has the same rows."""
    if file is None:
        return rows.num_rows or None
    others = read_columns(file)
    if _differing(rows, others) is None:
        return None
    return len(set(rows["offset"].to_pylist()) - set(others["offset"].to_pylist()))


def differing_range(file: File, offsets: OffsetRange, other: File) -> str | None:
    """Compare a file's rows of a range with another file, in the columns of the latter; return as `differing_rows` does."""
    after = read_columns(other)
    found = rows_of_ranges(read_columns(file), [offsets]).sort_by("offset")
    try:
        return _differing(conform(found, after.schema), after)
    except pa.ArrowInvalid as error:  # a value that the columns do not hold
        return f"other values: {first_line(error)}"


def rows_beyond(file: File, other: File, *, in_common: bool = False) -> str | None:
    """Return which rows of a file another one lacks or has with other values; none if it has each of them as it is.

    They are compared in the columns of the first file, or in those that both have `in_common`: an earlier version knew fewer.
    """
    before, after = read_columns(file), read_columns(other)
    names = [name for name in before.column_names if not in_common or name in after.column_names]
    rows, others = (each.select(names) for each in _widen(before, after))
    if _columns_of(rows) != _columns_of(others):
        return f"columns are {_columns_of(rows)}, and {_columns_of(others)} there"
    at = pc.index_in(rows["offset"], others["offset"].combine_chunks())
    if at.null_count:
        alone = rows["offset"].filter(pc.is_null(at)).to_pylist()
        return f"{len(alone)} offsets are not there (first {alone[:3]})"
    changed = _changed_columns(rows, others.take(at))
    return f"equal offsets, other values in {', '.join(changed)}" if changed else None


def _widen(one: pa.Table, other: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return both tables with the columns of either: null if the version that wrote the rows did not know the column."""
    columns = {field.name: field for field in (*other.schema, *one.schema)}
    one, other = (
        conform(rows, pa.schema([rows.schema.field(name) if name in rows.column_names else columns[name] for name in columns]))
        for rows in (one, other)
    )
    return one, other


def _columns_of(rows: pa.Table) -> str:
    """Return names and types, but not nullability: whatever Spark reads from a file may be null."""
    return ", ".join(f"{field.name}: {field.type}" for field in rows.schema)


def _differing(before: pa.Table, after: pa.Table) -> str | None:
    before, after = _widen(before, after)
    if _columns_of(before) != _columns_of(after):
        return f"columns were {_columns_of(before)}, are {_columns_of(after)}"
    changed = _changed_columns(before, after)
    if not changed:
        return None
    old, new = (set(table.column("offset").to_pylist()) for table in (before, after))
    if old != new:
        gone, come = sorted(old - new), sorted(new - old)
        return f"{len(gone)} offsets gone (first {gone[:3]}), {len(come)} offsets new (first {come[:3]})"
    return f"equal offsets, other values in {', '.join(changed)}"


def differing_from_all(originals: Sequence[File], merged: File) -> str | None:
    """Compare a merged file with its originals, column by column; none if it has just their rows, in their order.

    A column that an original lacks must be null in its rows.
    """
    schema = pq.read_schema(source(merged))
    for original in originals:
        if lacking := set(pq.read_schema(source(original)).names) - set(schema.names):
            return f"it lacks the columns {', '.join(sorted(lacking))} of {original.name}"
    return next((said for field in schema if (said := _differing_column(field, originals, merged)) is not None), None)


def differing_in_any_order(originals: Sequence[File], merged: File) -> str | None:
    """Compare a merged file with its originals, column by column; none if it has just their rows, in any order.

    Its columns may be of wider types. No row may be there twice: generation, Kafka partition and offset identify it.
    """
    expected, found = _order([*originals]), _order([merged])
    if len(expected) != len(found):
        return f"it has {len(found)} rows, expected {len(expected)}"
    schema = pq.read_schema(source(merged))
    names = [pq.read_schema(source(each)).names for each in originals]
    if lacking := {name for each in names for name in each} - set(schema.names):
        return f"it lacks the columns {', '.join(sorted(lacking))}"
    for field in schema:
        before = _column(field, originals, names).take(expected)
        if not _is_equal_column(before, _column(field, [merged], [schema.names]).take(found)):
            return f"column {field.name} differs"
    return None


def _order(files: Sequence[File]) -> pa.Array:
    """Return the indices that sort the rows of some files, one after the other, by their place in Kafka's log."""
    place = ("generation", "partition", "offset")
    rows = pa.concat_tables([read_columns(file, *place) for file in files])
    return pc.sort_indices(rows, [(name, "ascending") for name in place])


def _column(field: pa.Field, files: Sequence[File], names: Sequence[Sequence[str]]) -> pa.ChunkedArray:
    """Read a column of some files, one after the other; null for a file that lacks it, by its columns in `names`."""
    chunks = list[pa.Array]()
    for file, there in zip(files, names, strict=True):
        if field.name in there:
            chunks += read_columns(file, field.name).column(0).cast(field.type).chunks
        else:
            chunks.append(pa.nulls(pq.read_metadata(source(file)).num_rows, field.type))
    return pa.chunked_array(chunks, field.type)


def _differing_column(field: pa.Field, originals: Sequence[File], merged: File) -> str | None:
    """Compare one column batch by batch: no file's column is ever held whole."""
    name, batches = field.name, _column_batches(merged, field)
    found: pa.Array = pa.nulls(0)
    for original in originals:
        for batch in _column_batches(original, field):
            expected = batch
            while len(expected):
                found = found if len(found) else next(batches, None)
                if found is None:
                    return f"column {name} ends in the rows of {original.name}"
                count = min(len(expected), len(found))
                if not _is_equal_array(found.slice(0, count), expected.slice(0, count)):
                    return f"column {name} differs in the rows of {original.name}"
                expected, found = expected.slice(count), found.slice(count)
    is_more = len(found) or next(batches, None) is not None
    return f"column {name} has more rows than its originals" if is_more else None


def _column_batches(path: File, field: pa.Field) -> Iterator[pa.Array]:
    with pq.ParquetFile(source(path)) as file:
        is_there = field.name in file.schema_arrow.names
        for batch in file.iter_batches(columns=[field.name if is_there else "offset"]):
            if batch.num_rows:
                yield batch.column(0) if is_there else pa.nulls(batch.num_rows, field.type)


def _changed_columns(before: pa.Table, after: pa.Table) -> list[str]:
    """Return the columns that differ; a NaN is equal to the same NaN, as it is not to Arrow."""
    return [name for name in before.schema.names if not _is_equal_column(before.column(name), after.column(name))]


def _is_equal_column(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if one.equals(other) or len(one) != len(other):
        return len(one) == len(other)
    batches = pa.table([one, other], ["one", "other"]).to_batches()  # chunks of both end at the same rows
    return all(_is_equal_array(*batch.columns) for batch in batches)


def _is_equal_array(one: pa.Array, other: pa.Array) -> bool:
    bits = _bits(one.type)
    is_seen_as_bits = one.type == other.type and bits != one.type
    return bool(one.equals(other) or (is_seen_as_bits and one.view(bits).equals(other.view(bits))))


def _bits(kind: pa.DataType) -> pa.DataType:
    """Return the type with integers of the same width in place of floating-point numbers, at any depth."""
    if pa.types.is_floating(kind):
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_bits(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_bits(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_bits(kind.key_type), kind.item_field.with_type(_bits(kind.item_type)))
    return kind
