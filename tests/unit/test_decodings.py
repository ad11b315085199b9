"""The decoded table's commit: who is second looks again, and a table that was made anew is not taken for the one before."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.core.errors import BrokenManifest, DamagedFile, LakeUnavailable
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.decoded_table import TREE
from tests.support.decoded import DecodedTopic, numbered
from tests.support.strategies import EPOCH_MS

RANGE, NEXT = OffsetRange(0, 0, 0, 10), OffsetRange(0, 0, 10, 20)


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    return DecodedTopic(Lake(str(tmp_path / "lake")), "orders", pa.string())


def folder(topic: DecodedTopic) -> Path:
    return Path(topic.lake.store.url(f"{TREE}/{topic.name}"))


def test_who_has_read_a_table_reads_only_what_is_newer_and_sees_that_it_was_made_anew(topic: DecodedTopic) -> None:
    """A process that lives long: the folder is moved away, and the next table comes to the same version."""
    decodings = Decodings(topic.lake)
    topic.put(RANGE, numbered(RANGE, "abc"))
    assert decodings.read_ranges(topic.name) is decodings.read_ranges(topic.name), "nothing is newer"
    topic.put(NEXT, numbered(NEXT, "abc"))
    assert set(decodings.read(topic.name)) == {RANGE, NEXT}
    shutil.move(folder(topic), folder(topic).with_name("away"))
    assert decodings.read(topic.name) == {}
    shutil.move(folder(topic).with_name("away"), folder(topic))
    assert set(decodings.read(topic.name)) == {RANGE, NEXT}, "the control"
    shutil.rmtree(folder(topic))
    for offsets in (NEXT, OffsetRange(0, 1, 0, 10)):
        topic.put(offsets, numbered(offsets, "xyz"))
    assert set(decodings.read(topic.name)) == {NEXT, OffsetRange(0, 1, 0, 10)}


def test_a_file_that_is_gone_before_the_commit_is_not_committed(topic: DecodedTopic) -> None:
    """[R-68] A version never names what is not there."""
    topic.put(RANGE, numbered(RANGE, "abc"))
    decodings = Decodings(topic.lake)
    lost = topic.put(RANGE, numbered(RANGE, "abc"), revision=1)
    assert lost.decoded is not None
    (folder(topic) / lost.decoded.path).unlink()
    never = replace(lost, decoded=replace(lost.decoded, path="never.parquet"))
    with pytest.raises(LakeUnavailable, match=r"it is not there any more, .* the table stays as it was"):
        decodings.commit([never], decodings.read_ranges(topic.name), EPOCH_MS)
    ((_, path),) = decodings.find_lacking(decodings.read_ranges(topic.name))
    assert path.endswith(lost.decoded.path), "and what goes later is named"


def test_columns_that_are_gone_are_one_clear_error(topic: DecodedTopic) -> None:
    topic.put(RANGE, numbered(RANGE, "abc"))
    shutil.rmtree(folder(topic) / "_schemas")
    topic.value_type = pa.struct([("m", pa.int64())])
    with pytest.raises(DamagedFile, match=r"_schemas/\w{16}\.json, the columns of decoded files, is gone or was changed"):
        topic.put(NEXT, {10: ("k", {"m": 1})})
    assert set(Decodings(topic.lake).read(topic.name)) == {RANGE}


def test_topics_of_the_same_columns_have_them_beside_each_table(topic: DecodedTopic) -> None:
    """[R-68] Decoded by one process, which has kept them for one of the tables already."""
    decodings = Decodings(topic.lake)
    assert {decodings.keep(name, "columns") for name in ("orders", "trades")} == {decodings.keep("orders", "columns")}
    assert [len([*(folder(topic).with_name(name) / "_schemas").iterdir()]) for name in ("orders", "trades")] == [1, 1]


def test_columns_go_with_a_table_that_is_made_anew(topic: DecodedTopic) -> None:
    """[R-68] By a process that has kept them in the folder that somebody moved away meanwhile."""
    decodings = Decodings(topic.lake)
    ours = topic.put(RANGE, numbered(RANGE, "abc"))
    (kept,) = (folder(topic) / "_schemas").iterdir()
    assert decodings.keep(topic.name, json.loads(kept.read_text())) == ours.columns
    shutil.move(folder(topic), folder(topic).with_name("away"))
    assert ours.decoded is not None
    shutil.copytree(folder(topic).with_name("away"), folder(topic), ignore=shutil.ignore_patterns("_delta_log", "_schemas"))
    assert not kept.exists(), "the fault"
    assert decodings.commit([ours], decodings.read_ranges(topic.name), EPOCH_MS)
    assert kept.exists() and decodings.find_lacking_texts(decodings.read_ranges(topic.name)) == []


def test_a_log_that_says_nonsense_of_a_range_is_one_clear_error(topic: DecodedTopic) -> None:
    topic.put(RANGE, numbered(RANGE, "abc"))
    (commit,) = (folder(topic) / "_delta_log").glob("*.json")
    commit.write_text(commit.read_text().replace('\\"format\\":1', '\\"format\\":9'))
    with pytest.raises(BrokenManifest, match=r"expected format 1.*move the table's folder away"):
        Decodings(topic.lake).read(topic.name)
