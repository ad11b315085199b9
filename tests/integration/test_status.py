"""Where a topic stands at a glance, on a real broker: lag in offsets, bytes and seconds, failures, and what to do next."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from pipeline_defs.adapters.system.locks import share
from pipeline_defs.core.advice import NOTHING
from pipeline_defs.core.log.planning import plan
from pipeline_defs.operate.status import find_instance, read_statuses
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER
from pipeline_defs.orchestration.runs.exposure import Endangered, check_expiry, read_endangered
from pipeline_defs.topics import TIME_TO_LOSS
from tests.support.world import World

HOUR_MS = 3600 * 1000


def test_from_waiting_to_landed_every_number_and_sentence_follows(world: World) -> None:
    """Lag is counted against what the producer sent; the sentence names the command that brings it on."""
    world.create_topic(2)
    real_now = world.edges.now_ms
    world.send([{"partition": 0, "value": bytes(1000), "timestamp_ms": real_now() - 600_000}] * 150)
    world.send_numbered(30, partition=1)
    now = world.status()
    assert [row["lag"] for row in now["partitions"]] == [150, 30] and now["lag"] == 180
    assert 600 <= now["lag_seconds"] < 660
    sizes = world.edges.kafka(world.topic).read_sizes(world.name, [0, 1])
    assert now["lag_bytes"] == sum(sizes.values()), "all of the log waits"
    assert now["next_action"].startswith(f"plan 180 offsets: `offsetlake plan {world.name} --through-end --apply`")
    world.hear_daemon("SENSOR")
    assert world.status()["next_action"] == (f"{NOTHING}: 180 records wait for a full range, the oldest for 10 min, cut at 0 s")
    world.plan()
    said = world.status()["next_action"]
    assert said.startswith("wait: 3 ranges pending since ") and said.endswith(": the next run takes them")
    by_hand = f"land 3 ranges: `offsetlake land {world.name} --pending`"
    descriptor = share(Path(world.instance.root_directory) / CODE_SERVER)
    assert not world.status()["next_action"].startswith(by_hand), "the control: Dagster's code server is there"
    ranges = [offsets for offsets in world.pending if offsets.partition == 1]
    in_the_way = world.lake_folder / "data" / world.name / "g0"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("in the way")
    assert not world.try_launch(ranges)[0].succeeded, "the fault"
    now = world.status()
    assert (now["failed_ranges"], now["pending_ranges"], now["lag"]) == (1, 3, 180)
    assert now["next_action"].startswith("1 range failed and is tried again")
    in_the_way.unlink()
    os.close(descriptor)
    assert world.status()["next_action"].startswith(by_hand), "it was killed: its daemon goes on, and asks for nothing"
    world.hear_daemon("SENSOR", ago_seconds=600)
    assert world.status()["next_action"].startswith(by_hand)

    world.launch(ranges)
    now = world.status()
    assert (now["failed_ranges"], now["lag"], now["pending_ranges"], now["landed_ranges"]) == (0, 150, 2, 1)
    assert now["landed_per_second"] > 0
    assert [row["lag_seconds"] is None for row in now["partitions"]] == [False, True]
    world.land()
    now = world.status()
    assert (now["lag"], now["lag_bytes"], now["lag_seconds"], now["seconds_to_loss"]) == (0, 0, None, None)
    assert now["next_action"] == f"{NOTHING}: everything is landed"
    assert abs(now["last_landed_at_ms"] - real_now()) < 60_000
    world.edges.now_ms = lambda: real_now() + 3_600_000
    assert world.status()["landed_per_second"] == 0


def test_looking_at_a_topic_that_the_broker_lacks_says_so_and_creates_no_instance(world: World, tmp_path: Path) -> None:
    home = tmp_path / "no-dagster"
    with find_instance(home) as instance:
        ((answer, _),) = read_statuses([world.topic], world.edges, instance)
        assert isinstance(instance, dg.DagsterInstance)
    assert f"topic {world.name} does not exist" in answer["error"]
    assert answer["next_action"].startswith(f"create the topic {world.name} on the broker, or take it out of defs.yaml")
    assert not home.exists()


# ---- how long the broker keeps what is not landed: said before it is gone, most endangered first


def endangered(world: World) -> list[Endangered]:
    marks = world.edges.kafka(world.topic).read_watermarks(world.name, world.topic.policy.isolation_level)
    return read_endangered(world.topic, world.coverage, marks, world.edges)


def test_the_alarm_warns_then_fails_and_the_records_are_still_there(world: World) -> None:
    """[R-43] As retention comes closer the check passes, warns, fails, each before the first record goes."""
    world.create_topic(2, retention_ms=str(10 * HOUR_MS))
    real_now = world.edges.now_ms
    began_ms = real_now()  # the clock stands but for whole hours, however slow the machine is
    world.send([{"partition": 0, "value": b"old", "timestamp_ms": began_ms - HOUR_MS}])
    seen = []
    for hours in (1, 6, 8):
        world.edges.now_ms = lambda hours=hours: began_ms + (hours - 1) * HOUR_MS
        world.tick()
        alarm = world.checked(world.topic.check_key(TIME_TO_LOSS))
        seen.append(alarm and (alarm.passed, alarm.severity))
        (waiting,) = endangered(world)
        assert waiting.partition == 0
        assert waiting.seconds is not None
        assert abs(waiting.seconds - (10 - hours) * 3600) < 60
        assert alarm is None or abs(float(str(alarm.metadata["seconds_to_loss"].value)) - (10 - hours) * 3600) < 60
    warn, error = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR
    assert seen == [None, (False, warn), (False, error)], "that all is well is not news"
    assert alarm is not None
    assert f"{world.name}/0: offset 0 is not landed and may be deleted in 12" in str(alarm.metadata["offsets"].value)
    assert world.watermarks(0).earliest == 0, "the alarm came before the loss"
    world.edges.now_ms = real_now
    world.land()
    world.assert_all_landed_once()
    world.tick()
    last = world.checked(world.topic.check_key(TIME_TO_LOSS))
    assert last is not None and last.passed, "the control: what is landed is not endangered"
    assert endangered(world) == []


def test_retention_by_bytes_is_foreseen_from_how_fast_the_log_grows(world: World) -> None:
    """[R-43] The rate is that of the plan log's own watermarks."""
    world.create_topic(1, retention_bytes=str(10_000_000))
    world.send_numbered(1000)
    world.plan()
    world.send({"partition": 0, "value": bytes(1000)} for _ in range(1000))
    (waiting,) = endangered(world)
    assert waiting.seconds is not None and waiting.share is not None
    assert waiting.seconds > 0 and 0 < waiting.share < 1
    world.alter_topic(retention_bytes="1000")
    (waiting,) = endangered(world)
    assert waiting.seconds == 0.0
    assert not check_expiry(world.topic, [waiting]).is_warning


