"""A cluster with the lake on an object store: executors stage there, and no data comes to this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from pathlib import Path

import pytest

from pipeline_defs.attempt import Attempt
from pipeline_defs.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.decoding import Decided
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.duck import Duck
from pipeline_defs.resources import Edges
from pipeline_defs.sealing import seal
from pipeline_defs.settings import IN_PROCESS, Settings
from tests.support.buckets import sent_rows, shown_rows
from tests.support.counting_proxy import CountingProxy
from tests.support.killing import stopped_at
from tests.support.spark_cluster import SparkCluster
from tests.support.world import World

pytestmark = pytest.mark.long


def test_a_topic_lands_is_redone_and_decoded_in_a_bucket(remote: World) -> None:
    """[R-80] Digests are those of the bytes in the bucket; a redo finds equal rows; what was staged is gone."""
    remote.create_topic(2)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    good = [{"partition": n % 2, "key": b"k%d" % n, "value": json.dumps({"n": n}).encode()} for n in range(350)]
    remote.send([*good, {"partition": 0, "key": b"x", "value": b'{"n": "no number"}'}])
    remote.plan()
    assert {verdict.outcome for verdict in remote.land()} == {Outcome.LANDED}
    assert shown_rows(remote) == sent_rows(remote)
    for check in (check_tiling, check_completeness, check_published):
        assert check(remote.name, remote.edges.lake).violations == ()
    keys = [offsets.key for offsets in remote.coverage.log.ranges]
    assert {verdict.outcome for verdict in remote.land(keys, redo=True)} == {Outcome.UNCHANGED}
    side = Side(Format.JSON_SCHEMA, schema=json.dumps(schema))
    remote.topic = dataclasses.replace(remote.topic, decode=Decode(Side(Format.STRING), side))
    said = remote.decode()
    assert {verdict.outcome for verdict in said} == {Decided.DECODED}, said
    duck = Duck(remote.edges.lake, [remote.name])
    assert duck.query(f'SELECT "value"."n" FROM decoded."{remote.name}" ORDER BY ALL')[1] == [(n,) for n in range(350)]
    assert {verdict.outcome for verdict in remote.decode(keys, redo=True)} == {Decided.UNCHANGED}
    assert not remote.edges.lake.store.list("staging")

    refused = list(seal(remote.name, Attempt("seal", "no-run", "test"), remote.tools(), 10**6, every=True))
    assert {"sealing reads files through this machine" in each.violations[0] for each in refused} == {True}
    assert shown_rows(remote) == sent_rows(remote)


def test_no_data_comes_to_this_machine_from_a_cluster(
    remote: World,
    s3_cluster: SparkCluster,
    s3_seen: CountingProxy,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[R-80] What passes the run's process and the Spark driver, for ranges of more than 10 MB: a twentieth at most.

    All that they say to the store is counted, and all that the run's process and the driver say to each other. The control is a
    Spark in the run's own process on the same kind of lake, which uploads each byte.
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_seen.url)
    remote.with_policy(records_per_range=1100)
    remote.create_topic(1)
    draw = random.Random(1)
    remote.send({"partition": 0, "key": b"k%d" % n, "value": draw.randbytes(10_000)} for n in range(3300))
    remote.plan()
    with CountingProxy(int(s3_cluster.port)) as connect:
        url = s3_cluster.url.replace(f":{s3_cluster.port}/", f":{connect.port}/")
        remote.settings = dataclasses.replace(remote.settings, spark_remote=url)
        remote.edges = Edges(remote.settings)
        s3_seen.bytes.clear()
        assert {verdict.outcome for verdict in remote.land()} == {Outcome.LANDED}
        remote.edges.engine(remote.edges.pyspark()).close()
    files = [manifest.file for manifest in remote.coverage.manifests.values()]
    landed = [file.bytes for file in files if file is not None]
    assert min(landed) > 10_000_000 and len(landed) == 3
    passed = s3_seen.bytes[os.getpid()] + s3_seen.bytes[s3_cluster.processes["server"].pid] + connect.bytes.total()
    share = passed / sum(landed)
    print(f"engine.driver_bytes_per_landed_byte: {share:.4f}")
    assert s3_seen.bytes.total() > sum(landed), "the executors' own go through the same proxy"
    assert s3_seen.bytes[os.getpid()] and connect.bytes.total(), "and so do those that are counted"
    assert share <= 0.05

    (tmp_path / "here").mkdir()
    with World(
        dataclasses.replace(settings, engine=IN_PROCESS), tmp_path / "here", remote.name, remote.topic.policy
    ) as here:
        here.move_lake(f"{remote.settings.lake}-here")
        here.plan()
        s3_seen.bytes.clear()
        with stopped_at(here, "land", "report", own_jvm=True):
            pass
        assert len(here.coverage.manifests) == 3
        assert s3_seen.bytes.total() >= sum(landed), "the control"
        print(f"the control, in process: {s3_seen.bytes.total() / sum(landed):.2f}")
