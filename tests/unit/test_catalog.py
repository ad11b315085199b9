"""What a topic's assets say of themselves, as a person sees it who opens one for the first time."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from pydantic import ValidationError

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.raw_columns import RAW_COLUMNS
from pipeline_defs.orchestration.assets import catalog
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.settings import PROJECT
from pipeline_defs.topics import Topic


def specs(topic: Topic, lake: str | None = None) -> dict[dg.AssetKey, dg.AssetSpec]:
    """Are the three assets of a topic, as Dagster is given them."""
    found: dict[dg.AssetKey, dg.AssetSpec] = {}
    for each in build_topic_defs(topic, lake).assets or []:
        assert isinstance(each, dg.AssetSpec | dg.AssetsDefinition)
        found |= {each.key: each} if isinstance(each, dg.AssetSpec) else {spec.key: spec for spec in each.specs}
    return found


def test_every_asset_says_what_it_is_whose_it_is_and_where_to_read_on() -> None:
    owners = ["team:shop", "team:data platform", "ann@example.org", "ann.b+c@mail.example.org"]
    topic = KafkaTopic(topic="orders", owners=owners, tags={"domain": "sales"}, description="**Orders**, as placed.")
    found = specs(topic.as_topic(), "/srv/lake")
    assert {key.to_user_string() for key in found} == {"kafka/orders", "raw/orders", "losses/orders"}
    for spec in found.values():
        assert list(spec.owners) == owners
        assert spec.tags["domain"] == "sales" and spec.tags["offsetlake/topic"] == "orders"
        assert spec.kinds and spec.group_name
        assert spec.description is not None and spec.description.startswith("**Orders**, as placed.\n\n")
        assert "`orders`" in spec.description and "    " not in spec.description
        named = {each.file_path for each in spec.metadata["dagster/code_references"].code_references}
        assert {str(PROJECT / "docs" / name) for name in ("runbook.md", "dagster.md")} <= named


def test_the_raw_asset_says_its_columns_and_where_its_files_lie() -> None:
    raw = specs(KafkaTopic(topic="orders").as_topic(), "/srv/lake")[dg.AssetKey(["raw", "orders"])]
    columns = {column.name: column.description for column in raw.metadata["dagster/column_schema"].columns}
    assert columns == {column.name: column.text for column in RAW_COLUMNS}
    assert raw.metadata["dagster/uri"] == "/srv/lake/data/orders"
    assert raw.metadata["files"].value == "/srv/lake/data/orders/**/*.parquet"


def test_a_topic_whose_name_is_too_long_for_a_tag_is_fine_all_the_same() -> None:
    """Kafka allows 249 characters, a tag's value 63."""
    for spec in specs(KafkaTopic(topic="t" * 249).as_topic()).values():
        assert "offsetlake/topic" not in spec.tags


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
