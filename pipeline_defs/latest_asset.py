"""The asset of the latest record of each key: Dagster's face of `latest.update`; one event per run, with its facts."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .attempt import Attempt
from .catalog import derived_asset, latest_description
from .core.decoded_table import TREE as DECODED
from .core.latest import Latest
from .edges.latest_table import TREE, LatestTable, Standing
from .edges.openlineage import Derived, telling
from .latest import Updated, update
from .resources import Edges
from .runs import Context, new_attempt, run_of, step_logger
from .topics import Topic
from .tries import UPDATE, trying


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
        folder=TREE,
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
            with trying(context.instance, topic.upserting, [UPDATE], context.run.run_id, edges.now_ms) as done:
                metadata = update_and_tell(topic, topic.latest, new_attempt(context), context, edges, pyspark, config)
                done.add(UPDATE)
            return dg.MaterializeResult(metadata=metadata)

    return latest


def update_and_tell(
    topic: Topic,
    config: Latest,
    attempt: Attempt,
    context: Context,
    edges: Edges,
    pyspark: LazyPySparkResource,
    asked: UpdateConfig | None = None,
) -> Mapping[str, Any]:
    """Update a latest table and tell OpenLineage of it; return the facts that Dagster shows."""
    started, tools = edges.now_ms(), edges.latest_tools(pyspark, step_logger(context))
    done = update(topic.name, config, attempt, tools, full=asked is not None and asked.full)
    table = LatestTable(edges.lake, topic.name)
    standing = table.read()
    keys, tombstones = table.count(standing)
    if done.has_committed and standing is not None:
        with telling(edges.lineage(), "tables", context.log.warning) as tell:
            tell(_lineage(topic, standing, keys, context.run.run_id, started, edges))
    edges.watch_step("reported_latest", topic=topic.name, ranges=done.ranges)
    return latest_metadata(standing, keys, tombstones, done, (edges.now_ms() - started) / 1000)


def _lineage(topic: Topic, standing: Standing, keys: int, run_id: str, began_ms: int, edges: Edges) -> Derived:
    """Return what OpenLineage is told of an update: from the decoded table, at the version that went in, to its latest."""
    url, decoded = edges.lake.store.url, edges.decodings.read_ranges(topic.name).table
    return Derived(
        job=topic.latest_job,
        run_id=run_id,
        source_url=url(f"{DECODED}/{topic.name}"),
        source_version=standing.applied(decoded.metadata.id) if decoded.metadata is not None else None,
        read=None,
        table_url=url(f"{TREE}/{topic.name}"),
        version=standing.version,
        written=keys,
        columns={column.name: str(column.type) for column in standing.schema},
        began_ms=began_ms,
        ended_ms=edges.now_ms(),
    )


def latest_metadata(
    standing: Standing | None, keys: int, tombstones: int, done: Updated, seconds: float
) -> Mapping[str, Any]:
    """Return the facts of the latest table that the UI shows: as it stands, and what this run did."""
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
