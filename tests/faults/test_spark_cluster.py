"""A cluster with the lake in a bucket while parts of it die: a worker, the Connect server, the client; each row once."""

import dataclasses
import os
import random
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline_defs.adapters.kafka.access import read_access
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.spark.remote_engine import RemoteEngine
from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.core.errors import EngineLost
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.lab.bench.costs.spark_cluster import SparkCluster
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.faults.test_drills import assert_right, run_drills
from tests.integration.test_spark_cluster import count
from tests.support.killing import Striker, staged, stopped_at
from tests.support.secured import SECRETS, Secured
from tests.support.world import World, assert_all_is_there_once

pytestmark = pytest.mark.long
FIRST, SCHEDULES = int(os.environ.get("HUNT_FIRST", "0")), int(os.environ.get("HUNT", "4"))  # 100 take an hour
CLIENT_STEPS = ["scan", "stage", "verify", "commit", "publish", "report"]


def fill(world: World, records: int = 1500) -> None:
    """Produce and plan what takes a scan of many tasks."""
    world.with_policy(records_per_range=25)
    world.fill(records, records)
    world.plan()


def test_a_worker_that_dies_in_mid_scan_costs_time_and_nothing_else(remote: World, s3_cluster: SparkCluster) -> None:
    """[R-80] Its tasks are done again by another worker, and what it had half written is nowhere."""
    fill(remote)
    striker = Striker(remote, lambda: s3_cluster.kill("worker0"))
    verdicts = remote.land(on_step=striker.on_step)
    s3_cluster.start_worker(0)
    assert striker.struck_at, "the fault: it was killed in the middle of a scan"
    assert {verdict.outcome for verdict in verdicts} == {Outcome.LANDED}
    assert_all_is_there_once(remote)
    assert not remote.adapters.lake.store.list("staging")


def test_a_server_that_dies_in_mid_scan_fails_the_job_which_another_one_does(remote: World, s3_cluster: SparkCluster) -> None:
    """[R-80] In a folder of its own: what executors of the dead one have written counts for nothing."""
    fill(remote)
    striker = Striker(remote, lambda: s3_cluster.kill("server"))
    lost = []

    def on_step(step: str, **fields: Any) -> None:
        striker.on_step(step, **fields)
        if step == "engine_lost":
            lost.append(fields["reason"])
            s3_cluster.start_server()

    verdicts = remote.land(on_step=on_step)
    assert striker.struck_at and len(lost) == 1 and "went away" in lost[0], "the fault"
    assert {verdict.outcome for verdict in verdicts} == {Outcome.LANDED}
    assert_all_is_there_once(remote)  # executors of the dead one may have written more to staging, which a sweep finds


def test_a_server_that_was_started_anew_knows_no_session_and_gets_another_one(s3_cluster: SparkCluster) -> None:
    """[R-80] It answers, so it does not look dead; by its own words the job would have failed for good."""
    engine = RemoteEngine(s3_cluster.url)
    assert count(engine) == 3
    s3_cluster.kill("server")
    s3_cluster.start_server()
    with pytest.raises(EngineLost):
        count(engine)
    assert count(engine) == 3


@pytest.mark.parametrize("step", CLIENT_STEPS)
def test_a_client_that_dies_at_a_step_is_followed_by_another_that_finishes(remote: World, step: str) -> None:
    """[R-80] Whatever its executors still do; what it had committed is not read again."""
    fill(remote, 300)
    with stopped_at(remote, "land", step):
        pass
    before = remote.coverage.manifests
    assert bool(remote.pending) == (step != "report"), "the fault"
    said = remote.land([offsets.key for offsets in remote.coverage.log.ranges])
    done = {Outcome.LANDED, Outcome.ROLLED_FORWARD, Outcome.ALREADY_LANDED}
    assert {verdict.outcome for verdict in said} <= done
    assert_all_is_there_once(remote)
    now = remote.coverage.manifests
    assert {offsets: now[offsets] for offsets in before} == before


def test_a_client_that_dies_in_mid_scan_leaves_a_job_that_harms_nobody(remote: World) -> None:
    """[R-80] The cluster goes on with what it was told; its successor lands beside it."""
    fill(remote)
    with stopped_at(remote, "land", "scan") as child:
        child.connection.send("go on")
        World.wait_until(lambda: bool(staged(remote)), 60)
    assert remote.pending and remote.adapters.lake.store.list("staging"), "the fault: it died in mid-scan"
    assert {verdict.outcome for verdict in remote.land()} == {Outcome.LANDED}
    assert_all_is_there_once(remote)


