"""The asset of the latest record of each key: Dagster's face of `latest.update`; one event per run, with its facts."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .catalog import derived_asset, latest_description
from .core.latest import Latest
from .edges.latest_table import LatestTable
from .latest import Updated, update
from .resources import Edges
from .runs import new_attempt, run_of, step_logger
from .topics import Topic


class UpdateConfig(dg.Config):
    """What a person may say in the launchpad."""

    full: bool = False


def build_latest_asset(topic: Topic, config: Latest, lake: str | None = None) -> dg.AssetsDefinition:
    """Build the asset that keeps the latest record of each key; `lake` is only shown."""

    @derived_asset(
        topic,
        "latest",
        "",
        lake,
        folder="tables/latest",
        deps=[topic.decoded_key],
        description=latest_description(topic, config),
    )
    def latest(
        context: dg.AssetExecutionContext,
        config: UpdateConfig,
        edges: dg.ResourceParam[Edges],
        pyspark: LazyPySparkResource,
    ) -> dg.MaterializeResult[Any]:
        assert topic.latest is not None
        with run_of(context, topic.upserting, edges):
            tools = edges.latest_tools(pyspark, step_logger(context))
            started = edges.now_ms()
            done = update(topic.name, topic.latest, new_attempt(context), tools, full=config.full)
            metadata = latest_metadata(topic, done, (edges.now_ms() - started) / 1000, edges)
            edges.watch_step("reported_latest", topic=topic.name, ranges=done.ranges)
            return dg.MaterializeResult(metadata=metadata)

    return latest


def latest_metadata(topic: Topic, done: Updated, seconds: float, edges: Edges) -> Mapping[str, Any]:
    """Return the facts of the latest table that the UI shows: as it stands, and what this run did."""
    table = LatestTable(edges.lake, topic.name)
    standing = table.read()
    keys, tombstones = table.count(standing)
    files = standing.files if standing is not None else {}
    return {
        "keys": keys,
        "dagster/row_count": keys,
        "tombstones": tombstones,
        "table_version": standing.version if standing is not None else -1,
        "ranges_read": done.ranges,
        **({"rebuilt": done.rebuilt} if done.rebuilt else {}),
        "files": len(files),
        "bytes": sum(files.values()),
        "seconds": round(seconds, 3),
    }
