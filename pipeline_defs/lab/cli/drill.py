"""`offsetlake drill`: what faults do to rows, here and in two systems that people use instead."""

import signal
import sys
from typing import Any

import click

from ...adapters.system.extras import require
from ...cli.show import json_option, print_json, print_table
from ...cli.terminal import OUT, progress
from ...core.errors import RangesFailed
from ...settings import read_settings

COLUMNS = (
    *("system", "policy", "drill", "fault_proven", "produced", "landed", "holes", "lost", "missing", "doubled"),
    *("seconds_until_whole", "verdict"),
)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seed", default=1, show_default=True, help="Seed of the random schedules.")
@click.option("--schedules", default=0, show_default=True, type=click.IntRange(min=0), help="Random crash schedules to run.")
@click.option("--first", default=0, show_default=True, type=click.IntRange(min=0), help="Number of the first schedule.")
@click.option(
    "--lake",
    type=click.Choice(["disk", "s3"]),
    default="disk",
    show_default=True,
    help="Where lakes are made: a temporary folder, or below the bucket of OFFSETLAKE_LAKE.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "cluster"]),
    default="local",
    show_default=True,
    help="Which Spark: one of this machine, or that of OFFSETLAKE_SPARK_REMOTE.",
)
@json_option
def drill(names: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Bring faults about on a broker and lakes of its own, and count rows missing and rows doubled.

    Without names all drills are run, about ten minutes; with --schedules and no names, the random schedules alone.

    \b
    Examples:
      offsetlake drill
      offsetlake drill kill_at_commit recreate lose_leader --json
      offsetlake drill --schedules 500 --seed 7
      offsetlake drill --schedules 1 --seed 7 --first 42
      offsetlake drill --lake s3 --engine cluster
    """
    require("bench", "a drill")
    from ..drills.report import choose, is_right, run_drills

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all of it is stopped then too
    chosen, settings = choose(names, **given), read_settings()
    chosen.check(settings)
    with progress("starting broker and Spark") as shown:
        report = run_drills(settings, chosen, lambda text: shown.update(text=text))
    if as_json:
        print_json(report)
    else:
        print_table("what faults do to rows", COLUMNS, [[row[name] for name in COLUMNS] for row in report["drills"]])
        for row in report.get("schedules", {}).get("failed", []):
            OUT.print(f"{row['drill']}: {row['verdict']}; {row['note']}")
    if not is_right(report):
        raise RangesFailed("a promise of Offsetlake was not kept in every drill: see the table")
