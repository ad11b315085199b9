"""What a merged file is held against: each original's rows, in their place, column by column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.edges.parquet import differing_from_all

FIRST: dict[str, list[Any]] = {"offset": [0, 1, 2], "value": [b"a", None, b"c"]}
SECOND: dict[str, list[Any]] = {"offset": [5, 7], "value": [b"d", b""]}
MERGED: dict[str, list[Any]] = {"offset": [0, 1, 2, 5, 7], "value": [b"a", None, b"c", b"d", b""]}


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


@pytest.mark.parametrize(
    ("merged", "said"),
    [
        (MERGED, None),
        ({**MERGED, "value": [b"a", b"", b"c", b"d", b""]}, "column value differs in the rows of first"),
        ({**MERGED, "value": [b"a", None, b"c", b"", b"d"]}, "column value differs in the rows of second"),
        ({**MERGED, "offset": [5, 7, 0, 1, 2]}, "column offset differs in the rows of first"),
        ({name: cells[:4] for name, cells in MERGED.items()}, "column offset ends in the rows of second"),
        (
            {name: [*cells, cells[-1]] for name, cells in MERGED.items()},
            "column offset has more rows than its originals",
        ),
        ({"offset": MERGED["offset"]}, "columns are ['offset'], those of first"),
        ({**MERGED, "offset": [float(o) for o in MERGED["offset"]]}, "column offset differs in the rows of first"),
    ],
)
def test_a_merged_file_has_the_rows_of_its_originals(
    merged: dict[str, list[Any]], said: str | None, tmp_path: Path
) -> None:
    """Values, order, count, columns and types; that null is not the empty value."""
    originals = [write(tmp_path / "first", FIRST), write(tmp_path / "second", SECOND)]
    found = differing_from_all(originals, write(tmp_path / "merged", merged))
    assert found is None if said is None else found is not None and found.startswith(said), found
