"""What the broker deletes before it is landed: named exactly, never passed over, never undone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.errors import BadKey, Refused
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.losses import BEFORE_LANDED, BEFORE_PLANNED
from pipeline_defs.landing.auditing import check_completeness, check_tiling
from pipeline_defs.orchestration.runs.ledger import accept_loss, check_nothing_lost, read_ledger
from tests.support.world import World

TWO_DAYS_MS = 2 * 24 * 3600 * 1000


def by_key(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.offsets.key: verdict for verdict in verdicts}


def test_retention_of_planned_ranges_fails_them_by_name_until_somebody_accepts_it(world: World) -> None:
    """[0, 150) expires before it is read: those ranges fail and say so, nothing is reset, the others land.

    After a person's word the rest is landed, and the equation holds with the lost offsets in it. [R-15] [R-41] [R-42]
    """
    world.create_topic(2, segment_ms="3600000")
    old = world.edges.now_ms() - TWO_DAYS_MS
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
    waiting = read_ledger(world.topic, world.edges)
    assert [(loss.key, loss.cause, loss.recorded_at_ms) for loss in waiting] == [
        ("0-0-100", BEFORE_LANDED, None),
        ("0-100-200", BEFORE_LANDED, None),
    ]
    result = check_nothing_lost(world.topic, waiting)
    assert (result.passed, result.is_warning) == (False, False)

    for key in ("0-0-100", "0-100-200"):
        accept_loss(world.topic, key, world.edges, "ada")
    verdicts = by_key(world.land())
    assert {v.outcome for v in verdicts.values()} == {Outcome.LANDED}
    assert world.rows() == sorted(row for row in world.sent.values() if row[0] == 1 or row[1] >= 150)
    assert not world.pending
    manifests = {offsets.key: manifest for offsets, manifest in world.coverage.manifests.items()}
    assert manifests["0-0-100"].holes == (Interval(0, 100, Cause.LOST),)
    assert (manifests["0-0-100"].file, manifests["0-0-100"].rows) == (None, 0)
    assert manifests["0-100-200"].holes == (Interval(100, 150, Cause.LOST),)
    assert manifests["0-100-200"].rows == 50
    completeness = check_completeness(world.name, world.edges.lake)
    assert (completeness.passed, completeness.facts["lost"], completeness.facts["holes"]) == (True, 150, 0)
    assert check_tiling(world.name, world.edges.lake).passed
    result = check_nothing_lost(world.topic, read_ledger(world.topic, world.edges))
    assert (result.passed, result.is_warning) == (False, True)
    _, rows = Duck(world.edges.lake, [world.name]).query('SELECT key, start, "end", accepted_by FROM losses ORDER BY start')
    assert rows == [("0-0-100", 0, 100, "ada"), ("0-100-200", 100, 150, "ada")]
    again = world.land(["0-100-200"], redo=True)
    assert [v.outcome for v in again] == [Outcome.EXPIRED]


def test_what_expires_while_it_is_read_is_lost_exactly(world: World) -> None:
    """[R-42] The log's start moves after the broker was asked and before Spark reads: asked again, read again.

    `on_loss` is a person's word given before: what is left is landed by itself, of one range nothing.
    """
    world.fill(200)
    world.plan()
    world.topic = dataclasses.replace(world.topic, on_loss="record")
    world.delete_records(0, 110)
    scans: list[str] = []

    def expire_more(step: str, **_: object) -> None:
        if step == "scan":
            scans.append(step)
            if len(scans) == 1:
                world.delete_records(0, 135)

    verdicts = world.land(on_step=expire_more)
    assert len(scans) == 2, "the fault: the first scan did fail"
    assert [(v.outcome, v.manifest and v.manifest.holes) for v in sorted(verdicts, key=lambda v: v.offsets)] == [
        (Outcome.LANDED, (Interval(0, 100, Cause.LOST),)),
        (Outcome.LANDED, (Interval(100, 135, Cause.LOST),)),
    ]
    assert [row[1] for row in world.rows()] == list(range(135, 200))
    assert [(o.offsets.start, o.offsets.end) for o in read_ledger(world.topic, world.edges)] == [(0, 100), (100, 135)]


def test_what_expires_before_it_is_planned_is_a_lost_link_that_dagster_is_told_of_once(world: World) -> None:
    """[R-41] [50, 150) goes before it was planned: a lost link, with its cause, and planning goes on behind it.

    The ledger is an asset, of which a tick reports each change.
    """

    def told() -> list[Any]:
        records = world.instance.fetch_materializations(world.topic.losses_key, limit=10).records
        return [record.asset_materialization.metadata for record in records if record.asset_materialization]

    world.fill(50, 0)
    world.tick()
    world.land()
    world.tick()
    assert told() == [], "the control: nothing is lost"
    world.send_numbered(250, 0)
    world.send_numbered(100, 1)
    world.delete_records(0, 150)
    world.tick()
    world.tick()
    (metadata,) = told()
    assert metadata["lost_offsets"].value == 100
    assert f"{world.name}/0 [50, 150): 100 offsets {BEFORE_PLANNED}" in metadata["ledger"].value
    world.land()
    assert [row[:2] for row in world.rows() if row[0] == 0] == [(0, n) for n in (*range(50), *range(150, 300))]
    (loss,) = read_ledger(world.topic, world.edges)
    assert (loss.offsets.start, loss.offsets.end, loss.cause) == (50, 150, BEFORE_PLANNED)
    assert not check_nothing_lost(world.topic, [loss]).is_warning
    accept_loss(world.topic, loss.key, world.edges, "ada")
    assert check_nothing_lost(world.topic, read_ledger(world.topic, world.edges)).is_warning
    assert check_tiling(world.name, world.edges.lake).passed


def test_nothing_is_accepted_that_is_not_lost(world: World) -> None:
    """[R-42] The control: nothing was deleted; a word too many is refused and writes nothing."""
    world.fill(150)
    world.plan()
    for key, error in (("0-0-100", Refused), ("0-0-99", BadKey), ("nonsense", BadKey)):
        with pytest.raises(error, match="nothing was"):
            accept_loss(world.topic, key, world.edges, "ada")
    world.land()
    with pytest.raises(Refused, match=r"nothing is lost of .*, which is landed"):
        accept_loss(world.topic, "0-0-100", world.edges, "ada")
    assert not (world.lake_folder / "accepted").exists()
    assert read_ledger(world.topic, world.edges) == []
    assert check_nothing_lost(world.topic, []).passed
    world.assert_all_landed_once()
