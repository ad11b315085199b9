"""The one planner: from the log's state and what the broker shows to the next plan step, or none; `cutting.py` cuts.

Pure: the sensor, the command line and the tests call the same function. Invariant: what it decides tiles with the log and
lies inside the watermarks it was given; asked again with nothing new, it plans what `budget` left out, then nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, zip_longest
from math import inf

from ..advice import command, some_of
from ..errors import NoLeader, Refused
from ..offsets import OffsetRange, merge_ranges
from .cutting import Policy, cut_ranges, grid_of, waiting_since
from .plan_step import Growth, Head, Link, LinkKind, LogState, PlanStep
from .topic_state import PartitionState, TopicState, find_shrunk, refuse_other_cluster, refuse_stale

MOST_SKIPPED = 100_000  # ranges that a skip may plan; their step has some 20 MB


@dataclass(frozen=True, slots=True)
class SkipAhead:
    """A person's request to leave out what is not landed before some offsets, in one generation and topic id.

    `to` has an offset for each Kafka partition to skip in; `cause` says who asked and how; `pending` are the planned ranges
    that are not landed.
    """

    to: Mapping[int, int]
    cause: str
    generation: int
    topic_id: str | None
    pending: tuple[OffsetRange, ...] = ()


def plan(
    log_state: LogState,
    state: TopicState,
    policy: Policy,
    now_ms: int,
    *,
    through_end: bool = False,
    skip: SkipAhead | None = None,
) -> PlanStep | None:
    """Decide the next plan step, or none where there is nothing to decide; the caller sets its `planner`.

    `through_end` cuts the tail now, whatever its age, since a person asked for it.

    With `skip` the step skips ahead, and is none where it would leave out nothing; raise `Refused` where the topic is another
    one by now. The step plans ranges up to the skip's offsets and skips them along with the pending ones before these: so each
    is a range like any other and can still be landed. A pending range that the skip ends within is landed; one of which the
    broker has deleted something stays pending, since that is a loss, which a person must accept.
    """
    refuse_other_cluster(state.topic, policy.cluster_id or log_state.cluster_id, state.cluster_id)
    refuse_stale(log_state, state)
    opened, opening_links = _open(log_state, state, policy)
    if opened != log_state or not log_state.heads.keys() >= {*state.leaderless}:
        _refuse_leaderless(state)
    grid = grid_of(policy, state.bytes_per_record)
    links = list(opening_links)
    heads = dict(opened.heads)

    for link in _lost(opened, state):
        links.append(link)
        _move(heads, link.offsets, state, now_ms)

    at = replace(opened, heads=dict(heads))
    max_age_ms = 0 if through_end else policy.max_age_seconds * 1000
    if skip is None:
        turns = zip_longest(*_cuts_by_partition(at, state, grid, max_age_ms, now_ms))  # one of each Kafka partition in turn
        cuts = list(islice((each for each in chain.from_iterable(turns) if each is not None), policy.budget))
        skips: tuple[Link, ...] = ()
    else:
        cuts = _cuts_before(skip, at, state, grid)
        skips = _skips(skip, cuts, state)
    for offsets in cuts:
        links.append(Link(LinkKind.RANGE, offsets))
        _move(heads, offsets, state, now_ms)

    if not skips and (skip is not None or (not links and opened == log_state)):
        return None
    return PlanStep(
        former_ids=opened.former_ids,
        growths=opened.growths,
        seq=log_state.seq,
        topic=state.topic,
        generation=opened.generation,
        topic_id=opened.topic_id,
        planned_at_ms=now_ms,
        policy={**asdict(policy), "grid": grid},
        watermarks={p: partition.watermarks for p, partition in state.partitions.items()},
        links=tuple(links),
        heads=log_state.moved_by(opened.generation, heads),
        skips=skips,
        cluster_id=opened.cluster_id,
    )


def _refuse_leaderless(state: TopicState) -> None:
    """Raise `NoLeader` where a Kafka partition has no leader: a new log, generation or growth needs all watermarks."""
    if state.leaderless:
        places = some_of([f"{state.topic}/{partition}" for partition in state.leaderless])
        raise NoLeader(
            f"no broker leads {places}, and topic {state.topic} is new, was created again, was cut off, or has more partitions "
            "than were planned, for which each must be looked at; nothing was planned and nothing is lost; start the brokers "
            "that have them: then all goes on by itself",
            topic=state.topic,
        )


def _cuts_before(skip: SkipAhead, at: LogState, state: TopicState, grid: int) -> list[OffsetRange]:
    """Return the ranges from the heads up to a skip's offsets, the last one of each Kafka partition cut there.

    Raise `Refused` where they are more than a step should have, or where the skip is of another generation or topic id.
    """
    if (skip.generation, skip.topic_id) != (at.generation, state.topic_id):
        raise Refused(
            f"topic {state.topic} was deleted and created again, or truncated, and not planned since; nothing was written; "
            f"`{command('plan', state.topic, '--apply')}`, or the next tick, opens its generation: then look again",
            topic=state.topic,
        )
    cuts = (
        cut_ranges(at, partition, min(offset, seen.watermarks.end), grid, cut_tail=True)
        for partition, offset in sorted(skip.to.items())
        if (seen := state.partitions.get(partition)) is not None
    )
    found = list(islice(chain.from_iterable(cuts), MOST_SKIPPED + 1))
    if len(found) > MOST_SKIPPED:
        raise Refused(
            f"what waits of topic {state.topic} before the skip is more than {MOST_SKIPPED:,} ranges of {grid:,} offsets; "
            "nothing was written; set records_per_range to a larger number, or skip to an earlier time first",
            topic=state.topic,
        )
    return found


def _is_whole(offsets: OffsetRange, state: TopicState) -> bool:
    """Return whether the broker still has the beginning of a range, and so all of it: it deletes from there."""
    seen = state.partitions.get(offsets.partition)
    return seen is not None and offsets.start >= seen.watermarks.earliest


def _skips(skip: SkipAhead, cuts: Iterable[OffsetRange], state: TopicState) -> tuple[Link, ...]:
    """Return the stretches of ranges, pending or planned now, that end at or before a skip's offsets."""
    whole = (each for each in skip.pending if _is_whole(each, state))
    left_out = (o for o in (*whole, *cuts) if o.generation == skip.generation and o.end <= skip.to.get(o.partition, 0))
    return tuple(Link(LinkKind.SKIPPED, each, skip.cause) for each in merge_ranges(left_out))


