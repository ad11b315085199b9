"""`offsetlake retire-originals` and `restore-originals`: what a sealed file stands for leaves `data/`, or returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from ..core.errors import OriginalsKept
from ..core.originals import Move, MoveVerdict
from ..originals import plan_restoration, plan_retirement
from ..originals import restore_originals as restore
from ..originals import retire_originals as retire
from ..sweeping import SWEEP_AFTER_SECONDS
from .progress import progress
from .show import OUT, find_topic, json_option, open_edges, print_json, print_table, size_text

_yes = click.option("--yes", is_flag=True, help="Do it; without it only what would be done is shown.")


@click.command(name="retire-originals")
@click.argument("topic")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=SWEEP_AFTER_SECONDS / 3600,
    show_default=True,
    metavar="HOURS",
    help="Leave what was sealed later: somebody may be reading the landed files.",
)
@_yes
@json_option
def retire_originals(topic: str, older_than: float, yes: bool, as_json: bool) -> None:
    """Move landed files of TOPIC that sealed files stand for out of `data/`; restore-originals moves them back.

    `offsetlake sql` shows each row as before, and audit, trace and redo still find each original; a plain glob over
    `data/` shows these rows no more. Nothing is deleted.

    \b
    Examples:
      offsetlake retire-originals flights
      offsetlake retire-originals flights --yes
    """
    edges, name = open_edges(), find_topic(topic).name
    plans = plan_retirement(name, edges.lake, edges.now_ms(), older_than * 3600)
    total = sum(len(plan.manifests) for plan in plans)
    verdicts: list[MoveVerdict] = []
    if yes:
        edges.check_lake()
        with progress(f"retiring originals of {topic}", total) as shown:
            for verdict in retire(edges.lake, plans, edges.watch_step):
                verdicts.append(verdict)
                shown.advance()
    facts = [{"key": plan.seal.offsets.key, "originals": len(plan.manifests), "bytes": plan.bytes} for plan in plans]
    if as_json:
        print_json({"topic": topic, "done": yes, "sealed_files": facts, "originals": _rows(verdicts)})
    else:
        retired = sum(verdict.move is Move.RETIRED for verdict in verdicts)
        rows = [
            (fact["key"], fact["originals"], size_text(plan.bytes)) for fact, plan in zip(facts, plans, strict=True)
        ]
        print_table(
            f"{'retired' if yes else 'would retire'} {retired if yes else total} originals of {topic}, which "
            f"{len(plans)} sealed files stand for",
            ["sealed offsets", "originals", "bytes"],
            rows,
        )
        if total:
            glob = f"{edges.lake.store.url('data')}/{topic}/**/*.parquet"
            OUT.print(f"a plain glob over {glob} {'shows' if yes else 'would show'} these rows no more", soft_wrap=True)
            OUT.print(
                f"to have them back: offsetlake restore-originals {topic} --yes"
                if yes
                else "nothing was moved; give --yes to retire them"
            )
    _check(topic, verdicts)


@click.command(name="restore-originals")
@click.argument("topic")
@click.option("--key", "keys", multiple=True, help="Only the original of this range; may be given again.")
@_yes
@json_option
def restore_originals(topic: str, keys: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Move retired landed files of TOPIC back to their own names in `data/`, byte for byte.

    \b
    Examples:
      offsetlake restore-originals flights
      offsetlake restore-originals flights --yes
      offsetlake restore-originals flights --key 0-0-20000 --yes
    """
    edges, name = open_edges(), find_topic(topic).name
    plan = plan_restoration(name, edges.lake, keys)
    verdicts: list[MoveVerdict] = []
    if yes:
        edges.check_lake()
        with progress(f"restoring originals of {topic}", len(plan)) as shown:
            for verdict in restore(edges.lake, plan, edges.watch_step):
                verdicts.append(verdict)
                shown.advance()
    if as_json:
        print_json({"topic": topic, "done": yes, "keys": [m.offsets.key for m in plan], "originals": _rows(verdicts)})
    else:
        restored = sum(verdict.move is Move.RESTORED for verdict in verdicts)
        rows = [
            (manifest.offsets.key, manifest.rows, size_text(manifest.file.bytes if manifest.file else None))
            for manifest in plan
        ]
        verb = "restored" if yes else "would restore"
        print_table(f"{verb} {restored if yes else len(plan)} originals of {topic}", ["range", "rows", "bytes"], rows)
        if plan and not yes:
            OUT.print("nothing was moved; give --yes to restore them")
    _check(topic, verdicts)


def _rows(verdicts: Iterable[MoveVerdict]) -> list[dict[str, Any]]:
    return [{"key": each.offsets.key, "outcome": each.move.value, "reason": each.reason} for each in verdicts]


def _check(topic: str, verdicts: list[MoveVerdict]) -> None:
    kept = [verdict for verdict in verdicts if verdict.reason]
    if kept:
        raise OriginalsKept(
            f"{len(kept)} of {len(verdicts)} originals of topic {topic} stay where they are",
            [f"range {verdict.offsets.text(topic)}: {verdict.reason}" for verdict in kept],
        )
