"""The check of a latest table: a share of the keys, another one for each run, is compared with a recomputation."""

import zlib
from contextlib import ExitStack

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster_pyspark import LazyPySparkResource

from .auditing import Finding
from .checks import as_result
from .core.command_lines import command
from .core.latest import Latest
from .edges.spark_latest import MOST_TOLD, SHARES, Inputs
from .latest import LatestTools, find_due, open_files, open_sources, place
from .resources import Edges
from .topics import Topic

RECOMPUTED = "latest_recomputed"
COMPARED_EVERY_MS = 3_600_000  # by runs of the pulse, which update tables each minute


def build_latest_check(topic: Topic, config: Latest) -> dg.AssetChecksDefinition:
    """Build the check of a topic's latest table."""

    @dg.asset_check(
        asset=topic.latest_key,
        name=RECOMPUTED,
        description=f"One key in {SHARES}, drawn by the run's id, has the record that a full recomputation gives.",
    )
    def latest_recomputed(
        context: dg.AssetCheckExecutionContext, edges: dg.ResourceParam[Edges], pyspark: LazyPySparkResource
    ) -> dg.AssetCheckResult:
        share = share_of(context.run.run_id)
        return as_result(check_share(topic.name, config, share, edges.latest_tools(pyspark)))

    return latest_recomputed


def is_check_due(topic: Topic, instance: dg.DagsterInstance, now_ms: int) -> bool:
    """Return whether no share of the keys was found right within the last hour: a comparison reads all that is decoded."""
    key = dg.AssetCheckKey(topic.latest_key, RECOMPUTED)
    last = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    is_right = last is not None and last.status is AssetCheckExecutionRecordStatus.SUCCEEDED
    return last is None or not is_right or now_ms - last.create_timestamp * 1000 >= COMPARED_EVERY_MS


def share_of(run_id: str) -> int:
    """Draw the share of keys that a run compares, `0` to `SHARES - 1`."""
    return zlib.crc32(run_id.encode()) % SHARES


def check_share(topic: str, config: Latest, share: int, tools: LatestTools) -> Finding:
    """Find the winners of a share of the keys anew, unseen, and name what differs.

    Where the table is behind the decoded one there is nothing to compare with: it says so, and does not pass.
    """
    due, what = find_due(topic, config, tools.decodings), f"share {share} of {SHARES} of the keys of latest/{topic}"
    if due.standing is None:
        return Finding(RECOMPUTED, f"{what}, which is not there yet", (), {"keys": 0, "ranges": 0})
    if due.has_work:
        waits = due.why_anew or f"{due.waiting} ranges were decoded since"
        return Finding(
            RECOMPUTED, what, (f"latest/{topic} is behind its decoded table: {waits}; update it, then check",)
        )
    with ExitStack() as opened:
        placed = place(due.decoded, tools.lake.recent(topic).log.epoch_of)
        inputs = Inputs(
            fresh=open_sources(placed, placed, tools.lake, opened),
            present=open_files(due.standing, tools.lake, opened),
        )
        keys, wrong = tools.spark().find_differences(topic, inputs, due.standing.schema, config, share)
    first = ", ".join(map(str, wrong[:3]))
    number = f"{len(wrong)}{' or more' if len(wrong) == MOST_TOLD else ''}"
    text = (
        f"{what}: {number} are not as a recomputation has them; first (generation, partition, offset): {first}; "
        f"`{command('latest', topic, '--full')}`"
    )
    violations = (text,) if wrong else ()
    return Finding(
        RECOMPUTED, f"{what}, {keys} keys", violations, {"share": share, "keys": keys, "ranges": len(placed)}
    )
