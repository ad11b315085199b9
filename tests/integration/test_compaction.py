"""A log that Kafka has really compacted: what is gone is a hole with its cause, and what was landed stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.spark.spark import Spark
from pipeline_defs.core.landing.scans import Scan
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.holes import Cause
from pipeline_defs.core.offsets import parse_key
from pipeline_defs.landing.auditing import check_completeness, check_published, check_replay
from pipeline_defs.orchestration.runs.ledger import accept_loss
from tests.support.killing import stopped_at
from tests.support.redecoding import stop_at
from tests.support.world import Row, World

HOUR_MS = 3600 * 1000
SEGMENT_MS = HOUR_MS * 2 // 3
KEYS = 10


def create(world: World, cleanup: str) -> None:
    """Creates a topic whose segments roll by the time stamps of their records."""
    world.create_topic(
        1, cleanup_policy=cleanup, segment_ms=str(SEGMENT_MS), min_cleanable_dirty_ratio="0.001", min_compaction_lag_ms="0"
    )


def keyed(world: World, count: int, *, tombstones: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Are records over few keys, so that compaction leaves one of each, stamped hours ago."""
    then = world.edges.now_ms() - 4 * HOUR_MS
    return [
        {
            "partition": 0,
            "key": b"k%d" % (n % KEYS),
            "value": None if n in set(tombstones) else b"v%d" % n,
            "timestamp_ms": then,
        }
        for n in range(count)
    ]


def close_segment(world: World) -> None:
    """Begins a new segment, by a record from the future: Kafka compacts none but closed ones.

    Later than a segment's length after now, which is when markers of transactions are stamped; earlier than in an hour,
    which brokers refuse.
    """
    then = world.edges.now_ms() + SEGMENT_MS + HOUR_MS // 6
    world.send([{"partition": 0, "key": b"closing", "value": b"", "timestamp_ms": then}])


def latest(world: World) -> list[Row]:
    """Is the ground truth of a compacted log: of all that was acknowledged, the last record of each key."""
    by_key = {row[2]: row for _, row in sorted(world.sent.items())}
    return sorted(by_key.values(), key=lambda row: row[:2])


def consume(world: World) -> list[int]:
    """Reads the offsets that a plain consumer still gets."""
    return world.operations.read_offsets(world.name, 0)


def wait_for_compaction(world: World) -> None:
    """Waits until the cleaner has left one record per key: the fault has then happened."""
    world.wait_until(lambda: consume(world) == [row[1] for row in latest(world)])


def test_a_compacted_log_lands_with_every_hole_explained(world: World) -> None:
    """[R-28] [R-29] Ranges wholly and partly compacted, with tombstones: rows are what is left, the equation is exact."""
    create(world, "compact")
    world.send(keyed(world, 300, tombstones=[295]))
    close_segment(world)
    world.plan()
    wait_for_compaction(world)
    assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
    assert world.rows() == latest(world)
    assert next(row for row in world.rows() if row[1] == 295)[3] is None, "a tombstone is a row"
    manifests = {offsets.key: manifest for offsets, manifest in world.coverage.manifests.items()}
    assert [(key, m.rows, m.file is None) for key, m in sorted(manifests.items())] == [
        ("0-0-100", 0, True),
        ("0-100-200", 0, True),
        ("0-200-300", KEYS, False),
        ("0-300-301", 1, False),
    ]
    assert {hole.cause for m in manifests.values() for hole in m.holes} == {Cause.COMPACTED}
    found = check_completeness(world.name, world.edges.lake)
    assert (found.passed, found.facts["rows"], found.facts["holes"]) == (True, KEYS + 1, 290)
    again = world.land(list(manifests), redo=True)
    assert {verdict.outcome for verdict in again} == {Outcome.UNCHANGED}


