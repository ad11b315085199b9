"""`offsetlake plan`, `land` and `rebuild`: boundaries, records, and Dagster's projection of both."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import reduce

import click
import dagster as dg

from ...core.advice import command, counted
from ...core.errors import EmptySelection, Refused
from ...core.log.plan_step import PlanStep
from ...core.log.planning import WaitingTail, find_waiting_tail
from ...core.log.planning import plan as decide
from ...core.log.topic_state import TopicState
from ...orchestration.home.dagster_home import open_instance
from ...orchestration.pulse.rebuilding import rebuild_topic
from ...orchestration.runs.moments import duration_text
from ...orchestration.runs.progress import holding_row, read_holding
from ...resources import Adapters
from ...topics import Topic
from ..launching import InProcessRuns, choose_ranges, launching, print_runs
from ..show import (
    choose_topics,
    find_topic,
    for_each,
    json_option,
    on_change_option,
    open_adapters,
    optional_topic_argument,
    print_json,
    print_table,
    size_text,
    topic_argument,
)
from ..terminal import OUT, progress


@click.command()
@topic_argument
@click.option("--apply", "commit", is_flag=True, help="Write the boundaries to the plan log (default: dry run).")
@click.option("--through-end", is_flag=True, help="Cut the tail now, however young its records are.")
@click.option(
    "--restored", is_flag=True, help="The cluster was restored from a backup: open a generation, which lands all it has."
)
@json_option
def plan(topic: str, commit: bool, through_end: bool, restored: bool, as_json: bool) -> None:
    """Preview the ranges that would be planned now, or commit them.

    \b
    Examples:
      offsetlake plan flights
      offsetlake plan flights --apply --through-end
      offsetlake plan flights --restored --apply
    """
    steps: list[PlanStep] = []
    with progress(f"planning ranges of {topic}") as shown:
        configured, adapters = find_topic(topic), open_adapters()
        kafka = adapters.kafka(configured)
        log_state = adapters.lake.read_plan_log(topic).state  # raises for a refused log: nothing is planned
        state = kafka.read_topic_state(topic, log_state, configured.policy, adapters.now_ms())
        size = kafka.read_bytes_per_record(topic)
        state = replace(state, is_restored=restored)
        preview = _preview(configured, state, adapters, through_end)
        for step in _commit(configured, adapters, through_end, is_restored=restored) if commit else preview:
            steps.append(step)
            shown.advance(len(step.ranges))
        now_ms = adapters.now_ms()
        transactions = [holding_row(configured, each, now_ms) for each in read_holding(configured, adapters)]
    ranges = [offsets for step in steps for offsets in step.ranges]
    waiting = find_waiting_tail(log_state, reduce(lambda before, step: step.after(before), steps, log_state), state, now_ms)
    estimate = None if size is None else round(size * sum(len(offsets) for offsets in ranges))
    if as_json:
        print_json(
            {
                "topic": topic,
                "committed": commit,
                "steps": [step.seq for step in steps],
                "ranges": [
                    {"key": o.key, "partition": o.partition, "start": o.start, "end": o.end, "offsets": len(o)} for o in ranges
                ],
                "offsets": sum(len(offsets) for offsets in ranges),
                "bytes_on_broker": estimate,
                "waiting": None if waiting is None else asdict(waiting),
                "open_transactions": transactions,
            }
        )
        return
    rows = [(o.key, o.text(topic), len(o), size_text(size and size * len(o))) for o in ranges]
    print_table(
        f"{'planned' if commit else 'would plan'} {counted(len(ranges), 'range')}", ["key", "range", "offsets", "~bytes"], rows
    )
    for transaction in transactions:
        OUT.print(transaction["text"], soft_wrap=True)
    if waiting is not None:
        OUT.print(_waiting_text(configured, waiting), soft_wrap=True)
    if not commit and ranges:
        OUT.print("nothing was written; add --apply to fix these boundaries")


def _waiting_text(topic: Topic, waiting: WaitingTail) -> str:
    """Return a text on the offsets that are in no range yet, and on when their tail is cut, or how to cut it now."""
    now = command("plan", topic.name, "--apply --through-end")
    age = "" if waiting.age_seconds is None else f", the oldest for {duration_text(waiting.age_seconds)}"
    return (
        f"{waiting.offsets:,} offsets of {topic.name} wait{age}; they are cut when a range is full, or its oldest record "
        f"{duration_text(topic.policy.max_age_seconds)} old; to cut now: {now}"
    )


def _preview(topic: Topic, state: TopicState, adapters: Adapters, through_end: bool) -> Iterator[PlanStep]:
    log_state, now_ms = adapters.lake.recent(topic.name).log.state, adapters.now_ms()
    while step := decide(log_state, state, topic.policy, now_ms, through_end=through_end):
        yield step
        log_state, state = step.after(log_state), replace(state, is_restored=False)


def _commit(topic: Topic, adapters: Adapters, through_end: bool, *, is_restored: bool) -> Iterator[PlanStep]:
    adapters.check_lake(topic.name)
    planner = replace(adapters.planner(topic, "cli"), is_restored=is_restored)
    while step := planner.commit(through_end=through_end):
        yield step
        planner = replace(planner, is_restored=False)


@click.command()
@topic_argument
@click.option("--pending", is_flag=True, help="Land every planned range that is not landed.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Land this range; a landed one is read again.")
@on_change_option
def land(topic: str, pending: bool, keys: tuple[str, ...], on_change: str) -> None:
    """Land ranges through Dagster, in this process; events and lineage are recorded as by any other run.

    \b
    Examples:
      offsetlake land flights --pending
      offsetlake land flights --key 0-0-20000 --key 1-0-20000
      offsetlake land flights --key 0-0-20000 --on-change replace
    """
    if pending and keys:
        raise Refused(
            f"--pending is every range of {topic} that is not landed, --key KEY is one range, landed or not: give one of "
            "the two; nothing was read or written"
        )
    if not pending and not keys:
        raise EmptySelection(
            f"nothing of topic {topic} is selected; nothing was read or written; say either --pending or --key KEY"
        )
    with progress(f"looking for what of {topic} is to be landed"):
        configured, adapters = find_topic(topic), open_adapters()
        adapters.check_lake(topic)
        ranges = choose_ranges(configured, keys, adapters)
    if not ranges:
        OUT.print(f"nothing of {topic} is pending")
        return
    steps = {"scan": ", Spark reads {ranges} ranges", "read": ", Spark has written {files} of {of} files", "stage": ""}
    with launching(adapters, f"landing {topic}", len(ranges), said=steps, counts={"landed", "failed"}) as instance:
        runs = InProcessRuns(configured, adapters, instance).land(ranges, redo=bool(keys), on_change=on_change)
        print_runs(topic, runs, "landed")


@click.command()
@optional_topic_argument
def rebuild(topic: str | None) -> None:
    """Give Dagster back what the lake knows, after its database was lost: keys, materialisations, group offsets.

    It may be killed and repeated; what is right is left alone. Without TOPIC it is of every topic that has a defs.yaml.

    \b
    Examples:
      offsetlake rebuild flights
      offsetlake rebuild
    """
    adapters = open_adapters()
    files = choose_topics(topic)
    with open_instance(adapters.settings.dagster_home) as instance:
        has_failed = for_each(files, lambda each: _rebuild(each, adapters, instance))
    if has_failed:
        raise SystemExit(1)


def _rebuild(topic: Topic, adapters: Adapters, instance: dg.DagsterInstance) -> None:
    name = topic.name
    with progress(f"rebuilding {name}") as shown:
        rebuilt = rebuild_topic(topic, adapters, instance, shown.update)
    places = ", ".join(f"{name}/{partition} at {offset:,}" for partition, offset in sorted(rebuilt.group.items()))
    OUT.print(
        f"{name}: {rebuilt.keys} keys and {rebuilt.events} materialisations restored from the lake; group "
        f"{topic.group}: {places or 'nothing is planned yet'}",
        soft_wrap=True,
    )
