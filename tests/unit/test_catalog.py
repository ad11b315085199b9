"""What defs.yaml may say of a topic's assets, what Dagster is given and shows then, and that no two topics share a name."""

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster_pyspark import LazyPySparkResource
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline_defs.adapters.system.project_folder import PROJECT
from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.decode.decoders import Decode
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.landing.picture import Picture
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.offsets import check_topic
from pipeline_defs.core.raw_columns import RAW_COLUMNS
from pipeline_defs.core.tables.days import Days, EventTime
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.orchestration.assets import catalog
from pipeline_defs.orchestration.home.project import defs_yaml, folder_name
from pipeline_defs.orchestration.map.page import write_page
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.orchestration.upkeep.housekeeping import COMPACT, RETIRE, audited
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import read_settings
from pipeline_defs.topics import Topic, op_name, slug_of
from tests.support import strategies  # noqa: F401  -- its profile: a fixed seed, more with HUNT


def test_what_dagster_says_of_references_to_code_is_not_said_of_each_asset() -> None:
    """Its processes and commands said so tens of thousands of times; other warnings are shown: the control."""
    make = "import dagster as dg; dg.CodeReferencesMetadataValue(code_references=[dg.LocalFileCodeReference(file_path='a')])"

    def said(code: str) -> set[str]:
        return {*subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split("`")}

    other = "from dagster_shared.utils.warnings import beta_warning; beta_warning('Class `Other`')"
    names = {"LocalFileCodeReference", "CodeReferencesMetadataValue"}
    assert said(f"from pipeline_defs.orchestration.assets import catalog; {make}; {other}") & {*names, "Other"} == {"Other"}
    assert names <= said(make), "the fault"


def specs(topic: Topic, lake: str = "/srv/lake") -> dict[dg.AssetKey, dg.AssetSpec]:
    """The three assets of a topic, as Dagster is given them."""
    found: dict[dg.AssetKey, dg.AssetSpec] = {}
    for each in build_topic_defs(topic, lake).assets or []:
        assert isinstance(each, dg.AssetSpec | dg.AssetsDefinition)
        found |= {each.key: each} if isinstance(each, dg.AssetSpec) else {spec.key: spec for spec in each.specs}
    return found


def test_every_asset_says_what_it_is_whose_it_is_and_where_to_read_on() -> None:
    owners = ["team:shop", "team:data platform", "ann@example.org", "ann.b+c@mail.example.org"]
    topic = KafkaTopic(topic="orders", owners=owners, tags={"domain": "sales"}, description="**Orders**, as placed.")
    found = specs(topic.as_topic())
    assert {key.to_user_string() for key in found} == {"kafka/orders", "raw/orders", "losses/orders"}
    for spec in found.values():
        assert list(spec.owners) == owners
        assert spec.tags["domain"] == "sales" and spec.tags["offsetlake/topic"] == "orders"
        assert spec.kinds and spec.group_name
        assert spec.description is not None and spec.description.startswith("**Orders**, as placed.\n\n")
        assert "`orders`" in spec.description and "    " not in spec.description
        named = {each.file_path for each in spec.metadata["dagster/code_references"].code_references}
        assert {str(PROJECT / "docs" / name) for name in ("runbook.md", "dagster.md")} <= named
    raw = found[dg.AssetKey(["raw", "orders"])]
    columns = {column.name: column.description for column in raw.metadata["dagster/column_schema"].columns}
    assert columns == {column.name: column.description for column in RAW_COLUMNS}
    assert raw.metadata["dagster/uri"] == "/srv/lake/data/orders"
    assert raw.metadata["files"].value == "/srv/lake/data/orders/**/*.parquet"


