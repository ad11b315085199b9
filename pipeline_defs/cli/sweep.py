"""`offsetlake sweep`: what crashes left in staging."""

from __future__ import annotations

import click

from ..core.advice import counted
from ..moments import time_text
from ..sweeping import SWEEP_AFTER_SECONDS, find_orphans, sweep_orphans
from .progress import progress
from .show import open_edges, print_table, size_text
from .terminal import OUT


@click.command()
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=SWEEP_AFTER_SECONDS / 3600,
    show_default=True,
    metavar="HOURS",
    help="Leave what was written later: a run may be at work on it.",
)
@click.option("--dry-run", is_flag=True, help="Show what would go; nothing is deleted.")
def sweep(older_than: float, dry_run: bool) -> None:
    """Delete what attempts that died left unpublished; published files are never touched. A nightly job does it too.

    \b
    Examples:
      offsetlake sweep --dry-run
      offsetlake sweep --older-than 12
    """
    edges = open_edges()
    with progress(f"sweeping {edges.lake.store.url('staging')}") as shown:
        now_ms, seconds = edges.now_ms(), older_than * 3600
        if dry_run:
            orphans = find_orphans(edges.lake, now_ms, seconds)
        else:
            orphans = sweep_orphans(edges.lake, now_ms, seconds, shown.count)
    rows = [(each.name, size_text(each.bytes), time_text(each.changed_at_ms)) for each in orphans]
    verb = "would sweep" if dry_run else "swept"
    print_table(
        f"{verb} {counted(len(orphans), 'orphan')} of {edges.lake.store.url('staging')}",
        ["staged by", "size", "last written"],
        rows,
    )
    if dry_run and orphans:
        OUT.print("nothing was deleted; leave --dry-run out to delete them")
