"""The steps of a plan log: the documents that fix boundaries, each with the heads from which planning goes on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple, Self

from ..errors import BrokenPlanLog
from ..offsets import OffsetRange
from .document import UNREADABLE, encode, mend_unreadable, parse

ALL_HEADS_EVERY = 32  # steps: to find the heads after an old step, at most so many are read


class LinkKind(StrEnum):
    """What becomes of a link's offsets."""

    RANGE = "range"  # to be landed
    LOST = "lost"  # deleted by the broker before they were planned, or before they were landed
    SKIPPED = "skipped"  # left out on purpose, by the topic's `start` or by a person


@dataclass(frozen=True, slots=True)
class Link:
    """One stretch of offsets that a step adds: a range, or a lost or skipped stretch."""

    kind: LinkKind
    offsets: OffsetRange
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """What the broker has of a Kafka partition: `[earliest, end)`, end at the reader's isolation level."""

    IS_LIST: ClassVar = True
    earliest: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.earliest <= self.end:
            raise ValueError(f"earliest offset {self.earliest} is not in [0, {self.end}]")


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the broker: its time (ms since 1970), the generation, and the watermarks by Kafka partition."""

    IS_LIST: ClassVar = True
    at_ms: int
    generation: int
    watermarks: Mapping[int, Watermarks]


@dataclass(frozen=True, slots=True)
class Head:
    """The next offset to plan of a Kafka partition, and when it was last moved (ms since 1970).

    `leader_epoch` is that of the leader whose answer moved it, none where the broker gave none.
    """

    IS_LIST: ClassVar = True
    offset: int
    moved_at_ms: int
    leader_epoch: int | None = None


def are_two(one: str | None, other: str | None) -> bool:
    """Return whether two ids are both known and differ; old brokers give none."""
    return None not in (one, other) and one != other


class TopicIds(NamedTuple):
    """The identity of a topic: its id and its cluster's; none where brokers are too old to give it, or do not know it."""

    topic_id: str | None
    cluster_id: str | None

    def is_another(self, other: Self) -> bool:
        """Return whether these and the other ids are surely of two topics, or of two clusters."""
        return are_two(self.topic_id, other.topic_id) or are_two(self.cluster_id, other.cluster_id)


Growth = Mapping[int, int]
"""The high watermark of each Kafka partition at the moment when added partitions were noticed."""


@dataclass(frozen=True, slots=True)
class LogState:
    """All that planning must know of the plan log: the next sequence number, the open generation, its heads and growths.

    `former_ids` are those of earlier generations, oldest first: a broker of the same cluster that answers with one lags.
    """

    seq: int = 0
    generation: int = 0
    topic_id: str | None = None
    heads: Mapping[int, Head] = field(default_factory=dict)
    former_ids: tuple[TopicIds, ...] = ()
    growths: tuple[Growth, ...] = ()
    cluster_id: str | None = None

    @property
    def ids(self) -> TopicIds:
        """Identity of the topic of the open generation."""
        return TopicIds(self.topic_id, self.cluster_id)

    def moved_by(self, generation: int, heads: Mapping[int, Head]) -> dict[int, Head]:
        """Return the heads that the next step carries: those that it moves; in each 32nd and a generation's first, all."""
        is_whole = self.seq % ALL_HEADS_EVERY == 0 or generation != self.generation
        return {p: head for p, head in heads.items() if is_whole or self.heads.get(p) != head}


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One object of the plan log: the links it adds, what they were planned from, the heads that it moves.

    `growths` are those of its generation so far, oldest first. `skips` are links over ranges that this step or an earlier one
    plans: those that are not landed are left out on purpose, and can still be landed. `reopened` are the numbers of steps
    whose landed ranges are about to be read again, so that their manifests may change.
    """

    seq: int
    topic: str
    generation: int
    topic_id: str | None
    planned_at_ms: int
    policy: Mapping[str, object]
    watermarks: Mapping[int, Watermarks]
    links: tuple[Link, ...]
    heads: Mapping[int, Head]
    planner: str = ""
    former_ids: tuple[TopicIds, ...] = ()
    growths: tuple[Growth, ...] = ()
    skips: tuple[Link, ...] = ()
    reopened: tuple[int, ...] = ()
    cluster_id: str | None = None

    @property
    def ids(self) -> TopicIds:
        """Identity of the topic of its generation."""
        return TopicIds(self.topic_id, self.cluster_id)

    @property
    def look(self) -> Look:
        """The look at the broker that this step was planned from."""
        return Look(self.planned_at_ms, self.generation, self.watermarks)

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The ranges that this step plans, in log order."""
        return tuple(link.offsets for link in self.links if link.kind is LinkKind.RANGE)

    def after(self, log_state: LogState) -> LogState:
        """Return the state of a log after this step, given its state before."""
        heads = {**log_state.heads, **self.heads} if self.generation == log_state.generation else self.heads
        return LogState(self.seq + 1, self.generation, self.topic_id, heads, self.former_ids, self.growths, self.cluster_id)

    def to_json(self) -> bytes:
        """Encode the step; the same step gives the same bytes."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode a step; `where` names the object in the error."""
        try:
            return parse(cls, data)
        except UNREADABLE as error:
            truth = "the plan log is the truth and is never rewritten: restore this object from a backup of the lake"
            raise BrokenPlanLog(f"plan step {where} cannot be read: {mend_unreadable(error, truth)}") from error
