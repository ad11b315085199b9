"""Names: whatever Kafka allows as a topic is landed beside every other, and no two share a name in Dagster."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster_pyspark import LazyPySparkResource
from hypothesis import given
from hypothesis import strategies as st

from pipeline_defs.core.decode.decoders import Decode
from pipeline_defs.core.landing.picture import Picture
from pipeline_defs.core.log.planning import Policy
from pipeline_defs.core.offsets import check_topic
from pipeline_defs.orchestration.home.project import defs_yaml, folder_name
from pipeline_defs.orchestration.map.draw import write_page
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.orchestration.upkeep.housekeeping import COMPACT, RETIRE
from pipeline_defs.resources import Edges
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic, op_name, slug_of
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT

LONGEST = "a-.b_" * 49 + "-.-."
OF_TREES = ("x", "x__decoded", "x__decoded__decoded", "raw__x", "compact_x")
ALIKE = ("a-b", "a_b", "a.b", "a__dash_b", "a__b", "a--b", "A_b", "-", "_", "x" * 249, "x" * 248 + "-", LONGEST, *OF_TREES)
names = st.from_regex(r"[a-c0-1._-]{1,12}|[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda each: each not in {".", ".."})


@pytest.fixture(scope="module")
def repository() -> Any:
    """One code location with all of them, each with everything that is derived of a topic."""
    edges = Edges(read_settings({}))
    resources = {"edges": edges, "pyspark": LazyPySparkResource(spark_config={})}
    topics = [build_topic_defs(Topic(check_topic(name), Policy(), decode=Decode())) for name in ALIKE]
    return dg.Definitions.merge(*topics, dg.Definitions(resources=resources)).get_repository_def()


def test_topics_that_differ_in_punctuation_alone_load_and_share_no_name(repository: Any) -> None:
    """Assets, partitions, jobs, ops, pools; sensors and schedules are of all topics at once."""
    jobs = [job.name for job in repository.get_all_jobs()]
    ops = [node.name for node in repository.get_implicit_global_asset_job_def().nodes]
    for kind, found in {"jobs": jobs, "ops": ops}.items():
        assert [name for name, count in Counter(found).items() if count > 1] == [], kind
        assert max(map(len, found)) < 250 and len(found) % len(ALIKE) in {0, 1}, kind
    assert list(repository.sensor_defs) == [] and list(repository.schedule_defs) == []
    graph = repository.asset_graph
    assert {key.path[1] for key in graph.get_all_asset_keys()} == set(ALIKE)
    partitions = {graph.get(dg.AssetKey(["raw", name])).partitions_def.name for name in ALIKE}
    assert len(partitions) == len(ALIKE)


def test_no_topics_runs_wait_for_the_turn_of_another_topic(repository: Any) -> None:
    """`x__decoded` is a topic of its own, and its landing waits for no decoding of topic `x`."""
    works = {op_name(key) for key in repository.asset_graph.materializable_asset_keys}
    nodes = [node for node in repository.get_implicit_global_asset_job_def().nodes if node.name in works]
    pools = [pool for node in nodes for pool in node.definition.pools]
    assert len(nodes) == 2 * len(ALIKE), "landing and decoding of each"
    assert [pool for pool, count in Counter(pools).items() if count > 1] == []
    assert len(pools) == len(nodes)


@given(found=st.lists(names | st.sampled_from(ALIKE), unique=True, max_size=6))
def test_no_two_kinds_of_work_share_a_pool(found: list[str]) -> None:
    topics = [Topic(name, Policy()) for name in found]
    pools = [duty.pool for each in topics for duty in (each.landing, each.decoding, each.upserting)]
    assert len({*pools, RETIRE, COMPACT}) == 3 * len(topics) + 2


def test_names_that_people_use_stay_as_they_are() -> None:
    slugs = {"orders": "orders", "orders_v2": "orders_v2", "a-b": "a__dash_b", "a.b": "a__dot_b", "_x": "__line_x"}
    assert {name: slug_of(name) for name in slugs} == slugs


def test_no_two_short_names_share_a_slug() -> None:
    """Every name of up to five of these characters: nothing is left to chance."""
    short = ["".join(each) for n in range(1, 6) for each in itertools.product("a1_-.", repeat=n)]
    assert len({slug_of(name) for name in short}) == len(short)


@given(found=st.lists(names, unique=True, max_size=20))
def test_no_two_names_share_a_slug_that_dagster_takes(found: list[str]) -> None:
    slugs = [slug_of(name) for name in found]
    assert len(set(slugs)) == len(found)
    assert all(slug.replace("_", "a").isalnum() and len(slug) < 240 for slug in slugs)


@given(
    name=names | st.sampled_from(["123", "null", "true", "1e3", "0x1f", "1_000", "2013-01-01", "-"]),
    servers=st.sampled_from([None, "k-1:9092,k-2:9092", "[::1]:9092"]),
)
def test_what_init_writes_is_what_dagster_reads(name: str, servers: str | None) -> None:
    attributes = yaml.safe_load(defs_yaml(name, servers))["attributes"]
    assert attributes == {"topic": name} | ({"bootstrap_servers": servers} if servers else {})
    assert not folder_name(name).startswith(".")


def test_the_map_of_the_longest_name_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / f"{LONGEST}.html"
    write_page(Picture(LONGEST), "", 0, file)
    assert LONGEST in file.read_text()
    assert [each.name for each in tmp_path.iterdir()] == [file.name], "nothing is left beside it"