def test_documents_that_are_not_there_are_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster would open an editor on nothing."""
    monkeypatch.setattr(catalog, "DOCS", tmp_path)
    for spec in specs(KafkaTopic(topic="orders").as_topic()).values():
        assert "dagster/code_references" not in spec.metadata


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"owners": ["ann"]}, "owner 'ann' is neither an email address nor team:<name>, such as team:data-platform"),
        ({"owners": ["team:"]}, "owner 'team:' is neither"),
        ({"owners": ["ann@example.org, bob"]}, "owner 'ann@example.org, bob' is neither"),
        ({"tags": {"do main": "x"}}, "tag 'do main': 'x' is not one: key and value are letters, digits"),
        ({"tags": {"domain": "a/b"}}, "tag 'domain': 'a/b' is not one"),
        ({"tags": {"dagster/kind/x": ""}}, "begins as the tags of Dagster and Offsetlake themselves do"),
        ({"tags": {"offsetlake/topic": "x"}}, "begins as the tags of Dagster and Offsetlake themselves do"),
        ({"description": ""}, "at least 1 character"),
    ],
)
def test_what_dagster_would_refuse_later_is_refused_at_once(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match="1 validation error") as refused:
        KafkaTopic.model_validate({"topic": "orders", **given})
    assert words in str(refused.value)


DECODE = "decode: {value: {format: json, inline_schema: 'at TIMESTAMP'}}\n"
JSON = "decode: {value: {format: json, inline_schema"


def read(text: str) -> Topic:
    """Read a defs.yaml's attributes as Dagster does."""
    return KafkaTopic.resolve_from_yaml(f"topic: orders\n{text}").as_topic()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decode: {}", None),
        ("decode: {}\nlatest: {}", Latest()),
        (f"{JSON}: 'version INT'}}}}\nlatest: {{sequence: value.version}}", Latest("value.version")),
        (f"{JSON}: 'n DECIMAL(9,2)'}}}}\nlatest: {{sequence: value.n}}", Latest("value.n")),
        ("decode: {value: {format: avro, registry: 'http://127.0.0.1:9'}}\nlatest: {sequence: value.any}", Latest("value.any")),
        ("decode: {value: {format: json, inline_schema: 'tags MAP<STRING, INT>'}}\nlatest: {}", Latest()),
        ("decode: {key: {format: json, inline_schema: 'id INT, `map<` INT'}}\nlatest: {}", Latest()),
    ],
)
def test_latest_records_are_kept_where_defs_yaml_says_so(text: str, expected: Latest | None) -> None:
    assert read(text).latest == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("latest: {}", "topic orders has `latest` and no `decode`, expected both"),
        ("decode: {}\nlatest:", r"found nothing, expected fields, or `latest: \{\}` .*; or take `latest` out"),
        ("decode:", r"found nothing, expected fields, or `decode: \{\}`"),
        ("days:", r"found nothing, expected at least `start`; or take `days` out"),
        ("decode: {}\nlatest: {sequence: version}", "expected the path of a field such as value.version"),
        (f"{JSON}: 'version INT'}}}}\nlatest: {{sequence: value.versio}}", "no column versio in value.*value.version"),
        (f"{JSON}: 'tags ARRAY<INT>'}}}}\nlatest: {{sequence: value.tags}}", "expected a field .*, found a list"),
        (f"{JSON}: 'price DOUBLE'}}}}\nlatest: {{sequence: value.price}}", "expected a field .*, found a float"),
        (f"{JSON}: 'n INT'}}}}\nlatest: {{sequence: value.n.m}}", "no column m in value.n, which is an integer"),
        *(
            (f"{DECODE}days: {text}", found)
            for text, found in (
                ("{}", "start"),
                ("{start: 2013-1-1}", "expected a day such as 2013-01-01, found '2013-1-1'"),
                ("{start: 2013-01-01T00:00:00Z}", "expected a day such as 2013-01-01, found '2013-01-01"),
                ("{start: yesterday}", "expected a day such as 2013-01-01, found 'yesterday'"),
                ("{start: 2013-01-01, unit: hours}", "topic orders has wrong `days`.*expected unit s, ms or us, found 'hours'"),
                ("{start: 2013-01-01, event_time: value..at}", "expected a column's path such as value.ordered_at"),
            )
        ),
        ("days: {start: 2013-01-01}", "topic orders has `days` and no `decode`, expected both"),
    ],
)
def test_what_cannot_be_is_refused(text: str, found: str) -> None:
    with pytest.raises(Exception, match=found) as caught:
        read(text)
    assert isinstance(caught.value, BadSetting | ValueError | dg.DagsterError)


def test_an_audit_makes_each_check_that_a_topic_has() -> None:
    """[R-90] Of what is derived too: on an idle topic nothing else ever looks at its tables again."""
    derived = "decode: {value: {format: json, inline_schema: at TIMESTAMP}}\ndays: {event_time: value.at, start: 2026-01-01}"
    for topic in (Topic("orders", Policy()), read(derived), read(f"{derived}\nlatest: {{}}")):
        checks = build_topic_defs(topic, "/srv/lake").asset_checks or ()
        assert {*audited(topic)} == {key for check in checks for key in check.check_keys}


