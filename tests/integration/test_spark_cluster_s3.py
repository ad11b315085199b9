"""A cluster with the lake on an object store: executors stage there, and no data comes to this machine."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from pipeline_defs.adapters.tables.duck import Duck
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.lab.bench.data import produce
from pipeline_defs.lab.bench.engine_costs.counting_proxy import CountingProxy
from pipeline_defs.lab.bench.engine_costs.driver_bytes import LOAD, count_control, count_driver_bytes
from pipeline_defs.lab.bench.engine_costs.spark_cluster import SparkCluster
from pipeline_defs.lab.bench.measurement import Bench
from pipeline_defs.landing.auditing import check_table
from pipeline_defs.orchestration.upkeep.compacting import compact_tables
from pipeline_defs.resources import Edges
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.buckets import sent_rows, shown_rows
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
    remote.assert_proven()
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

    edges = dataclasses.replace(remote.edges, settings=dataclasses.replace(remote.edges.settings, has_raw_table=True))
    verdicts = [*compact_tables(remote.topic, "test", remote.tools(), edges, every=True)]
    assert {verdict.outcome for verdict in verdicts} == {CompactionOutcome.COMPACTED}, verdicts
    assert len(verdicts) == 3, "the raw table's two Kafka partitions, and the decoded rows"
    assert check_table(remote.name, remote.edges.lake).violations == ()
    assert shown_rows(remote) == sent_rows(remote)
    assert {verdict.outcome for verdict in remote.decode(keys, redo=True)} == {Decided.UNCHANGED}, "out of one file"
    assert not remote.edges.lake.store.list("staging")


def test_no_data_comes_to_this_machine_from_a_cluster(
    settings: Settings, s3_cluster: SparkCluster, s3_seen: CountingProxy, tmp_path: Path
) -> None:
    """[R-80] What passes the run's process and Spark's driver, for ranges of more than 10 MB: a twentieth at most.

    The benchmark's own measurement; its control is a Spark in the run's own process, which uploads each byte.
    """
    (tmp_path / "jars").symlink_to(JARS)
    edges = Edges(settings)
    bench = Bench(edges, edges.pyspark(), tmp_path, 0.0, 0.0, os.getpid())
    edges.kafka().create_topic(LOAD.topic, LOAD.kafka_partitions)
    produce(edges.bootstrap_servers(), LOAD.topic, LOAD)
    assert count_driver_bytes(bench, s3_cluster, s3_seen, LOAD) <= 0.05
    assert count_control(bench, s3_seen, LOAD) >= 1
