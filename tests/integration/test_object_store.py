"""A lake on an object store: the same protocol over S3's own put-if-absent, against a real S3-compatible server."""

from __future__ import annotations

import dataclasses
import uuid

import pyarrow as pa
import pytest

from pipeline_defs.adapters.store.store import Answer
from pipeline_defs.adapters.store.stores import open_store
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import check_published, check_table, check_tiling
from pipeline_defs.landing.sweeping import SWEEP_AFTER_SECONDS, sweep_orphans
from pipeline_defs.tables.compaction import compact
from pipeline_defs.tables.latest import update
from tests.support.decoded import DecodedTopic
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
    overtaken = []

    def overtake(step: str, **fields: object) -> None:
        if step == "verify" and not overtaken:
            overtaken.append(fields)
            world.land()  # another attempt lands everything while this one stands before its first commit

    outcomes = [verdict.outcome for verdict in world.land(on_step=overtake)]
    assert set(outcomes) <= {Outcome.SUPERSEDED, Outcome.LANDED}
    assert Outcome.SUPERSEDED in outcomes
    keys = [offsets.key for offsets in world.coverage.log.ranges]
    assert {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    world.assert_proven()
    _, rows = Duck(world.edges.lake, [world.name]).ask(
        f'SELECT "partition", "offset", "key", "value" FROM "{world.name}" ORDER BY ALL'
    )
    assert rows == sorted(row[:4] for row in world.sent.values())
    assert not world.edges.lake.store.list("staging")

    (verdict,) = compact(world.name, Attempt("compact", "no-run", "test"), world.tools(), 10**6, every=True)
    assert (verdict.outcome, verdict.group.offsets.key) == (CompactionOutcome.COMPACTED, "0-0-250")
    duck = Duck(world.edges.lake, [world.name])
    assert duck.query(f'SELECT "partition", "offset", "key", "value" FROM "{world.name}" ORDER BY ALL')[1] == rows
    ((compacted,),) = duck.query("SELECT count(*) FROM ranges WHERE compacted_file LIKE 's3://%'")[1]
    assert compacted == 3 and {verdict.outcome for verdict in world.land(keys, redo=True)} == {Outcome.UNCHANGED}
    for check in (check_tiling, check_published, check_table):
        assert check(world.name, world.edges.lake).violations == ()
    store = world.edges.lake.store
    assert not store.list("staging")

    for path in ("staging/dead/part.parquet", "staging/plan-dead"):
        store.put_new(path, b"x", "unused")
    now_ms = world.edges.now_ms()
    assert sweep_orphans(world.edges.lake, now_ms) == [], "the control: all of it is new"
    swept = sweep_orphans(world.edges.lake, now_ms + int((SWEEP_AFTER_SECONDS + 60) * 1000))
    assert [orphan.name for orphan in swept] == ["dead", "plan-dead"] and not store.list("staging")


@pytest.mark.usefixtures("bucket")
def test_latest_records_in_a_bucket(world: World) -> None:
    """[R-87] Tombstones, a late range, a redone one; who is overtaken is told so and leaves nothing behind."""
    world.move_lake(f"s3://lake/{world.name}")
    topic = DecodedTopic(world.edges.lake, world.name, pa.string())
    first, second, late = (OffsetRange(0, partition, at, at + 10) for partition, at in ((1, 0), (1, 10), (0, 0)))
    tools = world.edges.latest_tools()
    committed = list[object]()

    def latest(on_step: StepWatcher = no_step) -> dict[str, int]:
        attempt = Attempt(f"update-{uuid.uuid4().hex[:8]}", "no-run", "test")
        update(world.name, Latest(), attempt, dataclasses.replace(tools, on_step=on_step))
        _, rows = Duck(world.edges.lake, [world.name]).query(f'SELECT "key", "value"."n" FROM latest."{world.name}"')
        return dict(rows)

    def overtake(step: str, **fields: object) -> None:
        if step == "read_decoded":
            latest()
        if step == "commit_latest":
            committed.append(fields["committed"])

    topic.put(first, {0: ("a", {"n": 1}), 1: ("b", {"n": 2}), 2: ("c", None)})
    topic.put(second, {10: ("a", {"n": 3})})
    assert latest() == {"a": 3, "b": 2}
    topic.put(late, {0: ("b", {"n": 4}), 1: ("c", {"n": 5}), 2: ("d", {"n": 6})})
    topic.put(second, {11: ("e", {"n": 7})}, 1)
    assert latest(overtake) == {"a": 1, "b": 2, "d": 6, "e": 7}
    assert committed[0] is False, "the fault: another had committed since the table was seen"
    assert not [path for path in world.edges.lake.store.list("staging") if "update-" in path]
