"""The steps of a plan log: the documents that fix boundaries, each with the heads from which planning goes on."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from ..errors import BrokenPlanLog, cause_of
from ..offsets import OffsetRange
from .document import check_format, encode

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

    def to_dict(self) -> dict[str, object]:
        """Return the link as plain values, the cause only where there is one."""
        cause = {"cause": self.cause} if self.cause else {}
        return {"kind": self.kind.value, **asdict(self.offsets), **cause}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the link that plain values say; raise `ValueError`, `KeyError` or `TypeError` where they say none."""
        numbers = (whole(document[name]) for name in ("generation", "partition", "start", "end"))
        cause = document.get("cause", "")
        if not isinstance(cause, str):
            raise TypeError(f"expected a text, found {cause!r}")
        return cls(LinkKind(document["kind"]), OffsetRange(*numbers), cause)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """What the broker has of a Kafka partition: `[earliest, end)`, end at the reader's isolation level."""

    earliest: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.earliest <= self.end:
            raise ValueError(f"earliest offset {self.earliest} is not in [0, {self.end}]")


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the broker: its time (ms since 1970), the generation, and the watermarks by Kafka partition."""

    at_ms: int
    generation: int
    watermarks: Mapping[int, Watermarks]


@dataclass(frozen=True, slots=True)
class Head:
    """The next offset to plan of a Kafka partition, and when it was last moved (ms since 1970).

    `leader_epoch` is that of the leader whose answer moved it, none where the broker gave none.
    """

    offset: int
    moved_at_ms: int
    leader_epoch: int | None = None

    def to_list(self) -> list[int]:
        """Return the head as plain numbers, the epoch only where it is known."""
        known = [] if self.leader_epoch is None else [self.leader_epoch]
        return [self.offset, self.moved_at_ms, *known]


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
        document = {
            "seq": self.seq,
            "topic": self.topic,
            "generation": self.generation,
            "cluster_id": self.cluster_id,
            "topic_id": self.topic_id,
            "former_ids": list(self.former_ids),
            "planned_at_ms": self.planned_at_ms,
            "planner": self.planner,
            "policy": dict(self.policy),
            "watermarks": {str(p): [w.earliest, w.end] for p, w in sorted(self.watermarks.items())},
            "links": [link.to_dict() for link in self.links],
            "skips": [link.to_dict() for link in self.skips],
            "reopened": list(self.reopened),
            "heads": {str(p): head.to_list() for p, head in sorted(self.heads.items())},
            "growths": [{str(p): end for p, end in sorted(growth.items())} for growth in self.growths],
        }
        return encode(document)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Decode a step; `where` names the object in the error."""
        try:
            document = json.loads(data)
            check_format(document)
            return cls(
                seq=whole(document["seq"]),
                topic=document["topic"],
                generation=whole(document["generation"]),
                topic_id=text_or_none(document["topic_id"]),
                planned_at_ms=whole(document["planned_at_ms"]),
                policy=document["policy"],
                watermarks={int(p): Watermarks(*map(whole, w)) for p, w in document["watermarks"].items()},
                links=_links(document["links"]),
                skips=_links(document["skips"]),
                reopened=tuple(map(whole, document["reopened"])),
                heads={int(p): Head(*map(whole, head)) for p, head in document["heads"].items()},
                planner=document["planner"],
                former_ids=ids_from(document["former_ids"]),
                growths=tuple({int(p): whole(end) for p, end in growth.items()} for growth in document["growths"]),
                cluster_id=text_or_none(document["cluster_id"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenPlanLog(
                f"plan step {where} cannot be read: {cause_of(error)}; the plan log is the truth and is never rewritten: "
                "restore this object from a backup of the lake"
            ) from error


def ids_from(found: Iterable[Any]) -> tuple[TopicIds, ...]:
    """Return the topic ids of a document; raise `ValueError` or `TypeError` for anything else."""
    return tuple(TopicIds(text_or_none(topic_id), text_or_none(cluster_id)) for topic_id, cluster_id in found)


def _links(found: object) -> tuple[Link, ...]:
    if not isinstance(found, list):
        raise TypeError(f"expected a list, found {found!r}")
    return tuple(map(Link.from_dict, found))


def whole(value: object) -> int:
    """Return a value of a document that is a whole number from 0; raise `ValueError` for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number, found {value!r}")
    return value


def text_or_none(value: object) -> str | None:
    """Return a value of a document that is a text or none; raise `TypeError` for anything else."""
    if not isinstance(value, str | None):
        raise TypeError(f"expected a text, found {value!r}")
    return value
