"""`offsetlake decode`, `dead-letters` and `latest`: what landed records say, which cannot be read, the latest of each key."""

from collections.abc import Sequence
from typing import Any

import click

from ...adapters.tables.latest_table import LatestTable
from ...core.advice import command, counted
from ...core.decode.decoders import Decode
from ...core.errors import BadSetting, RangesFailed, Refused
from ...core.landing.selection import find_ranges
from ...core.offsets import OffsetRange
from ...orchestration.assets.decoded_checks import read_dead_letters
from ...orchestration.choosing import Choice, find_decoded
from ...orchestration.runs.waiting import read_due
from ...resources import Adapters
from ...tables.latest import find_due
from ...topics import Topic
from ..launching import InProcessRuns, launching, print_runs
from ..show import find_topic, json_option, open_adapters, print_json, print_table, topic_argument
from ..terminal import OUT, progress

SAID = {"files_decoded": ", Spark has written {files} of {of} files", "stage_decoded": ""}  # after a step
IN_ONE_RUN = {"outdated", "schema"}  # ways whose ranges may have other columns than the table
LONGEST_IN_A_ROW = 200  # characters of one value among ten columns
SELDOM = {"generation", "headers"}  # columns that are left out where no row has a value


@click.command()
@topic_argument
@click.option("--due", "missing", is_flag=True, help="What is landed and not decoded as it is landed now; the default.")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="This range, again if it is decoded.")
@click.option("--dead", is_flag=True, help="Ranges with dead letters, again.")
@click.option("--outdated", is_flag=True, help="Ranges that another decoder than that of defs.yaml has decoded, again.")
@click.option("--schema", "schema_id", metavar="ID", help="Ranges with rows of this registry id, again: 7, or value:7.")
def decode(topic: str, **chosen: Any) -> None:
    """Decode landed ranges through Dagster, in this process: those that are due, or those chosen. Kafka is not asked.

    \b
    Examples:
      offsetlake decode flights
      offsetlake decode flights --dead
      offsetlake decode flights --key 0-0-20000
    """
    configured, adapters = find_topic(topic), open_adapters()
    check_decodes(configured)
    adapters.check_lake(topic)
    choice = Choice(**(chosen if any(chosen.values()) else {"missing": True}), decoded=True, said_in="decode")
    ranges = _find(choice, configured, adapters)
    if not ranges:
        OUT.print(
            f"nothing of {topic} is to be decoded{'' if choice.is_redo else _left_as_it_is(configured, adapters)}",
            soft_wrap=True,
        )
        return
    with launching(adapters, f"decoding {topic}", len(ranges), said=SAID, counts={"reported_decoded"}) as instance:
        runs = InProcessRuns(configured, adapters, instance).decode(
            ranges, redo=choice.is_redo, in_one_run=choice.way in IN_ONE_RUN
        )
        print_runs(topic, runs, "decoded")


def check_decodes(topic: Topic) -> Decode:
    """Return how the topic is decoded; refuse one that is not."""
    if topic.decode is None:
        raise Refused(
            f"topic {topic.name} is not decoded: its defs.yaml has no `decode`; nothing was read or written; say there how its "
            "keys and values are decoded (`offsetlake explain decoding`)"
        )
    return topic.decode


def _find(choice: Choice, topic: Topic, adapters: Adapters) -> Sequence[OffsetRange]:
    if choice.way == "key":
        return find_ranges(topic.name, choice.keys, adapters.lake.coverage_of(topic.name, choice.keys))
    return find_decoded(choice, topic, adapters)


def _left_as_it_is(topic: Topic, adapters: Adapters) -> str:
    """Return what a person who has changed defs.yaml may have meant: outdated ranges and dead letters, by their commands."""
    sums = adapters.decodings.read_ranges(topic.name).sums
    older = sums.outdated(check_decodes(topic).fingerprint)
    outdated = f"; {counted(older, 'range')} by older settings: {command('decode', topic.name, '--outdated')}" if older else ""
    dead = f"; {counted(sums.dead, 'dead letter')}: {command('dead-letters', topic.name)}" if sums.dead else ""
    return f"{outdated}{dead}"


@click.command(name="dead-letters")
@topic_argument
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Of this range; by default of all.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="So many at most.")
@json_option
def dead_letters(topic: str, keys: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Show the records that could not be decoded, with what is wrong. Exit code 1 if there is one.

    \b
    Examples:
      offsetlake dead-letters flights
      offsetlake dead-letters flights --key 0-0-20000 --json
    """
    configured, adapters = find_topic(topic), open_adapters()
    check_decodes(configured)
    wanted = {*find_ranges(topic, keys, adapters.lake.coverage(topic))} if keys else None
    with progress(f"reading dead letters of {topic}"):
        total, columns, rows = read_dead_letters(configured, wanted, limit, adapters)
        waiting = len([each for each in read_due(configured, adapters) if wanted is None or each in wanted])
    if as_json:
        shown = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"topic": topic, "dead_letters": total, "waiting_ranges": waiting, "shown": shown})
    else:
        told = [at for at, name in enumerate(columns) if name not in SELDOM or any(row[at] for row in rows)]
        cells = [[row[at] for at in told] for row in rows]
        print_table(f"{counted(total, 'dead letter')} of {topic}", [columns[at] for at in told], cells, LONGEST_IN_A_ROW)
        if total > len(rows):
            OUT.print(f"{len(rows)} of {total} are shown; --limit shows more")
        if total:
            by_type = command("decode", topic, "--outdated")
            dead = command("decode", topic, "--dead")
            OUT.print(f"mend the decoder in defs.yaml, then: {dead}; where a type changes: {by_type}", soft_wrap=True)
        if waiting:
            are_landed = counted(waiting, "range is", "ranges are")
            OUT.print(f"{are_landed} landed and not decoded yet: {command('decode', topic, '--due')}", soft_wrap=True)
    if total:
        raise SystemExit(1)


@click.command()
@topic_argument
@click.option("--rebuild", "full", is_flag=True, help="Make the table anew from all decoded ranges, whatever stands.")
def latest(topic: str, full: bool) -> None:
    """Bring the latest record of each key up to date with the decoded ranges.

    \b
    Examples:
      offsetlake latest flights
      offsetlake latest flights --rebuild
    """
    configured, adapters = find_topic(topic), open_adapters()
    if configured.latest is None:
        raise BadSetting(
            f"topic {topic} has no `latest` in its defs.yaml; nothing was read or written; add `latest: {{}}` beside `decode`"
        )
    adapters.check_lake(topic)
    due = find_due(topic, configured.latest, adapters.decodings, full=full)
    if not due.has_work:
        OUT.print(f"latest records of {topic} are up to date: {_count(topic, adapters):,} keys")
        return
    steps = {"read_decoded": ", {ranges} ranges are read", "rebuild_latest": ", made anew: {reason}"}
    with launching(adapters, f"latest records of {topic}", max(due.waiting, 1), said=steps) as instance:
        launched = InProcessRuns(configured, adapters, instance).update_latest(full=full)
    if not launched.succeeded:
        raise RangesFailed(
            f"run {launched.run_id} of topic {topic} failed; the table is as it was or as it is to be", [launched.reason]
        )
    OUT.print(f"latest records of {topic}: {_count(topic, adapters):,} keys, in run {launched.run_id}")


def _count(topic: str, adapters: Adapters) -> int:
    table = LatestTable(adapters.lake, topic)
    return table.count(table.read())[0]
