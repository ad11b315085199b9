"""The asset of the latest record of each key, which runs `tables.latest.update`; one event per run, with its facts.

Its check compares a share of the keys, drawn anew for each run, with a recomputation.
"""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from ...adapters.system.locks import scratch
from ...adapters.tables.latest_table import TREE, LatestSnapshot, LatestTable
from ...adapters.tables.latest_winners import MOST_TOLD, SHARES, Inputs, Winners
from ...adapters.telemetry.openlineage import Derived, telling
from ...core.advice import command
from ...core.errors import DamagedFile
from ...core.tables.decoded_table import TREE as DECODED
from ...core.tables.latest import Latest
from ...landing.attempt import Attempt
from ...landing.auditing import Finding, looked
from ...resources import Adapters
from ...tables.latest import LatestTools, Updated, find_due, find_stretches, place, told_if_unreadable, update
from ...topics import Topic, op_name
from ..runs.tries import UPDATE, trying
from ..runs.work import Context, new_attempt, run_of, step_logger
from .catalog import latest_spec
from .checks import build_check


class UpdateConfig(dg.Config):
    """What a person may say in the launchpad."""

    full: bool = False


def build_latest_asset(topic: Topic, config: Latest, lake: str) -> dg.AssetsDefinition:
    """Build the asset that keeps the latest record of each key; `lake` is only shown."""

    @dg.multi_asset(name=op_name(topic.latest_key), specs=[latest_spec(topic, config, lake)], pool=topic.upserting.pool)
    def latest(
        context: dg.AssetExecutionContext, config: UpdateConfig, adapters: dg.ResourceParam[Adapters]
    ) -> dg.MaterializeResult[Any]:
        with run_of(context, topic.upserting, adapters):
            with trying(context.instance, topic.upserting, [UPDATE], context.run.run_id, adapters.now_ms) as done:
                metadata = update_and_tell(topic, new_attempt(context), context, adapters, full=config.full)
                done.add(UPDATE)
            return dg.MaterializeResult(metadata=metadata)

    return latest


def update_and_tell(
    topic: Topic, attempt: Attempt, context: Context, adapters: Adapters, *, full: bool = False
) -> Mapping[str, Any]:
    """Update a latest table and tell OpenLineage of it; return the facts that Dagster shows."""
    assert topic.latest is not None
    started, tools = adapters.now_ms(), adapters.latest_tools(step_logger(context))
    done = update(topic.name, topic.latest, attempt, tools, full=full)
    table = LatestTable(adapters.lake, topic.name)
    snapshot = table.read()
    facts = latest_metadata(table, snapshot, done, (adapters.now_ms() - started) / 1000)
    if done.has_committed and snapshot is not None:
        with telling(adapters.lineage(), "tables", context.log.warning) as tell:
            tell(_lineage(topic, snapshot, facts["keys"], context.run.run_id, started, adapters))
    adapters.watch_step("reported_latest", topic=topic.name, ranges=done.ranges)
    return facts


def _lineage(topic: Topic, snapshot: LatestSnapshot, keys: int, run_id: str, began_ms: int, adapters: Adapters) -> Derived:
    """Return what OpenLineage is told of an update: from the decoded table, at the version that went in, to its latest."""
    url, decoded = adapters.lake.store.url, adapters.decodings.read_ranges(topic.name).table
    return Derived(
        job=topic.upserting.job,
        run_id=run_id,
        source_url=url(f"{DECODED}/{topic.name}"),
        source_version=snapshot.applied(decoded.metadata.id) if decoded.metadata is not None else None,
        read=None,
        table_url=url(f"{TREE}/{topic.name}"),
        version=snapshot.version,
        written=keys,
        columns={column.name: str(column.type) for column in snapshot.schema},
        began_ms=began_ms,
        ended_ms=adapters.now_ms(),
    )


def latest_metadata(table: LatestTable, snapshot: LatestSnapshot | None, done: Updated, seconds: float) -> Mapping[str, Any]:
    """Return the facts of the latest table that the UI shows: as it stands, and what this run did."""
    keys, tombstones = table.count(snapshot)
    files = snapshot.files if snapshot is not None else {}
    return {
        "keys": keys,
        "dagster/row_count": keys,
        "tombstones": tombstones,
        "table_version": snapshot.version if snapshot is not None else -1,
        "ranges_read": done.ranges,
        **({"rebuilt": done.rebuilt} if done.rebuilt else {}),
        "files": len(files),
        "bytes": sum(files.values()),
        "seconds": round(seconds, 3),
    }


