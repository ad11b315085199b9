"""Where a topic stands at a glance, on a real broker: lag in offsets, bytes and seconds, failures, and what to do next."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dagster as dg
from dagster._daemon.types import DaemonHeartbeat

from pipeline_defs.adapters.system.locks import share
from pipeline_defs.core.advice import NOTHING
from pipeline_defs.operate.status import find_instance, read_statuses
from pipeline_defs.orchestration.home.run_locks import CODE_SERVER
from tests.support.world import World


def have_dagster_run(world: World, ago_seconds: float = 0) -> None:
    """Has the daemon say that it is there, as `dagster dev` does every 30 s."""
    world.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - ago_seconds, "SENSOR", "test", []))


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
    assert now["next_action"].startswith(f"plan 180 offsets: `offsetlake plan {world.name} --apply`")
    have_dagster_run(world)
    assert world.status()["next_action"] == (f"{NOTHING}: 180 records wait for a full range, the oldest for 10 min, cut at 0 s")
    world.plan()
    said = world.status()["next_action"]
    assert said.startswith("wait: 3 ranges pending since ") and said.endswith(": the next run takes them")
    by_hand = f"land 3 ranges: `offsetlake land {world.name} --pending`"
    descriptor = share(Path(world.instance.root_directory) / CODE_SERVER)
    assert not world.status()["next_action"].startswith(by_hand), "the control: Dagster's code server is there"
    os.close(descriptor)
    assert world.status()["next_action"].startswith(by_hand), "it was killed: its daemon goes on, and asks for nothing"
    have_dagster_run(world, ago_seconds=600)
    assert world.status()["next_action"].startswith(by_hand)

    ranges = [offsets for offsets in world.pending if offsets.partition == 1]
    in_the_way = world.lake_folder / "data" / world.name / "g0"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("in the way")
    assert not world.try_launch(ranges)[0].succeeded, "the fault"
    have_dagster_run(world)
    now = world.status()
    assert (now["failed_ranges"], now["pending_ranges"], now["lag"]) == (1, 3, 180)
    assert now["next_action"].startswith("1 range failed and is tried again")
    in_the_way.unlink()
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
