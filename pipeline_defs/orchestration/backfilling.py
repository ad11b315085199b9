"""Backfills that people ask for: preview, launch as a Dagster backfill that the daemon executes, progress, and a topic's job.

They are Dagster's own backfill objects on its instance, so the UI shows them as any other and can cancel them. The job takes
ranges as people describe them, "of the last hour" say, since Dagster's own dialog takes keys only. `choosing.py` chooses them,
as for the command.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster import AssetRecordsFilter, RunsFilter
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionStatus, PartitionBackfill
from dagster._core.utils import make_new_backfill_id

from ..core.errors import DaemonUnavailable
from ..core.log.coverage import Coverage
from ..core.offsets import OffsetRange
from ..resources import Adapters
from ..topics import REDO_TAG, TOPIC_TAG, Duty, Topic
from .assets.raw_asset import ON_CHANGE, land_config
from .choosing import Choice, select_ranges
from .home.daemons import HEARTBEAT_SECONDS, is_silent, read_silence
from .runs.moments import time_text
from .runs.projection import register_keys
from .runs.siblings import BACKFILL_TAG
from .runs.work import logging_failure

SUCCEEDED = {BulkActionStatus.COMPLETED_SUCCESS, BulkActionStatus.COMPLETED}
EVENTS_AT_ONCE = 1_000
DEFAULT_MINUTES = 60
SHOWN = 100  # ranges in the table; the backfill's page has them all
_BETWEEN = {
    "from_time": dg.Field(str, description="This time or later, ISO 8601 with its zone: 2026-11-17T10:00+01:00"),
    "to_time": dg.Field(str, description="And before this time."),
    "time_zone": dg.Field(str, is_required=False, description="Of times without one, such as Europe/Zurich."),
}
_RANGES = dg.Selector(  # type: ignore[no-untyped-call]
    {
        "last_minutes": dg.Field(int, description="Ranges with records of the last so many minutes."),
        "between": dg.Field(_BETWEEN, description="Ranges with records of a time."),
        "missing": dg.Field(bool, description="true: what is planned and not landed."),
        "failed": dg.Field(bool, description="true: what is not landed and whose last run failed."),
        "offsets": dg.Field([str], description='Ranges with these offsets, P:S-E: ["3:300000-400000"].'),
    }
)
_ON_CHANGE = dg.Enum("OnChange", [dg.EnumValue("keep"), dg.EnumValue("replace")])


@dataclass(frozen=True, slots=True)
class BackfillState:
    """How far a backfill is: ranges reported landed, its runs so far, and Dagster's word for it."""

    status: str
    done: frozenset[str]
    runs: int
    has_ended: bool
    has_succeeded: bool


def preview_rows(coverage: Coverage, ranges: Sequence[OffsetRange]) -> list[dict[str, Any]]:
    """Return one document per range: what it is, its state, and what of it is landed."""
    states = coverage.states()
    rows = []
    for offsets in ranges:
        manifest = coverage.manifests.get(offsets)
        file = manifest.file if manifest else None
        rows.append(
            {
                "key": offsets.key,
                "state": states[offsets].value,
                "partition": offsets.partition,
                "start": offsets.start,
                "end": offsets.end,
                "offsets": len(offsets),
                "rows": manifest.rows if manifest else None,
                "bytes": (file.bytes if file else 0) if manifest else None,
                "min_timestamp_ms": file.min_timestamp_ms if file else None,
                "max_timestamp_ms": file.max_timestamp_ms if file else None,
            }
        )
    return rows


def preview_totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum up a preview: ranges by state, offsets, and what of them is landed."""
    states = [row["state"] for row in rows]
    return {
        "ranges_by_state": {state: states.count(state) for state in sorted(set(states))},
        "offsets": sum(row["offsets"] for row in rows),
        "rows": sum(row["rows"] or 0 for row in rows),
        "bytes": sum(row["bytes"] or 0 for row in rows),
    }


def preview_table(rows: Sequence[dict[str, Any]], most: int) -> str:
    """Return a preview as a table in Markdown, of `most` ranges."""
    lines = ["| key | state | offsets | rows | bytes | first record | last record |", "|---|---|---|---|---|---|---|"]
    for row in rows[:most]:
        counts = ("-" if row[name] is None else f"{row[name]:,}" for name in ("offsets", "rows", "bytes"))
        moments = (time_text(row[f"{name}_timestamp_ms"]) for name in ("min", "max"))
        lines.append(f"| {' | '.join([row['key'], row['state'], *counts, *moments])} |")
    more = [f"\nand {len(rows) - most:,} more"] if len(rows) > most else []
    return "\n".join([*lines, *more])


def check_daemon(instance: dg.DagsterInstance, now_seconds: float) -> None:
    """Raise `DaemonUnavailable` where no Dagster daemon executes backfills."""
    silent_seconds = read_silence(instance, "BACKFILL", now_seconds)
    if is_silent(silent_seconds):
        last = "has never run" if silent_seconds is None else f"was last heard of {silent_seconds:.0f} s ago"
        raise DaemonUnavailable(
            f"no Dagster daemon executes backfills of the instance at {instance.root_directory}: it {last}, expected every "
            f"{HEARTBEAT_SECONDS:.0f} s; nothing was launched; start it (`offsetlake up`, or `dagster-daemon run`) with this "
            "DAGSTER_HOME, or land in this process: `offsetlake land` takes the same topic and keys"
        )


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Order for a backfill: to land these ranges, or to do `duty` with them instead."""

    ranges: Sequence[OffsetRange]
    redo: bool
    on_change: str = "keep"
    title: str = ""
    duty: Duty | None = None


