"""Documents and files of decoded ranges: which can be seen, who may exchange them, and what a sweep leaves to them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.edges.decodings import Decodings, decoded_path
from pipeline_defs.edges.lake import Lake
from pipeline_defs.sweeping import SWEEP_AFTER_SECONDS, sweep_orphans
from tests.support.decoded import DecodedTopic, numbered

RANGE = OffsetRange(0, 0, 0, 10)
FAR_MS = 1 << 43  # later than anything that is written now


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    return DecodedTopic(Lake(str(tmp_path / "lake")), "orders", pa.string())


def shown(topic: DecodedTopic) -> list[int]:
    path = Path(topic.lake.store.url(decoded_path(topic.name, RANGE)))
    return [value["n"] for value in pa.parquet.read_table(path)["value"].to_pylist()]


def test_a_revision_that_is_not_exchanged_yet_cannot_be_seen_though_its_file_has_as_many_bytes(
    topic: DecodedTopic,
) -> None:
    """[R-69] The bytes of a file do not say which revision it is of; that nothing of it is staged any more does."""
    first = topic.put(RANGE, numbered(RANGE, "a"))
    second = topic.put(RANGE, numbered(RANGE, "a", n=50), revision=1, publish=False)
    assert first.decoded is not None and second.decoded is not None
    assert first.decoded.bytes == second.decoded.bytes and first.digest != second.digest, "the fault"
    decodings = Decodings(topic.lake)
    assert (decodings.read_ranges(topic.name).published, shown(topic)) == (set(), [0])
    assert decodings.publish(second)
    assert (decodings.read_ranges(topic.name).published, shown(topic)) == ({RANGE}, [50])


def test_who_comes_late_with_a_revision_does_not_take_a_later_one_away(topic: DecodedTopic) -> None:
    """[R-69] A process that stood still between its document and its file finds the next revision, and leaves it."""
    topic.put(RANGE, numbered(RANGE, "abc"))
    stale = topic.put(RANGE, numbered(RANGE, "abc", n=50), revision=1, publish=False)
    topic.put(RANGE, numbered(RANGE, "abc", n=90), revision=2)
    assert stale.decoded is not None and topic.lake.store.exists(stale.decoded.path), "the fault: its file is there"
    Decodings(topic.lake).publish(stale)
    assert shown(topic) == [90, 91, 92]


def test_a_sweep_leaves_what_a_document_still_needs(topic: DecodedTopic) -> None:
    """[R-58] However old it is; once it is published nothing needs it."""
    waiting = topic.put(RANGE, numbered(RANGE, "abc"), publish=False)
    orphan = topic.lake.store.local_root
    assert orphan is not None and waiting.decoded is not None
    (orphan / "staging" / "dead").mkdir()
    (orphan / "staging" / "dead" / "part.parquet").write_bytes(bytes(10))
    assert [each.name for each in sweep_orphans(topic.lake, FAR_MS, SWEEP_AFTER_SECONDS)] == ["dead"]
    assert Decodings(topic.lake).publish(waiting)
    assert shown(topic) == [0, 1, 2]
    sweep_orphans(topic.lake, FAR_MS, SWEEP_AFTER_SECONDS)
    assert not topic.lake.store.list("staging")
