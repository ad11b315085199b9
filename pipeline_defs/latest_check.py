"""The check of a latest state: one bucket, another one for each run, is made anew from all its ranges and compared."""

import zlib
from contextlib import ExitStack

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from .attempt import Attempt
from .auditing import Finding
from .checks import as_result
from .core.command_lines import command
from .core.latest import Latest
from .edges.latest_columns import common_schema
from .edges.latest_files import differences
from .edges.spark_latest import Inputs
from .latest import LatestTools, read_state
from .resources import Edges
from .staging_places import LocalStaging
from .topics import Topic

RECOMPUTED = "latest_recomputed"


def build_latest_check(topic: Topic, config: Latest) -> dg.AssetChecksDefinition:
    """Builds the check of a topic's latest state."""

    @dg.asset_check(
        asset=topic.latest_key,
        name=RECOMPUTED,
        description="One bucket, drawn by the run's id, holds what a full recomputation from its ranges gives.",
    )
    def latest_recomputed(
        context: dg.AssetCheckExecutionContext, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> dg.AssetCheckResult:
        attempt = Attempt(f"check-{context.run.run_id}", context.run.run_id, "check")
        bucket = zlib.crc32(context.run.run_id.encode()) % config.buckets
        return as_result(check_bucket(topic.name, config, bucket, attempt, edges.latest_tools(pyspark)))

    return latest_recomputed


def check_bucket(topic: str, config: Latest, bucket: int, attempt: Attempt, tools: LatestTools) -> Finding:
    """Makes one bucket anew from the ranges that went into it, unseen, and names what differs.

    Where a range of them was decoded again since, or is while Spark reads, there is nothing to compare with: it says so, and
    does not pass.
    """
    read_state(topic, config, tools.files)
    staging = LocalStaging(attempt.id, tools.lake)
    folder = staging.root
    try:
        with tools.files.snapshot(topic, [bucket], folder / "seen") as seen:
            present = seen[bucket]
            decoded = tools.decodings.read_ranges(topic)
            if present.facts is None or present.rows is None:
                return Finding(RECOMPUTED, f"bucket {bucket}, which has no file yet", (), {"keys": 0, "ranges": 0})
            applied = present.facts.applied
            ranges = [offsets for offsets in sorted(decoded.known) if applied.revision_of(offsets) is not None]
            difference = applied.compare({offsets: decoded.known[offsets].revision for offsets in ranges})
            if not difference.only_adds:
                return _moved(topic, bucket, len(difference.redone) + len(difference.gone))
            with ExitStack() as copies:
                with_rows = [decoded.path_of(offsets) for offsets in ranges if decoded.known[offsets].rows]
                paths = [copies.enter_context(tools.lake.local_copy(path)) for path in with_rows]
                schema = common_schema(topic, [present.rows, *paths])
                inputs, due = Inputs(fresh=paths), [bucket]
                staged = tools.spark().stage(topic, inputs, schema, config.buckets, due, folder / "spark")
            now = tools.decodings.read(topic)
            if moved := sum(decoded.known[offsets] != now.get(offsets) for offsets in ranges):
                return _moved(topic, bucket, moved)
            found = differences(present, staged[bucket])
        facts = {"bucket": bucket, "keys": present.facts.keys, "ranges": len(ranges)}
        violations = tuple(
            f"bucket {bucket} of latest/{topic}: {text}; `{command('latest', topic, '--full')}`" for text in found
        )
        return Finding(RECOMPUTED, f"bucket {bucket}, {present.facts.keys} keys", violations, facts)
    finally:
        tools.lake.store.delete_folder(f"staging/{attempt.id}")
        staging.close()


def _moved(topic: str, bucket: int, ranges: int) -> Finding:
    text = f"{ranges} ranges of bucket {bucket} were decoded again since: update latest/{topic}, then check"
    return Finding(RECOMPUTED, f"bucket {bucket}", (text,))