def launch_backfill(topic: Topic, request: BackfillRequest, adapters: Adapters, instance: dg.DagsterInstance) -> str:
    """Give Dagster a backfill, and return its id; keys that Dagster lacks are registered first."""
    duty, ranges = request.duty or topic.landing, request.ranges
    now_seconds = adapters.now_ms() / 1000
    check_daemon(instance, now_seconds)
    register_keys(instance, topic, adapters.lake.coverage(topic.name), wanted=ranges)
    chosen = topic.partitions.empty_subset().with_partition_keys([offsets.key for offsets in ranges])
    backfill_id: str = make_new_backfill_id()
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=backfill_id,
        asset_graph_subset=AssetGraphSubset({duty.asset_key: chosen}),  # type: ignore[call-arg]  # it has a default
        backfill_timestamp=now_seconds,
        tags={**duty.tags, REDO_TAG: "yes" if request.redo else "no"},
        dynamic_partitions_store=instance,
        title=request.title or None,
        description=None,
        run_config=land_config(topic, request.on_change) if duty == topic.landing else {},
    )
    instance.add_backfill(backfill)
    return backfill_id


def follow_backfill(
    duty: Duty, backfill_id: str, keys: Collection[str], instance: dg.DagsterInstance
) -> Iterator[BackfillState]:
    """Yield the state of a backfill as of each time that the iterator is asked, until it has ended."""
    wanted, done, cursor = frozenset(keys), set[str](), 0
    while True:
        backfill = instance.get_backfill(backfill_id)
        if backfill is None:
            raise DaemonUnavailable(f"backfill {backfill_id} of topic {duty.topic} is gone from Dagster's database")
        found = instance.fetch_materializations(
            AssetRecordsFilter(duty.asset_key, after_timestamp=backfill.backfill_timestamp, after_storage_id=cursor),
            limit=EVENTS_AT_ONCE,
            ascending=True,
        ).records
        run_ids = set(instance.get_run_ids(RunsFilter(tags={BACKFILL_TAG: backfill_id})))  # later: each event's run is there
        for record in found:
            cursor = record.storage_id
            if record.run_id in run_ids and record.partition_key in wanted:
                done.add(record.partition_key)
        if len(found) == EVENTS_AT_ONCE:
            continue
        has_ended = backfill.status in BULK_ACTION_TERMINAL_STATUSES
        yield BackfillState(backfill.status.value, frozenset(done), len(run_ids), has_ended, backfill.status in SUCCEEDED)
        if has_ended:
            return


def build_backfill(topic: Topic) -> dg.Definitions:
    """Build the job that launches a backfill of the topic; its config says of what, by default the last hour's."""
    description = (
        f"Lands ranges of `{topic.name}` (again), chosen as people speak of them; by default those with records of the last "
        f"{DEFAULT_MINUTES} minutes: open **Launchpad** and click **Launch Run**. For others change the config before: one of "
        "`last_minutes`, `between` (two times), `missing`, `failed`, `offsets`. The run ends at once; its output leads to the "
        "backfill that it has launched. A landed range is read again from Kafka and compared; its file stays, unless "
        "`on_change` says `replace`."
    )

    @dg.op(
        name=f"launch_{topic.backfill_job}",
        description=description,
        config_schema={
            "ranges": dg.Field(
                _RANGES, default_value={"last_minutes": DEFAULT_MINUTES}, description="Which ranges; exactly one of these."
            ),
            "on_change": dg.Field(_ON_CHANGE, default_value="keep", description=ON_CHANGE),
        },
    )
    def launch(context: dg.OpExecutionContext, adapters: dg.ResourceParam[Adapters]) -> None:
        with logging_failure(context):
            adapters.check_lake(topic.name)
            coverage = adapters.lake.coverage(topic.name)
            choice = _choice(context.op_config["ranges"])
            selection = select_ranges(choice, topic, coverage, adapters, context.instance)
            title = f"{topic.backfill_job} by {choice.way}"
            request = BackfillRequest(selection.ranges, choice.is_redo, context.op_config["on_change"], title)
            backfill = launch_backfill(topic, request, adapters, context.instance)
        rows = preview_rows(coverage, selection.ranges)
        context.log.info("launched backfill %s of %s ranges of %s", backfill, len(rows), topic.name)
        totals = preview_totals(rows)
        states = totals.pop("ranges_by_state")
        metadata: dict[str, Any] = {
            "backfill": dg.MetadataValue.url(f"/runs/b/{backfill}"),
            "ranges": ", ".join(f"{count:,} {state}" for state, count in states.items()),
            **totals,
            "left_out": len(selection.left_out),  # meant too, but lost or abandoned
            "preview": dg.MetadataValue.md(preview_table(rows, SHOWN)),
        }
        context.add_output_metadata(metadata)

    @dg.job(name=topic.backfill_job, description=description, tags={TOPIC_TAG: topic.name})
    def backfill() -> None:
        launch()

    return dg.Definitions(jobs=[backfill])


def _choice(ranges: dict[str, Any]) -> Choice:
    """Return the config as a choice; Dagster has checked that it is exactly one way."""
    said = dict(ranges.get("between", ranges))
    return Choice(**said | {"offsets": tuple(said.get("offsets", ()))}, said_in="config")
