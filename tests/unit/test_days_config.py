"""What defs.yaml may say of event days, and what is refused: each with what was expected and what was found."""

from __future__ import annotations

import dagster as dg
import pytest

from pipeline_defs.component import KafkaTopic
from pipeline_defs.core.errors import BadSetting
from pipeline_defs.core.tables.days import Days, EventTime
from pipeline_defs.orchestration.topic_defs import build_days

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")  # Dagster's own
TOPIC = "topic: orders\n"
DECODE = "decode: {value: {format: json, inline_schema: 'at TIMESTAMP'}}\n"


def days(text: str, decode: str = DECODE) -> Days | None:
    """Reads a defs.yaml's attributes as Dagster does."""
    return KafkaTopic.resolve_from_yaml(f"{TOPIC}{decode}days: {text}").as_topic().days


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{start: 2013-01-01}", Days("2013-01-01")),
        ("{start: '2013-01-01', event_time: value.at}", Days("2013-01-01", EventTime("value.at"))),
        ("{start: 2013-01-01, event_time: offset, unit: ms}", Days("2013-01-01", EventTime("offset", "ms"))),
    ],
)
def test_days_begin_on_a_day_and_are_by_a_column(text: str, expected: Days) -> None:
    """A date may stand without quotes, as people write it."""
    assert days(text) == expected
    topic = KafkaTopic.resolve_from_yaml(f"{TOPIC}{DECODE}days: {text}").as_topic()
    assert topic.decode is not None
    assert topic.decode.event_time == expected.event_time


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", "start"),
        ("{start: 2013-1-1}", "expected a day such as 2013-01-01, found '2013-1-1'"),
        ("{start: 2013-01-01T00:00:00Z}", "expected a day such as 2013-01-01, found '2013-01-01"),
        ("{start: yesterday}", "expected a day such as 2013-01-01, found 'yesterday'"),
        ("{start: 2013-01-01, unit: hours}", "topic orders has wrong `days`.*expected unit s, ms or us, found 'hours'"),
        ("{start: 2013-01-01, event_time: value..at}", "expected a column's path such as value.ordered_at"),
        ("{start: 2013-01-01, column: at}", "column"),
    ],
)
def test_what_is_no_day_or_column_is_refused(text: str, found: str) -> None:
    with pytest.raises(Exception, match=found) as caught:
        days(text)
    assert isinstance(caught.value, BadSetting | ValueError | dg.DagsterError)


def test_days_need_decoded_rows() -> None:
    with pytest.raises(BadSetting, match="topic orders has `days` and no `decode`, expected both"):
        days("{start: 2013-01-01}", decode="")


def test_a_topic_with_days_has_an_asset_of_them_and_one_without_has_none() -> None:
    """Its parent is the decoded asset as a whole: a day may come from any range."""
    topic = KafkaTopic.resolve_from_yaml(f"{TOPIC}{DECODE}days: {{start: 2013-01-01}}").as_topic()
    defs = build_days(topic, "/srv/lake")
    (asset,) = defs.assets or []
    assert isinstance(asset, dg.AssetSpec)
    spec = asset
    (dependency,) = spec.deps
    assert (spec.key, dependency.asset_key) == (topic.days_key, topic.decoded_key)
    assert isinstance(dependency.partition_mapping, dg.AllPartitionMapping)
    assert spec.partitions_def == dg.DailyPartitionsDefinition("2013-01-01", end_offset=1)
    assert spec.metadata["dagster/uri"] == "/srv/lake/tables/decoded/orders"
    assert "A record that comes late" in (spec.description or "")
    assert not [*(defs.jobs or []), *(defs.sensors or []), *(defs.asset_checks or [])], "it is told of, not made"
    assert not build_days(KafkaTopic.resolve_from_yaml(f"{TOPIC}{DECODE}").as_topic()).assets
