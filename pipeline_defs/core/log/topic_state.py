"""What the broker shows of a topic at one moment, and whether it is the topic, and the log, that was planned.

Invariant: nothing is planned from an answer of another cluster, of an earlier topic of that name, or of a broker that lags.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..advice import command
from ..errors import OtherCluster, StaleAnswer, TopicRecreated
from .plan_step import LogState, TopicIds, Watermarks, are_two


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the broker shows of one Kafka partition.

    `oldest_ms` is the timestamp of the first record at or after the head, none where there is no record or it
    is not known; `start_offset` is the offset that the policy's `start` resolves to; `seconds_to_loss` is the soonest that the
    broker may delete that first record, none where it keeps it or where there is none.
    `high_watermark` is the end of the log itself, which an open transaction may hide from a reader: none where it is not known
    to be beyond the end that a reader sees. `leader_epoch` is that of the leader that answered; where another leader moved the
    head, `epoch_end` is the offset at which that leader's records end in this log, none where it is not known.
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
        """The high watermark: the log ends there, also where a reader may not see its last records yet."""
        return max(self.watermarks.end, self.high_watermark or 0)


@dataclass(frozen=True, slots=True)
class TopicState:
    """What the broker shows of a topic: its id and its cluster's (none from old brokers), partitions, mean record size.

    `leaderless` are Kafka partitions without a leader, of which it shows nothing.
    `is_restored` means that, as a person says, the cluster was restored from a backup, so its leader epochs went back too.
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


def refuse_other_cluster(topic: str, expected: str | None, found: str | None) -> None:
    """Raise `OtherCluster` where brokers belong to another cluster than the topic's; brokers too old for ids pass.

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

    All that it has there would land again; two projects whose defs.yaml name different clusters would move it back and forth.
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
    """Raise `StaleAnswer` where a broker that lags has answered: its topic is gone, or it no longer leads a partition.

    A topic id never comes back within a cluster, and within one topic the epoch of a partition's leader only grows. Without
    this check an outdated answer opened a generation that never existed, and the ledger called lost what it did not show.
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
    """Return whether a topic id is an earlier one of this cluster, or, of a cluster moved back to, not its last."""
    at = next((at for at, each in enumerate(log_state.former_ids) if each.topic_id == ids.topic_id), None)
    if at is None or not are_two(log_state.cluster_id, ids.cluster_id):
        return at is not None
    known, *later = log_state.former_ids[at:]
    return known.cluster_id == ids.cluster_id and any(each.cluster_id == ids.cluster_id for each in later)


def _deposed(log_state: LogState, state: TopicState) -> Iterator[int]:
    is_same = state.topic_id is not None and state.topic_id == log_state.topic_id and not log_state.ids.is_another(state.ids)
    if not is_same or state.is_restored:
        return  # only epochs of surely the same topic, in a cluster that was not restored, can be compared
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
    """Return whether what was seen of a topic may be older than the log: another planner may have planned in between."""
    is_short = bool(find_shrunk(log_state, state)) or any(True for _ in _deposed(log_state, state))
    return is_short or log_state.ids.is_another(state.ids)


def find_shrunk(log_state: LogState, state: TopicState) -> list[int]:
    """Return the Kafka partitions of the open generation whose log was truncated below the head.

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
    """Return whether ids and leader epochs prove that the shorter logs are shown by their current leaders.

    Brokers too old to tell these may show the end of a moment ago, so callers ask them again for some time.
    """
    return all(
        None not in (log_state.topic_id, state.topic_id, log_state.heads[p].leader_epoch, state.partitions[p].leader_epoch)
        for p in shrunk
    )
