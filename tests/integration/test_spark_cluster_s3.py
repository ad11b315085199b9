"""A cluster with the lake on an object store: executors stage there, and no data comes to this machine."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_defs.attempt import Attempt
from pipeline_defs.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.core.decoders import Decode, Format, Side
from pipeline_defs.core.decoding import Decided
from pipeline_defs.core.verdicts import Outcome
from pipeline_defs.edges.duck import Duck
from pipeline_defs.edges.jars import resolve_jars
from pipeline_defs.resources import Edges
from pipeline_defs.sealing import seal
from pipeline_defs.settings import Settings
from tests.conftest import JARS
from tests.support.s3 import s3_environment, s3_server, s3a_conf
from tests.support.spark_cluster import SparkCluster
from tests.support.world import Row, World

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3-compatible server."""
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture(scope="module")
def cluster(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster that knows that server."""
    jars = (*resolve_jars("spark", JARS), *resolve_jars("s3a", JARS))
    with SparkCluster(tmp_path_factory.mktemp("cluster"), jars, s3a_conf(s3)) as found:
        yield found


@pytest.fixture
def remote(
    cluster: SparkCluster, s3: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A world of a machine that has neither jars nor a Spark of its own, with its lake in a bucket."""
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    own = dataclasses.replace(settings, home=tmp_path / "home", spark_remote=cluster.url)
    with World(own, tmp_path, f"t{uuid.uuid4().hex[:10]}") as world:
        world.settings = dataclasses.replace(world.settings, lake=f"s3://lake/{world.name}")
        world.edges = Edges(world.settings)
        yield world


def shown(world: World) -> list[tuple[object, ...]]:
    """Read every row that the lake shows."""
    _, rows = Duck(world.edges.lake, [world.name]).ask(
        f'SELECT "partition", "offset", "key", "value" FROM "{world.name}" ORDER BY ALL'
    )
    return rows


def produced(world: World) -> list[tuple[object, ...]]:
    rows: list[Row] = sorted(world.sent.values())
    return [row[:4] for row in rows]


def test_a_topic_lands_is_redone_and_decoded_in_a_bucket(remote: World) -> None:
    """[R-79] Digests are those of the bytes in the bucket; a redo finds equal rows; what was staged is gone."""
    remote.create_topic(2)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    good = [{"partition": n % 2, "key": b"k%d" % n, "value": json.dumps({"n": n}).encode()} for n in range(350)]
    remote.send([*good, {"partition": 0, "key": b"x", "value": b'{"n": "no number"}'}])
    remote.plan()
    assert {verdict.outcome for verdict in remote.land()} == {Outcome.LANDED}
    assert shown(remote) == produced(remote)
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
    assert shown(remote) == produced(remote)
