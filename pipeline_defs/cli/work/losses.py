"""`offsetlake losses`, `accept-loss` and `skip`: what is not landed and never will be by itself, and who said so."""

from __future__ import annotations

import getpass

import click

from ...core.advice import counted
from ...core.command_lines import command
from ...core.errors import BrokerUnavailable, Refused, UnknownTopic
from ...core.log.losses import Loss, Skip
from ...core.log.planning import SkipAhead
from ...orchestration.runs.ledger import accept_loss as accept
from ...orchestration.runs.ledger import is_accepted, read_ledger, read_ledger_of_lake, read_skips, standing
from ...orchestration.runs.moments import parse_time, time_text
from ...resources import Edges
from ...topics import Topic
from ..progress import progress
from ..show import (
    find_topic,
    find_topics,
    for_each,
    json_option,
    open_edges,
    optional_topic_argument,
    print_broken,
    print_error,
    print_json,
    print_table,
    topic_argument,
)
from ..terminal import OUT

LATEST = "latest"  # to where a skip may go


def _named(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001 (click hands them)
    """Refuse nobody's name: what is decided stays in the ledger for good."""
    if not value.strip():
        raise click.BadParameter(f"expected a name, found {value!r}; nothing was written")
    return value


by_option = click.option("--by", default=getpass.getuser, show_default="the user's name", callback=_named, help="Who says so.")


@click.command()
@optional_topic_argument
@json_option
def losses(topic: str | None, as_json: bool) -> None:
    """List every offset that was lost: where, why, when it was recorded, who accepted it. Exit code 1 if one waits.

    What was left out on purpose is listed after it, by `skip` or by a topic's `start`.

    \b
    Examples:
      offsetlake losses
      offsetlake losses flights --json
    """
    edges = open_edges()
    topics, broken = find_topics(topic)
    print_broken(broken)
    found: list[tuple[Topic, Loss]] = []
    skips: list[tuple[Topic, Skip]] = []
    unasked: list[Topic] = []

    def read(each: Topic) -> None:
        skips.extend((each, skip) for skip in read_skips(each, edges))
        try:
            found.extend((each, loss) for loss in read_ledger(each, edges))
        except (BrokerUnavailable, UnknownTopic) as error:
            found.extend((each, loss) for loss in read_ledger_of_lake(each, edges))
            print_error(error, f"topic {each.name}: only what the lake says is shown: ")
            unasked.append(each)

    has_failed = for_each(topics, read)
    if as_json:
        lost = [
            _row(each, loss, key=loss.key, at_ms=loss.recorded_at_ms, standing=standing(each, loss)) for each, loss in found
        ]
        left_out = [
            _row(each, skip, key=None, at_ms=skip.said_at_ms, standing=_skip_standing(each, skip)) for each, skip in skips
        ]
        print_json([*lost, *left_out])
    else:
        rows = [
            (
                loss.key,
                loss.offsets.text(each.name),
                len(loss.offsets),
                loss.cause,
                time_text(loss.recorded_at_ms),
                standing(each, loss),
            )
            for each, loss in found
        ]
        print_table(counted(len(rows), "loss", "losses"), ["key", "lost", "offsets", "cause", "recorded", "standing"], rows)
        if skips:
            _print_skips(skips)
    if broken or has_failed or unasked or not all(is_accepted(each, loss) for each, loss in found):
        raise SystemExit(1)


def _row(topic: Topic, what: Loss | Skip, *, key: str | None, at_ms: int | None, standing: str) -> dict[str, object]:
    offsets = what.offsets
    return {
        "topic": topic.name,
        "kind": "lost" if isinstance(what, Loss) else "skipped",
        "generation": offsets.generation,
        "partition": offsets.partition,
        "start": offsets.start,
        "end": offsets.end,
        "offsets": len(offsets),
        "key": key,
        "cause": what.cause,
        "recorded_at_ms": at_ms,
        "standing": standing,
    }


def _print_skips(skips: list[tuple[Topic, Skip]]) -> None:
    rows = [
        (skip.offsets.text(each.name), len(skip.offsets), skip.cause, time_text(skip.said_at_ms), _skip_standing(each, skip))
        for each, skip in skips
    ]
    print_table("left out on purpose", ["skipped", "offsets", "cause", "said", "standing"], rows)


def _skip_standing(topic: Topic, skip: Skip) -> str:
    """Return whether what was left out can be landed all the same, and how."""
    if not skip.is_landable:
        return "it cannot be landed any more"
    offsets = skip.offsets
    wanted = f"--offsets {offsets.partition}:{offsets.start}-{offsets.end}"
    generation = f" --generation {offsets.generation}" if offsets.generation else ""
    return f"landed by `{command('backfill', topic.name, wanted + generation, '--apply')}`, while Kafka has it"


@click.command()
@topic_argument
@click.option("--to", required=True, metavar="latest|TIME", help="Up to the end, or to this time, ISO 8601 with its zone.")
@by_option
@click.option("--apply", is_flag=True, help="Skip them (default: dry run).")
@json_option
def skip(topic: str, to: str, by: str, apply: bool, as_json: bool) -> None:
    """Leave out what waits before an offset, so that what comes now is landed at once; shown first, done with --apply.

    What is left out is planned as ranges that nothing asks for. `losses` names them, and each can be landed all the same while
    Kafka has it. A range that a run is at just now is landed, and so is one that goes beyond the time.

    \b
    Examples:
      offsetlake skip flights --to latest
      offsetlake skip flights --to 2026-11-25T06:00Z --apply
    """
    configured, edges = find_topic(topic), open_edges()
    edges.check_lake(topic)
    with progress(f"looking what of {topic} waits"):
        ahead = find_skip(configured, to, by, edges)
        planner = edges.planner(configured, "cli" if apply else "preview")
        step = planner.commit(skip=ahead) if apply else planner.decide(skip=ahead)
    skips = step.skips if step is not None else ()
    offsets = sum(len(link.offsets) for link in skips)
    if as_json:
        stretches = [
            {"partition": o.partition, "start": o.start, "end": o.end, "offsets": len(o)}
            for o in (link.offsets for link in skips)
        ]
        print_json({"topic": topic, "to": to, "applied": apply and bool(skips), "offsets": offsets, "skips": stretches})
        return
    if not skips:
        OUT.print(f"nothing of {topic} waits before {to}")
        return
    rows = [(link.offsets.text(topic), len(link.offsets)) for link in skips]
    print_table(f"{'skipped' if apply else 'would skip'} {offsets:,} offsets", ["range", "offsets"], rows)
    if not apply:
        OUT.print("nothing was written; add --apply to skip them")


def find_skip(topic: Topic, to: str, by: str, edges: Edges) -> SkipAhead:
    """Find where a skip goes in each Kafka partition: `to` is `latest` or a time; raise `Refused` for anything else."""
    try:
        moment_ms = None if to == LATEST else parse_time(to, None, zone_name="its zone")
    except ValueError as error:
        raise Refused(f"--to {to}: {error}; or {LATEST}; nothing was written") from None
    kafka = edges.kafka(topic)
    seen = kafka.observe(topic.name, topic.policy.isolation_level)
    ends = {p: marks.end for p, marks in seen.watermarks.items()}
    offsets = ends if moment_ms is None else kafka.read_offsets_at(topic.name, seen.watermarks, moment_ms)
    return SkipAhead(offsets, f"by {by}: skip --to {to}", edges.lake.recent(topic.name).log.generation, seen.topic_id)


@click.command(name="accept-loss")
@topic_argument
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@by_option
def accept_loss(topic: str, keys: tuple[str, ...], by: str) -> None:
    """Say that what the broker deleted of a range is lost; what is left of it is landed with the loss in its manifest.

    \b
    Example:
      offsetlake accept-loss flights 0-0-20000
    """
    configured, edges = find_topic(topic), open_edges()
    for key in keys:
        acceptance = accept(configured, key, edges, by)
        first, last = acceptance.lost
        OUT.print(
            f"{acceptance.offsets.text(topic)}: {last - first} offsets [{first}, {last}) accepted as lost by "
            f"{acceptance.accepted_by}, {time_text(acceptance.accepted_at_ms)}",
            soft_wrap=True,
        )
    OUT.print(f"what is left is landed by the next run; now: {command('land', topic, '--pending')}", soft_wrap=True)
