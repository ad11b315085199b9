"""The one planner: from the log's state and what the broker shows to the next plan step, or none; `cutting.py` cuts.

Pure: the sensor, the command line and the tests call the same function. Invariant: what it decides tiles with what
the log has, lies inside the watermarks it was given, and asked again with the same inputs it decides nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, zip_longest
from math import inf
from typing import Literal

from ..advice import command, some_of
from ..errors import NoLeader, OtherCluster, Refused, StaleAnswer, TopicRecreated
from ..offsets import OffsetRange, merge_ranges
from .cutting import cut_ranges
from .plan_step import Growth, Head, Link, LinkKind, LogState, PlanStep, TopicIds, Watermarks, are_two

AUTO_RECORDS_DEFAULT = 1 << 17  # nothing is known of the record size yet
AUTO_RECORDS_MAX = 1 << 24
CLOCKS_APART_MS = 300_000  # that planners of two hosts may be
MOST_SKIPPED = 100_000  # ranges that a skip plans; their step has some 20 MB


@dataclass(frozen=True, slots=True)
class Policy:
    """How a topic is cut into ranges; validated by the component that reads it from defs.yaml."""

    records_per_range: int | Literal["auto"] = "auto"
    target_file_bytes: int = 128 * 1024 * 1024
    max_age_seconds: float = 60.0
    start: str | int = "earliest"  # earliest | latest | none | ms since 1970
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    budget: int = 200
    order: Literal["oldest_first", "newest_first"] = "oldest_first"  # in which ranges are landed
    cluster_id: str | None = None  # of the Kafka cluster that the topic is read from; none: the one that the log began with

    @property
    def is_newest_first(self) -> bool:
        """Whether the newest ranges are landed first, so that earlier ones wait longer."""
        return self.order == "newest_first"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the broker shows of one Kafka partition.

    `oldest_ms` is the timestamp of the first record at or after the head, none where there is no record or it
    is not known; `start_offset` is the offset that the policy's `start` resolves to; `seconds_to_loss` is when the broker
    may delete that first record at the soonest, none where it keeps it or where there is none.
    `high_watermark` is where the log itself ends, which an open transaction keeps a reader from: none where that is not
    known to be behind the end that a reader sees. `leader_epoch` is that of the leader that said all this; where another one
    moved the head, `epoch_end` is where that one's records end in this log, and none where nobody can tell.
    """

    watermarks: Watermarks
    oldest_ms: int | None = None
    start_offset: int | None = None
    seconds_to_loss: float | None = None
    high_watermark: int | None = None
    leader_epoch: int | None = None
    epoch_end: int | None = None

    @property
    def log_end(self) -> int:
        """End of the log, whatever of it a reader may see."""
        return max(self.watermarks.end, self.high_watermark or 0)


@dataclass(frozen=True, slots=True)
class TopicState:
    """What the broker shows of a topic: its id and its cluster's (none from old brokers), partitions, mean record size.

    `leaderless` are Kafka partitions that nobody leads, of which it shows nothing.
    `is_restored` is a person's word that the cluster went back in time, to a backup: so its leader epochs did, too.
    """

    topic: str
    topic_id: str | None
    partitions: Mapping[int, PartitionState]
    bytes_per_record: float | None = None
    cluster_id: str | None = None
    leaderless: tuple[int, ...] = ()
    is_restored: bool = False

    @property
    def ids(self) -> TopicIds:
        """Which topic it is."""
        return TopicIds(self.topic_id, self.cluster_id)


