"""What defs.yaml may say of latest records, what is refused, and what Dagster is given then."""

from __future__ import annotations

import dagster as dg
import pytest

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.orchestration.topic_defs import build_latest
from pipeline_defs.topics import Topic

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Dagster's own


JSON = "decode: {value: {format: json, inline_schema"


def read(text: str) -> Topic:
    """Reads a defs.yaml's attributes as Dagster does."""
    return KafkaTopic.resolve_from_yaml(f"topic: orders\n{text}").as_topic()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("decode: {}", None),
        ("decode: {}\nlatest: {}", Latest()),
        (f"{JSON}: 'version INT'}}}}\nlatest: {{sequence: value.version}}", Latest("value.version")),
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
        ("decode: {}\nlatest: {sequence: version}", "expected the path of a field such as value.version"),
        (
            "decode: {key: {format: json, inline_schema: 'id INT, tags MAP <STRING, INT>'}}\nlatest: {}",
            "topic orders has `latest`, and `decode.key` with a MAP",
        ),
        (f"{JSON}: 'version INT'}}}}\nlatest: {{sequence: value.versio}}", "no column versio in value.*value.version"),
        (f"{JSON}: 'tags ARRAY<INT>'}}}}\nlatest: {{sequence: value.tags}}", "expected a field .*, found a list"),
        ("decode: {}\nlatest: {sequence: 7}", "sequence"),
        ("decode: {}\nlatest: {files: 4}", "files"),
    ],
)
def test_what_cannot_be_is_refused(text: str, found: str) -> None:
    with pytest.raises(Exception, match=found):
        read(text)


def test_dagster_is_given_an_asset_a_check_and_a_job() -> None:
    assert not build_latest(read("decode: {}")).assets
    definitions = build_latest(read("description: Orders.\ndecode: {}\nlatest: {}"), "/srv/lake")
    (asset,) = definitions.assets or []
    assert isinstance(asset, dg.AssetsDefinition)
    (spec,) = asset.specs
    assert spec.key.to_user_string() == "latest/orders"
    assert spec.description is not None and spec.description.startswith("Orders.\n\n**The latest record of each key**")
    assert "    " not in spec.description
    assert spec.metadata["dagster/uri"] == "/srv/lake/tables/latest/orders"
    assert [dep.asset_key.to_user_string() for dep in spec.deps] == ["decoded/orders"]
    assert [job.name for job in definitions.jobs or []] == ["latest_orders"]
    assert not definitions.sensors
    assert len(list(definitions.asset_checks or [])) == 1