def test_a_reader_that_returns_less_than_a_compacted_log_has_lands_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-28] [R-52] P6: what the log has now was there when the range was read; only what it has no more may be compacted.

    Spark raises at a stall that lasts; were it to take one for the end, the last rows would be missing.
    """
    create(world, "compact")
    world.send(keyed(world, 30))
    world.send(keyed(world, 30))
    world.plan()
    stage = Spark.stage
    for keep in (slice(0), slice(1, None), slice(None, -1), slice(None, None, 2)):

        def forget(spark: Spark, scan: Scan, isolation_level: str, folder: str, keep: slice = keep) -> None:
            stage(spark, scan, isolation_level, folder)
            for path in Path(folder).glob("*.parquet"):
                rows = pq.read_table(path)
                path.unlink()
                if kept := rows.to_pylist()[keep]:
                    pq.write_table(pa.Table.from_pylist(kept, rows.schema), path)

        monkeypatch.setattr(Spark, "stage", forget)
        (verdict,) = world.land()
        assert verdict.outcome is Outcome.FAILED, keep
        assert "and the broker's log does not explain it" in verdict.violations[0], keep
        assert world.rows() == [], keep
    monkeypatch.undo()
    assert {v.outcome for v in world.land()} == {Outcome.LANDED}, "the control: the same range, read whole"
    world.assert_all_landed_once()


def land_and_compact(world: World) -> None:
    """Lands a hundred records of ten keys, and has Kafka compact them afterwards."""
    create(world, "delete")
    world.send(keyed(world, 100))
    close_segment(world)
    world.tick()
    world.launch()
    world.assert_all_landed_once()
    world.alter_topic(cleanup_policy="compact")
    wait_for_compaction(world)


def test_what_was_landed_before_compaction_stays_until_it_is_replaced_in_one_step(world: World) -> None:
    """A redo keeps the landed file, and names the difference; who asks for it has it replaced.

    Killed between the new manifest and the exchange, a glob shows the old rows; the next run the new ones. [R-44] [R-48]
    """
    land_and_compact(world)
    before = world.rows()
    (kept,) = world.land(["0-0-100"], redo=True)
    assert kept.outcome is Outcome.CHANGED
    assert "90 offsets gone (first [0, 1, 2])" in kept.violations[0]
    replayed = check_replay(world.name, world.tools(), sample=None, seed="0")
    assert not replayed.passed and "90 offsets gone" in replayed.violations[0]
    world.assert_all_landed_once()
    with stopped_at(world, "replace", "commit"):
        manifest = world.coverage.manifests[parse_key("0-0-100")]
        assert (manifest.revision, manifest.rows) == (1, 10)
        assert world.rows() == before, "decided, and not yet exchanged"
    assert world.pending == [manifest.offsets], "what is decided and not shown is not landed"
    world.tick()
    world.launch()
    assert world.rows() == latest(world)[:-1] + before[100:], "the closing record is of a range that did not change"
    assert check_published(world.name, world.edges.lake).passed
    assert {v.outcome for v in world.land(["0-0-100"], redo=True)} == {Outcome.UNCHANGED}
    assert world.coverage.manifests[manifest.offsets] == manifest


def test_a_stale_replace_never_takes_the_place_of_a_later_one(world: World) -> None:
    """[R-48] A has committed its revision and stands still, B replaces it by what is there later, A goes on."""
    land_and_compact(world)
    with stopped_at(world, "replace", "commit") as stale:
        world.alter_topic(segment_ms="1000")
        world.send(keyed(world, KEYS))
        close_segment(world)
        world.wait_until(lambda: min(consume(world)) >= 100)
        finished = world.land(["0-0-100"], redo=True, on_change="replace")
        assert {v.outcome for v in finished} == {Outcome.ROLLED_FORWARD}, "what A decided is finished first"
        (verdict,) = world.land(["0-0-100"], redo=True, on_change="replace")
        assert verdict.outcome is Outcome.REPLACED
        assert verdict.manifest is not None and (verdict.manifest.revision, verdict.manifest.rows) == (2, 0)
        later = world.rows()
        stale.resume()
    assert world.rows() == later
    assert world.coverage.is_landed(verdict.offsets)
    assert check_published(world.name, world.edges.lake).passed


def test_a_stale_attempt_does_not_bring_back_what_a_replace_took_away(world: World) -> None:
    """A has committed and stands still, B finishes it, all of it is compacted away and replaced by nothing, A goes on.

    [R-60]
    """
    create(world, "compact")
    world.send(keyed(world, KEYS))
    world.tick()
    with stopped_at(world, "land", "commit") as stale:
        (offsets,) = world.pending
        assert {v.outcome for v in world.land()} == {Outcome.ROLLED_FORWARD}
        assert len(world.rows()) == KEYS
        world.send(keyed(world, KEYS))
        close_segment(world)
        world.wait_until(lambda: min(consume(world)) >= KEYS)
        (verdict,) = world.land([offsets.key], redo=True, on_change="replace")
        assert (verdict.outcome, world.rows()) == (Outcome.REPLACED, [])
        stale.resume()
    assert world.rows() == []
    assert {v.outcome for v in world.land([offsets.key], redo=True)} == {Outcome.UNCHANGED}
    assert check_completeness(world.name, world.edges.lake).passed


def test_transactions_in_a_compacted_log_are_explained(world: World) -> None:
    """[R-28] [R-29] Commits, aborts and markers, then compaction over all of it: rows are right and no hole is left open."""
    create(world, "delete")
    then = world.edges.now_ms() - 4 * HOUR_MS
    producer = world.begin_transaction()
    world.send(keyed(world, 40), producer)
    producer.commit_transaction()
    producer.begin_transaction()
    for n in range(40):
        producer.send(world.name, partition=0, key=b"k%d" % (n % KEYS), value=b"aborted", timestamp_ms=then)
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    world.send(keyed(world, 5), producer)
    producer.commit_transaction()
    producer.close()
    world.wait_until(lambda: world.watermarks(0).end == 40 + 40 + 5 + 3)
    world.plan()
    (landed,) = [verdict.manifest for verdict in world.land()]
    assert landed is not None and landed.rows == 45
    before = Counter(hole.cause for hole in landed.holes)
    assert before == {Cause.ABORTED: 1, Cause.TRANSACTION_MARKER: 3}, "the control: before compaction"
    world.assert_all_landed_once()
    assert check_completeness(world.name, world.edges.lake).passed
    close_segment(world)
    world.alter_topic(cleanup_policy="compact")
    world.lake_afresh()
    world.plan()
    wait_for_compaction(world)
    assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
    assert world.rows() == latest(world)
    assert check_completeness(world.name, world.edges.lake).passed
    assert Cause.COMPACTED in {hole.cause for m in world.coverage.manifests.values() for hole in m.holes}


def test_retention_of_a_compacted_topic_is_a_loss_and_never_a_hole(world: World) -> None:
    """The log's start passes a hole while it is read: nobody can say what took the records, so nothing is landed.

    [R-28] [R-42]
    """
    create(world, "compact,delete")
    world.send(keyed(world, 300))
    close_segment(world)
    world.plan()
    wait_for_compaction(world)
    (whole,) = [v for v in world.land(["0-0-100"]) if v.manifest]
    assert {hole.cause for hole in whole.manifest.holes if whole.manifest} == {Cause.COMPACTED}, "the control"
    (verdict,) = world.land(["0-100-200"], on_step=stop_at("stage", lambda: world.delete_records(0, 150)))
    assert verdict.outcome is Outcome.FAILED
    assert "no row for [100, 150) and the broker's log does not explain it" in verdict.violations[0]
    accept_loss(world.topic, "0-100-200", world.edges, "ada")
    (verdict,) = world.land(["0-100-200"])
    assert verdict.manifest is not None
    assert [(hole.start, hole.end, hole.cause) for hole in verdict.manifest.holes] == [
        (100, 150, Cause.LOST),
        (150, 200, Cause.COMPACTED),
    ]
