"""The plan log: the append-only sequence that fixes every boundary, and what follows from it.

Invariant: for each (generation, Kafka partition) the links, in log order, tile. A step that would break this
cannot be built into a `PlanLog`. Every step carries the heads after it, so the last step alone is enough to plan.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from .errors import BrokenPlanLog
from .offsets import OffsetRange

FORMAT = 1


class LinkKind(StrEnum):
    """Says what a link does with its offsets."""

    RANGE = "range"  # to be landed
    LOST = "lost"  # deleted by the broker before they were planned, or before they were landed
    SKIPPED = "skipped"  # left out on purpose, by the topic's `start` or by a person


@dataclass(frozen=True, slots=True)
class Link:
    """Is one element of the plan log."""

    kind: LinkKind
    offsets: OffsetRange
    cause: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the link as plain values, the cause only where there is one."""
        cause = {"cause": self.cause} if self.cause else {}
        return {"kind": self.kind.value, **asdict(self.offsets), **cause}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Link:
        """Return the link of plain values; raise `ValueError`, `KeyError` or `TypeError` where they are none."""
        numbers = (_whole(document[name]) for name in ("generation", "partition", "start", "end"))
        cause = document.get("cause", "")
        if not isinstance(cause, str):
            raise TypeError(f"expected a text, found {cause!r}")
        return cls(LinkKind(document["kind"]), OffsetRange(*numbers), cause)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Is what the broker had when a step was planned: `[earliest, end)`, end at the reader's isolation level."""

    earliest: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.earliest <= self.end:
            raise ValueError(f"earliest offset {self.earliest} is not in [0, {self.end}]")


@dataclass(frozen=True, slots=True)
class Head:
    """Place where planning of one Kafka partition goes on: the next offset, and when it was last moved (ms since 1970).

    `leader_epoch` is that of the leader whose answer moved it, none where the broker told none.
    """

    offset: int
    moved_at_ms: int
    leader_epoch: int | None = None

    def to_list(self) -> list[int]:
        """Return the head as plain numbers, the epoch only where it is known."""
        known = [] if self.leader_epoch is None else [self.leader_epoch]
        return [self.offset, self.moved_at_ms, *known]


Growth = Mapping[int, int]
"""Where the log of each Kafka partition ended, its high watermark, when partitions were found to have been added."""


