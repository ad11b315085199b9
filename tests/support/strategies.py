"""What the property tests draw from: ranges, logs, manifests, and a Kafka topic that lives in memory.

`World` is what a topic really went through, arrival times included; the planner sees of it only what a broker shows.
`HUNT=3000 pytest tests/properties` draws 3,000 random examples per law instead of a few that are always the same.
"""

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.holes import Cause, Interval
from pipeline_defs.core.log.manifest import Manifest, Provenance, StagedFile
from pipeline_defs.core.log.plan_step import Head, Link, LinkKind, LogState, PlanStep, Watermarks
from pipeline_defs.core.log.planlog import PlanLog
from pipeline_defs.core.log.planning import SkipAhead, plan
from pipeline_defs.core.log.topic_state import PartitionState, TopicState
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.raw_columns import RAW_COLUMNS

_ALLOWED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_EXAMPLES, _IS_HUNT = int(os.environ.get("HUNT", "20")), "HUNT" in os.environ
settings.register_profile(
    "laws", max_examples=_EXAMPLES, deadline=None, derandomize=not _IS_HUNT, database=None, suppress_health_check=_ALLOWED
)
settings.load_profile("laws")


class PanicException(BaseException):
    """What a library that is written in Rust raises where it fails; pyo3 lets nobody import its own."""


T = TypeVar("T")
TOPIC = "orders"
EPOCH_MS = 1_700_000_000_000


def lists_of(each: st.SearchStrategy[T], least: int, most: int) -> st.SearchStrategy[list[T]]:
    """Draw lists of which each length is as likely: Hypothesis's own have about five elements more than the least."""
    return st.integers(least, most).flatmap(lambda count: st.lists(each, min_size=count, max_size=count))


@st.composite
def offset_ranges(draw: st.DrawFn, *, most: int = 2**63 - 1) -> OffsetRange:
    """Draw a valid range, small or anywhere up to Kafka's largest offset."""
    start = draw(st.integers(0, most - 1))
    end = draw(st.integers(start + 1, most))
    return OffsetRange(draw(st.integers(0, 3)), draw(st.sampled_from([0, 1, 7, 2**31 - 1])), start, end)


def intervals() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Draw half-open intervals, in any order, that may touch, overlap or be empty."""
    ends = st.tuples(st.integers(0, 40), st.integers(0, 40))
    return st.lists(ends.map(lambda pair: (min(pair), max(pair))), max_size=8)


def offsets_in(found: Iterable[tuple[int, int]]) -> set[int]:
    """The model of intervals: the set of their offsets."""
    return {offset for start, end in found for offset in range(start, end)}


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return contiguous half-open runs in file order, as the adapter reads them from an offset column."""
    breaks = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(offsets)) if b != a + 1), len(offsets)]
    return [(offsets[a], offsets[b - 1] + 1) for a, b in pairwise(breaks) if a < b]


def provenance(offsets: OffsetRange, attempt: str = "attempt-1") -> Provenance:
    return Provenance(attempt, "run-1", "0.1.0+abc", "spark 4.0.0 zstd-1", 0, "id-0", EPOCH_MS, 1.5)


def staged_file(offsets: OffsetRange, present: Sequence[int]) -> StagedFile | None:
    """The file of a range of which only `present` have rows; none where none has."""
    if not present:
        return None
    path = f"staging/attempt-1/{offsets.stem}.parquet"
    return StagedFile(path, 100 + len(present), "ab" * 32, len(present), min(present), max(present), EPOCH_MS, None)


def landed(offsets: OffsetRange, rows: Iterable[int] | None = None, **lineage: Any) -> Manifest:
    """Return a landed range of which all offsets have rows, or these; compaction has taken the others."""
    every = range(offsets.start, offsets.end)
    present = [*(every if rows is None else rows)]
    holes = tuple(Interval(*gone, Cause.COMPACTED) for gone in runs_of(sorted({*every} - {*present})))
    return Manifest(TOPIC, offsets, staged_file(offsets, present), holes, replace(provenance(offsets), **lineage))


