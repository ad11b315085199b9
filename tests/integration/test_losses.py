"""What the broker deletes or compacts before it is landed: named exactly, with its cause, never passed over, never undone."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_defs.adapters.spark.spark import Spark
from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.cli.work.losses import LATEST, find_skip
from pipeline_defs.core.errors import BadKey, Refused
from pipeline_defs.core.landing.scans import Scan
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.coverage import State
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.losses import BEFORE_LANDED, BEFORE_PLANNED, find_skips
from pipeline_defs.core.log.plan_step import PlanStep
from pipeline_defs.core.offsets import parse_key
from pipeline_defs.landing.auditing import check_completeness, check_published, check_replay, check_tiling
from pipeline_defs.orchestration.assets.checks import tiling_of
from pipeline_defs.orchestration.map.page import lost_offsets, read_picture
from pipeline_defs.orchestration.runs.ledger import accept_loss, check_nothing_lost, read_ledger
from pipeline_defs.orchestration.runs.moments import time_text
from pipeline_defs.orchestration.runs.tries import read_tries, trying
from pipeline_defs.orchestration.upkeep.pruning import find_retirable
from tests.support.commands import commands_of
from tests.support.killing import stopped_at
from tests.support.pulse import queue_run
from tests.support.redecoding import Heard, stop_at
from tests.support.world import Row, World

HOUR_MS = 3_600_000
TWO_DAYS_MS = 48 * HOUR_MS


def by_key(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.offsets.key: verdict for verdict in verdicts}


def test_retention_of_planned_ranges_fails_them_by_name_until_somebody_accepts_it(world: World) -> None:
    """[R-15] [R-41] [R-42] Nothing is reset, the others land; after a person's word the rest does, and the equation holds."""
    world.create_topic(2, segment_ms="3600000")
    old = world.adapters.now_ms() - TWO_DAYS_MS
    world.send({"partition": 0, "key": b"old", "value": b"%d" % n, "timestamp_ms": old} for n in range(150))
    world.send_numbered(150, 0)  # a new segment: its records are two days younger
    world.send_numbered(100, 1)
    world.plan()
    world.alter_topic(retention_ms=str(TWO_DAYS_MS // 2))
    world.wait_for_earliest(0, 150)
    steps = world.coverage.log.steps
    verdicts = by_key(world.land())
    assert {key for key, v in verdicts.items() if v.outcome is Outcome.FAILED} == {"0-0-100", "0-100-200"}
    assert {key for key, v in verdicts.items() if v.outcome is Outcome.LANDED} == {"0-200-300", "1-0-100"}
    assert "100 offsets [0, 100) are gone, deleted by the broker (retention" in verdicts["0-0-100"].violations[0]
    assert "50 offsets [100, 150) are gone" in verdicts["0-100-200"].violations[0]
    assert f"offsetlake accept-loss {world.name} 0-100-200" in verdicts["0-100-200"].violations[0]
    assert {offsets.key for offsets in world.pending} == {"0-0-100", "0-100-200"}
    assert world.coverage.log.steps == steps, "no boundary moved"
    assert [row[:2] for row in world.rows()] == [(0, n) for n in range(200, 300)] + [(1, n) for n in range(100)]
    assert not world.plan(), "planning goes on from where it was"
    waiting = read_ledger(world.topic, world.adapters)
    assert [loss.key for loss in waiting] == ["0-0-100", "0-100-200"]
    assert {(loss.cause, loss.recorded_at_ms) for loss in waiting} == {(BEFORE_LANDED, None)}
    result = check_nothing_lost(world.topic, waiting)
    assert (result.passed, result.is_warning) == (False, False)

    for key in ("0-0-100", "0-100-200"):
        accept_loss(world.topic, key, world.adapters, "ada")
    verdicts = by_key(world.land())
    assert {v.outcome for v in verdicts.values()} == {Outcome.LANDED}
    assert world.rows() == sorted(row for row in world.sent.values() if row[0] == 1 or row[1] >= 150)
    assert not world.pending
    manifests = {offsets.key: manifest for offsets, manifest in world.coverage.manifests.items()}
    assert manifests["0-0-100"].holes == (Interval(0, 100, Cause.LOST),)
    assert (manifests["0-0-100"].file, manifests["0-0-100"].rows) == (None, 0)
    assert manifests["0-100-200"].holes == (Interval(100, 150, Cause.LOST),)
    assert manifests["0-100-200"].rows == 50
    completeness = check_completeness(world.name, world.adapters.lake)
    assert (completeness.passed, completeness.facts["lost"], completeness.facts["holes"]) == (True, 150, 0)
    assert check_tiling(world.name, world.adapters.lake).passed
    result = check_nothing_lost(world.topic, read_ledger(world.topic, world.adapters))
    assert (result.passed, result.is_warning) == (False, True)
    _, rows = Duck(world.adapters.lake, [world.name]).query('SELECT key, start, "end", accepted_by FROM losses ORDER BY start')
    assert rows == [("0-0-100", 0, 100, "ada"), ("0-100-200", 100, 150, "ada")]
    assert lost_offsets(read_picture(world.topic, world.adapters, world.instance)[0]) == 150, "what the map says"
    assert [v.outcome for v in world.land(["0-100-200"], redo=True)] == [Outcome.EXPIRED]


def test_what_expires_while_it_is_read_is_lost_exactly(world: World) -> None:
    """[R-42] After the broker was asked and before Spark reads; `on_loss` is a person's word given before."""
    world.fill(200)
    world.plan()
    world.topic = dataclasses.replace(world.topic, on_loss="record")
    world.delete_records(0, 110)
    scans = Heard("scan", lambda: world.delete_records(0, 135))
    verdicts = world.land(on_step=scans)
    assert len(scans) == 2, "the fault: the first scan did fail"
    assert [(v.outcome, v.manifest and v.manifest.holes) for v in sorted(verdicts, key=lambda v: v.offsets)] == [
        (Outcome.LANDED, (Interval(0, 100, Cause.LOST),)),
        (Outcome.LANDED, (Interval(100, 135, Cause.LOST),)),
    ]
    assert [row[1] for row in world.rows()] == list(range(135, 200))
    assert [(o.offsets.start, o.offsets.end) for o in read_ledger(world.topic, world.adapters)] == [(0, 100), (100, 135)]
    world.topic = dataclasses.replace(world.topic, on_loss="fail")
    for loss in read_ledger(world.topic, world.adapters):
        accept_loss(world.topic, loss.key, world.adapters, "ada")
    assert check_nothing_lost(world.topic, read_ledger(world.topic, world.adapters)).is_warning, "recorded before, accepted now"


def test_what_expires_before_it_is_planned_is_a_lost_link_that_dagster_is_told_of_once(world: World) -> None:
    """[R-41] With its cause, and planning goes on behind it; the ledger is an asset, of which a tick reports each change."""
    world.fill(50, 0)
    world.tick()
    world.land()
    world.tick()
    assert world.events(world.topic.losses_key) == [], "the control: nothing is lost"
    world.send_numbered(250, 0)
    world.send_numbered(100, 1)
    world.delete_records(0, 150)
    world.tick()
    world.tick()
    (event,) = world.events(world.topic.losses_key)
    assert event.metadata["lost_offsets"].value == 100
    assert f"{world.name}/0 [50, 150): 100 offsets {BEFORE_PLANNED}" in str(event.metadata["ledger"].value)
    world.land()
    assert [row[:2] for row in world.rows() if row[0] == 0] == [(0, n) for n in (*range(50), *range(150, 300))]
    (loss,) = read_ledger(world.topic, world.adapters)
    assert (loss.offsets.start, loss.offsets.end, loss.cause) == (50, 150, BEFORE_PLANNED)
    assert not check_nothing_lost(world.topic, [loss]).is_warning
    accept_loss(world.topic, loss.key, world.adapters, "ada")
    assert check_nothing_lost(world.topic, read_ledger(world.topic, world.adapters)).is_warning
    assert check_tiling(world.name, world.adapters.lake).passed


def test_nothing_is_accepted_that_is_not_lost(world: World) -> None:
    """[R-42] The control: nothing was deleted; a word too many is refused and writes nothing."""
    world.fill(150)
    world.plan()
    for key, error in (("0-0-100", Refused), ("0-0-99", BadKey), ("nonsense", BadKey)):
        with pytest.raises(error, match="nothing was"):
            accept_loss(world.topic, key, world.adapters, "ada")
    world.land()
    with pytest.raises(Refused, match=r"nothing is lost of .*, which is landed"):
        accept_loss(world.topic, "0-0-100", world.adapters, "ada")
    assert not (world.lake_folder / "accepted").exists()
    assert read_ledger(world.topic, world.adapters) == []
    assert check_nothing_lost(world.topic, []).passed
    world.assert_all_landed_once()


@pytest.fixture
def behind(world: World) -> World:
    """Have 350 records, of which the first 150 are planned and not landed; each is an hour younger than the one before."""
    world.create_topic(1)
    began = world.adapters.now_ms() - 400 * HOUR_MS
    world.send({"partition": 0, "key": b"k", "value": b"%d" % n, "timestamp_ms": began + n * HOUR_MS} for n in range(150))
    world.plan()
    world.send({"partition": 0, "key": b"k", "value": b"%d" % n, "timestamp_ms": began + n * HOUR_MS} for n in range(150, 350))
    return world


def skip(world: World, to: str) -> PlanStep | None:
    return world.adapters.planner(world.topic, "cli").commit(skip=find_skip(world.topic, to, "ada", world.adapters))


def rows_from(world: World, first: int) -> list[Row]:
    return sorted(row for (_, offset), row in world.sent.items() if offset >= first)


def test_what_waits_is_left_out_and_what_comes_now_is_landed_at_once(behind: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-92] The command shows first, and says how to land what it has left out, which `losses` names as no loss."""
    name = behind.name
    commands = commands_of("work.losses", behind, monkeypatch)

    def offsetlake(verb: str, *arguments: str) -> str:
        ended = commands(verb, name, *arguments)
        assert ended.exit_code == 0, (ended.exception, ended.output)
        return ended.stdout

    steps = behind.coverage.log.steps
    whole = {"partition": 0, "start": 0, "end": 350, "offsets": 350}
    expected = {"topic": name, "to": "latest", "applied": False, "offsets": 350, "skips": [whole]}
    assert json.loads(offsetlake("skip", "--to", "latest", "--json")) == expected
    assert "would skip 350 offsets" in offsetlake("skip", "--to", "latest")
    assert behind.coverage.log.steps == steps, "nothing is written"
    assert "skipped 350 offsets" in offsetlake("skip", "--to", "latest", "--apply", "--by", "ada")
    assert behind.pending == []
    behind.send_numbered(40)
    behind.plan_and_land()
    assert behind.rows() == rows_from(behind, 350)
    steps = behind.coverage.log.steps
    assert f"nothing of {name} waits before latest" in offsetlake("skip", "--to", "latest", "--apply")
    assert behind.coverage.log.steps == steps
    status = behind.status()
    assert (status["lag"], status["pending_ranges"], status["not_accepted_offsets"]) == (0, 0, 0)
    (left_out,) = find_skips(behind.coverage)
    assert left_out.text(name) == f"{name}/0 [0, 350): 350 offsets left out on purpose, by ada: skip --to latest"
    (told,) = json.loads(offsetlake("losses", "--json"))
    assert (told["kind"], told["offsets"], told["cause"]) == ("skipped", 350, "by ada: skip --to latest")
    assert f"offsetlake backfill {name} --offsets 0:0-350 --apply" in told["state"]
    assert "left out on purpose" in offsetlake("losses")
    behind.assert_proven()
    behind.send_numbered(10)
    behind.plan()
    behind.delete_records(0, 395)
    behind.wait_for_earliest(0, 395)
    said = offsetlake("skip", "--to", "latest", "--apply")
    assert f"nothing of {name} can be skipped: of what waits before latest, 1 range, Kafka has deleted a part" in said


def test_what_was_left_out_is_landed_where_somebody_asks_for_it(behind: World) -> None:
    """[R-92] By its key, while Kafka has it; then it is left out no more. Nothing else asks for it."""
    behind.keep_raw_table()
    assert skip(behind, LATEST) is not None
    behind.tick()
    assert behind.tick().due == () and behind.instance.get_dynamic_partitions(str(behind.topic.partitions.name)) == []
    wanted = sorted(behind.coverage.skipped())[1]
    behind.launch([wanted], redo=True)
    assert behind.coverage.states()[wanted] is State.LANDED
    assert [(s.offsets.start, s.offsets.end) for s in find_skips(behind.coverage)] == [(0, wanted.start), (wanted.end, 350)]
    assert behind.rows() == [row for row in rows_from(behind, wanted.start) if row[1] < wanted.end]
    assert wanted.key in behind.materialized()
    behind.assert_proven()


def test_a_skip_to_a_time_leaves_out_what_is_older(behind: World) -> None:
    """[R-92] A range planned already that goes beyond the time is landed, older records included."""
    assert skip(behind, time_text(next(row for row in rows_from(behind, 180)).timestamp_ms)) is not None
    assert {o.end for o in behind.coverage.skipped()} == {100, 150, 180}
    behind.plan_and_land()
    assert behind.rows() == rows_from(behind, 180)
    behind.assert_proven()


def test_a_range_that_had_failed_goes_from_dagster_once_it_is_skipped(behind: World) -> None:
    """[R-92] Before, the control, its key stays: it is tried again."""
    behind.tick()
    failed = behind.pending[0]
    run = queue_run(behind.instance, behind.topic.landing.job)
    with trying(behind.instance, behind.topic.landing, [failed.key], run.run_id, behind.adapters.now_ms):
        pass
    behind.instance.report_run_canceled(run)
    assert failed in read_tries(behind.instance, behind.topic.landing).tried, "the fault"
    assert find_retirable(behind.topic, behind.coverage, behind.instance) == [], "the control"
    assert skip(behind, LATEST) is not None
    assert failed in find_retirable(behind.topic, behind.coverage, behind.instance)


def test_a_range_that_a_run_is_at_is_landed_whatever_is_skipped_meanwhile(behind: World) -> None:
    """[R-92] It was committed, or is about to be: it is landed, and not left out."""
    skipped: list[PlanStep | None] = []
    with ThreadPoolExecutor(1) as pool:
        behind.land(on_step=stop_at("commit", lambda: skipped.append(pool.submit(skip, behind, LATEST).result())))
    assert skipped and skipped[0] is not None, "the fault: skipped as the run was at it"
    assert [row[:2] for row in behind.rows()] == [(0, offset) for offset in range(150)]
    assert {o.start for o in behind.coverage.skipped()} == {150, 200, 300}
    behind.assert_proven()


def test_what_cannot_be_skipped_is_refused_and_nothing_is_written(behind: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-92] Also a grid of few records over a backlog of millions, which would make a step that nobody can read."""
    steps = behind.coverage.log.steps
    for to in ("tomorrow", "2026-11-25T06:00", "", "0"):
        with pytest.raises(Refused, match="nothing was written"):
            skip(behind, to)
    monkeypatch.setattr("pipeline_defs.core.log.planning.MOST_SKIPPED", 1)
    with pytest.raises(Refused, match="more than 1 ranges of 100 offsets; nothing was written"):
        skip(behind, LATEST)
    assert behind.coverage.log.steps == steps


def test_the_newest_ranges_are_landed_first_where_the_policy_says_so(behind: World) -> None:
    """[R-93] And what waits behind them is no gap; under the other order, the control, it is one."""
    behind.plan_and_land()
    behind.send_numbered(300)
    behind.plan()
    behind.land([behind.pending[-1].key])
    assert not check_tiling(behind.name, behind.adapters.lake).passed, "the control"
    assert not tiling_of(behind.topic, behind.adapters, ()).passed, "the control"
    held = behind.pending
    assert tiling_of(behind.topic, behind.adapters, held).passed, "a run is at them, in an order of its own"
    assert not tiling_of(behind.topic, behind.adapters, held[1:]).passed, "the control"
    behind.with_policy(order="newest_first")
    assert tiling_of(behind.topic, behind.adapters, ()).passed, "also before anything more is planned"


SEGMENT_MS = HOUR_MS * 2 // 3
KEYS = 10


def create(world: World, cleanup: str) -> None:
    """Create a topic whose segments roll by the time stamps of their records."""
    world.create_topic(
        1, cleanup_policy=cleanup, segment_ms=str(SEGMENT_MS), min_cleanable_dirty_ratio="0.001", min_compaction_lag_ms="0"
    )


def keyed(world: World, count: int, *, tombstones: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Records over few keys, so that compaction leaves one of each, stamped hours ago."""
    then, gone = world.adapters.now_ms() - 4 * HOUR_MS, set(tombstones)
    return [
        {"partition": 0, "key": b"k%d" % (n % KEYS), "value": None if n in gone else b"v%d" % n, "timestamp_ms": then}
        for n in range(count)
    ]


def close_segment(world: World) -> None:
    """Begin a new segment, as Kafka compacts closed ones: later than markers are stamped, in the hour that brokers allow."""
    then = world.adapters.now_ms() + SEGMENT_MS + HOUR_MS // 6
    world.send([{"partition": 0, "key": b"closing", "value": b"", "timestamp_ms": then}])


def latest(world: World) -> list[Row]:
    """The ground truth of a compacted log: of all that was acknowledged, the last record of each key."""
    return sorted({row[2]: row for _, row in sorted(world.sent.items())}.values(), key=lambda row: row[:2])


def consume(world: World) -> list[int]:
    """Read the offsets that a plain consumer still gets."""
    return [record.offset for record in world.operations.read_records(world.name, 0)]


def wait_for_compaction(world: World) -> None:
    """Wait until the cleaner has left one record per key: the fault has then happened."""
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
    found = check_completeness(world.name, world.adapters.lake)
    assert (found.passed, found.facts["rows"], found.facts["holes"]) == (True, KEYS + 1, 290)
    assert {verdict.outcome for verdict in world.land(list(manifests), redo=True)} == {Outcome.UNCHANGED}


def test_a_reader_that_gives_less_than_a_compacted_log_has_lands_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """[R-28] [R-52] P6: what the log still has is not called compacted, as where Spark took a stall for the end."""
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
    """Land a hundred records of ten keys, and have Kafka compact them afterwards."""
    create(world, "delete")
    world.send(keyed(world, 100))
    close_segment(world)
    world.tick()
    world.launch()
    world.assert_all_landed_once()
    world.alter_topic(cleanup_policy="compact")
    wait_for_compaction(world)


def test_what_was_landed_before_compaction_stays_until_it_is_replaced_in_one_step(world: World) -> None:
    """[R-44] [R-48] A redo keeps it and names the difference; killed before the exchange, a glob shows the old rows."""
    land_and_compact(world)
    before = world.rows()
    (kept,) = world.land(["0-0-100"], redo=True)
    assert kept.outcome is Outcome.CHANGED
    assert "90 offsets gone (first [0, 1, 2]), 0 offsets new (first []), compacted since it was landed" in kept.violations[0]
    replayed = check_replay(world.name, world.tools(), sample=None, seed="0")
    assert replayed.passed and replayed.facts["compacted_since"] == 1
    world.assert_all_landed_once()
    with stopped_at(world, "replace", "commit"):
        manifest = world.coverage.manifests[parse_key("0-0-100")]
        assert (manifest.revision, manifest.rows) == (1, 10)
        assert world.rows() == before, "decided, and not yet exchanged"
    assert world.pending == [manifest.offsets], "what is decided and not shown is not landed"
    world.tick()
    world.launch()
    assert world.rows() == latest(world)[:-1] + before[100:], "the closing record is of a range that did not change"
    assert check_published(world.name, world.adapters.lake).passed
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
    assert check_published(world.name, world.adapters.lake).passed


def test_a_stale_attempt_does_not_bring_back_what_a_replace_took_away(world: World) -> None:
    """[R-60] A has committed, B finishes it, all of it is compacted away and replaced by nothing, A goes on."""
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
    assert check_completeness(world.name, world.adapters.lake).passed


def test_transactions_in_a_compacted_log_are_explained(world: World) -> None:
    """[R-28] [R-29] Commits, aborts and markers, then compaction over all of it: rows are right and no hole is left open."""
    create(world, "delete")
    then = world.adapters.now_ms() - 4 * HOUR_MS
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
    assert check_completeness(world.name, world.adapters.lake).passed
    close_segment(world)
    world.alter_topic(cleanup_policy="compact")
    world.lake_afresh()
    world.plan()
    wait_for_compaction(world)
    assert {verdict.outcome for verdict in world.land()} == {Outcome.LANDED}
    assert world.rows() == latest(world)
    assert check_completeness(world.name, world.adapters.lake).passed
    assert Cause.COMPACTED in {hole.cause for m in world.coverage.manifests.values() for hole in m.holes}


def test_retention_of_a_compacted_topic_is_a_loss_and_never_a_hole(world: World) -> None:
    """[R-28] [R-42] The log's start passes a hole while it is read: nobody can say what took the records."""
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
    accept_loss(world.topic, "0-100-200", world.adapters, "ada")
    (verdict,) = world.land(["0-100-200"])
    assert verdict.manifest is not None
    assert [(hole.start, hole.end, hole.cause) for hole in verdict.manifest.holes] == [
        (100, 150, Cause.LOST),
        (150, 200, Cause.COMPACTED),
    ]
