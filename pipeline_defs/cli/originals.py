"""`offsetlake retire-originals`, `sweep-originals`, `restore-originals`: what a sealed file stands for goes, or returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from ..core.command_lines import command
from ..core.errors import OriginalsKept
from ..core.originals import Move, MoveVerdict, SealedOriginals
from ..originals import plan_restoration, plan_retirement
from ..originals import restore_originals as restore
from ..originals import retire_originals as retire
from ..resources import Edges
from ..sweeping import SWEEP_AFTER_SECONDS
from ..swept import find_originals, plan_sweep
from ..swept import sweep_originals as sweep
from .progress import progress
from .show import find_topic, json_option, open_edges, print_json, print_table, size_text, topic_argument
from .terminal import OUT

_yes = click.option("--yes", is_flag=True, help="Do it; without it only what would be done is shown.")
_older_than = click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=SWEEP_AFTER_SECONDS / 3600,
    show_default=True,
    metavar="HOURS",
    help="Leave what was sealed later: somebody may be reading the originals where they are now.",
)


@click.command(name="retire-originals")
@topic_argument
@_older_than
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
    with progress(f"looking for originals of {topic}"):
        edges, name = open_edges(), find_topic(topic).name
        plans = plan_retirement(name, edges.lake, edges.now_ms(), older_than * 3600)
    total = sum(len(plan.manifests) for plan in plans)
    verdicts = _move("retiring", topic, total, edges, retire(edges.lake, plans, edges.watch_step)) if yes else []
    if as_json:
        _print_json(topic, plans, verdicts, done=yes)
    else:
        _print_plans(
            f"{'retired' if yes else 'would retire'} {_count(verdicts) if yes else total} originals of {topic}", plans
        )
        if plans:
            glob = f"{edges.lake.store.url('data')}/{topic}/**/*.parquet"
            OUT.print(f"a plain glob over {glob} {'shows' if yes else 'would show'} these rows no more", soft_wrap=True)
            OUT.print(
                f"to have them back: {command('restore-originals', topic, '--yes')}"
                if yes
                else "nothing was moved; give --yes to retire them"
            )
    _check(topic, verdicts)


@click.command(name="sweep-originals")
@topic_argument
@_older_than
@_yes
@json_option
def sweep_originals(topic: str, older_than: float, yes: bool, as_json: bool) -> None:
    """Delete retired files of TOPIC whose rows are in sealed files that `offsetlake sql` reads: the disk has them once then.

    Before a file is deleted, the sealed file is held against its digest and, row by row, against the original. Audit, trace,
    redo and decoding then read the sealed file, and restore-originals makes the original again.

    \b
    Examples:
      offsetlake sweep-originals flights
      offsetlake sweep-originals flights --yes
    """
    with progress(f"looking for originals of {topic}"):
        edges, name = open_edges(), find_topic(topic).name
        plans = plan_sweep(name, edges.lake, edges.now_ms(), older_than * 3600)
    total, now_ms = sum(len(plan.manifests) for plan in plans), edges.now_ms()
    verdicts = _move("sweeping", topic, total, edges, sweep(edges.lake, plans, now_ms, edges.watch_step)) if yes else []
    if as_json:
        _print_json(topic, plans, verdicts, done=yes)
    else:
        count = _count(verdicts) if yes else total
        _print_plans(f"{'swept' if yes else 'would sweep'} {count} retired originals of {topic}", plans)
        if plans and not yes:
            OUT.print("nothing was deleted; give --yes to sweep them: their rows are then in the sealed files alone")
    _check(topic, verdicts)


@click.command(name="restore-originals")
@topic_argument
@click.option("--key", "keys", multiple=True, help="Only the original of this range; may be given again.")
@_yes
@json_option
def restore_originals(topic: str, keys: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Move retired landed files of TOPIC back to their own names in `data/`, byte for byte; make swept ones again.

    \b
    Examples:
      offsetlake restore-originals flights
      offsetlake restore-originals flights --yes
      offsetlake restore-originals flights --key 0-0-20000 --yes
    """
    with progress(f"looking for originals of {topic}"):
        edges, name = open_edges(), find_topic(topic).name
        plan = plan_restoration(name, edges.lake, keys)
    files = edges.spark_files(edges.pyspark())
    moves = restore(edges.lake, find_originals(edges.lake, plan, files), edges.watch_step)
    verdicts = _move("restoring", topic, len(plan), edges, moves) if yes else []
    if as_json:
        print_json({"topic": topic, "done": yes, "keys": [m.offsets.key for m in plan], "originals": _rows(verdicts)})
    else:
        rows = [
            (manifest.offsets.key, manifest.rows, size_text(manifest.file.bytes if manifest.file else None))
            for manifest in plan
        ]
        did = f"restored {_count(verdicts)}" if yes else f"would restore {len(plan)}"
        print_table(f"{did} originals of {topic}", ["range", "rows", "bytes"], rows)
        if plan and not yes:
            OUT.print("nothing was moved; give --yes to restore them")
    _check(topic, verdicts)


def _move(doing: str, topic: str, total: int, edges: Edges, moves: Iterable[MoveVerdict]) -> list[MoveVerdict]:
    verdicts = []
    with progress(f"{doing} originals of {topic}", total) as shown:
        edges.check_lake(topic)
        edges.watch_step = shown.watching(edges.watch_step)
        for verdict in moves:
            verdicts.append(verdict)
            shown.advance()
    return verdicts


def _count(verdicts: Iterable[MoveVerdict]) -> int:
    return sum(verdict.move is not Move.KEPT for verdict in verdicts)


def _print_json(topic: str, plans: Sequence[SealedOriginals], verdicts: Iterable[MoveVerdict], *, done: bool) -> None:
    files = [{"key": plan.seal.offsets.key, "originals": len(plan.manifests), "bytes": plan.bytes} for plan in plans]
    print_json({"topic": topic, "done": done, "sealed_files": files, "originals": _rows(verdicts)})


def _print_plans(what: str, plans: Sequence[SealedOriginals]) -> None:
    rows = [(plan.seal.offsets.key, len(plan.manifests), size_text(plan.bytes)) for plan in plans]
    title = f"{what}, which {len(plans)} sealed files stand for"
    print_table(title, ["sealed offsets", "originals", "bytes"], rows)


def _rows(verdicts: Iterable[MoveVerdict]) -> list[dict[str, Any]]:
    return [{"key": each.offsets.key, "outcome": each.move.value, "reason": each.reason} for each in verdicts]


def _check(topic: str, verdicts: list[MoveVerdict]) -> None:
    kept = [verdict for verdict in verdicts if verdict.reason]
    if kept:
        raise OriginalsKept(
            f"{len(kept)} of {len(verdicts)} originals of topic {topic} stay where they are",
            [f"range {verdict.offsets.text(topic)}: {verdict.reason}" for verdict in kept],
        )
