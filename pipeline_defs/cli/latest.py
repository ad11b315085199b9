"""`offsetlake latest`: the latest record of each key brought up to date, through Dagster, in this process."""

from __future__ import annotations

import logging

import click

from ..core.errors import BadSetting, RangesFailed
from ..edges.latest_table import LatestTable
from ..latest import find_due
from ..latest_launching import update_latest_through_dagster
from ..launching import open_instance
from ..resources import Edges
from ..steps import StepWatcher
from .progress import Shown, progress
from .show import find_topic, open_edges, topic_argument
from .terminal import OUT


@click.command()
@topic_argument
@click.option("--full", is_flag=True, help="Make the table anew from all decoded ranges, whatever stands.")
def latest(topic: str, full: bool) -> None:
    """Bring the latest record of each key up to date with the decoded ranges.

    \b
    Examples:
      offsetlake latest flights
      offsetlake latest flights --full
    """
    configured, edges = find_topic(topic), open_edges()
    if configured.latest is None:
        raise BadSetting(
            f"topic {topic} has no `latest` in its defs.yaml; nothing was read or written; add `latest: {{}}` beside `decode`"
        )
    edges.check_lake(topic)
    due = find_due(topic, configured.latest, edges.decodings, full=full)
    if not due.has_work:
        OUT.print(f"latest records of {topic} are up to date: {_count(topic, edges):,} keys")
        return
    logging.getLogger("dagster").setLevel(logging.ERROR)
    with (
        open_instance(edges.settings.dagster_home) as instance,
        progress(f"latest records of {topic}", max(due.waiting, 1)) as shown,
    ):
        edges.watch_step = shown.watching(_watch(topic, shown))
        launched = update_latest_through_dagster(configured, edges, instance, full=full)
    if not launched.succeeded:
        raise RangesFailed(
            f"run {launched.run_id} of topic {topic} failed; the table is as it was or as it is to be",
            [launched.reason],
        )
    OUT.print(f"latest records of {topic}: {_count(topic, edges):,} keys, in run {launched.run_id}")


def _count(topic: str, edges: Edges) -> int:
    table = LatestTable(edges.lake, topic)
    return table.count(table.read())[0]


def _watch(topic: str, shown: Shown) -> StepWatcher:
    def on_step(step: str, **fields: object) -> None:
        if step == "read_decoded":
            shown.update(text=f"latest records of {topic}, Spark reads {fields['ranges']} ranges")
        elif step == "rebuild_latest":
            shown.update(text=f"latest records of {topic}, made anew: {fields['reason']}")

    return on_step