def test_dagster_is_given_an_asset_a_check_and_a_job() -> None:
    topic = read("description: Orders.\ndecode: {}\nlatest: {}")
    definitions = build_topic_defs(topic, "/srv/lake")
    spec = specs(topic)[topic.latest_key]
    assert spec.key.to_user_string() == "latest/orders"
    assert spec.description is not None and spec.description.startswith("Orders.\n\n**The latest record of each key**")
    assert "    " not in spec.description
    assert spec.metadata["dagster/uri"] == "/srv/lake/tables/latest/orders"
    assert [dep.asset_key.to_user_string() for dep in spec.deps] == ["decoded/orders"]
    assert "latest_orders" in {job.name for job in definitions.jobs or []}
    checks = [key for each in definitions.asset_checks or [] for key in each.check_keys]
    assert [key.name for key in checks if key.asset_key == topic.latest_key] == ["latest_recomputed"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{start: 2013-01-01}", Days("2013-01-01")),
        ("{start: '2013-01-01', event_time: value.at}", Days("2013-01-01", EventTime("value.at"))),
        ("{start: 2013-01-01, event_time: offset, unit: ms}", Days("2013-01-01", EventTime("offset", "ms"))),
    ],
)
def test_a_topic_with_days_has_an_asset_of_them_and_one_without_has_none(text: str, expected: Days) -> None:
    """Its parent is the decoded asset as a whole: a day may come from any range. A date may stand without quotes."""
    topic, plain = read(f"{DECODE}days: {text}"), read(DECODE)
    assert topic.decode is not None
    assert (topic.days, topic.decode.event_time) == (expected, expected.event_time)
    defs, without = build_topic_defs(topic, "/srv/lake"), build_topic_defs(plain, "/srv/lake")
    assert topic.days_key not in specs(plain)
    spec = specs(topic)[topic.days_key]
    (dependency,) = spec.deps
    assert (spec.key, dependency.asset_key) == (topic.days_key, topic.decoded_key)
    assert isinstance(dependency.partition_mapping, dg.AllPartitionMapping)
    assert spec.partitions_def == dg.DailyPartitionsDefinition("2013-01-01", end_offset=1)
    assert spec.metadata["dagster/uri"] == "/srv/lake/tables/decoded/orders"
    assert "A record that comes late" in (spec.description or "")
    assert [each.name for each in defs.jobs or []] == [each.name for each in without.jobs or []], "it is told of, not made"


LONGEST = "a-.b_" * 49 + "-.-."
OF_TREES = ("x", "x__decoded", "x__decoded__decoded", "raw__x", "compact_x")
ALIKE = ("a-b", "a_b", "a.b", "a__dash_b", "a__b", "a--b", "A_b", "-", "_", "x" * 249, "x" * 248 + "-", LONGEST, *OF_TREES)
names = st.from_regex(r"[a-c0-1._-]{1,12}|[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda each: each not in {".", ".."})


def test_topics_that_differ_in_punctuation_alone_load_and_share_no_name() -> None:
    """Assets, partitions, jobs, ops, pools, each with all that is derived of a topic; sensors and schedules are of all topics.

    `x__decoded` is a topic of its own, and its landing waits for no decoding of topic `x`.
    """
    resources = {"adapters": Adapters(read_settings({})), "pyspark": LazyPySparkResource(spark_config={})}
    topics = [build_topic_defs(Topic(check_topic(name), Policy(), decode=Decode()), "/srv/lake") for name in ALIKE]
    repository: Any = dg.Definitions.merge(*topics, dg.Definitions(resources=resources)).get_repository_def()
    jobs = [job.name for job in repository.get_all_jobs()]
    ops = [node.name for node in repository.get_implicit_global_asset_job_def().nodes]
    for kind, found in {"jobs": jobs, "ops": ops}.items():
        assert [name for name, count in Counter(found).items() if count > 1] == [], kind
        assert max(map(len, found)) < 250 and len(found) % len(ALIKE) in {0, 1}, kind
    assert list(repository.sensor_defs) == [] and list(repository.schedule_defs) == []
    graph = repository.asset_graph
    assert {key.path[1] for key in graph.get_all_asset_keys()} == set(ALIKE)
    assert len({graph.get(dg.AssetKey(["raw", name])).partitions_def.name for name in ALIKE}) == len(ALIKE)
    works = {op_name(key) for key in graph.materializable_asset_keys}
    nodes = [node for node in repository.get_implicit_global_asset_job_def().nodes if node.name in works]
    pools = [pool for node in nodes for pool in node.definition.pools]
    assert len(nodes) == 2 * len(ALIKE), "landing and decoding of each"
    assert [pool for pool, count in Counter(pools).items() if count > 1] == []
    assert len(pools) == len(nodes)


def test_names_that_people_use_stay_as_they_are_and_no_two_short_ones_share_a_slug() -> None:
    """Every name of up to five of these characters: nothing is left to chance."""
    slugs = {"orders": "orders", "orders_v2": "orders_v2", "a-b": "a__dash_b", "a.b": "a__dot_b", "_x": "__line_x"}
    assert {name: slug_of(name) for name in slugs} == slugs
    short = ["".join(each) for n in range(1, 6) for each in itertools.product("a1_-.", repeat=n)]
    assert len({slug_of(name) for name in short}) == len(short)


@given(found=st.lists(names | st.sampled_from(ALIKE), unique=True, max_size=20))
def test_no_two_names_share_a_slug_that_dagster_takes_nor_two_kinds_of_work_a_pool(found: list[str]) -> None:
    slugs, topics = [slug_of(name) for name in found], [Topic(name, Policy()) for name in found]
    assert len(set(slugs)) == len(found)
    assert all(slug.replace("_", "a").isalnum() and len(slug) < 240 for slug in slugs)
    pools = [duty.pool for each in topics for duty in (each.landing, each.decoding, each.upserting)]
    assert len({*pools, RETIRE, COMPACT}) == 3 * len(topics) + 2


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
