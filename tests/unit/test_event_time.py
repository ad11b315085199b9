"""Counting rows by day: of each type that a time can have, nulls and what no calendar has; and a footer's note."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.core.calendar import NO_DAY
from pipeline_defs.core.days import EventTime
from pipeline_defs.edges.event_time import count_days, count_late, find_kind, read_note
from pipeline_defs.edges.footer import add_note, canonicalize

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
SECONDS = int(NOON.timestamp())


def write(path: Path, column: pa.Array) -> Path:
    """Writes a file with the column as `value.at`, and a row without a value."""
    rows = [{"at": each} for each in column.to_pylist()] if pa.types.is_null(column.type) else None
    struct = pa.array(rows) if rows else pa.StructArray.from_arrays([column], ["at"])
    value = pa.concat_arrays([struct, pa.nulls(1, struct.type)])
    pq.write_table(pa.table({"value": value, "offset": pa.array(range(len(value)), pa.int64())}), path)
    return path


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        (pa.array([NOON, None], pa.timestamp("us", "UTC")), None),
        (pa.array([NOON.replace(tzinfo=None), None], pa.timestamp("us")), None),
        (pa.array([NOON, None], pa.timestamp("ms", "UTC")), None),
        (pa.array([date(2013, 1, 1), None], pa.date32()), None),
        (pa.array([SECONDS, None], pa.int64()), "s"),
        (pa.array([SECONDS, None], pa.int32()), "s"),
        (pa.array([SECONDS * 1_000, None], pa.int64()), "ms"),
        (pa.array([SECONDS * 1_000_000, None], pa.int64()), "us"),
    ],
)
def test_rows_are_counted_by_day_whatever_the_type(tmp_path: Path, column: pa.Array, unit: str | None) -> None:
    """A null and a row without a value are of no day; every row is counted."""
    path = write(tmp_path / "a.parquet", column)
    assert count_days(path, EventTime("value.at", unit)) == {"2013-01-01": 1, NO_DAY: 2}


def test_days_begin_and_end_at_midnight_before_1970_too(tmp_path: Path) -> None:
    """Times before 1970 are negative, and are of the day that they are in; what no calendar has is of none."""
    day = 86_400_000_000
    micros = [
        -1,
        0,
        day - 1,
        day,
        -day,
        -day - 1,
        2**63 - 1,
        -(2**63),
        253_402_300_799_999_999,
        253_402_300_800_000_000,
    ]
    path = write(tmp_path / "a.parquet", pa.array(micros, pa.int64()))
    assert count_days(path, EventTime("value.at", "us")) == {
        "1969-12-30": 1,
        "1969-12-31": 2,
        "1970-01-01": 2,
        "1970-01-02": 1,
        "9999-12-31": 1,
        NO_DAY: 4,
    }


@pytest.mark.parametrize(
    "event_time", [EventTime("value.at", "s"), EventTime("value.on"), EventTime("at"), EventTime("value")]
)
def test_rows_without_such_a_column_are_of_no_day(tmp_path: Path, event_time: EventTime) -> None:
    """An integer needs a unit and a timestamp has none; what is not there is refused in words."""
    path = write(tmp_path / "a.parquet", pa.array([NOON], pa.timestamp("us", "UTC")))
    assert count_days(path, event_time) == {NO_DAY: 2}
    kind, found = find_kind(path, event_time)
    assert not event_time.accepts(kind)
    assert "expected" in str(event_time.refuse(found))
    assert found in str(event_time.refuse(found))


def test_late_rows_were_written_after_their_day(tmp_path: Path) -> None:
    times = [NOON, datetime(2013, 1, 1, 23, 59, 59, 999_999, UTC), datetime(2013, 1, 2, tzinfo=UTC)]
    pq.write_table(pa.table({"timestamp": pa.array(times, pa.timestamp("us", "UTC"))}), tmp_path / "a.parquet")
    assert count_late(tmp_path / "a.parquet", "2013-01-01") == 1


@pytest.mark.parametrize("others", [1, 12, 13, 14, 200])
def test_a_note_is_added_to_a_footer_and_nothing_else_changes(tmp_path: Path, others: int) -> None:
    """Whatever the number of keys that are there, around the 15 at which Thrift writes a list otherwise."""
    path = tmp_path / "a.parquet"
    table = pa.table({"n": pa.array(range(1_000))}).replace_schema_metadata({f"k{n}": "v" * n for n in range(others)})
    pq.write_table(table, path)
    before = pq.read_metadata(path)
    add_note(path, "offsetlake.day", "ä" * 300)
    assert read_note(path) == ("ä" * 300, 1_000)
    after = pq.read_metadata(path)
    assert before.metadata is not None
    assert dict(after.metadata or {}) == {**before.metadata, b"offsetlake.day": ("ä" * 300).encode()}
    assert after.row_group(0).to_dict() == before.row_group(0).to_dict()
    assert pq.read_table(path).column("n").to_pylist() == list(range(1_000))
    bytes_before = path.read_bytes()
    canonicalize(path)
    canonicalize(path)
    assert read_note(path)[0] == "ä" * 300
    assert len(path.read_bytes()) == len(bytes_before)


def test_a_file_without_a_footer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        add_note(tmp_path / "a.parquet", "key", "value")
