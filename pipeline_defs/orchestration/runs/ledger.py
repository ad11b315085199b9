"""What may be lost of a topic and what is: how long the broker keeps what is not landed, losses, and who accepted them.

The estimate is `core.log.expiry`'s, the losses are derived by `core.log.losses`; this reads what they need of lake and broker.
Invariant: an acceptance names offsets that were gone when it was given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from ...adapters.lake.lake import Lake
from ...adapters.tables.delta_log import raw_table_log
from ...core.advice import command
from ...core.errors import BadKey, Refused
from ...core.landing.progress import find_lag
from ...core.log.coverage import Coverage, State
from ...core.log.delivery import Acceptance
from ...core.log.expiry import FAIL_SHARE, WARN_SHARE, Exposure, kept_seconds, read_rates, read_retention, seconds_to_loss
from ...core.log.losses import GONE, Loss, all_losses, find_losses, read_from
from ...core.log.plan_step import Watermarks
from ...core.offsets import OffsetRange, parse_key
from ...core.tables.raw_table import RangeFiles
from ...landing.auditing import Finding
from ...resources import Adapters
from ...topics import NOTHING_LOST, Topic

UNBOUNDED_KEPT_SECONDS = 4 * 3600.0  # alarms are a share of this where nothing limits how long a record is kept
_LANDABLE = {State.PENDING, State.SKIPPED}


@dataclass(frozen=True, slots=True)
class Endangered:
    """A Kafka partition with records that are not landed, and when the broker may delete them.

    `seconds` are left, a `share` from 0 to 1 of the time for which a record is kept; both are none where nothing deletes them.
    """

    partition: int
    offset: int
    timestamp_ms: int | None
    seconds: float | None
    share: float | None


def read_endangered(topic: Topic, coverage: Coverage, marks: Mapping[int, Watermarks], adapters: Adapters) -> list[Endangered]:
    """Read which Kafka partitions have records that are not landed, and since when; empty where all is landed."""
    kafka = adapters.kafka(topic)
    level = topic.policy.isolation_level
    retention = read_retention(kafka.read_config(topic.name))
    landed = {each.partition: each.landed for each in find_lag(coverage, marks)}
    # what the broker has deleted is lost, accepted or not, and can be deleted no more
    oldest = {p: max(landed[p], mark.earliest) for p, mark in marks.items()}
    waiting = {p: at for p, at in oldest.items() if at < marks[p].end}
    sizes = kafka.read_bytes_per_offset(topic.name, marks) if waiting and retention.bytes is not None else {}
    oldest_ms = kafka.read_timestamps(topic.name, waiting, level)
    now = adapters.now_ms()
    found = []
    for partition, at in sorted(waiting.items()):
        mark = marks[partition]
        rates = read_rates(coverage.log.looks, partition, mark, landed[partition], now)
        exposed = Exposure(at, oldest_ms[partition], mark, sizes.get(partition, 0.0))
        kept = kept_seconds(retention, rates, exposed.bytes_per_offset) or UNBOUNDED_KEPT_SECONDS
        seconds = seconds_to_loss(retention, rates, exposed, now)
        share = None if seconds is None else min(1.0, seconds / kept)
        found.append(Endangered(partition, at, oldest_ms[partition], seconds, share))
    return found


def check_expiry(topic: Topic, endangered: Sequence[Endangered]) -> Finding:
    """Check that what is not landed will be kept for long enough: a warning below `WARN_SHARE`, an error below `FAIL_SHARE`."""
    late = [each for each in endangered if each.share is not None and each.share < WARN_SHARE]
    violations = tuple(
        f"{topic.name}/{each.partition}: offset {each.offset} is not landed and may be deleted in "
        f"{(each.seconds or 0.0) / 60:.1f} minutes, {each.share or 0.0:.0%} of the time that a record is kept; land it "
        f"(`{command('land', topic.name, '--pending')}`), or have the broker keep it for longer (retention.ms, retention.bytes)"
        for each in late
    )
    soonest = min((each.seconds for each in endangered if each.seconds is not None), default=None)
    facts = {"waiting_partitions": len(endangered), **({} if soonest is None else {"seconds_to_loss": round(soonest)})}
    is_error = any((each.share or 0.0) < FAIL_SHARE for each in late)
    concerns = tuple(f"{topic.name}/{each.partition}" for each in late)
    looked_at = f"{len(endangered)} Kafka partitions that wait"
    return Finding("time_to_loss", looked_at, violations, facts, concerns, is_warning=not is_error)


def read_ledger(topic: Topic, adapters: Adapters, *, is_asked: bool = True) -> list[Loss]:
    """Read every loss of a topic, those recorded first, then those of ranges that are not landed.

    Unless the broker `is_asked`, without what it has deleted since: it alone knows that. Raise `NoLeader` where it cannot be
    asked about a range that waits.
    """
    coverage = adapters.lake.recent(topic.name)
    waiting, level = {each.partition for each in coverage.pending()}, topic.policy.isolation_level
    marks = adapters.kafka(topic).read_watermarks(topic.name, level, waiting) if is_asked else {}
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
    return tuple(f"{loss.text(topic.name)}; {acceptance_text(topic, loss)}" for loss in losses)


def is_accepted(topic: Topic, loss: Loss) -> bool:
    """Return whether a person, or the topic's policy, has accepted the loss."""
    return loss.acceptance is not None or topic.on_loss == "record"


