"""A topic that is not what it was: recreated, or truncated."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from kafka import KafkaAdminClient

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.testbed.broker import start_broker, stop_broker
from pipeline_defs.core.errors import OtherCluster, TopicRecreated
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.log.losses import CLOSED
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.pulse.rebuilding import rebuild_topic
from pipeline_defs.orchestration.runs.ledger import read_ledger
from pipeline_defs.settings import Settings
from tests.support.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Identity = tuple[int, int, int, bytes | None]
"""generation, partition, offset, value."""


def identities(world: World) -> list[Identity]:
    return duckdb.sql(
        f'SELECT generation, "partition", "offset", "value" FROM read_parquet(\'{world.glob}\') ORDER BY ALL'
    ).fetchall()


def take_sent(world: World, generation: int) -> list[Identity]:
    """Returns the ground truth of a generation and begins the next."""
    rows = sorted((generation, partition, offset, row[3]) for (partition, offset), row in world.sent.items())
    world.sent.clear()
    return rows


@pytest.mark.parametrize("count", [60, 300], ids=["fewer", "more"])
def test_a_recreated_topic_lands_as_a_new_generation_beside_the_old_one(world: World, count: int) -> None:
    """[R-9] No old row is overwritten, no new row is skipped, and what was not landed of the old one is named.

    Before the new one is planned, what waits of the old one is red and says why; afterwards nobody asks for it.
    """
    world.fill(150)
    world.plan()
    world.land(["0-0-100"])
    old = [row for row in take_sent(world, 0) if row[2] < 100]
    assert identities(world) == old, "the control: before it is recreated"
    world.recreate_topic()
    world.send({"partition": 0, "value": b"new %d" % n} for n in range(count))
    ((document, _),) = read_statuses([world.topic], world.edges, world.instance)
    assert (document["kind"], document["lag"], document["landed_ranges"]) == ("topic_recreated", None, 1)
    with pytest.raises(TopicRecreated, match=f"offsetlake plan {world.name} --apply"):
        rebuild_topic(world.topic, world.edges, world.instance)
    (waiting,) = world.land(["0-100-150"])
    assert waiting.outcome is Outcome.FAILED
    assert "deleted and created again: Kafka no longer has its records" in waiting.violations[0]
    assert identities(world) == old
    world.plan_and_land()
    assert identities(world) == old + take_sent(world, 1) and not world.pending
    (loss,) = read_ledger(world.topic, world.edges)
    assert (loss.key, loss.offsets.start, loss.offsets.end, loss.cause) == ("0-100-150", 100, 150, CLOSED)
    world.assert_proven()
    assert [v.outcome for v in world.land(["0-0-100"], redo=True)] == [Outcome.EXPIRED]


def test_a_topic_recreated_while_it_is_looked_at_is_one_generation_more_and_no_loss(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-9] Id and watermarks are of one incarnation: else the old id with the new end is a truncation that never was."""
    world.fill(150)
    world.plan_and_land()
    old = take_sent(world, 0)
    list_offsets, recreated = KafkaAdminClient.list_partition_offsets, []

    def recreate_first(admin: KafkaAdminClient, *arguments: Any, **options: Any) -> Any:
        if not recreated:
            recreated.append(world.edges.kafka(world.topic).read_ids(world.name).topic_id)
            world.recreate_topic()
            world.send_numbered(40)
        return list_offsets(admin, *arguments, **options)

    monkeypatch.setattr(KafkaAdminClient, "list_partition_offsets", recreate_first)
    world.plan_and_land()
    assert recreated, "the fault: it was recreated between its id and its watermarks"
    ids = {step.generation: step.topic_id for step in world.coverage.log.steps}
    assert ids == {0: recreated[0], 1: world.edges.kafka(world.topic).read_ids(world.name).topic_id}
    assert len(set(ids.values())) == 2
    assert identities(world) == old + take_sent(world, 1)
    assert read_ledger(world.topic, world.edges) == []
    world.assert_proven()


