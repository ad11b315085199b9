"""A raw table on a bad day, over real files without Spark: rotten, torn and missing files, a full disk, other clocks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.auditing import check_table
from pipeline_defs.core.compaction import CompactionOutcome
from pipeline_defs.core.errors import DamagedFile, LakeUnavailable
from pipeline_defs.edges.delta_log import raw_table_log
from pipeline_defs.edges.lake import Lake
from pipeline_defs.raw_table import append_landed
from tests.support.dropped import R, another, compacted, damage, land, planned, run_compact, view
from tests.support.strategies import EPOCH_MS, TOPIC


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Is a lake with six planned ranges."""
    return planned(tmp_path)


def append(lake: Lake) -> int:
    return append_landed(TOPIC, another(lake), lambda: EPOCH_MS)


def rot(path: Path) -> None:
    """Puts a whole Parquet file with other rows in its place."""
    rows = pq.read_table(path)
    others = pa.array([b"rotten"] * rows.num_rows, pa.binary())
    pq.write_table(rows.set_column(rows.schema.get_field_index("value"), "value", others), path)


@pytest.mark.parametrize("spoil", [rot, damage, Path.unlink])
def test_a_compacted_file_that_is_not_as_the_log_says_is_never_cut(lake: Lake, spoil: Callable[[Path], None]) -> None:
    """[R-63] Its rows would get a new name and a new digest; it stays as it is and is named, and the others are appended."""
    _, path = compacted(lake)
    content = path.read_bytes()
    spoil(path)
    land(lake, R[1], 1, b"w")
    land(lake, R[3])
    for _ in range(2):
        with pytest.raises(DamagedFile, match="the next run makes the table anew") as error:
            append(lake)
        (said,) = error.value.violations
        assert str(path) in said and "expected" in said
        table = raw_table_log(TOPIC, lake.store).read()
        assert (table.version, {file.rows for file in table.files.values()}) == (2, {30, 10}), "the others, once"
    land(lake, R[4])
    with pytest.raises(DamagedFile):
        run_compact(another(lake))
    assert len(raw_table_log(TOPIC, lake.store).read().files) == 2, "the others are compacted too"
    path.write_bytes(content)
    append(lake)
    assert check_table(TOPIC, another(lake)).violations == () and view(lake) == [*range(50)]


def test_a_disk_that_is_full_while_a_file_is_cut_is_said(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-63] As anywhere: with the place, and that the next run goes on; the table stays as it was."""
    compacted(lake)
    land(lake, R[1], 1, b"w")
    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_table", full)
        with pytest.raises(LakeUnavailable, match=r"No space left .* make room on that disk"):
            append(lake)
    append(lake)
    assert check_table(TOPIC, another(lake)).violations == ()


def test_a_file_that_goes_away_before_it_is_compacted_is_one_clear_sentence(lake: Lake) -> None:
    """[R-61] With its path and what to do; the other group is compacted."""
    for offsets in R[:2]:
        land(lake, offsets)
    append(lake)
    name = next(iter(raw_table_log(TOPIC, lake.store).read().files))
    path = Path(lake.store.url(f"tables/raw/{TOPIC}/{name}"))
    path.unlink()
    (verdict,) = run_compact(lake)
    assert verdict.outcome is CompactionOutcome.FAILED
    (said,) = verdict.violations
    assert f"{path} is not there" in said and f"offsetlake audit {TOPIC}" in said and "Errno" not in said