def acceptance_text(topic: Topic, loss: Loss) -> str:
    """Return a text on who accepted a loss, or on what to do where nobody has."""
    if loss.acceptance is not None:
        return f"accepted by {loss.acceptance.accepted_by}"
    if topic.on_loss == "record":
        return "recorded by on_loss: record"
    todo = ("land", topic.name, "--key") if loss.cause == GONE else ("accept-loss", topic.name)
    return f"not accepted: `{command(*todo, loss.key)}`"


def accept_loss(topic: Topic, key: str, adapters: Adapters, accepted_by: str) -> Acceptance:
    """Record that a person accepts what is lost of a range or a lost link; the first one stands.

    Refuse where nothing is lost, or where the lake has the rows of a range that is not landed any more.
    """
    coverage = adapters.lake.coverage_of(topic.name, [key])
    offsets = parse_key(key)
    state = coverage.states().get(offsets)
    if state is None:
        raise BadKey(
            f"{key} is no range and no lost link of topic {topic.name}; nothing was written; take a key from "
            f"`{command('losses', topic.name)}`",
            key=key,
        )
    if offsets not in coverage.accepted:
        if state in {State.LOST, State.PENDING}:
            _refuse_if_there(topic.name, offsets, coverage, adapters.lake)
        recorded = [loss.offsets for loss in find_losses(coverage) if loss.key == offsets.key]
        lost = (recorded[0].start, recorded[-1].end) if recorded else _lost_now(topic, offsets, state, adapters)
        adapters.lake.begin(
            coverage.log, (step for step in coverage.log.steps if offsets in map(attrgetter("offsets"), step.links))
        )
        adapters.lake.commit_acceptance(Acceptance(topic.name, offsets, lost, accepted_by, adapters.now_ms()))
    return adapters.lake.read_accepted(topic.name)[offsets]


def _refuse_if_there(topic: str, offsets: OffsetRange, coverage: Coverage, lake: Lake) -> None:
    """Refuse to have a range lost that a person's mistake alone has taken away."""
    manifest, log = coverage.manifests.get(offsets), raw_table_log(topic, lake.store)
    file = RangeFiles(log.read()).find_at(manifest) if manifest is not None else None
    if manifest is None and (offsets in coverage.published or coverage.doubles_of(offsets)):
        said = "its file is published, and its manifest is gone"
        mend = "restore the manifest from a backup; to lose the rows, move the file out of `data/`"
    elif file is not None and lake.store.size(f"{log.folder}/{file.path}") == file.bytes:
        said = "the raw table has its rows"
        mend = f"`{command('land', topic, '--key', offsets.key)}` gives its file back"
    else:
        return
    raise Refused(f"{offsets.text(topic)} is not lost: {said}; nothing was written; {mend}", key=offsets.key)


def _lost_now(topic: Topic, offsets: OffsetRange, state: State, adapters: Adapters) -> tuple[int, int]:
    level, of = topic.policy.isolation_level, [offsets.partition]
    marks = adapters.kafka(topic).read_watermarks(topic.name, level, of).get(offsets.partition)
    lost = read_from(offsets, marks.earliest).lost if marks is not None and state in _LANDABLE else ()
    if not lost:
        raise Refused(
            f"nothing is lost of {offsets.text(topic.name)}, which is {state.value}; nothing was written; "
            f"`{command('losses', topic.name)}` lists what is",
            key=offsets.key,
        )
    return lost[0].start, lost[0].end
