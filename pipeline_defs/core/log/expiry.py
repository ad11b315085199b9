"""Loss of records on the broker: when it may delete those that are not landed, and what the loss of a broker takes.

Time to loss follows from retention and from how the log was seen to move; durability from a topic's settings, without
judgement: one replica may be right. Invariants: an estimate is the soonest of all that may delete a record, and a topic that
deletes nothing has none; each risk names the setting, its value and the consequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from .plan_step import Look, Watermarks

WARN_SHARE = 0.5  # of the time that a record is kept
FAIL_SHARE = 0.25
RATE_WINDOW_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """A topic's retention: in ms, and in bytes per Kafka partition; none where there is no such bound."""

    ms: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a Kafka partition's log was seen to move, in offsets per second at its start and at its end.

    `is_steady` says whether its start is expected to go on moving; else it was seen to move only once.
    """

    start: float = 0.0
    end: float = 0.0
    is_steady: bool = True


@dataclass(frozen=True, slots=True)
class Exposure:
    """The oldest record of a Kafka partition that is not landed: its offset, and its timestamp, none where unknown."""

    offset: int
    timestamp_ms: int | None
    watermarks: Watermarks
    bytes_per_offset: float = 0.0


def read_retention(config: Mapping[str, str]) -> Retention:
    """Read retention from a topic's configuration; -1 is no bound, and a topic that is only compacted has none."""
    if "delete" not in config.get("cleanup.policy", "delete"):
        return Retention()
    found = [int(config.get(name, "-1")) for name in ("retention.ms", "retention.bytes")]
    return Retention(*(value if value >= 0 else None for value in found))


def seconds_to_loss(retention: Retention, rates: Rates, exposed: Exposure, now_ms: int) -> float | None:
    """Return the seconds until the soonest of these, never below 0; none where nothing deletes.

    | what deletes | when |
    |---|---|
    | retention.ms | the record's age reaches it |
    | retention.bytes | that many bytes follow the record, at the rate at which the log was seen to grow |
    | anything, an operator too | the log's start reaches the record, at the rate at which it was seen to move: steadily, or |
    | | only once where nothing is known of retention |
    """
    if exposed.offset < exposed.watermarks.earliest:
        return 0.0
    soonest = []
    if retention.ms is not None and exposed.timestamp_ms is not None:
        soonest.append((exposed.timestamp_ms + retention.ms - now_ms) / 1000)
    if retention.bytes is not None and exposed.bytes_per_offset > 0:
        left = retention.bytes / exposed.bytes_per_offset - (exposed.watermarks.end - exposed.offset)
        if left <= 0 or rates.end > 0:
            soonest.append(left / rates.end if left > 0 else 0.0)
    if rates.start > 0 and (rates.is_steady or retention == Retention()):
        soonest.append((exposed.offset - exposed.watermarks.earliest) / rates.start)
    return max(0.0, min(soonest)) if soonest else None


def read_rates(looks: Sequence[Look], partition: int, marks: Watermarks, landed: int, now_ms: int) -> Rates:
    """Return how fast the log has moved since the oldest look of this generation within the last hour.

    Its start is steady where it has moved both before and after the middle of that time, or beyond `landed`, the offset of the
    first record that is not landed. A log that was emptied once, of landed records, is not expected to go on so.
    """
    seen = [
        look
        for look in takewhile(lambda look: now_ms - look.at_ms <= RATE_WINDOW_MS, reversed(looks))
        if look.generation == looks[-1].generation and partition in look.watermarks and look.at_ms < now_ms
    ]
    if not seen:
        return Rates()
    first = seen[-1]
    seconds = (now_ms - first.at_ms) / 1000
    before = first.watermarks[partition]
    middle = next(look for look in seen if look.at_ms - first.at_ms <= now_ms - look.at_ms).watermarks[partition]
    is_steady = landed < marks.earliest or before.earliest < middle.earliest < marks.earliest
    start = max(0, marks.earliest - before.earliest) / seconds if is_steady or marks.earliest < before.end else 0.0
    return Rates(start, max(0, marks.end - before.end) / seconds, is_steady)


def kept_seconds(retention: Retention, rates: Rates, bytes_per_offset: float) -> float | None:
    """Return how long a record produced now is kept, none where nothing bounds it: alarms fire at a share of this."""
    kept = [] if retention.ms is None else [retention.ms / 1000]
    if retention.bytes is not None and bytes_per_offset > 0 and rates.end > 0:
        kept.append(retention.bytes / bytes_per_offset / rates.end)
    return min(kept) if kept else None


@dataclass(frozen=True, slots=True)
class Durability:
    """Settings of a topic that decide what the loss of a broker takes; `replicas` are those of its least Kafka partition."""

    replicas: int
    min_insync_replicas: int
    unclean_leader_election: bool

    @property
    def risks(self) -> tuple[str, ...]:
        """Ways in which acknowledged records may be lost before they are read, or producers be stopped; none is best."""
        found = []
        if self.replicas == 1:
            found.append("replication.factor is 1: a broker's disk that fails takes acknowledged records with it")
        elif self.min_insync_replicas == 1:
            found.append(
                "min.insync.replicas is 1: while the other replicas are behind, acks=all is acknowledged by the leader alone, "
                "and its loss takes those records with it"
            )
        elif self.min_insync_replicas >= self.replicas:
            found.append(
                f"min.insync.replicas is {self.min_insync_replicas} of {self.replicas} replicas: nothing is lost, but one "
                "broker that is down stops producers with acks=all"
            )
        if self.unclean_leader_election:
            found.append(
                "unclean.leader.election.enable is true: a replica that is behind may become leader, and what it lacks is "
                "lost; what of it is landed stays, and the rest of the log is landed again as a new generation"
            )
        return tuple(found)

    @property
    def promise(self) -> str:
        """The guarantee that holds where there is no risk."""
        return (
            f"{self.replicas} replicas, min.insync.replicas {self.min_insync_replicas}: what acks=all acknowledged survives "
            f"the loss of {self.min_insync_replicas - 1} of them"
        )


def read_durability(replicas: int, config: dict[str, str]) -> Durability:
    """Read the settings from a topic's configuration, as a broker tells it, defaults included."""
    return Durability(
        replicas,
        int(config.get("min.insync.replicas", 1)),
        config.get("unclean.leader.election.enable", "false").lower() == "true",
    )