def test_a_log_truncated_on_disk_lands_again_as_a_new_generation(
    settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    """[R-9] The same topic comes back shorter, as after an unclean leader election: nothing of it is skipped.

    Nor where the log has grown beyond what was planned of it before anybody looks.

    A broker of its own loses the end of two logs while it is down.
    """
    directory = tmp_path / "broker"
    jars = resolve_jars("broker", settings.jars)
    broker = start_broker(directory, jars=jars)
    own = dataclasses.replace(settings, bootstrap_servers=broker.bootstrap_servers)
    try:
        with World(own, tmp_path / "a", "shorter") as shorter, World(own, tmp_path / "b", "longer-again") as longer:
            landed: dict[str, tuple[str | None, list[Identity]]] = {}
            for world in (shorter, longer):
                world.create_topic(1, segment_bytes=str(1 << 20))
                world.send({"partition": 0, "value": bytes(10_000)} for _ in range(300))
                world.plan_and_land()
                landed[world.name] = world.edges.kafka().read_ids(world.name).topic_id, take_sent(world, 0)
                world.edges.kafka().close()
            stop_broker(directory)
            for name in landed:
                last = max((directory / "data" / f"{name}-0").glob("*.log"))
                for file in last.parent.glob(f"{last.stem}.*"):
                    file.unlink()
            broker = start_broker(directory, jars=jars)
            for world, since in ((shorter, 20), (longer, 400)):
                topic_id, old = landed[world.name]
                marks = world.watermarks(0)
                assert 0 < marks.end < 300, "the fault: the log is shorter"
                assert world.edges.kafka().read_ids(world.name).topic_id == topic_id, "the fault: it is the same topic"
                world.send({"partition": 0, "value": b"after %d" % n} for n in range(since))
                assert (world.watermarks(0).end > 300) == (since > 300), world.name
                world.plan_and_land()
                kept = [(1, 0, offset, bytes(10_000)) for offset in range(marks.end)]
                assert identities(world) == old + kept + take_sent(world, 1), world.name
                assert read_ledger(world.topic, world.edges) == []
                world.assert_proven()
    finally:
        stop_broker(directory)


def test_another_clusters_topic_is_refused_until_defs_yaml_names_that_cluster(
    settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    """[R-9] `bootstrap_servers` names the wrong cluster for a while: nothing of its topic lands, and it ends when corrected."""
    directory = tmp_path / "broker"
    other = start_broker(directory, jars=resolve_jars("broker", settings.jars))
    moved = dataclasses.replace(settings, bootstrap_servers=other.bootstrap_servers)
    try:
        with World(settings, tmp_path / "a", "moving") as world, World(moved, tmp_path / "a", "moving") as there:
            for each, records in ((world, 150), (there, 40)):
                each.create_topic(1)
                each.send_numbered(records)
            world.plan()
            world.land(["0-0-100"])
            with (
                there.edges.kafka().glancing([there.name]),
                pytest.raises(OtherCluster, match="`bootstrap_servers`") as glanced,
            ):
                there.plan()
            with pytest.raises(OtherCluster, match="`cluster_id: ") as refused:
                there.plan()
            assert str(glanced.value) == str(refused.value), "the same ids at a glance"
            with pytest.raises(OtherCluster):
                there.land(["0-100-150"])
            world.plan_and_land()
            old = take_sent(world, 0)
            assert identities(world) == old and len(world.coverage.log.steps) == 1
            ((cluster_id,),) = [re.findall("`cluster_id: ([^`]+)`", str(refused.value))]
            there.with_policy(cluster_id=cluster_id)
            there.plan_and_land()
            landed = old + take_sent(there, 1)
            assert identities(world) == landed
            there.assert_proven()
            world.with_policy(cluster_id=world.edges.kafka().observe(world.name, "read_committed").cluster_id)
            for _ in range(2):  # as two projects would in turns
                there.tick()
                with pytest.raises(OtherCluster, match="was moved from the Kafka cluster"):
                    world.tick()
            assert world.coverage.log.generation == 1
            world.plan_and_land()
            assert identities(world) == landed + [(2, *row[1:]) for row in old], "it has moved back: what is left lands again"
    finally:
        stop_broker(directory)
