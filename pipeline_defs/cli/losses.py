"""`offsetlake losses` and `accept-loss`: what the broker deleted before it was landed, and who said so."""

from __future__ import annotations

import getpass

import click

from ..core.advice import counted
from ..core.command_lines import command
from ..core.losses import Loss
from ..ledger import accept_loss as accept
from ..ledger import is_accepted, read_ledger, standing
from ..moments import time_text
from ..topics import Topic
from .show import (
    find_topic,
    find_topics,
    for_each,
    json_option,
    open_edges,
    optional_topic_argument,
    print_broken,
    print_json,
    print_table,
    topic_argument,
)
from .terminal import OUT


@click.command()
@optional_topic_argument
@json_option
def losses(topic: str | None, as_json: bool) -> None:
    """List every offset that was lost: where, why, when it was recorded, who accepted it. Exit code 1 if one waits.

    \b
    Examples:
      offsetlake losses
      offsetlake losses flights --json
    """
    edges = open_edges()
    topics, broken = find_topics(topic)
    print_broken(broken)
    found: list[tuple[Topic, Loss]] = []
    has_failed = for_each(topics, lambda each: found.extend((each, loss) for loss in read_ledger(each, edges)))
    if as_json:
        print_json(
            [
                {
                    "topic": each.name,
                    "generation": loss.offsets.generation,
                    "partition": loss.offsets.partition,
                    "start": loss.offsets.start,
                    "end": loss.offsets.end,
                    "offsets": len(loss.offsets),
                    "key": loss.key,
                    "cause": loss.cause,
                    "recorded_at_ms": loss.recorded_at_ms,
                    "standing": standing(each, loss),
                }
                for each, loss in found
            ]
        )
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
        print_table(
            counted(len(rows), "loss", "losses"), ["key", "lost", "offsets", "cause", "recorded", "standing"], rows
        )
    if broken or has_failed or not all(is_accepted(each, loss) for each, loss in found):
        raise SystemExit(1)


@click.command(name="accept-loss")
@topic_argument
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--by", default=getpass.getuser, show_default="the user's name", help="Who says so.")
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
