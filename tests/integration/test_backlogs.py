"""A backlog of ranges that no grid has: cut by hand or by age, with nothing in some of them, read by few Spark jobs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from pipeline_defs.adapters.spark import spark as spark_edge
from pipeline_defs.core.landing.scans import READS_AT_ONCE
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.landing import land_topics
from pipeline_defs.settings import Settings
from tests.support.world import World

PARTITIONS, ROUNDS = 3, 8


def abort_some(world: World) -> None:
    """Has the log hold records that nobody may see, and the marker that says so."""
    ends = {p: world.watermarks(p).end for p in range(PARTITIONS)}
    producer = world.begin_transaction()
    for partition in range(PARTITIONS):
        producer.send(world.name, partition=partition, value=b"aborted")
    producer.flush()
    producer.abort_transaction()
    producer.close()
    world.wait_until(lambda: all(world.watermarks(p).end == end + 2 for p, end in ends.items()))


def plan_irregularly(world: World) -> list[OffsetRange]:
    """Cuts ranges of all lengths, a planning after each few records; some have aborted records only."""
    world.create_topic(PARTITIONS)
    for number in range(ROUNDS):
        if number == ROUNDS // 2:
            abort_some(world)
        else:
            for partition in range(PARTITIONS):
                world.send_numbered(3 + number * 5 % 7 + partition, partition)
        world.plan()
    return list(world.coverage.log.ranges)


def test_a_backlog_of_irregular_ranges_lands_in_few_jobs_and_the_same_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-12] L5: a union of reads is one scan, with a task and a file for each range, as if each were read alone.

    Its reads share consumers, and no job has those of another, which may hold what was polled before a topic was recreated.
    """
    honest, groups = spark_edge.kafka_options, []

    def watched(*given: Any, group: str) -> dict[str, str]:
        groups.append(group)
        return honest(*given, group=group)

    monkeypatch.setattr(spark_edge, "kafka_options", watched)
    ranges = plan_irregularly(world)
    assert len(ranges) == PARTITIONS * ROUNDS
    assert len({len(offsets) for offsets in ranges}) > ROUNDS // 2, "the fault: there is no grid in them"
    scans: list[int] = []

    def count(step: str, **fields: Any) -> None:
        if step == "scan":
            scans.append(fields["ranges"])

    assert {verdict.outcome for verdict in world.land(on_step=count)} == {Outcome.LANDED}
    world.assert_all_landed_once()
    empty = [offsets for offsets, manifest in world.coverage.manifests.items() if manifest.file is None]
    assert len(empty) == PARTITIONS, "the control: aborted records are a range without a file"
    assert len(scans) <= -(-len(ranges) // READS_AT_ONCE) and sum(scans) == len(ranges)
    assert len(groups) > len(scans) == len(set(groups))
    for number, offsets in enumerate(ranges[::7], 1):
        (alone,) = world.land([offsets.key], redo=True)
        assert len(set(groups)) == len(scans) + number
        assert (alone.outcome, alone.violations) == (Outcome.UNCHANGED, ()), "a note would say: equal rows, other bytes"


def test_what_is_pending_of_several_topics_is_one_job_and_the_same_bytes(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    """[R-12] One read names all topics; each range is a file of its own, as if it were read alone."""
    with World(settings, tmp_path, f"{world.name}b") as other:
        worlds, scans = {world.name: world, other.name: other}, []

        def count(step: str, **fields: Any) -> None:
            if step == "scan":
                scans.append(fields["topic"])

        for each, counts in ((world, (250, 70)), (other, (130,))):
            each.create_topic(len(counts))
            for partition, records in enumerate(counts):
                each.send_numbered(records, partition)
            each.plan()
        keys = {topic: [offsets.key for offsets in each.pending] for topic, each in worlds.items()}
        attempt = Attempt(f"test-{uuid.uuid4().hex[:8]}", "no-run", "test")
        verdicts = [*land_topics(keys, attempt, {topic: each.tools(count) for topic, each in worlds.items()})]
        assert [verdict.outcome for _, verdict in verdicts] == [Outcome.LANDED] * 6
        assert scans == [f"{world.name},{other.name}"]
        for each in worlds.values():
            each.assert_all_landed_once()
            again = each.land(keys[each.name], redo=True)
            assert {(verdict.outcome, verdict.violations) for verdict in again} == {(Outcome.UNCHANGED, ())}


def test_one_irregular_range_that_is_gone_leaves_the_others_of_its_scan_landed(world: World) -> None:
    """[R-15] Records vanish between the broker's word and the read: the scan fails, and the halves find whose they were."""
    ranges = plan_irregularly(world)
    gone = next(offsets for offsets in ranges if offsets.partition == 0 and offsets.start)
    scans: list[object] = []

    def vanish(step: str, **fields: object) -> None:
        if step == "scan":
            scans.append(fields)
            if len(scans) == 1:
                world.delete_records(0, gone.start + 1)

    verdicts = world.land(on_step=vanish)
    assert len(scans) > 1, "the fault: the first scan did fail"
    failures = {verdict.offsets: verdict.violations[0] for verdict in verdicts if verdict.outcome is Outcome.FAILED}
    failed = failures.keys()
    assert failed == {offsets for offsets in ranges if offsets.partition == 0 and offsets.start <= gone.start}
    assert f"1 offsets [{gone.start}, {gone.start + 1}) are gone" in failures[gone]
    assert {verdict.offsets for verdict in verdicts if verdict.outcome is Outcome.LANDED} == set(ranges) - failed
    assert {row[:2] for row in world.rows()} == {place for place in world.sent if place[0] or place[1] >= gone.end}
