"""`offsetlake compact`: merges small files of tables, and may drop range files from `data/` that the raw table has.

And `sweep`: deletes what crashes left in staging.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import click

from ...core.advice import counted
from ...core.errors import RangeFilesKept
from ...core.tables.compaction import CompactionOutcome, CompactionVerdict, Group
from ...core.tables.decoded_table import DecodedGroup
from ...orchestration.runs.moments import time_text
from ...orchestration.upkeep.compacting import check_compaction, check_has_table, compact_tables, plan_compaction
from ...resources import Adapters
from ...tables.deleting import (
    SWEEP_AFTER_SECONDS,
    Droppable,
    DropVerdict,
    drop_range_files,
    find_orphans,
    plan_dropping,
    sweep_orphans,
)
from ..show import find_topic, json_option, open_adapters, print_json, print_table, size_text, topic_argument
from ..terminal import OUT, progress

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60}


class _Age(click.ParamType[float]):
    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return an age in seconds."""
        found = re.fullmatch(r"(\d{1,6})([dhm])", str(value), re.ASCII)
        if found is None:
            self.fail(f"{value!r} is no age: expected a number of up to six digits and d, h or m, e.g. 30d", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


@click.command()
@topic_argument
@click.option("--all", "every", is_flag=True, help="The newest files too, which would wait for more to weigh enough.")
@click.option(
    "--drop-range-files-after",
    "drop_after",
    type=_Age(),
    metavar="AGE",
    help="Delete range files from data/ that were landed so long ago, e.g. 30d, and that a compacted file has the rows of; "
    "0d: however lately.",
)
@click.option("--apply", is_flag=True, help="Compact, and drop range files (default: dry run).")
@json_option
def compact(topic: str, every: bool, drop_after: float | None, apply: bool, as_json: bool) -> None:
    """Compact the raw and the decoded table of TOPIC: many small files become few of about target_file_bytes.

    A job does it too.

    What is landed stays as it is, unless --drop-range-files-after deletes files from `data/`: their rows are then in the table
    alone, where `offsetlake sql`, audit, trace, redo and decoding find them, and a plain glob does not.

    \b
    Examples:
      offsetlake compact flights
      offsetlake compact flights --all --apply
      offsetlake compact flights --drop-range-files-after 30d --apply
    """
    with progress(f"looking for what of {topic} can be compacted"):
        configured, adapters = find_topic(topic), open_adapters()
        if drop_after is not None or configured.decode is None:
            check_has_table(adapters)
        groups = [group for table in plan_compaction(configured, adapters, every=every).values() for group in table]
    verdicts = list[CompactionVerdict]()
    dropped = list[DropVerdict]()
    if apply:
        adapters.check_lake(topic)
        with progress(f"compacting {topic}", len(groups)) as shown:
            adapters.watch_step = shown.watching(adapters.watch_step)
            tools = adapters.tools(configured, adapters.pyspark())
            verdicts = [*shown.each(compact_tables(configured, "cli", tools, adapters, every=every))]
    plans = [] if drop_after is None else plan_dropping(topic, adapters.lake, adapters.now_ms(), drop_after)
    if plans:
        dropped = _drop(topic, plans, adapters, dry_run=not apply)
    kept = [each for each in dropped if each.reason]
    plans = [plan.without({each.offsets for each in kept}) for plan in plans]
    rows = [_row(each.group, each) for each in verdicts] if apply else [_row(group, None) for group in groups]
    if as_json:
        drops = [{"key": each.offsets.key, "reason": each.reason} for each in dropped]
        print_json({"topic": topic, "done": apply, "files": rows, "droppable": _count(plans), "dropped": drops})
    else:
        _show(topic, rows, plans, drop_after, adapters, dry_run=not apply)
    check_compaction(topic, verdicts)
    if kept:
        raise RangeFilesKept(
            f"{len(kept)} of {len(dropped)} range files of topic {topic} {'' if apply else 'would '}stay where they are",
            [f"range {each.offsets.text(topic)}: {each.reason}" for each in kept],
        )


def _drop(topic: str, plans: Sequence[Droppable], adapters: Adapters, *, dry_run: bool) -> list[DropVerdict]:
    with progress(f"{'looking at' if dry_run else 'dropping'} range files of {topic}", _count(plans)) as shown:
        dropping = drop_range_files(topic, adapters.lake, plans, adapters.now_ms(), adapters.watch_step, dry_run=dry_run)
        return [*shown.each(dropping)]


def _count(plans: Sequence[Droppable]) -> int:
    return sum(len(plan.manifests) for plan in plans)


def _row(group: Group, verdict: CompactionVerdict | None) -> dict[str, Any]:
    return {
        "table": "decoded" if isinstance(group, DecodedGroup) else "raw",
        "key": group.key,
        "outcome": verdict.outcome.value if verdict else None,
        "files": len(group.files),
        "rows": group.rows,
        "bytes_before": group.bytes,
        "bytes_after": verdict.file.bytes if verdict and verdict.file else None,
    }


def _show(
    topic: str,
    rows: Sequence[dict[str, Any]],
    plans: Sequence[Droppable],
    drop_after: float | None,
    adapters: Adapters,
    *,
    dry_run: bool,
) -> None:
    sizes = ("bytes_before", "bytes_after")
    done = [row["files"] for row in rows if dry_run or row["outcome"] == CompactionOutcome.COMPACTED]
    print_table(
        f"{'would compact' if dry_run else 'compacted'} {counted(sum(done), 'file')} of {topic} to {len(done)}",
        ["table", "ranges", "outcome", "files", "rows", "before", "after"],
        [
            [*(row[name] for name in ("table", "key", "outcome", "files", "rows")), *(size_text(row[s]) for s in sizes)]
            for row in rows
        ],
    )
    if drop_after is not None:
        glob = f"{adapters.lake.store.url('data')}/{topic}/**/*.parquet"
        print_table(
            f"{'would drop' if dry_run else 'dropped'} {counted(_count(plans), 'range file')} of {topic}",
            ["compacted", "range files", "bytes"],
            [[plan.file.tags["range"], len(plan.manifests), size_text(plan.bytes)] for plan in plans if plan.manifests],
        )
        if any(plan.manifests for plan in plans):
            OUT.print(f"a plain glob over {glob} {'would show' if dry_run else 'shows'} their rows no more", soft_wrap=True)
    if dry_run:
        OUT.print("nothing was written; add --apply to do it")


@click.command()
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=SWEEP_AFTER_SECONDS / 3600,
    show_default=True,
    metavar="HOURS",
    help="Leave what was written later: a run may be at work on it.",
)
@click.option("--apply", is_flag=True, help="Delete them (default: dry run).")
def sweep(older_than: float, apply: bool) -> None:
    """Delete what attempts that died left unpublished; published files are never touched. A nightly job does it too.

    \b
    Examples:
      offsetlake sweep
      offsetlake sweep --older-than 12 --apply
    """
    if not math.isfinite(older_than):
        raise click.BadParameter(f"expected a number of hours, found {older_than}", param_hint="--older-than")
    adapters = open_adapters()
    with progress(f"sweeping {adapters.lake.store.url('staging')}") as shown:
        seconds = older_than * 3600
        if apply:  # by the store's clock, which dates each write
            orphans = sweep_orphans(adapters.lake, adapters.lake.store.clock_ms(), seconds, shown.update)
        else:
            orphans = find_orphans(adapters.lake, adapters.now_ms(), seconds)
    rows = [(name, size_text(each.bytes), time_text(each.changed_at_ms)) for name, each in orphans.items()]
    verb = "swept" if apply else "would sweep"
    print_table(
        f"{verb} {counted(len(orphans), 'orphan')} of {adapters.lake.store.url('staging')}",
        ["staged by", "size", "last written"],
        rows,
    )
    if orphans and not apply:
        OUT.print("nothing was deleted; add --apply to delete them")
