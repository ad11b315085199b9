"""`offsetlake losses`, `accept-loss` and `skip`: what is not landed and never will be by itself, and who said so."""

import getpass
from typing import Any

import click

from ...core.advice import command, counted
from ...core.errors import BrokerUnavailable, NoLeader, Refused, UnknownTopic
from ...core.log.coverage import State
from ...core.log.losses import Loss, Skip, find_skips
from ...core.log.planning import SkipAhead
from ...core.offsets import parse_key
from ...orchestration.runs.ledger import accept_loss as accept
from ...orchestration.runs.ledger import acceptance_text, is_accepted, read_ledger
from ...orchestration.runs.moments import parse_time, time_text
from ...resources import Adapters
from ...topics import Topic
from ..show import (
    choose_topics,
    find_topic,
    for_each,
    json_option,
    open_adapters,
    optional_topic_argument,
    print_error,
    print_json,
    print_table,
    topic_argument,
)
from ..terminal import OUT, progress

LATEST = "latest"  # the end, to which a skip may go


def _named(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001 (click hands them)
    """Refuse an empty name: the ledger keeps for good who decided."""
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
    adapters, files = open_adapters(), choose_topics(topic)
    found: list[tuple[Topic, Loss]] = []
    skips: list[tuple[Topic, Skip]] = []
    unasked: list[Topic] = []

    def read(each: Topic) -> None:
        skips.extend((each, skip) for skip in find_skips(adapters.lake.recent(each.name)))
        try:
            found.extend((each, loss) for loss in read_ledger(each, adapters))
        except (BrokerUnavailable, NoLeader, UnknownTopic) as error:
            found.extend((each, loss) for loss in read_ledger(each, adapters, is_asked=False))
            print_error(error, f"topic {each.name}: only what the lake says is shown: ")
            unasked.append(each)

    has_failed = for_each(files, read)
    listed: list[tuple[Topic, Loss | Skip]] = [*found, *skips]
    documents = [_document(each, what) for each, what in listed]
    if as_json:
        print_json(documents)
    else:
        rows = [
            (what.offsets.text(each.name), len(what.offsets), what.cause, time_text(row["recorded_at_ms"]), row["state"])
            for (each, what), row in zip(listed, documents, strict=True)
        ]
        lost = [(loss.key, *row) for (_, loss), row in zip(found, rows, strict=False)]
        print_table(counted(len(lost), "loss", "losses"), ["key", "lost", "offsets", "cause", "recorded", "state"], lost)
        if skips:
            print_table("left out on purpose", ["skipped", "offsets", "cause", "said", "state"], rows[len(lost) :])
    if has_failed or unasked or not all(is_accepted(each, loss) for each, loss in found):
        raise SystemExit(1)


def _document(topic: Topic, what: Loss | Skip) -> dict[str, Any]:
    offsets = what.offsets
    if isinstance(what, Loss):
        kind, key, at_ms, said = "lost", what.key, what.recorded_at_ms, acceptance_text(topic, what)
    else:
        kind, key, at_ms, said = "skipped", None, what.said_at_ms, _skip_state(topic, what)
    return {
        "topic": topic.name,
        "kind": kind,
        "generation": offsets.generation,
        "partition": offsets.partition,
        "start": offsets.start,
        "end": offsets.end,
        "offsets": len(offsets),
        "key": key,
        "cause": what.cause,
        "recorded_at_ms": at_ms,
        "state": said,
    }


def _skip_state(topic: Topic, skip: Skip) -> str:
    """Return whether a skipped stretch can still be landed, and how."""
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
    configured, adapters = find_topic(topic), open_adapters()
    adapters.check_lake(topic)
    with progress(f"looking what of {topic} waits"):
        ahead = find_skip(configured, to, by, adapters)
        planner = adapters.planner(configured, "cli" if apply else "preview")
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
        left = [each for each in adapters.lake.recent(topic).pending() if each.end <= ahead.to.get(each.partition, 0)]
        partly = (
            f"nothing of {topic} can be skipped: of what waits before {to}, {counted(len(left), 'range')}, Kafka has deleted a "
            f"part, or a run is at it just now; `{command('losses', topic)}` shows what is to be accepted, then the rest lands"
        )
        OUT.print(partly if left else f"nothing of {topic} waits before {to}", soft_wrap=True)
        return
    rows = [(link.offsets.text(topic), len(link.offsets)) for link in skips]
    print_table(f"{'skipped' if apply else 'would skip'} {offsets:,} offsets", ["range", "offsets"], rows)
    if not apply:
        OUT.print("nothing was written; add --apply to skip them")


def find_skip(topic: Topic, to: str, by: str, adapters: Adapters) -> SkipAhead:
    """Find the offset up to which each Kafka partition is skipped: `to` is `latest` or a time; raise `Refused` for others."""
    try:
        moment_ms = None if to == LATEST else parse_time(to, None, zone_name="its zone")
    except ValueError as error:
        raise Refused(f"--to {to}: {error}; or {LATEST}; nothing was written") from None
    kafka = adapters.kafka(topic)
    seen = kafka.observe(topic.name, topic.policy.isolation_level)
    ends = {p: marks.end for p, marks in seen.watermarks.items()}
    offsets = ends if moment_ms is None else kafka.read_offsets_at(topic.name, seen.watermarks, moment_ms)
    return SkipAhead(offsets, f"by {by}: skip --to {to}", adapters.lake.recent(topic.name).log.generation, seen.topic_id)


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
    configured, adapters = find_topic(topic), open_adapters()
    for key in keys:
        acceptance = accept(configured, key, adapters, by)
        first, last = acceptance.lost
        OUT.print(
            f"{acceptance.offsets.text(topic)}: {last - first} offsets [{first}, {last}) accepted as lost by "
            f"{acceptance.accepted_by}, {time_text(acceptance.accepted_at_ms)}",
            soft_wrap=True,
        )
    states = adapters.lake.coverage_of(topic, keys).states()
    if any(states[parse_key(key)] is State.PENDING for key in keys):
        OUT.print(f"the next run lands what is left; now: {command('land', topic, '--pending')}", soft_wrap=True)