@dataclass(frozen=True, slots=True)
class Tail:
    """All that planning must know of the log: the next sequence number, the open generation, its heads and growths.

    `former_ids` are the topic ids of earlier generations: no broker that is up to date answers with one of them.
    """

    seq: int = 0
    generation: int = 0
    topic_id: str | None = None
    heads: Mapping[int, Head] = field(default_factory=dict)
    former_ids: tuple[str, ...] = ()
    growths: tuple[Growth, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One object of the plan log: the links it adds, what they were planned from, the heads after it.

    `growths` are those of its generation so far, oldest first. `skips` are links over ranges that this step, or one before,
    plans: what of them is not landed is left out on purpose, and may be landed all the same.
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
    former_ids: tuple[str, ...] = ()
    growths: tuple[Growth, ...] = ()
    skips: tuple[Link, ...] = ()

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """Are the ranges that this step plans, in log order."""
        return tuple(link.offsets for link in self.links if link.kind is LinkKind.RANGE)

    @property
    def tail(self) -> Tail:
        """Is the tail of a log that ends with this step."""
        return Tail(self.seq + 1, self.generation, self.topic_id, self.heads, self.former_ids, self.growths)

    def to_json(self) -> bytes:
        """Encodes the step; the same step gives the same bytes."""
        document = {
            "format": FORMAT,
            "seq": self.seq,
            "topic": self.topic,
            "generation": self.generation,
            "topic_id": self.topic_id,
            "former_topic_ids": list(self.former_ids),
            "planned_at_ms": self.planned_at_ms,
            "planner": self.planner,
            "policy": dict(self.policy),
            "watermarks": {str(p): [w.earliest, w.end] for p, w in sorted(self.watermarks.items())},
            "links": [link.to_dict() for link in self.links],
            "skips": [link.to_dict() for link in self.skips],
            "heads": {str(p): head.to_list() for p, head in sorted(self.heads.items())},
            "growths": [{str(p): end for p, end in sorted(growth.items())} for growth in self.growths],
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> PlanStep:
        """Decodes a step; `where` names the object in the error."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}, expected {FORMAT}")
            return cls(
                seq=_whole(document["seq"]),
                topic=document["topic"],
                generation=_whole(document["generation"]),
                topic_id=document["topic_id"],
                planned_at_ms=_whole(document["planned_at_ms"]),
                policy=document["policy"],
                watermarks={int(p): Watermarks(*map(_whole, w)) for p, w in document["watermarks"].items()},
                links=_links(document["links"]),
                skips=_links(document["skips"]),
                heads={int(p): Head(*map(_whole, head)) for p, head in document["heads"].items()},
                planner=document["planner"],
                former_ids=tuple(document["former_topic_ids"]),
                growths=tuple({int(p): _whole(end) for p, end in growth.items()} for growth in document["growths"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BrokenPlanLog(
                f"plan step {where} cannot be read: {error!r}; the plan log is the truth and is never rewritten: "
                "restore this object from a backup of the lake"
            ) from error


def _links(found: object) -> tuple[Link, ...]:
    if not isinstance(found, list):
        raise TypeError(f"expected a list, found {found!r}")
    return tuple(map(Link.from_dict, found))


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number, found {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class PlanLog:
    """Is a whole plan log, checked: building one from steps that do not tile is refused.

    | law | refused as |
    |---|---|
    | steps are numbered 0, 1, 2 ... | missing or doubled step |
    | links of a (generation, partition) tile in log order | gap or overlap, with the offsets |
    | a partition begins where the log found it, later ones at 0, | gap, with the offsets |
    | those of a truncated log at its first offset | |
    | the heads a step carries are where its links end, none is dropped | wrong or missing head |
    | a step's links are of its generation, which grows by one | wrong generation |
    | a step carries the topic ids of all earlier generations, and has none of them | forgotten or former topic id |
    | a step carries its generation's growths, one more where it takes in new partitions | wrong growths |
    | no range goes beyond where a partition's log ended at a growth | range over a growth |
    | a skip is of whole ranges of its generation that tile | skip of no ranges |
    """

    topic: str
    steps: tuple[PlanStep, ...] = ()
    # all links in log order, and all planned ranges in log order, each with the step that planned it
    links: tuple[Link, ...] = field(init=False, repr=False, compare=False)
    ranges: Mapping[OffsetRange, PlanStep] = field(init=False, repr=False, compare=False)
    # the ranges that a skip is over, each with the first one
    skipped: Mapping[OffsetRange, Link] = field(init=False, repr=False, compare=False)
    _growths: Mapping[int, tuple[Growth, ...]] = field(init=False, repr=False, compare=False)  # by generation

    def __post_init__(self) -> None:
        skipped, broken = _find_skipped(self.topic, self.steps)
        violations = [*tiling_violations(self.topic, self.steps), *broken]
        if violations:
            raise BrokenPlanLog(
                f"the plan log of topic {self.topic} does not tile; nothing is planned or landed from it: restore the "
                "steps named here from a backup of the lake",
                violations,
            )
        object.__setattr__(self, "links", tuple(link for step in self.steps for link in step.links))
        object.__setattr__(self, "_growths", {step.generation: step.growths for step in self.steps})
        object.__setattr__(self, "ranges", {offsets: step for step in self.steps for offsets in step.ranges})
        object.__setattr__(self, "skipped", skipped)

    @property
    def tail(self) -> Tail:
        """Is what planning goes on from."""
        return self.steps[-1].tail if self.steps else Tail()

    def epoch_of(self, offsets: OffsetRange) -> int:
        """Return how many times partitions had been added before a range: all of its records are of that epoch.

        A growth that does not name its Kafka partition came before that did.
        """
        growths = self._growths.get(offsets.generation, ())
        return sum(growth.get(offsets.partition, 0) <= offsets.start for growth in growths)

    @property
    def generation(self) -> int:
        """Is the open generation; those before it are closed."""
        return self.steps[-1].generation if self.steps else 0


def tiling_violations(topic: str, steps: Iterable[PlanStep]) -> Iterator[str]:
    """Names every place where a sequence of steps breaks a law of the log, with the offsets."""
    at: dict[tuple[int, int], int] = {}  # where the links of a (generation, Kafka partition) end so far
    before = PlanStep(-1, topic, 0, None, 0, {}, {}, (), {})
    for step in steps:
        yield from _sequence_violations(topic, before, step)
        for partition in step.heads:
            seen = step.watermarks.get(partition)
            if before.seq >= 0 or seen is not None:
                is_known_log = before.seq < 0 or _continues(before, step)
                at.setdefault((step.generation, partition), seen.earliest if seen and is_known_log else 0)
        yield from _link_violations(topic, step, at)
        yield from _head_violations(topic, before, step, at)
        yield from _growth_violations(topic, before, step)
        before = replace(step, seq=before.seq + 1)


def _find_skipped(topic: str, steps: Sequence[PlanStep]) -> tuple[dict[OffsetRange, Link], list[str]]:
    """Find the ranges that skips are over, each with the first one, and name skips that are not over whole ranges."""
    skipped: dict[OffsetRange, Link] = {}
    broken: list[str] = []
    last = max((step.seq for step in steps if step.skips), default=-1)
    planned: dict[tuple[int, int], list[OffsetRange]] = defaultdict(list)
    for step in steps:
        if step.seq > last:
            break
        for offsets in step.ranges:
            planned[offsets.generation, offsets.partition].append(offsets)
        for link in step.skips:
            skip = link.offsets
            known = planned[skip.generation, skip.partition]
            first, behind = (bisect_left(known, at, key=lambda each: each.start) for at in (skip.start, skip.end))
            over = known[first:behind]
            is_whole = sum(map(len, over)) == len(skip) and bool(over) and over[-1].end == skip.end
            if link.kind is not LinkKind.SKIPPED or skip.generation != step.generation or not is_whole:
                broken.append(
                    f"plan step {step.seq} skips {skip.text(topic)}, which is no stretch of ranges of that generation"
                )
            skipped |= {offsets: skipped.get(offsets, link) for offsets in over}
    return skipped, broken


def _continues(before: PlanStep, step: PlanStep) -> bool:
    """Says whether a step opens a generation over the log that was there before: it was truncated, not recreated."""
    return step.generation > before.generation and step.topic_id == before.topic_id


def _sequence_violations(topic: str, before: PlanStep, step: PlanStep) -> Iterator[str]:
    if step.seq != before.seq + 1:
        yield f"expected plan step {before.seq + 1}, found {step.seq}"
    if step.topic != topic:
        yield f"plan step {step.seq} is of topic {step.topic}, expected {topic}"
    if not before.generation <= step.generation <= before.generation + (before.seq >= 0):
        yield f"plan step {step.seq} goes from generation {before.generation} to {step.generation}"
    closed = {before.topic_id} - {None, step.topic_id} if step.generation > before.generation else set()
    forgotten = ({*before.former_ids} | closed) - {*step.former_ids}
    if forgotten:
        yield f"plan step {step.seq} does not carry topic ids of earlier generations: {', '.join(sorted(map(str, forgotten)))}"
    if step.topic_id in step.former_ids:
        yield f"plan step {step.seq} has topic id {step.topic_id}, which was that of an earlier generation"


def _link_violations(topic: str, step: PlanStep, at: dict[tuple[int, int], int]) -> Iterator[str]:
    """Names the links that do not begin where the last one ended; moves `at` over them."""
    for link in step.links:
        offsets = link.offsets
        place = (offsets.generation, offsets.partition)
        expected = at.get(place, offsets.start)
        if offsets.generation != step.generation:
            yield f"{offsets.text(topic)} is in plan step {step.seq}, which is of generation {step.generation}"
        if offsets.start != expected:
            what = "gap" if offsets.start > expected else "overlap"
            low, high = sorted((expected, offsets.start))
            yield f"{what} [{low}, {high}) before {offsets.text(topic)} in plan step {step.seq}"
        at[place] = offsets.end


def _head_violations(topic: str, before: PlanStep, step: PlanStep, at: Mapping[tuple[int, int], int]) -> Iterator[str]:
    """Names the heads that are not where the links end, or are not there: planning would begin there again."""
    known = {link.offsets.partition for link in step.links} | step.watermarks.keys()
    if before.generation == step.generation:
        known |= before.heads.keys()
    for partition in sorted(known - step.heads.keys()):
        yield f"plan step {step.seq} has no head of {topic}/{partition}"
    for partition, head in step.heads.items():
        end = at.get((step.generation, partition), head.offset)
        if end != head.offset:
            yield f"plan step {step.seq} has head {head.offset} of {topic}/{partition}, its links end at {end}"


def _growth_violations(topic: str, before: PlanStep, step: PlanStep) -> Iterator[str]:
    """Name growths that are forgotten, made up or not whole, and ranges whose records would be of two epochs."""
    is_same = before.seq >= 0 and before.generation == step.generation
    known = before.growths if is_same else ()
    has_grown = is_same and bool(step.heads.keys() - before.heads.keys())
    added = step.growths[len(known) :]
    if step.growths[: len(known)] != known or len(added) != has_grown:
        yield f"plan step {step.seq} has {len(step.growths)} growths of {topic}, expected {len(known) + has_grown}"
    if any(growth.keys() != step.heads.keys() for growth in added):
        yield f"plan step {step.seq} has a growth of {topic} that does not name each Kafka partition"
    for offsets in step.ranges:
        ends = (growth.get(offsets.partition, 0) for growth in step.growths)
        yield from (
            f"{offsets.text(topic)} in plan step {step.seq} goes over {end}, where the log ended at a growth"
            for end in ends
            if offsets.start < end < offsets.end
        )
