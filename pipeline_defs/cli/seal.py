"""`offsetlake seal`: small landed files, merged into larger ones beside them."""

from __future__ import annotations

import uuid
from typing import Any

import click

from ..attempt import Attempt
from ..core.sealing import SealPlan, SealVerdict
from ..seal_job import check_sealing
from ..sealing import plan_sealing
from ..sealing import seal as seal_topic
from ..settings import code_version
from .progress import progress
from .show import find_topic, json_option, open_edges, print_json, print_table, size_text, topic_argument
from .terminal import OUT


@click.command()
@topic_argument
@click.option("--all", "every", is_flag=True, help="The newest ranges too, which would wait for more to weigh enough.")
@click.option("--dry-run", is_flag=True, help="Show what would be sealed; nothing is written.")
@json_option
def seal(topic: str, every: bool, dry_run: bool, as_json: bool) -> None:
    """Merge small landed files of TOPIC into files of about target_file_bytes, which `offsetlake sql` then reads.

    What is landed stays as it is: a glob over `data/` shows what it showed before.

    \b
    Examples:
      offsetlake seal flights --dry-run
      offsetlake seal flights
      offsetlake seal flights --all
    """
    with progress(f"looking for what of {topic} can be sealed"):
        configured, edges = find_topic(topic), open_edges()
        target_bytes = configured.policy.target_file_bytes
        plans = plan_sealing(topic, edges.lake, target_bytes, every=every)
    if dry_run:
        _show(topic, "would seal", [_planned_row(plan) for plan in plans], as_json=as_json)
        return
    edges.check_lake(topic)
    verdicts = []
    with progress(f"sealing {topic}", len(plans)) as shown:
        edges.watch_step = shown.watching(edges.watch_step)
        attempt = Attempt(f"cli-{uuid.uuid4().hex[:8]}", "cli", code_version())
        tools = edges.tools(configured, edges.pyspark())
        for verdict in seal_topic(topic, attempt, tools, target_bytes, every=every):
            verdicts.append(verdict)
            shown.advance()
    _show(topic, "sealed", [_sealed_row(verdict) for verdict in verdicts], as_json=as_json)
    check_sealing(topic, [text for verdict in verdicts for text in verdict.violations], len(verdicts))


def _planned_row(plan: SealPlan) -> dict[str, Any]:
    return {
        "key": plan.offsets.key,
        "outcome": None,
        "ranges": len(plan.manifests),
        "rows": plan.rows,
        "landed_bytes": sum(original.bytes for original in plan.originals),
        "sealed_bytes": None,
    }


def _sealed_row(verdict: SealVerdict) -> dict[str, Any]:
    seal = verdict.seal
    return {
        "key": verdict.offsets.key,
        "outcome": verdict.outcome.value,
        "ranges": len(seal.originals) if seal else None,
        "rows": seal.file.rows if seal else None,
        "landed_bytes": sum(original.bytes for original in seal.originals) if seal else None,
        "sealed_bytes": seal.file.bytes if seal else None,
    }


def _show(topic: str, verb: str, rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, "files": rows})
        return
    ranges = sum(row["ranges"] or 0 for row in rows)
    sizes = ("landed_bytes", "sealed_bytes")
    print_table(
        f"{verb} {ranges} ranges of {topic} in {len(rows)} files",
        ["offsets", "outcome", "ranges", "rows", "landed", "sealed"],
        [[row["key"], row["outcome"], row["ranges"], row["rows"], *(size_text(row[s]) for s in sizes)] for row in rows],
    )
    if verb == "would seal" and rows:
        OUT.print("nothing was written; leave --dry-run out to seal them")