def grid_of(policy: Policy, bytes_per_record: float | None) -> int:
    """Return the grid in offsets: as configured, or sized toward `target_file_bytes` in powers of two.

    Powers of two nest, so a grid that changes with the record size keeps most old boundaries.
    """
    if policy.records_per_range != "auto":
        return policy.records_per_range
    if not bytes_per_record or bytes_per_record <= 0:
        return AUTO_RECORDS_DEFAULT
    wanted = max(1, min(AUTO_RECORDS_MAX, int(policy.target_file_bytes / bytes_per_record)))
    return 1 << (wanted.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class SkipAhead:
    """A person's word that what lies before some offsets and is not landed is left out, of one generation and topic id.

    `to` has an offset for each Kafka partition that is skipped in; `cause` says who said it and how; `pending` are the planned
    ranges that are not landed.
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
    """Decide the next plan step, or none where there is nothing to decide; who plans is to be written into it.

    `through_end` cuts the tail now, whatever its age: a person said so.

    With `skip` the step skips ahead, and is none where nothing is left out by it; raise `Refused` for another topic. It plans
    ranges up to where the skip goes, and leaves them out beside those that are pending before it. So each is a range like any
    other, and may be landed all the same. A pending range that the skip ends within is landed; one of which the broker has
    deleted something stays pending: that is a loss, which a person's word is needed for.
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
    """Raise `NoLeader` where nobody shows where a Kafka partition begins or ends: a beginning and a growth need all of them."""
    if state.leaderless:
        places = some_of([f"{state.topic}/{partition}" for partition in state.leaderless])
        raise NoLeader(
            f"no broker leads {places}, and topic {state.topic} is new, was created again, was cut off, or has more partitions "
            "than were planned, for which each must be looked at; nothing was planned and nothing is lost; start the brokers "
            "that have them: then all goes on by itself",
            topic=state.topic,
        )


def _cuts_before(skip: SkipAhead, at: LogState, state: TopicState, grid: int) -> list[OffsetRange]:
    """Return the ranges from the heads up to where a skip goes, the last one of each Kafka partition cut there.

    Raise `Refused` where they are more than a step should have.
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
    """Return whether the broker still has the beginning of a range: it deletes from there."""
    seen = state.partitions.get(offsets.partition)
    return seen is not None and offsets.start >= seen.watermarks.earliest


def _skips(skip: SkipAhead, cuts: Iterable[OffsetRange], state: TopicState) -> tuple[Link, ...]:
    """Return the stretches of pending ranges, and of those that are planned now, that end before where a skip goes."""
    whole = (each for each in skip.pending if _is_whole(each, state))
    left_out = (o for o in (*whole, *cuts) if o.generation == skip.generation and o.end <= skip.to.get(o.partition, 0))
    return tuple(Link(LinkKind.SKIPPED, each, skip.cause) for each in merge_ranges(left_out))


@dataclass(frozen=True, slots=True)
class WaitingTail:
    """What a topic has beyond its planned ranges: how many offsets, and how long the oldest has waited, if known."""

    offsets: int
    age_seconds: float | None


def find_waiting_tail(before: LogState, after: LogState, state: TopicState, now_ms: int) -> WaitingTail | None:
    """Find what no range has, once all is planned that can be: none where nothing waits.

    The broker was asked for the oldest record after `before`; where ranges were planned since, nobody knows that of `after`.
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


def refuse_other_cluster(topic: str, expected: str | None, found: str | None) -> None:
    """Raise `OtherCluster` where brokers are of another cluster than a topic is read from; those too old for ids say nothing.

    A topic of the same name in another cluster looks as if this one had been created again.
    """
    if are_two(expected, found):
        raise OtherCluster(
            f"topic {topic} is to be read from the Kafka cluster {expected}, and `bootstrap_servers` leads to cluster {found}; "
            f"nothing was planned, read or lost; correct `bootstrap_servers`, or, where the topic moved, set "
            f"`cluster_id: {found}` in its defs.yaml: the next tick, or `{command('plan', topic, '--apply')}`, opens a "
            f"generation of what it has there, and what still waits of the cluster that was planned is lost",
            topic=topic,
        )


def refuse_return(log_state: LogState, state: TopicState) -> None:
    """Raise `OtherCluster` where a topic would go back to a cluster that it was moved away from.

    All that it has there lands again. Two projects whose defs.yaml name one cluster each would have it do so in turns.
    """
    was_there = any(each.cluster_id == state.cluster_id for each in log_state.former_ids)
    if was_there and are_two(log_state.cluster_id, state.cluster_id):
        raise OtherCluster(
            f"topic {state.topic} was moved from the Kafka cluster {state.cluster_id} to {log_state.cluster_id}, and its "
            f"defs.yaml here has `cluster_id: {state.cluster_id}`; nothing was planned, read or lost; correct `cluster_id`, or "
            f"remove the topic from one of two projects, or, where it moved back, `{command('plan', state.topic, '--apply')}` "
            "opens a generation, in which all that it has there lands again",
            topic=state.topic,
        )


def refuse_stale(log_state: LogState, state: TopicState) -> None:
    """Raise `StaleAnswer` where a broker that lags has answered: its topic is gone, or it leads a partition no more.

    A topic id never comes back within a cluster, and within one topic the epoch of a partition's leader only grows. Without
    this, an answer of yesterday opened a generation that never was, and what it did not show was lost in the ledger.
    """
    if _is_former(log_state, state.ids):
        raise StaleAnswer(
            f"a Kafka broker that lags shows topic {state.topic} with id {state.topic_id}, which is that of an earlier "
            f"generation, expected {log_state.topic_id}; nothing was planned and nothing is lost; the next tick asks again, "
            "and where it stays so, look which broker is cut off from the others",
            topic=state.topic,
        )
    for partition in _deposed(log_state, state):
        raise StaleAnswer(
            f"a Kafka broker that no longer leads {state.topic}/{partition} has answered for it: its leader epoch is "
            f"{state.partitions[partition].leader_epoch}, expected {log_state.heads[partition].leader_epoch} or later; nothing "
            "was planned and nothing is lost; the next tick asks again, and where it stays so, look which broker is cut off "
            "from the others; if the cluster was restored from a backup, restart no broker of it: "
            f"`{command('plan', state.topic, '--restored --apply')}`",
            topic=state.topic,
        )


def _is_former(log_state: LogState, ids: TopicIds) -> bool:
    """Return whether a topic id is of before: of this cluster, or, where the topic came back to another one, not its last."""
    at = next((at for at, each in enumerate(log_state.former_ids) if each.topic_id == ids.topic_id), None)
    if at is None or not are_two(log_state.cluster_id, ids.cluster_id):
        return at is not None
    known, *later = log_state.former_ids[at:]
    return known.cluster_id == ids.cluster_id and any(each.cluster_id == ids.cluster_id for each in later)


def _deposed(log_state: LogState, state: TopicState) -> Iterator[int]:
    is_same = state.topic_id is not None and state.topic_id == log_state.topic_id and not log_state.ids.is_another(state.ids)
    if not is_same or state.is_restored:
        return  # epochs of another topic, or of one that may be another, say nothing, nor do those of a cluster that went back
    for partition, seen in sorted(state.partitions.items()):
        known = log_state.heads[partition].leader_epoch if partition in log_state.heads else None
        if None not in (known, seen.leader_epoch) and seen.leader_epoch < known:  # type: ignore[operator]
            yield partition


def refuse_recreated(topic: str, log_state: LogState, topic_id: str | None, cluster_id: str | None) -> None:
    """Raise `TopicRecreated`, or `OtherCluster`, where the broker has another topic of this name than was planned."""
    refuse_other_cluster(topic, log_state.cluster_id, cluster_id)
    if are_two(log_state.topic_id, topic_id):
        raise TopicRecreated(
            f"topic {topic} was deleted and created again: it was planned with id {log_state.topic_id}, the broker has "
            f"{topic_id}; of the new one nothing is planned or landed yet; what is landed stays; the sensor's next tick plans "
            f"it as the next generation, or `{command('plan', topic, '--apply')}`"
        )


def may_be_older(log_state: LogState, state: TopicState) -> bool:
    """Return whether what was seen of a topic may be older than the log: another planner may have gone on in between."""
    is_short = bool(find_shrunk(log_state, state)) or any(True for _ in _deposed(log_state, state))
    return is_short or log_state.ids.is_another(state.ids)


def find_shrunk(log_state: LogState, state: TopicState) -> list[int]:
    """Return the Kafka partitions of the open generation whose log was cut off below what was planned of it.

    It ends there now; or it has grown since, with records of another leader from below the head on; or a person says so.
    """
    if log_state.ids.is_another(state.ids):
        return []
    if state.is_restored:
        return sorted(log_state.heads)
    ends = {
        p: seen.log_end if seen.epoch_end is None else min(seen.log_end, seen.epoch_end) for p, seen in state.partitions.items()
    }
    return [p for p, head in sorted(log_state.heads.items()) if p in ends and ends[p] < head.offset]


def is_proven(log_state: LogState, state: TopicState, shrunk: Iterable[int]) -> bool:
    """Return whether ids and leader epochs prove that it is this topic's leader of now who shows a shorter log.

    Brokers too old to tell them may show the end of a moment ago instead: whoever asks them asks again for some time.
    """
    return all(
        None not in (log_state.topic_id, state.topic_id, log_state.heads[p].leader_epoch, state.partitions[p].leader_epoch)
        for p in shrunk
    )


def _open(log_state: LogState, state: TopicState, policy: Policy) -> tuple[LogState, list[Link]]:
    """Open the log, a new generation, or new partitions; return the state to plan from and the links that takes."""
    if log_state.seq == 0:
        return _open_log(log_state, state, policy)
    generation, topic_id, heads = log_state.generation, log_state.topic_id or state.topic_id, dict(log_state.heads)
    former_ids = log_state.former_ids
    if log_state.ids.is_another(state.ids):
        generation, topic_id, heads = generation + 1, state.topic_id, {}
        closed = (*former_ids, log_state.ids)
        former_ids = tuple(each for each in closed if each.topic_id not in {None, topic_id})  # where it came back to a cluster
    elif find_shrunk(log_state, state):
        # the same log, cut off: what retention took of it before belongs to the generation that is closed
        known = ((p, seen) for p, seen in state.partitions.items() if p in heads)
        heads = {p: Head(seen.watermarks.earliest, 0, seen.leader_epoch) for p, seen in known}
        generation += 1
    elif topic_id != log_state.topic_id:
        # a log begun on a broker too old to give an id takes the id as soon as there is one, and the epochs beside it
        heads |= {p: replace(heads[p], leader_epoch=state.partitions[p].leader_epoch) for p in heads.keys() & state.partitions}
    # what appears under our eyes began at 0: what is missing of it by now is lost, not history; nobody knows how long
    # its records have waited
    appeared = {p: Head(0, 0, seen.leader_epoch) for p, seen in state.partitions.items() if p not in heads}
    growths = log_state.growths if generation == log_state.generation else ()
    if appeared and generation == log_state.generation:
        growths = (*growths, _measure_growth(heads, state))
    cluster_id = state.cluster_id or log_state.cluster_id
    return LogState(log_state.seq, generation, topic_id, {**heads, **appeared}, former_ids, growths, cluster_id), []


def _measure_growth(heads: Mapping[int, Head], state: TopicState) -> Growth:
    """Return where each log ends now that partitions were added; the heads lag behind that under backlog.

    An answer names all Kafka partitions up to its last one; of one that it did not, the head is as far as is known.
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
    # the heads are written even where no record is: from now on nothing of this topic can go unnoticed
    return LogState(log_state.seq, log_state.generation, state.topic_id, heads, cluster_id=state.cluster_id), links


def _lost(log_state: LogState, state: TopicState) -> Iterator[Link]:
    for partition, seen in sorted(state.partitions.items()):
        head = log_state.heads.get(partition)
        if head is not None and seen.watermarks.earliest > head.offset:
            offsets = OffsetRange(log_state.generation, partition, head.offset, seen.watermarks.earliest)
            yield Link(LinkKind.LOST, offsets, "deleted by the broker before it was planned")


def _move(heads: dict[int, Head], offsets: OffsetRange, state: TopicState, now_ms: int) -> None:
    """Move a head to the end of a link; while records wait after it, it keeps its time: their age is not reset."""
    seen = state.partitions[offsets.partition]
    moved_at_ms = now_ms if offsets.end >= seen.watermarks.end else heads[offsets.partition].moved_at_ms
    heads[offsets.partition] = Head(offsets.end, moved_at_ms, seen.leader_epoch)


def _cuts_by_partition(
    log_state: LogState, state: TopicState, grid: int, max_age_ms: float, now_ms: int
) -> list[Iterator[OffsetRange]]:
    """Return one iterator of cuts per Kafka partition: the most endangered first, then who has waited longest."""
    since = {p: _waiting_since(log_state.heads[p], seen, now_ms) for p, seen in state.partitions.items()}

    def urgency(item: tuple[int, PartitionState]) -> tuple[float, int, int]:
        partition, seen = item
        return (inf if seen.seconds_to_loss is None else seen.seconds_to_loss, since[partition], partition)

    return [
        cut_ranges(log_state, partition, seen.watermarks.end, grid, cut_tail=now_ms - since[partition] >= max_age_ms)
        for partition, seen in sorted(state.partitions.items(), key=urgency)
    ]


def _waiting_since(head: Head, seen: PartitionState, now_ms: int) -> int:
    """Return since when (ms since 1970) the first record after the head has waited, 0 where nothing tells.

    A record cannot have waited for longer than since the partition was last planned to its end: without that bound,
    a topic with old event times as timestamps would be cut at every tick, and go before all others. A time in the
    future, of a record or of a planner whose clock was wrong, says nothing; one of a planner a little ahead is now.
    """
    is_together = now_ms < head.moved_at_ms <= now_ms + CLOCKS_APART_MS
    times = (seen.oldest_ms, now_ms if is_together else head.moved_at_ms)
    return max((time for time in times if time is not None and time <= now_ms), default=0)