def covered(log: PlanLog, manifests: Iterable[Manifest]) -> Coverage:
    """Return the coverage of a log of which these ranges are landed, each file where it belongs."""
    by_range = {each.offsets: each for each in manifests}
    return Coverage(log, by_range, {o: each.file.bytes for o, each in by_range.items() if each.file})


@dataclass(frozen=True)
class Landing:
    """A correct landing: the offsets with rows, in file order, and the causes of all others."""

    offsets: OffsetRange
    present: tuple[int, ...]
    holes: tuple[Interval, ...]

    @property
    def file(self) -> StagedFile | None:
        return staged_file(self.offsets, self.present)

    @property
    def manifest(self) -> Manifest:
        return Manifest(TOPIC, self.offsets, self.file, self.holes, provenance(self.offsets), schema={"offset": "int64"})


@st.composite
def landings(draw: st.DrawFn, offsets: OffsetRange | None = None, *, least_rows: int = 0) -> Landing:
    """Draw which offsets of a short range have rows, and a cause for each stretch of the others."""
    if offsets is None:
        start = draw(st.integers(0, 10**6))
        end = start + draw(st.integers(max(1, least_rows), 24))
        offsets = OffsetRange(draw(st.integers(0, 2)), draw(st.integers(0, 3)), start, end)
    every = list(range(offsets.start, offsets.end))
    mask = draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every)))
    present = [offset for offset, is_there in zip(every, mask, strict=True) if is_there]
    if len(present) < least_rows:
        present = every
    missing = runs_of(sorted(set(every) - set(present)))
    causes = draw(st.lists(st.sampled_from(Cause), min_size=len(missing), max_size=len(missing)))
    holes = [Interval(start, end, cause) for (start, end), cause in zip(missing, causes, strict=True)]
    return Landing(offsets, tuple(present), tuple(holes))


@dataclass(frozen=True)
class Record:
    """When a record arrived, and what it says about that: none where it says nothing."""

    arrived_ms: int
    timestamp_ms: int | None


@dataclass
class Log:
    """One Kafka partition: its records from offset 0, of which those before `earliest` are deleted."""

    earliest: int = 0
    records: list[Record] = field(default_factory=list)

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(self.earliest, len(self.records))


Kind = Literal["now", "past", "future", "soon", "none"]
_TIMESTAMPS: dict[str, int | None] = {"now": 0, "past": -(10**9), "future": 10**9, "soon": 30_000, "none": None}