def other(world: World) -> World:
    """Return another client of the same topic and lake."""
    twin = World(world.settings, world.folder / uuid.uuid4().hex[:6], world.name, world.topic.policy)
    twin.folder.mkdir()
    twin.move_lake(world.settings.lake)
    return twin


def test_two_clients_of_one_cluster_land_at_once(remote: World) -> None:
    """[R-80] The same ranges, each with an engine of its own: each range is landed once."""
    fill(remote, 600)
    keys = [offsets.key for offsets in remote.pending]
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda world: world.land(keys), (remote, other(remote))))
    both = [verdict.outcome for verdicts in said for verdict in verdicts]
    assert both.count(Outcome.LANDED) == len(keys)
    assert set(both) <= {Outcome.LANDED, Outcome.SUPERSEDED, Outcome.ALREADY_LANDED}
    assert_all_is_there_once(remote)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SCHEDULES))
def test_parts_that_die_at_random_cost_no_record_and_double_none(remote: World, s3_cluster: SparkCluster, seed: int) -> None:
    """[R-80] A worker, the server and a client die in each schedule; when, at which step, is drawn from its seed."""
    draw = random.Random(seed)
    fill(remote, 300)
    parts = [draw.choice(["worker0", "worker1"]), "server", "client", draw.choice(["worker0", "server", "client"])]
    for part in draw.sample(parts, len(parts)):
        step = draw.choice(CLIENT_STEPS)
        remote.send_numbered(100, draw.choice([0, 1]))
        remote.plan()
        if part == "client":
            with stopped_at(remote, "land", step):
                pass
        else:
            assert kill_at(remote, s3_cluster, part, step), "the fault"
    if remote.pending:
        remote.land()
    assert_all_is_there_once(remote)


def kill_at(world: World, cluster: SparkCluster, part: str, step: str) -> bool:
    """Land while a part dies at the first passing of a step, and comes back; return whether it died."""
    guard, struck = threading.Lock(), threading.Event()

    def on_step(passed: str, **_: Any) -> None:
        with guard:
            if passed != step or struck.is_set():
                return
            struck.set()
            cluster.kill(part)
            if part == "server":
                cluster.start_server()
            else:
                cluster.start_worker(int(part[-1]))

    world.land(on_step=on_step)
    return struck.is_set()


def test_the_drills_run_on_the_cluster_with_the_lake_in_the_bucket(
    s3_cluster: SparkCluster, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """[R-80] As on a disk: each fault is proven, no row is missing, none doubled but where that is the policy."""
    monkeypatch.setenv("OFFSETLAKE_SPARK_REMOTE", s3_cluster.url)
    monkeypatch.setenv("OFFSETLAKE_LAKE", f"{bucket}/drills")
    steps = ["kill_at_scan", "kill_at_stage", "kill_at_commit", "kill_at_publish"]
    where = ["--lake", "s3", "--engine", "cluster"]
    code, report = run_drills(tmp_path / "home", *steps, "overtake", "no_fault", "--schedules", "3", *where)
    assert code == 0, report
    assert_right(report["drills"])
    assert report["schedules"]["kills"] and not report["schedules"]["failed"]
    assert not Lake(bucket).store.list("drills"), "drills delete the lakes that they made"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured"), resolve_jars("broker", JARS)) as broker:
        yield broker


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512", "certificate"])
def test_executors_enter_a_secured_broker_with_what_the_job_brings(
    remote: World, secured: Secured, settings: Settings, way: str, s3_cluster: SparkCluster
) -> None:
    """[R-80] No path of this machine is told to them, and no secret is in a log of the cluster."""
    clear = dataclasses.replace(remote.settings, bootstrap_servers=secured.at("PLAINTEXT"))
    remote.settings, remote.adapters = clear, Adapters(clear)
    remote.fill(200, 0)
    remote.plan()
    path = secured.properties(way)
    told = read_access(path).spark()
    assert not any(key.endswith(".location") for key in told) and str(secured.folder) not in str(told)
    listener = "SSL" if way == "certificate" else "SASL_SSL"
    own = dataclasses.replace(clear, bootstrap_servers=secured.at(listener), kafka_properties=path)
    remote.settings, remote.adapters = own, Adapters(own)
    assert {verdict.outcome for verdict in remote.land()} == {Outcome.LANDED}
    assert_all_is_there_once(remote)
    files = [path for path in s3_cluster.folder.rglob("*") if path.suffix == ".log" or path.name in {"stderr", "stdout"}]
    logs = "".join(path.read_text(errors="replace") for path in files if path.is_file())
    assert logs and not any(secret in logs for secret in SECRETS)
