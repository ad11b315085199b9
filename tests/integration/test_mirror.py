"""The consumer group as Kafka's own tool shows it: a mirror of what is landed, and never more than that."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

from kafka import KafkaConsumer

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.adapters.system.java import find_java
from pipeline_defs.core.landing.verdicts import Outcome
from tests.support.killing import QUICK_JVM
from tests.support.world import PATIENCE_SECONDS, World


def kafka_consumer_groups(world: World, *arguments: str) -> str:
    """Runs what `kafka-consumer-groups.sh` runs, out of the broker's jars, on the topic's group; returns what it prints."""
    jars = os.pathsep.join(map(str, resolve_jars("broker", world.settings.jars)))
    tool = [find_java(), QUICK_JVM, "-cp", jars, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
    command = [*tool, "--bootstrap-server", str(world.settings.bootstrap_servers), "--group", world.topic.group]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lag_by_tool(world: World) -> dict[int, tuple[str, str, str]]:
    """Is what the tool shows per Kafka partition: CURRENT-OFFSET, LOG-END-OFFSET, LAG."""
    header, *lines = [line.split() for line in kafka_consumer_groups(world, "--describe").splitlines() if line.strip()]
    rows = [dict(zip(header, line, strict=False)) for line in lines]
    assert all(row["TOPIC"] == world.name for row in rows)
    return {int(row["PARTITION"]): (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in rows}


def fill(world: World) -> None:
    world.fill(150, 20)
    world.plan()


def land(world: World, *keys: str) -> list[str]:
    """Land, and every range; return each reason why the group was not moved."""
    reasons = []

    def watch(step: str, **fields: object) -> None:
        if step == "mirror_failed":
            reasons.append(str(fields["reason"]))

    world.edges.watch_step = watch
    assert {verdict.outcome for verdict in world.land(keys or None)} == {Outcome.LANDED}
    return reasons


def group(world: World) -> dict[int, int]:
    return world.edges.kafka(world.topic).read_group(world.name, world.topic.group)


@contextmanager
def consuming(world: World) -> Iterator[None]:
    """Have somebody consume the topic with its group while the context is open."""
    with closing(
        KafkaConsumer(
            world.name,
            bootstrap_servers=world.settings.bootstrap_servers,
            group_id=world.topic.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
    ) as member:
        # one poll: kafka-python 3.0.12 forgets the assignment of a rejoin that outlasts the poll it began in, for good
        assert member.poll(timeout_ms=1000 * PATIENCE_SECONDS), "the fault: it is a member, and reads"
        yield


def test_kafkas_own_tool_shows_what_is_landed_as_lag(world: World) -> None:
    """[R-36] [R-59] `kafka-consumer-groups` of the broker's version: offset, end and lag, before and after all is landed.

    The group is named as its topic says, so that two lakes over one cluster do not take turns at one.
    """
    world.topic = dataclasses.replace(world.topic, group_name="my-lake.{topic}")
    fill(world)
    land(world, "0-0-100")
    assert lag_by_tool(world) == {0: ("100", "150", "50"), 1: ("0", "20", "20")}
    land(world)
    assert lag_by_tool(world) == {0: ("150", "150", "0"), 1: ("20", "20", "0")}
    kafka = world.edges.kafka(world.topic)
    assert kafka.read_group(world.name, f"my-lake.{world.name}") == {0: 150, 1: 20}
    assert kafka.read_group(world.name, f"offsetlake.{world.name}") == {}, "the control"


def test_moving_or_deleting_the_group_changes_nothing_that_is_landed(world: World) -> None:
    """[R-59] By Kafka's own tool: the lake stays as it is, the next tick asks for no more, the next run puts it right."""
    move = ("--reset-offsets", "--to-offset", "7", "--topic", world.name, "--execute")
    fill(world)
    land(world)
    world.tick()
    for harm, harmed, more in ((move, {0: 7, 1: 7}, "1-20-30"), (("--delete",), {}, "1-30-40")):
        before = world.files()
        kafka_consumer_groups(world, *harm)
        assert group(world) == harmed, "the fault"
        tick = world.tick()
        assert (tick.due, tick.planned, tick.pending) == ((), 0, 0), harm
        world.assert_all_landed_once()
        assert world.files() == before, harm
        world.send_numbered(10, 1)
        world.plan()
        assert [offsets.key for offsets in world.pending] == [more]
        land(world)
        assert group(world) == {0: 150, 1: int(more.rpartition("-")[2])}


def test_a_group_that_somebody_consumes_with_does_not_make_the_run_red_and_is_repaired_by_the_tick(world: World) -> None:
    """[R-59] Kafka refuses to move a group with members: the run has landed and says so; no other run is needed.

    `status` says by how much lag tools are wrong, the tick why.
    """
    fill(world)
    with consuming(world):
        (reason,) = land(world)
        assert f"does not move consumer group {world.topic.group} on {world.name}/0 to 150: UnknownMemberIdError" in reason
        assert group(world).get(0) != 150, "the fault: it was not moved"
        world.assert_all_landed_once()
        assert world.status()["group_off"] == 170
        assert any("does not move consumer group" in each for each in world.tick().stalled)
        assert world.status()["group_off"] == 170
    assert world.tick().stalled == ()
    assert group(world) == {0: 150, 1: 20}
    assert world.status()["group_off"] == 0
    world.send_numbered(10, 1)
    world.plan()
    assert land(world) == [], "the control: nobody consumes with it any more"
    assert group(world) == {0: 150, 1: 30}