def test_a_topic_that_keeps_everything_is_never_in_danger(world: World) -> None:
    """[R-43] The control: no retention, so no estimate and no alarm, however long it waits."""
    world.create_topic(1, retention_ms="-1")
    world.send([{"partition": 0, "value": b"old", "timestamp_ms": 1_000}])
    (waiting,) = endangered(world)
    assert (waiting.seconds, waiting.share) == (None, None)
    assert check_expiry(world.topic, [waiting]).passed
    (row,) = world.status()["partitions"]
    assert (row["seconds_to_loss"], row["oldest_waiting_ms"]) == (None, 1_000)


def test_the_most_endangered_partition_is_planned_first(world: World) -> None:
    """[R-7] A budget too small for all goes first to whose records the broker deletes first."""
    world.create_topic(3, retention_ms=str(10 * HOUR_MS))
    now = world.edges.now_ms()
    for partition, hours in ((0, 2), (1, 7), (2, 4)):
        world.send([{"partition": partition, "value": b"v", "timestamp_ms": now - hours * HOUR_MS}])
    kafka, lake = world.edges.kafka(world.topic), world.edges.lake
    world.with_policy(budget=1)
    log_state = lake.read_plan_log(world.name).state
    state = kafka.read_topic_state(world.name, log_state, world.topic.policy, now)
    assert [round(part.seconds_to_loss or 0) for _, part in sorted(state.partitions.items())] == [28800, 10800, 21600]
    step = plan(log_state, state, world.topic.policy, now)
    assert step is not None
    assert [offsets.partition for offsets in step.ranges] == [1]


def test_a_record_of_the_future_hides_nobodys_waiting(world: World) -> None:
    """[R-55] It is told since when its range is planned: a lag of 0 would have an alert sleep; an honest one says it itself."""
    now = world.edges.now_ms()
    world.create_topic(2)
    world.send([{"partition": p, "value": b"v", "timestamp_ms": now + ahead} for p, ahead in ((0, 1_800_000), (1, 0))])
    world.plan()
    world.later(60_000)
    status = world.status()
    assert [60 <= row["lag_seconds"] < 100 for row in status["partitions"]] == [True, True], status["partitions"]
