"""The asset of the latest record of each key: Dagster's face of `latest.update`; one event per run, with its facts."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .catalog import derived_asset, latest_description
from .core.latest import BucketFacts, Latest
from .latest import Updated, read_state, update
from .resources import Edges
from .runs import new_attempt, run_of, step_logger
from .topics import Topic


class UpdateConfig(dg.Config):
    """Is what a person may say in the launchpad."""

    full: bool = False


def build_latest_asset(topic: Topic, config: Latest, lake: str | None = None) -> dg.AssetsDefinition:
    """Builds the asset that keeps the latest record of each key; `lake` is only shown."""

    @derived_asset(
        topic,
        "latest",
        "*.parquet",
        lake,
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
            facts = read_state(topic.name, topic.latest, edges.latest_files)
            metadata = latest_metadata(topic, done, facts.values(), (edges.now_ms() - started) / 1000, edges)
            edges.watch_step("reported_latest", topic=topic.name, exchanged=len(done.exchanged))
            return dg.MaterializeResult(metadata=metadata)

    return latest


def latest_metadata(
    topic: Topic, done: Updated, facts: Iterable[BucketFacts], seconds: float, edges: Edges
) -> Mapping[str, Any]:
    """Are the facts of the latest state that the UI shows: as it stands, and what this run did."""
    listed = list(facts)
    keys = sum(each.keys for each in listed)
    offsets = {sum(stretch.end - stretch.start for stretch in each.applied.stretches) for each in listed}
    return {
        "keys": keys,
        "dagster/row_count": keys,
        "tombstones": sum(each.tombstones for each in listed),
        "applied_offsets": min(offsets, default=0),
        "ranges_read": done.read,
        "buckets_exchanged": len(done.exchanged),
        "bytes": sum(edges.lake.store.list(f"latest/{topic.name}").values()),
        "seconds": round(seconds, 3),
    }
