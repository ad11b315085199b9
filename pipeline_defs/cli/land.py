"""`offsetlake plan`, `land` and `rebuild`: boundaries, records, and Dagster's projection of both."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator

import click
from rich.markup import escape

from ..core.errors import EmptySelection, RangesFailed
from ..core.planlog import PlanStep
from ..core.planning import TopicState
from ..core.planning import plan as decide
from ..launching import choose_ranges, land_through_dagster, open_instance
from ..planner import commit_next_step
from ..projection import register_keys, report_unseen
from ..resources import Edges
from ..sensors import landed_event
from ..topics import Topic
from ..transactions import holding_row, read_holding
from .show import OUT, find_topic, json_option, open_edges, print_json, print_table, size_text


@click.command()
@click.argument("topic")
@click.option("--commit", is_flag=True, help="Write the boundaries to the plan log; without it nothing is written.")
@click.option("--through-end", is_flag=True, help="Cut the tail now, however young its records are.")
@json_option
def plan(topic: str, commit: bool, through_end: bool, as_json: bool) -> None:
    """Preview the ranges that would be planned now, or commit them.

    \b
    Examples:
      offsetlake plan flights
      offsetlake plan flights --commit --through-end
    """
    configured, edges = find_topic(topic), open_edges()
    kafka = edges.kafka(configured)
    state = kafka.read_topic_state(topic, edges.lake.read_tail(topic), configured.policy, edges.now_ms())
    size = kafka.read_bytes_per_record(topic)
    steps = list(_commit(configured, edges, through_end) if commit else _preview(configured, state, edges, through_end))
    ranges = [offsets for step in steps for offsets in step.ranges]
    now_ms = edges.now_ms()
    transactions = [holding_row(configured, each, now_ms) for each in read_holding(configured, edges)]
    estimate = None if size is None else round(size * sum(len(offsets) for offsets in ranges))
    if as_json:
        print_json(
            {
                "topic": topic,
                "committed": commit,
                "steps": [step.seq for step in steps],
                "ranges": [
                    {"key": o.key, "partition": o.partition, "start": o.start, "end": o.end, "offsets": len(o)}
                    for o in ranges
                ],
                "offsets": sum(len(offsets) for offsets in ranges),
                "bytes_on_broker": estimate,
                "open_transactions": transactions,
            }
        )
        return
    rows = [(o.key, o.text(topic), len(o), size_text(size and size * len(o))) for o in ranges]
    print_table(
        f"{'planned' if commit else 'would plan'} {len(ranges)} ranges", ["key", "range", "offsets", "~bytes"], rows
    )
    for transaction in transactions:
        OUT.print(escape(transaction["text"]), soft_wrap=True)
    if not commit and ranges:
        OUT.print("nothing was written; add --commit to fix these boundaries")


def _preview(topic: Topic, state: TopicState, edges: Edges, through_end: bool) -> Iterator[PlanStep]:
    tail, now_ms = edges.lake.read_tail(topic.name), edges.now_ms()
    while step := decide(tail, state, topic.policy, now_ms, through_end=through_end):
        yield step
        tail = step.tail


def _commit(topic: Topic, edges: Edges, through_end: bool) -> Iterator[PlanStep]:
    edges.check_lake()
    while step := commit_next_step(
        topic.name,
        topic.policy,
        edges.lake,
        edges.kafka(topic),
        edges.now_ms(),
        planner=f"cli {uuid.uuid4().hex[:8]}",
        through_end=through_end,
        on_step=edges.watch_step,
    ):
        yield step


@click.command()
@click.argument("topic")
@click.option("--pending", is_flag=True, help="Land every planned range that is not landed.")
@click.option("--partition", "keys", multiple=True, metavar="KEY", help="Land this range; a landed one is read again.")
@click.option(
    "--on-change",
    type=click.Choice(["keep", "replace"]),
    default="keep",
    show_default=True,
    help="What becomes of a landed range that Kafka has otherwise by now, compacted further, say.",
)
def land(topic: str, pending: bool, keys: tuple[str, ...], on_change: str) -> None:
    """Land ranges through Dagster, in this process; events and lineage are recorded as by any other run.

    \b
    Examples:
      offsetlake land flights --pending
      offsetlake land flights --partition 0-0-20000 --partition 1-0-20000
      offsetlake land flights --partition 0-0-20000 --on-change replace
    """
    if pending == bool(keys):
        raise EmptySelection(
            f"nothing of topic {topic} is selected; nothing was read or written; say either --pending or --partition KEY"
        )
    configured, edges = find_topic(topic), open_edges()
    edges.check_lake()
    ranges = choose_ranges(configured, keys, edges)
    if not ranges:
        OUT.print(f"nothing of {topic} is pending")
        return
    logging.getLogger("dagster").setLevel(logging.ERROR)
    failures = []
    with open_instance(edges.settings.dagster_home) as instance, OUT.status(f"landing {len(ranges)} ranges of {topic}"):
        for launched in land_through_dagster(configured, ranges, edges, instance, redo=bool(keys), on_change=on_change):
            verb = "landed" if launched.succeeded else "failed"
            OUT.print(f"{verb} {len(launched.ranges)} ranges in run {launched.run_id}")
            if not launched.succeeded:
                failures.append(f"run {launched.run_id}: {launched.reason}")
    if failures:
        raise RangesFailed(f"{len(failures)} runs of topic {topic} failed; what they landed stays landed", failures)


@click.command()
@click.argument("topic")
def rebuild(topic: str) -> None:
    """Give Dagster back what the lake knows: keys and materialisations, after its database was lost.

    \b
    Example:
      offsetlake rebuild flights
    """
    configured, edges = find_topic(topic), open_edges()
    coverage = edges.lake.coverage(topic)
    with open_instance(edges.settings.dagster_home) as instance, OUT.status(f"rebuilding {topic}"):
        keys = register_keys(instance, configured, coverage)
        events = report_unseen(
            instance,
            configured,
            coverage,
            frozenset(),
            lambda offsets: landed_event(configured, offsets, coverage, edges),
            limit=len(coverage.manifests),
        )
    OUT.print(f"{topic}: {keys} keys and {events} materialisations restored from the lake")
