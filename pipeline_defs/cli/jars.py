"""`offsetlake jars`: what Spark needs from the network, fetched before it is needed: when an image is built, say."""

from __future__ import annotations

import click

from ..edges.class_archive import make_archive
from ..edges.jars import resolve_jars
from ..settings import read_settings
from .progress import progress
from .terminal import OUT


@click.command()
def jars() -> None:
    """Fetch Spark's jars, check their sha256, and prepare Spark's start; what is there already is kept.

    \b
    Example:
      OFFSETLAKE_HOME=/opt/offsetlake/home offsetlake jars
    """
    folder = read_settings().jars
    with progress("fetching Spark's jars, where they are not there yet"):
        found = resolve_jars("spark", folder)
    make_archive(folder, "spark")
    OUT.print(f"{len(found)} jars of Spark are in {folder}, each with its pinned sha256", soft_wrap=True)
