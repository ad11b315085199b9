"""A lake on an object store: the same protocol over S3's own put-if-absent, against a real S3-compatible server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.store.store import Answer
from pipeline_defs.adapters.store.stores import open_store
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.adapters.testbed.broker import Broker
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.lab.drills.arena import Arena
from pipeline_defs.lab.drills.report import open_arena
from pipeline_defs.lab.drills.systems import visible_values
from pipeline_defs.lab.waiting import NotMeasured
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.landing.sweeping import SWEEP_AFTER_SECONDS, sweep_orphans
from pipeline_defs.settings import Settings
from tests.support.buckets import assert_all_is_there_once
from tests.support.redecoding import stop_at
from tests.support.world import World


@pytest.mark.usefixtures("bucket")
def test_a_put_and_an_exchange_hold_only_for_what_was_there() -> None:
    """[R-48] Of two who exchange one object, the one that was asked whether it is due before the other's is told so.

    [R-40] Of two who put one, too; putting the same again is no conflict.
    """
    store = open_store("s3://lake/exchange")
    puts = [store.put_new("final", content, "") for content in (b"first", b"second", b"first")]
    assert puts == [Answer.COMMITTED, Answer.CONFLICT, Answer.COMMITTED] and store.get("final") == b"first"
    store.put_new("staged", b"second", "")
    store.put_new("other", b"third", "")

    def overtaken() -> bool:
        is_first = store.exists("other")
        if is_first:
            store.exchange("other", "final", guard="", is_due=lambda: True)
        return is_first  # asked again, there is a later revision

    store.exchange("staged", "final", guard="", is_due=overtaken)
    assert store.get("final") == b"third"
    assert (store.exists("other"), store.exists("staged")) == (False, True)
    store.exchange("staged", "final", guard="", is_due=lambda: False)
    assert store.get("final") == b"third"


@pytest.mark.usefixtures("bucket")
def test_a_topic_lands_in_a_bucket(world: World) -> None:
    """[R-40] Planned, landed, redone, overtaken, audited, queried and compacted, with nothing left in staging.

    [R-58] Orphans are swept by the bucket's own times.
    """
    world.fill(250, 60)
    world.move_lake(f"s3://lake/{world.name}")
    world.plan()
    overtake = stop_at("verify", world.land)  # another attempt lands everything while this one is before its first commit
    outcomes = [verdict.outcome for verdict in world.land(on_step=overtake)]
    assert set(outcomes) <= {Outcome.SUPERSEDED, Outcome.LANDED}
    assert Outcome.SUPERSEDED in outcomes
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    assert {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    assert_all_is_there_once(world)
    assert not world.edges.lake.store.list("staging")

    (verdict,) = world.compact()
    assert (verdict.outcome, verdict.group.offsets.key) == (CompactionOutcome.COMPACTED, "0-0-250")
    assert_all_is_there_once(world)
    ((compacted,),) = Duck(world.edges.lake, [world.name]).query(
        "SELECT count(*) FROM ranges WHERE compacted_file LIKE 's3://%'"
    )[1]
    assert compacted == 3 and {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    assert check_table(world.name, world.edges.lake).violations == ()
    store = world.edges.lake.store
    assert not store.list("staging")

    for path in ("staging/dead/part.parquet", "staging/plan-dead"):
        store.put_new(path, b"x", "unused")
    now_ms = world.edges.now_ms()
    assert sweep_orphans(world.edges.lake, now_ms) == [], "the control: all of it is new"
    swept = sweep_orphans(world.edges.lake, now_ms + int((SWEEP_AFTER_SECONDS + 60) * 1000))
    assert [orphan.name for orphan in swept] == ["dead", "plan-dead"] and not store.list("staging")


# ---- what a drill leaves in a bucket: nothing of its own lake, and all that is beside it


def test_a_drill_deletes_its_lake_in_a_bucket_and_nothing_beside_it(
    bucket: str, broker: Broker, settings: Settings, tmp_path: Path
) -> None:
    own = dataclasses.replace(settings, lake=f"{bucket}/drills/one")
    with open_arena(own, broker, tmp_path / "d1", Delivery.EFFECTIVELY_ONCE, {}) as arena:
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
    with (
        pytest.raises(NotMeasured, match="the first") as told,
        open_arena(settings, broker, tmp_path / "d1", Delivery.EFFECTIVELY_ONCE, {}),
    ):
        raise NotMeasured("the first")
    assert any("was not deleted either: cannot delete it" in note for note in told.value.__notes__)
    with pytest.raises(LakeUnavailable), open_arena(settings, broker, tmp_path / "d2", Delivery.EFFECTIVELY_ONCE, {}):
        pass
    assert not list(tmp_path.glob("d*"))