RECOMPUTED = "latest_recomputed"
COMPARED_EVERY_MS = 3_600_000  # by runs of the pulse, which update tables each minute


def build_latest_check(topic: Topic, config: Latest) -> dg.AssetChecksDefinition:
    """Build the check of a topic's latest table."""

    def ask(topic: Topic, adapters: Adapters, context: dg.AssetCheckExecutionContext) -> Finding:
        tools, share = adapters.latest_tools(), share_of(context.run.run_id)
        return looked(RECOMPUTED, lambda: check_share(topic.name, config, share, tools, may_wait=True))

    text = f"One key in {SHARES}, drawn by the run's id, has the record that a full recomputation gives."
    return build_check(topic, dg.AssetCheckKey(topic.latest_key, RECOMPUTED), ask, text)


def is_check_due(topic: Topic, instance: dg.DagsterInstance, now_ms: int) -> bool:
    """Return whether the last comparison failed, is an hour old or was never made: each reads all that is decoded."""
    key = dg.AssetCheckKey(topic.latest_key, RECOMPUTED)
    last = instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
    is_right = last is not None and last.status is AssetCheckExecutionRecordStatus.SUCCEEDED
    return last is None or not is_right or abs(now_ms - last.create_timestamp * 1000) >= COMPARED_EVERY_MS


def share_of(run_id: str) -> int:
    """Draw the share of keys that a run compares, `0` to `SHARES - 1`."""
    return zlib.crc32(run_id.encode()) % SHARES


def check_share(topic: str, config: Latest, share: int, tools: LatestTools, *, may_wait: bool = False) -> Finding:
    """Recompute the latest records of a share of the keys in staging, and name what differs.

    Where the table is behind the decoded one, nothing can be compared: the finding says so, and passes only if it `may_wait`.
    """
    due, what = find_due(topic, config, tools.decodings), f"share {share} of {SHARES} of the keys of latest/{topic}"
    waits = f"is to be made anew: {due.why_anew}" if due.why_anew else f"has {due.waiting} decoded ranges to read"
    if may_wait and not due.is_comparable and (due.snapshot is None or not due.snapshot.fault):
        return Finding(RECOMPUTED, f"nothing, as latest/{topic} {waits} at the next update", ())
    if due.snapshot is None:
        return Finding(RECOMPUTED, f"{what}, which is not there yet", (), {"keys": 0, "ranges": 0})
    if not due.is_comparable:
        return Finding(RECOMPUTED, what, (f"latest/{topic} {waits}; update it, then check",))
    if due.snapshot.damage:  # nothing is decoded that it could be made of
        text = f"latest/{topic} is broken: {due.snapshot.damage}; once something is decoded, the next update makes it anew"
        return Finding(RECOMPUTED, what, (text,))
    lake = tools.lake
    placed = place(due.decoded, lake.recent(topic).log.epoch_of)
    inputs = Inputs(find_stretches(placed, placed, lake), present=[*due.snapshot.files])
    try:
        with (
            TemporaryDirectory(dir=scratch(), prefix="check-") as folder,  # not the lake's: looking at it makes nothing there
            told_if_unreadable(inputs, replace(due, placed=placed), lake),
        ):
            keys, wrong = Winners(lake, inputs, due.snapshot.schema, config, Path(folder)).find_differences(share)
    except DamagedFile as error:
        text = f"latest/{topic} is broken: {error}; `{command('latest', topic, '--rebuild')}` makes it anew"
        return Finding(RECOMPUTED, what, (text,))
    first = ", ".join(map(str, wrong[:3]))
    number = f"{len(wrong)}{' or more' if len(wrong) == MOST_TOLD else ''}"
    text = (
        f"{what}: {number} are not as a recomputation has them; first (generation, partition, offset): {first}; "
        f"`{command('latest', topic, '--rebuild')}`"
    )
    violations = (text,) if wrong else ()
    return Finding(RECOMPUTED, f"{what}, {keys} keys", violations, {"share": share, "keys": keys, "ranges": len(placed)})