@dataclass(frozen=True, slots=True)
class WaitingTail:
    """Offsets of a topic beyond its planned ranges: how many, and how long the oldest has waited, if known."""

    offsets: int
    age_seconds: float | None


def find_waiting_tail(before: LogState, after: LogState, state: TopicState, now_ms: int) -> WaitingTail | None:
    """Find the offsets that are in no range after planning; none where nothing waits.

    The broker was asked for the oldest record after the heads of `before`; where `after` has moved one, its age is not known.
    """
    offsets, oldest = 0, []
    for partition, seen in state.partitions.items():
        marks = seen.watermarks
        asked, at = (
            max(log_state.heads[partition].offset if partition in log_state.heads else marks.earliest, marks.earliest)
            for log_state in (before, after)
        )
        if at < marks.end:
            offsets += marks.end - at
            oldest += [seen.oldest_ms] if asked == at and seen.oldest_ms is not None else []
    if not offsets:
        return None
    return WaitingTail(offsets, max(0.0, (now_ms - min(oldest)) / 1000) if oldest else None)


def _open(log_state: LogState, state: TopicState, policy: Policy) -> tuple[LogState, list[Link]]:
    """Open the log, a new generation, or new partitions; return the state to plan from and the links that this adds."""
    if log_state.seq == 0:
        return _open_log(log_state, state, policy)
    generation, topic_id, heads = log_state.generation, log_state.topic_id or state.topic_id, dict(log_state.heads)
    former_ids = log_state.former_ids
    if log_state.ids.is_another(state.ids):
        generation, topic_id, heads = generation + 1, state.topic_id, {}
        closed = (*former_ids, log_state.ids)
        former_ids = tuple(each for each in closed if each.topic_id not in {None, topic_id})  # not its own, which it has again
    elif find_shrunk(log_state, state):
        # the same log, truncated: what retention deleted before that belongs to the closed generation
        known = ((p, seen) for p, seen in state.partitions.items() if p in heads)
        heads = {p: Head(seen.watermarks.earliest, 0, seen.leader_epoch) for p, seen in known}
        generation += 1
    elif topic_id != log_state.topic_id:
        # a log begun on a broker too old to give an id takes the id as soon as there is one, and the epochs beside it
        heads |= {p: replace(heads[p], leader_epoch=state.partitions[p].leader_epoch) for p in heads.keys() & state.partitions}
    # a partition that appears after the log was begun started at 0: what is missing of it now is lost, not history; how long
    # its records have waited is not known
    appeared = {p: Head(0, 0, seen.leader_epoch) for p, seen in state.partitions.items() if p not in heads}
    growths = log_state.growths if generation == log_state.generation else ()
    if appeared and generation == log_state.generation:
        growths = (*growths, _measure_growth(heads, state))
    cluster_id = state.cluster_id or log_state.cluster_id
    return LogState(log_state.seq, generation, topic_id, {**heads, **appeared}, former_ids, growths, cluster_id), []


