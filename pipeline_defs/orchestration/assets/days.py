"""Event days in Dagster: the partitions of `days/<topic>`, told as the decoded table counts them; no day has a file of its own.

What Dagster was told of a day carries a data version, so what is news follows from the lake and Dagster alone: a late record
makes its own day news, and no other.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG

from ...core.tables.days import GONE, DayFacts, Days, day_at
from ...core.tables.decoded_ranges import DecodedRanges
from ...core.tables.decoded_table import TREE
from ...core.tables.delta import Snapshot
from ...resources import Edges
from ...topics import Topic
from ..runs.projection import read_data_versions


def report_days(topic: Topic, instance: dg.DagsterInstance, edges: Edges) -> list[str]:
    """Tell Dagster of the days whose rows are not what it was told last; return them."""
    if topic.days is None:
        return []
    decoded, now_ms = edges.decodings.read_ranges(topic.name), edges.now_ms()
    told_last = [each.storage_id for each in instance.fetch_materializations(topic.days_key, limit=1).records]
    seen = (instance, told_last, topic.days, decoded.table.version, decoded.table.metadata, day_at(now_ms))
    if edges.compared.get(topic.days_key) == seen:
        return []
    news = find_untold(topic.days, decoded, read_data_versions(instance, topic.days_key), now_ms)
    for day, facts in news.items():
        instance.report_runless_asset_event(day_event(topic, day, facts, decoded.table, edges))
        edges.watch_step("reported_day", day=day)
    if not news:
        edges.compared[topic.days_key] = seen
    return [*news]


def find_untold(days: Days, decoded: DecodedRanges, shown: Mapping[str, str | None], now_ms: int) -> dict[str, DayFacts]:
    """Find the days whose rows are not what Dagster shows of them, sorted; `shown` is the data version of each."""
    found, own = decoded.sums.days, days.event_time.text
    news = {day: facts for day, facts in found.get(own, {}).items() if days.place(day, now_ms) == "held"}
    if found.keys() <= {own}:  # else there are rows of days that nobody knows
        news |= dict.fromkeys(shown.keys() - news.keys(), GONE)
    return {day: facts for day, facts in sorted(news.items()) if shown.get(day) != facts.version}


def day_event(topic: Topic, day: str, facts: DayFacts, table: Snapshot, edges: Edges) -> dg.AssetMaterialization:
    """Return the event of one day."""
    metadata: dict[str, Any] = {
        "rows": facts.rows,
        "dagster/partition_row_count": facts.rows,
        "ranges": facts.ranges,
        "last_ranges": ", ".join(offsets.key for offsets in facts.last_ranges),
        "table_version": table.version,
        "table": dg.MetadataValue.path(edges.lake.store.url(f"{TREE}/{topic.name}")),
    }
    if facts.newest_ms is not None:
        metadata["newest_record"] = dg.MetadataValue.timestamp(facts.newest_ms / 1000)
    tags = {DATA_VERSION_TAG: facts.version}
    return dg.AssetMaterialization(topic.days_key, partition=day, metadata=metadata, tags=tags)
