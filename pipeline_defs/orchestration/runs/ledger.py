"""The loss ledger of a topic, and a person's word that a loss is one: from the lake and the broker.

The losses themselves are derived by `core.log.losses`. Invariant: an acceptance names offsets that were gone when it was
given.
"""

from dataclasses import replace
from operator import attrgetter

from ...core.advice import command
from ...core.errors import BadKey, Refused
from ...core.log.coverage import State
from ...core.log.delivery import Acceptance
from ...core.log.losses import Loss, all_losses, read_from
from ...core.offsets import OffsetRange, parse_key
from ...landing.auditing import Finding
from ...resources import Edges
from ...topics import NOTHING_LOST, Topic

_GONE = {State.LOST, State.CLAIMED}
_LANDABLE = {State.PENDING, State.SKIPPED}


def read_ledger(topic: Topic, edges: Edges, *, is_asked: bool = True) -> list[Loss]:
    """Read every loss of a topic, those recorded first, then those of ranges that are not landed.

    Where the broker is not to be asked, without what it has deleted since, which it alone knows.
    """
    coverage = edges.lake.recent(topic.name)
    marks = edges.kafka(topic).read_watermarks(topic.name, topic.policy.isolation_level) if is_asked else {}
    return all_losses(coverage, marks)


def check_losses(topic: Topic, losses: list[Loss]) -> Finding:
    """Check that every loss was accepted; each violation names the offsets, the cause and what to do."""
    waiting = [loss for loss in losses if not is_accepted(topic, loss)]
    facts = {
        "lost_offsets": sum(len(loss.offsets) for loss in losses),
        "not_accepted_offsets": sum(len(loss.offsets) for loss in waiting),
    }
    return Finding("losses", f"{len(losses)} losses", _texts(topic, waiting), facts, tuple(loss.key for loss in waiting))


def check_nothing_lost(topic: Topic, losses: list[Loss]) -> Finding:
    """Show the whole ledger, an error while a loss waits to be accepted, and a warning ever after."""
    found = replace(check_losses(topic, losses), check=NOTHING_LOST, concerns=())
    return replace(found, violations=_texts(topic, losses), is_warning=found.passed)


def _texts(topic: Topic, losses: list[Loss]) -> tuple[str, ...]:
    return tuple(f"{loss.text(topic.name)}; {standing(topic, loss)}" for loss in losses)


def is_accepted(topic: Topic, loss: Loss) -> bool:
    """Return whether a person, or the topic's policy, has said that the loss is one."""
    return loss.acceptance is not None or topic.on_loss == "record"


def standing(topic: Topic, loss: Loss) -> str:
    """Return what was said of a loss, in words, and what to do where nothing was."""
    if loss.acceptance is not None:
        return f"accepted by {loss.acceptance.accepted_by}"
    if topic.on_loss == "record":
        return "recorded by on_loss: record"
    return f"not accepted: `{command('accept-loss', topic.name, loss.key)}`"


def accept_loss(topic: Topic, key: str, edges: Edges, accepted_by: str) -> Acceptance:
    """Record that what is lost of a range or a lost link is lost; refuse where nothing is. The first word stands."""
    coverage = edges.lake.coverage_of(topic.name, [key])
    offsets = parse_key(key)
    state = coverage.states().get(offsets)
    if state is None:
        raise BadKey(
            f"{key} is no range and no lost link of topic {topic.name}; nothing was written; take a key from "
            f"`{command('losses', topic.name)}`",
            key=key,
        )
    if offsets not in coverage.accepted:
        lost = (offsets.start, offsets.end) if state in _GONE else _lost_now(topic, offsets, state, edges)
        edges.lake.begin(
            coverage.log, (step for step in coverage.log.steps if offsets in map(attrgetter("offsets"), step.links))
        )
        edges.lake.commit_acceptance(Acceptance(topic.name, offsets, lost, accepted_by, edges.now_ms()))
    return edges.lake.read_accepted(topic.name)[offsets]


def _lost_now(topic: Topic, offsets: OffsetRange, state: State, edges: Edges) -> tuple[int, int]:
    marks = edges.kafka(topic).read_watermarks(topic.name, topic.policy.isolation_level).get(offsets.partition)
    lost = read_from(offsets, marks.earliest).lost if marks is not None and state in _LANDABLE else ()
    if not lost:
        raise Refused(
            f"nothing is lost of {offsets.text(topic.name)}, which is {state.value}; nothing was written; "
            f"`{command('losses', topic.name)}` lists what is",
            key=offsets.key,
        )
    return lost[0].start, lost[0].end