def _measure_growth(heads: Mapping[int, Head], state: TopicState) -> Growth:
    """Return where each log ends now that partitions were added; under a backlog the heads are behind that.

    For a Kafka partition that the answer does not name, the head is the best known end.
    """
    return {p: head.offset for p, head in heads.items()} | {p: seen.log_end for p, seen in state.partitions.items()}


def _open_log(log_state: LogState, state: TopicState, policy: Policy) -> tuple[LogState, list[Link]]:
    if policy.start == "none":
        raise Refused(
            f"topic {state.topic} has no plan log and its policy says start: none; nothing was planned; restore the "
            "lake, or set start to earliest, latest or a timestamp",
            topic=state.topic,
        )
    links: list[Link] = []
    heads: dict[int, Head] = {}
    for partition, seen in sorted(state.partitions.items()):
        first = seen.watermarks.earliest
        start = first if seen.start_offset is None else min(max(first, seen.start_offset), seen.watermarks.end)
        if start > first:
            offsets = OffsetRange(log_state.generation, partition, first, start)
            links.append(Link(LinkKind.SKIPPED, offsets, f"start: {policy.start}"))
        heads[partition] = Head(start, 0, seen.leader_epoch)
    # heads are written even where there is no record: from now on no loss of this topic goes unnoticed
    return LogState(log_state.seq, log_state.generation, state.topic_id, heads, cluster_id=state.cluster_id), links


def _lost(log_state: LogState, state: TopicState) -> Iterator[Link]:
    for partition, seen in sorted(state.partitions.items()):
        head = log_state.heads.get(partition)
        if head is not None and seen.watermarks.earliest > head.offset:
            offsets = OffsetRange(log_state.generation, partition, head.offset, seen.watermarks.earliest)
            yield Link(LinkKind.LOST, offsets, "deleted by the broker before it was planned")


def _move(heads: dict[int, Head], offsets: OffsetRange, state: TopicState, now_ms: int) -> None:
    """Move a head to the end of a link; while records wait after it, it keeps its time, so their age is not reset."""
    seen = state.partitions[offsets.partition]
    moved_at_ms = now_ms if offsets.end >= seen.watermarks.end else heads[offsets.partition].moved_at_ms
    heads[offsets.partition] = Head(offsets.end, moved_at_ms, seen.leader_epoch)


def _cuts_by_partition(
    log_state: LogState, state: TopicState, grid: int, max_age_ms: float, now_ms: int
) -> list[Iterator[OffsetRange]]:
    """Return one iterator of cuts per Kafka partition: the most endangered first, then the longest waiting."""
    since = {p: waiting_since(log_state.heads[p], seen, now_ms) for p, seen in state.partitions.items()}

    def urgency(item: tuple[int, PartitionState]) -> tuple[float, int, int]:
        partition, seen = item
        return (inf if seen.seconds_to_loss is None else seen.seconds_to_loss, since[partition], partition)

    return [
        cut_ranges(log_state, partition, seen.watermarks.end, grid, cut_tail=now_ms - since[partition] >= max_age_ms)
        for partition, seen in sorted(state.partitions.items(), key=urgency)
    ]
