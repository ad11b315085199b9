"""Same rows, same bytes, whatever process wrote them: two JVMs stage the same range, and the files are compared."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from pipeline_defs.edges.footer import canonicalize
from tests.support.footers import list_encodings_falling
from tests.support.killing import stopped_at
from tests.support.world import World


def test_two_jvms_write_the_same_bytes(world: World) -> None:
    """[R-19] AC10, AC28: a redo in another process gives the digest of the first, byte for byte."""
    world.create_topic(2, message_timestamp_after_max_ms=str(2**63 - 1))
    for partition in (0, 1):
        world.send(
            {"partition": partition, "key": b"k%d" % n, "value": b"v" * n, "headers": [("h", b"1")] if n % 3 else []}
            for n in range(100)
        )
    world.tick()
    with stopped_at(world, "land", "report", own_jvm=True):
        theirs = {offsets: manifest.digest for offsets, manifest in world.coverage.manifests.items()}
    ours = world.land([offsets.key for offsets in theirs], redo=True)
    assert [verdict.violations for verdict in ours] == [(), ()], "a note would say: equal rows, other bytes"
    assert len(set(theirs.values())) == 2


def test_canonical_footers_change_no_meaning(world: World, tmp_path: Path) -> None:
    """[R-19] Sorting the encodings keeps length, rows, schema and statistics; a second time nothing changes."""
    world.create_topic()
    world.send_numbered(100)
    world.plan_and_land()
    (landed,) = (world.lake_folder / "data").rglob("*.parquet")
    shuffled = tmp_path / "shuffled.parquet"
    content = landed.read_bytes()
    first = pq.read_metadata(landed).row_group(0).column(0).encodings
    assert len(first) > 1
    shuffled.write_bytes(content)
    canonicalize(shuffled)
    assert shuffled.read_bytes() == content, "what is landed is canonical already"
    list_encodings_falling(shuffled)
    assert shuffled.read_bytes() != content
    canonicalize(shuffled)
    assert shuffled.read_bytes() == content
    list_encodings_falling(shuffled)
    table = pq.read_table(shuffled)
    assert table.equals(pq.read_table(landed))
    for number in range(pq.read_metadata(landed).num_columns):
        ours, theirs = (pq.read_metadata(path).row_group(0).column(number).to_dict() for path in (shuffled, landed))
        assert set(ours.pop("encodings")) == set(theirs.pop("encodings"))
        assert ours == theirs
