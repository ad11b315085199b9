"""The plan log: the append-only sequence of steps that fixes every boundary, and its laws.

Invariant: for each (generation, Kafka partition) the links, in log order, tile. A step that would break this
cannot be built into a `PlanLog`. Its state, above all the heads after the last step, is enough to plan from.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import BrokenPlanLog
from ..offsets import OffsetRange, Place
from .frontier import Frontier, Sums
from .plan_step import ALL_HEADS_EVERY, Growth, Link, LinkKind, LogState, Look, PlanStep, are_two


@dataclass(frozen=True, slots=True)
class PlanLog:
    """A plan log, checked: building one from steps that do not tile is refused.

    With a `base` it has only the steps that the base keeps, with the ranges that it keeps, and those from `base.seq` on: all
    other ranges were landed.

    | law | refused as |
    |---|---|
    | steps are numbered 0, 1, 2 ... | missing or doubled step |
    | links of a (generation, partition) tile in log order | gap or overlap, with the offsets |
    | a partition begins where the log found it, later ones at 0, | gap, with the offsets |
    | those of a truncated log at its first offset | |
    | a step's heads are where its links end; it has those that it moves, and all | wrong or missing head |
    | in each 32nd step and in a generation's first | |
    | a step's links are of its generation, which grows by one | wrong generation |
    | a step carries the topic ids of all earlier generations, and its own is none of them | forgotten or former topic id |
    | a step carries its generation's growths, one more where it takes in new partitions | wrong growths |
    | no range goes beyond where a partition's log ended at a growth | range over a growth |
    | a skip is of whole ranges of its generation that tile | skip of no ranges |
    """

    topic: str
    steps: tuple[PlanStep, ...] = ()
    base: Frontier | None = None
    # what planning continues from
    state: LogState = field(init=False, repr=False, compare=False)
    # all links in log order, and all planned ranges in log order, each with the step that planned it
    links: tuple[Link, ...] = field(init=False, repr=False, compare=False)
    ranges: Mapping[OffsetRange, PlanStep] = field(init=False, repr=False, compare=False)
    # the skipped ranges, each with the first link that skips it
    skipped: Mapping[OffsetRange, Link] = field(init=False, repr=False, compare=False)
    # by generation: its growths, and when its first step was planned (ms since 1970)
    growths: Mapping[int, tuple[Growth, ...]] = field(init=False, repr=False, compare=False)
    opened: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        skipped, broken = _find_skipped(self.topic, self.steps)
        violations = [*_step_violations(self.topic, self.newer, self.base), *broken]
        if violations:
            raise BrokenPlanLog(
                f"the plan log of topic {self.topic} does not tile; nothing is planned or landed from it: restore the "
                "steps named here from a backup of the lake",
                violations,
            )
        log_state = LogState() if self.base is None else self.base.state
        growths, opened = ({}, {}) if self.base is None else (dict(self.base.growths), dict(self.base.opened))
        for step in self.newer:
            log_state = step.after(log_state)
            opened.setdefault(step.generation, step.planned_at_ms)
        object.__setattr__(self, "state", log_state)
        object.__setattr__(self, "links", tuple(link for step in self.steps for link in self.links_of(step)))
        object.__setattr__(self, "growths", growths | {step.generation: step.growths for step in self.newer})
        object.__setattr__(self, "opened", opened)
        object.__setattr__(self, "ranges", {offsets: step for step in self.steps for offsets in self.ranges_of(step)})
        object.__setattr__(self, "skipped", skipped)

    def ranges_of(self, step: PlanStep) -> tuple[OffsetRange, ...]:
        """Return the ranges of a step that this log has."""
        return step.ranges if self.base is None else self.base.kept_ranges(step)

    def links_of(self, step: PlanStep) -> Iterable[Link]:
        """Return the links of a step that this log has."""
        if self.base is None or step.seq not in self.base.open:
            return step.links
        kept = {*self.ranges_of(step)}
        return (link for link in step.links if link.kind is not LinkKind.RANGE or link.offsets in kept)

    @property
    def newer(self) -> tuple[PlanStep, ...]:
        """The steps from the base on: all of them where there is none."""
        base = self.base
        return self.steps if base is None else tuple(step for step in self.steps if step.seq >= base.seq)

    @property
    def summed(self) -> Mapping[Place, Sums]:
        """The base's sums by place; empty where there is none."""
        return {} if self.base is None else self.base.sums

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks at the broker, oldest first: those the base keeps, and those of newer steps."""
        return (*(self.base.looks if self.base else ()), *(step.look for step in self.newer))

    def has(self, step: PlanStep) -> bool:
        """Return whether the log has a step, or its base sums up a step of that number."""
        if self.base is not None and self.base.sums_up(step.seq):
            return True
        return step == next((each for each in reversed(self.steps) if each.seq <= step.seq), None)

    def count_before(self) -> dict[int, int]:
        """Return by step number how many ranges come before it; that of the next step has the number of all."""
        found, count = dict(self.base.kept) if self.base else {}, self.base.ranges if self.base else 0
        for step in self.newer:
            found[step.seq] = count
            count += len(step.ranges)
        return found | {self.state.seq: count}

    def epoch_of(self, offsets: OffsetRange) -> int:
        """Return the number of growths before a range: all of its records are of that growth epoch.

        A growth that does not name the range's Kafka partition came before that partition was added.
        """
        growths = self.growths.get(offsets.generation, ())
        return sum(growth.get(offsets.partition, 0) <= offsets.start for growth in growths)

    @property
    def generation(self) -> int:
        """The open generation; those before it are closed."""
        return self.state.generation


def _step_violations(topic: str, steps: Iterable[PlanStep], base: Frontier | None) -> Iterator[str]:
    """Name every violation of the laws by steps that continue from a base, with the offsets."""
    log_state = LogState() if base is None else base.state
    # where the links of a (generation, Kafka partition) end so far
    at: dict[Place, int] = {(log_state.generation, p): head.offset for p, head in log_state.heads.items()}
    for step in steps:
        yield from _sequence_violations(topic, log_state, step)
        for partition in step.heads:
            seen = step.watermarks.get(partition)
            if log_state.seq or seen is not None:
                is_same = step.topic_id == log_state.topic_id and not are_two(log_state.cluster_id, step.cluster_id)
                is_truncated = step.generation > log_state.generation and is_same
                is_known_log = log_state.seq == 0 or is_truncated
                at.setdefault((step.generation, partition), seen.earliest if seen and is_known_log else 0)
        yield from _link_violations(topic, step, at)
        yield from _head_violations(topic, log_state, step, at)
        after = replace(step.after(log_state), seq=log_state.seq + 1)
        yield from _growth_violations(topic, log_state, step, after)
        log_state = after


def _find_skipped(topic: str, steps: Sequence[PlanStep]) -> tuple[dict[OffsetRange, Link], list[str]]:
    """Find the skipped ranges, each with its first skip, and name skips that do not cover whole ranges."""
    skipped: dict[OffsetRange, Link] = {}
    broken: list[str] = []
    last = max((step.seq for step in steps if step.skips), default=-1)
    planned: dict[Place, list[OffsetRange]] = defaultdict(list)
    for step in steps:
        if step.seq > last:
            break
        for offsets in step.ranges:
            planned[offsets.place].append(offsets)
        for link in step.skips:
            skip = link.offsets
            known = planned[skip.place]
            first, behind = (bisect_left(known, at, key=lambda each: each.start) for at in (skip.start, skip.end))
            over = known[first:behind]
            is_whole = sum(map(len, over)) == len(skip) and bool(over) and over[-1].end == skip.end
            if link.kind is not LinkKind.SKIPPED or skip.generation != step.generation or not is_whole:
                broken.append(
                    f"plan step {step.seq} skips {skip.text(topic)}, which is no stretch of ranges of that generation"
                )
            skipped |= {offsets: skipped.get(offsets, link) for offsets in over}
    return skipped, broken


def _sequence_violations(topic: str, before: LogState, step: PlanStep) -> Iterator[str]:
    if step.seq != before.seq:
        yield f"expected plan step {before.seq}, found {step.seq}"
    if step.topic != topic:
        yield f"plan step {step.seq} is of topic {step.topic}, expected {topic}"
    if not before.generation <= step.generation <= before.generation + (before.seq > 0):
        yield f"plan step {step.seq} goes from generation {before.generation} to {step.generation}"
    closed = {before.topic_id} - {None, step.topic_id} if step.generation > before.generation else set()
    returned = {step.topic_id} if step.cluster_id != before.cluster_id else set()  # to a cluster of before
    former = {each.topic_id for each in step.former_ids}
    forgotten = ({each.topic_id for each in before.former_ids} | closed) - former - returned
    if forgotten:
        yield f"plan step {step.seq} does not carry topic ids of earlier generations: {', '.join(sorted(map(str, forgotten)))}"
    if step.topic_id in former:
        yield f"plan step {step.seq} has topic id {step.topic_id}, which was that of an earlier generation"


def _link_violations(topic: str, step: PlanStep, at: dict[Place, int]) -> Iterator[str]:
    """Name the links that do not begin where the previous one ended; move `at` to their ends."""
    for link in step.links:
        offsets = link.offsets
        expected = at.get(offsets.place, offsets.start)
        if offsets.generation != step.generation:
            yield f"{offsets.text(topic)} is in plan step {step.seq}, which is of generation {step.generation}"
        if offsets.start != expected:
            what = "gap" if offsets.start > expected else "overlap"
            low, high = sorted((expected, offsets.start))
            yield f"{what} [{low}, {high}) before {offsets.text(topic)} in plan step {step.seq}"
        at[offsets.place] = offsets.end


def _head_violations(topic: str, before: LogState, step: PlanStep, at: Mapping[Place, int]) -> Iterator[str]:
    """Name the heads that are missing or not where the links end: planning would continue from a wrong offset."""
    known = before.heads if before.generation == step.generation else {}
    expected = {link.offsets.partition for link in step.links} | (step.watermarks.keys() - known.keys())
    if step.seq % ALL_HEADS_EVERY == 0:
        expected |= known.keys()
    for partition in sorted(expected - step.heads.keys()):
        yield f"plan step {step.seq} has no head of {topic}/{partition}"
    for partition, head in step.heads.items():
        end = at.get((step.generation, partition), head.offset)
        if end != head.offset:
            yield f"plan step {step.seq} has head {head.offset} of {topic}/{partition}, its links end at {end}"


def _growth_violations(topic: str, before: LogState, step: PlanStep, after: LogState) -> Iterator[str]:
    """Name growths that are missing, invented or incomplete, and ranges whose records would be of two epochs."""
    is_same = before.seq > 0 and before.generation == step.generation
    known = before.growths if is_same else ()
    has_grown = is_same and len(after.heads) > len(before.heads)
    added = step.growths[len(known) :]
    if step.growths[: len(known)] != known or len(added) != has_grown:
        yield f"plan step {step.seq} has {len(step.growths)} growths of {topic}, expected {len(known) + has_grown}"
    if any(growth.keys() != after.heads.keys() for growth in added):
        yield f"plan step {step.seq} has a growth of {topic} that does not name each Kafka partition"
    for offsets in step.ranges:
        ends = (growth.get(offsets.partition, 0) for growth in step.growths)
        yield from (
            f"{offsets.text(topic)} in plan step {step.seq} goes over {end}, where the log ended at a growth"
            for end in ends
            if offsets.start < end < offsets.end
        )
