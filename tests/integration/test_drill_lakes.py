"""What a drill leaves in a bucket: nothing of its own lake, and all that is beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.store.stores import open_store
from pipeline_defs.adapters.testbed.broker import Broker
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.lab.drills.arena import Arena, FaultNotProven
from pipeline_defs.lab.drills.report import open_arena
from pipeline_defs.lab.drills.systems import visible_values
from pipeline_defs.settings import Settings

POLICY = Delivery.EFFECTIVELY_ONCE


def test_a_drill_deletes_its_lake_in_a_bucket_and_nothing_beside_it(
    bucket: str, broker: Broker, settings: Settings, tmp_path: Path
) -> None:
    own = dataclasses.replace(settings, lake=f"{bucket}/drills/one")
    with open_arena(own, broker, tmp_path / "d1", POLICY, {}) as arena:
        lake = open_store(arena.settings.lake)
        assert lake.root == f"{bucket}/drills/one/d1/lake"
        for path in ("plan/t/0.json", "data/t/g0/p0/x.parquet"):
            lake.put_new(path, b"x", "unused")
        open_store(own.lake).put_new("d1/lake2/plan/0.json", b"x", "unused")
        open_store(own.lake).put_new("d10/lake/plan/0.json", b"x", "unused")
        assert len(open_store(bucket).list("drills/one")) == 4, "the control"
    assert list(open_store(bucket).list("drills/one")) == ["drills/one/d1/lake2/plan/0.json", "drills/one/d10/lake/plan/0.json"]
    assert not (tmp_path / "d1").exists()


def test_a_drill_reads_what_a_bucket_shows_of_its_topic_alone(bucket: str, tmp_path: Path) -> None:
    store, below = open_store(bucket), f"drills/{tmp_path.name}/lake/data"
    for number, path in enumerate(("t/g0/p0000/0.parquet", "t/g0/p0001/0.parquet", "t2/g0/p0000/0.parquet")):
        pq.write_table(pa.table({"value": [b"%d" % number]}), tmp_path / "file.parquet")
        store.upload(tmp_path / "file.parquet", f"{below}/{path}")
    assert visible_values(f"{bucket}/{below}/t") == [b"0", b"1"]
    assert visible_values(f"{bucket}/{below}/t3") == []


def test_what_fails_at_a_drills_end_does_not_hide_why_it_failed(
    broker: Broker, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: where nothing failed before, it is the error."""

    def fail(arena: Arena) -> None:
        arena.kafka.close()
        raise LakeUnavailable("cannot delete it")

    monkeypatch.setattr(Arena, "close", fail)
    with pytest.raises(FaultNotProven, match="the first") as told, open_arena(settings, broker, tmp_path / "d1", POLICY, {}):
        raise FaultNotProven("the first")
    assert any("was not deleted either: cannot delete it" in note for note in told.value.__notes__)
    with pytest.raises(LakeUnavailable), open_arena(settings, broker, tmp_path / "d2", POLICY, {}):
        pass
    assert not list(tmp_path.glob("d*"))