@dataclass
class World:
    """A topic and what happens to it; every change is at `now_ms`."""

    has_ids: bool = True
    now_ms: int = EPOCH_MS
    incarnation: int = 0
    partitions: list[Log] = field(default_factory=lambda: [Log()])

    @property
    def topic_id(self) -> str | None:
        return f"id-{self.incarnation}" if self.has_ids else None

    def grow(self, partition: int, count: int, kind: Kind = "now") -> None:
        shift = _TIMESTAMPS[kind]
        record = Record(self.now_ms, None if shift is None else self.now_ms + shift)
        self.partitions[partition % len(self.partitions)].records += [record] * count

    def expire(self, partition: int, percent: int) -> None:
        log = self.partitions[partition % len(self.partitions)]
        log.earliest += (len(log.records) - log.earliest) * percent // 100

    def add_partition(self, count: int, expired: int = 0) -> None:
        self.partitions.append(Log())
        self.grow(-1, count)
        self.partitions[-1].earliest = min(expired, count)

    def recreate(self, partitions: int, count: int) -> None:
        self.incarnation += 1
        self.partitions = [Log() for _ in range(partitions)]
        for partition in range(partitions):
            self.grow(partition, count)

    def truncate(self, partition: int, percent: int) -> None:
        log = self.partitions[partition % len(self.partitions)]
        del log.records[len(log.records) * percent // 100 :]
        log.earliest = min(log.earliest, len(log.records))

    def wait(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    def observe(self, log_state: LogState, start_offsets: dict[int, int] | None = None) -> TopicState:
        """Show what the adapter reads: the oldest timestamp is that of the first record at or after the head."""
        same = log_state.topic_id in {None, self.topic_id}
        partitions = {}
        for partition, log in enumerate(self.partitions):
            head = log_state.heads[partition].offset if same and partition in log_state.heads else log.earliest
            waiting = log.records[max(head, log.earliest) :]
            oldest = waiting[0].timestamp_ms if waiting else None
            partitions[partition] = PartitionState(log.watermarks, oldest, (start_offsets or {}).get(partition))
        return TopicState(TOPIC, self.topic_id, partitions)


@dataclass(frozen=True)
class Tick:
    """One planning: what the log and the broker said, and what was decided."""

    before: LogState
    state: TopicState
    now_ms: int
    step: PlanStep | None
    first_waiting: dict[int, Record]  # of each Kafka partition, after the step: the record at the head

    @property
    def after(self) -> LogState:
        return self.step.after(self.before) if self.step else self.before


Action = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Script:
    """A policy and what happens to a topic under it, with a tick after each event."""

    policy: Policy
    has_ids: bool
    actions: list[Action]

    def play(self) -> list[Tick]:
        world, log_state, ticks = World(self.has_ids), LogState(), list[Tick]()
        for name, arguments in [("wait", (0,)), *self.actions]:
            before, state = log_state, world.observe(log_state)
            if name == "skip":
                planned = [offsets for tick in ticks if tick.step for offsets in tick.step.ranges]
                skip = skip_in(state, log_state, arguments[0], planned)
                step = plan(before, state, self.policy, world.now_ms, skip=skip)
            else:
                getattr(world, name)(*arguments)
                state = world.observe(log_state)
                step = plan(before, state, self.policy, world.now_ms)
            log_state = step.after(before) if step else before
            waiting = {p: log.records[log_state.heads[p].offset :] for p, log in enumerate(world.partitions)}
            first = {p: records[0] for p, records in waiting.items() if records}
            ticks.append(Tick(before, state, world.now_ms, step, first))
        return ticks


def skip_of(
    marks: Mapping[int, Watermarks], topic_id: str | None, generation: int, percent: int, pending: Iterable[OffsetRange] = ()
) -> SkipAhead:
    """Return a skip to so many percent of what the broker has of each Kafka partition."""
    to = {p: mark.earliest + (mark.end - mark.earliest) * percent // 100 for p, mark in marks.items()}
    return SkipAhead(to, "by somebody", generation, topic_id, (*pending,))


def skip_in(state: TopicState, log_state: LogState, percent: int, pending: Iterable[OffsetRange] = ()) -> SkipAhead:
    marks = {p: seen.watermarks for p, seen in state.partitions.items()}
    return skip_of(marks, state.topic_id, log_state.generation, percent, pending)


_PARTITION, _PERCENT, _COUNT = st.integers(0, 3), st.integers(0, 100), st.integers(0, 30)
_KINDS = st.sampled_from(["now", "past", "future", "soon", "none"])


def _action(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Action]:
    return st.tuples(st.just(name), st.tuples(*arguments))


GROW = _action("grow", _PARTITION, _COUNT, _KINDS)
WAIT = _action("wait", st.integers(1, 90))
EVENTS = [
    GROW,
    GROW,
    WAIT,
    _action("expire", _PARTITION, _PERCENT),
    _action("add_partition", _COUNT, st.integers(0, 10)),
    _action("recreate", st.integers(1, 3), _COUNT),
    _action("truncate", _PARTITION, _PERCENT),
]
SKIP = _action("skip", _PERCENT)


@st.composite
def scripts(draw: st.DrawFn, *, events: Sequence[st.SearchStrategy[Action]] = tuple(EVENTS), budget: int = 0) -> Script:
    """Draw a policy with a small grid and up to 25 events."""
    policy = Policy(
        records_per_range=draw(st.integers(1, 12)),
        max_age_seconds=draw(st.sampled_from([0, 20, 60])),
        budget=budget or draw(st.sampled_from([1, 2, 3, 200])),
    )
    return Script(policy, draw(st.booleans()), draw(lists_of(st.one_of(*events), 1, 25)))


def log_of(ticks: Iterable[Tick]) -> PlanLog:
    return PlanLog(TOPIC, tuple(tick.step for tick in ticks if tick.step))


def logs() -> st.SearchStrategy[PlanLog]:
    """Draw plan logs as the planner writes them, people who skip ahead included; nothing is landed while it does."""
    return scripts(events=[*EVENTS, SKIP]).map(lambda script: log_of(script.play()))


def planned(tick: Tick, kind: LinkKind = LinkKind.RANGE) -> list[OffsetRange]:
    """Return what a tick's step did to offsets, in log order."""
    return [link.offsets for link in tick.step.links if link.kind is kind] if tick.step else []


def decide(log_state: LogState, state: TopicState, policy: Policy, now_ms: int, *, through_end: bool = False) -> PlanStep:
    """Plan where there is something to decide."""
    step = plan(log_state, state, policy, now_ms, through_end=through_end)
    assert step is not None
    return step


def step_of(seq: int, *links: tuple[int, int], head: int, generation: int = 0) -> PlanStep:
    """Return a step of one Kafka partition with ranges from where to where."""
    ranges = tuple(Link(LinkKind.RANGE, OffsetRange(generation, 0, *link)) for link in links)
    marks = {0: Watermarks(0, max(1000, head))}
    return PlanStep(seq, TOPIC, generation, None, EPOCH_MS, {}, marks, ranges, {0: Head(head, EPOCH_MS)})


def first_step(records: int, grid: int = 10) -> PlanStep:
    """Plan the records of a new topic of one Kafka partition."""
    world = World()
    world.grow(0, records)
    return decide(LogState(), world.observe(LogState()), Policy(records_per_range=grid), EPOCH_MS)


def open_log(world: World, policy: Policy) -> LogState:
    return decide(LogState(), world.observe(LogState()), policy, world.now_ms).after(LogState())


# what a decoded row takes over as it is, beside what it makes of key and value
TAKEN_OVER = ["topic", "generation", "partition", "offset", "timestamp", "headers"]


def raw_row(
    place: tuple[str, int, int, int], at: datetime | int, value: bytes | None, key: bytes | None = None
) -> tuple[object, ...]:
    """Return the row of a record at a topic, generation, Kafka partition and offset; what is not said of it is null."""
    told: dict[str, object] = dict(zip(("topic", "generation", "partition", "offset"), place, strict=True))
    told |= {"timestamp": at, "timestamp_type": 0, "key": key, "value": value}
    return tuple(told.get(column.name) for column in RAW_COLUMNS)


def draws(count: int) -> Iterator[tuple[int, random.Random]]:
    """Yield seeds with their dice: always the same `count`, or as many as HUNT says."""
    hunt = int(os.environ.get("HUNT", "0"))
    yield from ((seed, random.Random(seed)) for seed in range(hunt or count))


def mutate(dice: random.Random, body: bytes) -> bytes:
    """Change, cut, insert or repeat bytes; what comes out need not be legal."""
    changed = bytearray(body)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(changed) + 1)
        match dice.randrange(4):
            case 0 if changed:
                changed[at - 1] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            case 1:
                changed[at:] = b""
            case 2:
                changed[at:at] = dice.randbytes(dice.randrange(4))
            case _:
                changed[at:at] = changed[: dice.randrange(len(changed) + 1)]
    return bytes(changed)
