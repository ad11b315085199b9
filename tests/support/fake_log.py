"""Kafka and Spark in memory, with the methods that planning and landing call, around one topic.

`FakeKafka` can take records away in each way a broker can: retention, compaction, the topic created again. What was
appended is never forgotten: it is what the lake is held against. `FakeSpark` writes real Parquet files.
"""

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_defs.adapters.kafka.kafka_glance import Observation
from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.parquet import RAW_SCHEMA
from pipeline_defs.core.errors import EngineLost, NoLeader, ScanFailed, UnknownTopic
from pipeline_defs.core.landing.scans import Scan
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.holes import BatchSpan, Cause, SpanKind
from pipeline_defs.core.log.plan_step import LogState, TopicIds, Watermarks
from pipeline_defs.core.log.topic_state import PartitionState, TopicState
from pipeline_defs.core.offsets import TopicRange
from pipeline_defs.core.steps import StepWatcher
from pipeline_defs.landing.attempt import Tools
from pipeline_defs.landing.planner import Planner
from tests.support.strategies import EPOCH_MS, TOPIC, raw_row

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
SEEN = {COMMITTED: {SpanKind.DATA}, UNCOMMITTED: {SpanKind.DATA, SpanKind.ABORTED}}  # what a reader takes for records


@dataclass(frozen=True)
class Record:
    """What an offset was given: a record that a reader sees, one of an aborted transaction, or a marker."""

    kind: SpanKind
    key: bytes
    value: bytes
    timestamp_ms: int


@dataclass
class FakePartition:
    """The log of one Kafka partition: all that was appended, from offset 0 on, and what of it is gone."""

    appended: list[Record] = field(default_factory=list)
    earliest: int = 0
    compacted: set[int] = field(default_factory=set)
    open_from: int | None = None  # where a transaction begins that is not ended
    deposed_end: int = 0  # what the leader that was replaced is known to have

    def append(self, kinds: Sequence[SpanKind], value: str, now_ms: int) -> None:
        for kind in kinds:
            at = len(self.appended)
            self.appended.append(Record(kind, b"k%d" % (at * at % 5), f"{value}/{at}".encode(), now_ms))

    @property
    def marks(self) -> Watermarks:
        return Watermarks(self.earliest, len(self.appended))

    def marks_at(self, isolation_level: str) -> Watermarks:
        """Return what a reader of that isolation level may see: one of `read_committed` nothing behind an open transaction."""
        is_held = isolation_level == COMMITTED and self.open_from is not None
        return Watermarks(self.earliest, max(self.earliest, self.open_from or 0) if is_held else len(self.appended))

    def marks_of_deposed(self, isolation_level: str, behind: int) -> Watermarks:
        """Return what the leader that was replaced shows: it has not got the newest records, and what it has it keeps."""
        self.deposed_end = max(self.deposed_end, len(self.appended) - behind)
        return Watermarks(0, min(self.deposed_end, self.marks_at(isolation_level).end))

    def left(self, start: int, end: int) -> Iterator[tuple[int, Record]]:
        """Yield what the log still holds of `[start, end)`."""
        for offset in range(max(start, self.earliest), min(end, len(self.appended))):
            if offset not in self.compacted:
                yield offset, self.appended[offset]

    def rows(self, start: int, end: int, isolation_level: str = COMMITTED) -> dict[int, bytes]:
        """What a reader sees of `[start, end)` now: the values by offset."""
        kinds = SEEN[isolation_level]
        return {offset: record.value for offset, record in self.left(start, end) if record.kind in kinds}

    def explains(self, offset: int, cause: Cause) -> bool:
        """Say whether an offset really holds no record for this cause."""
        kind = self.appended[offset].kind
        return {
            Cause.LOST: offset < self.earliest,
            Cause.COMPACTED: offset in self.compacted,
            Cause.ABORTED: kind is SpanKind.ABORTED,
            Cause.TRANSACTION_MARKER: kind is SpanKind.CONTROL,
        }[cause]


@dataclass
class FakeTopic:
    """One incarnation of the topic."""

    partitions: list[FakePartition]
    is_compacted: bool = False


class FakeKafka:
    """A broker with one topic; incarnations that were deleted are kept to be looked at, and shown to nobody."""

    def __init__(self, partitions: int) -> None:
        self.incarnations: dict[str, FakeTopic] = {}
        self.groups: dict[str, Mapping[int, int]] = {}
        self.leaderless = set[int]()
        self._lag = self._lagged = 0
        self.recreate(partitions)

    @property
    def topic_id(self) -> str:
        return f"id-{len(self.incarnations) - 1}"

    @property
    def now(self) -> FakeTopic:
        return self.incarnations[self.topic_id]

    def expire(self, partition: int, percent: int) -> None:
        log = self._log(partition)
        log.earliest += (len(log.appended) - log.earliest) * percent // 100

    def compact(self, percent: int) -> None:
        """Have compaction on from now on, and the cleaner take what a later record of its key, or nobody, stands for."""
        self.now.is_compacted = True
        for log in self.now.partitions:
            left = list(log.left(0, len(log.appended)))
            newest = {record.key: offset for offset, record in left if record.kind is SpanKind.DATA}
            for offset, record in left[: len(left) * percent // 100]:
                is_stale = record.kind is SpanKind.DATA and offset < newest[record.key]
                if is_stale or record.kind is SpanKind.ABORTED:
                    log.compacted.add(offset)

    def begin_transaction(self, partition: int) -> None:
        log = self._log(partition)
        log.open_from = len(log.appended) if log.open_from is None else log.open_from

    def end_transactions(self) -> None:
        for log in self.now.partitions:
            log.open_from = None

    def lag(self, by: int) -> None:
        """Have a broker that lags answer the next planner: it led a partition before, or knows the topic that was deleted."""
        self._lag = by

    def lose_leader(self, partition: int) -> None:
        self.leaderless.add(partition % len(self.now.partitions))

    def elect(self) -> None:
        """Have a leader for each partition again."""
        self.leaderless.clear()

    def add_partition(self) -> None:
        self.now.partitions.append(FakePartition())

    def recreate(self, partitions: int, records: int = 0) -> None:
        """Have the topic deleted and another of its name there, with some records in each of its partitions."""
        self.incarnations[f"id-{len(self.incarnations)}"] = FakeTopic([FakePartition() for _ in range(partitions)])
        self.leaderless = set()
        for partition, log in enumerate(self.now.partitions):
            log.append([SpanKind.DATA] * records, f"{self.topic_id}/{partition}", EPOCH_MS)

    def _log(self, partition: int) -> FakePartition:
        return self.now.partitions[partition % len(self.now.partitions)]

    def read_ids(self, topic: str) -> TopicIds:
        return TopicIds(self.topic_id, None)

    def read_watermarks(self, topic: str, isolation_level: str, of: Collection[int] = ()) -> Mapping[int, Watermarks]:
        if {*of} & self.leaderless:
            raise NoLeader("nobody leads it")
        return self.observe(topic, isolation_level).watermarks

    def observe(self, topic: str, isolation_level: str) -> Observation:
        marks = {p: log.marks_at(isolation_level) for p, log in enumerate(self.now.partitions) if p not in self.leaderless}
        return Observation(self.topic_id, marks, dict.fromkeys(marks, 1), leaderless=(*sorted(self.leaderless),))

    def glance(self) -> "FakeKafka":
        """Return the broker as who looks at it now goes on to see it, until that looks again at the topic."""
        return cast("FakeKafka", Glancing(self))

    def look_again(self, topic: str) -> None:
        """Nothing was seen at a glance; the same broker may lag again."""
        self._lag = self._lagged

    def read_topic_state(self, topic: str, log_state: LogState, policy: Policy, now_ms: int) -> TopicState:
        lag, self._lag, self._lagged = self._lag, 0, self._lag
        former = next((each.topic_id for each in log_state.former_ids), None) if lag else None
        topic_id = former or self.topic_id
        partitions = {}
        logs = self.incarnations[topic_id].partitions
        is_growth = log_state.topic_id == topic_id and 0 < len(log_state.heads) < len(logs)
        for p, log in enumerate(logs):
            marks, high, epoch = log.marks_at(policy.isolation_level), len(log.appended), 1
            if lag and former is None:  # it has not heard that it was deposed
                marks, high, epoch = log.marks_of_deposed(policy.isolation_level, lag), log.deposed_end, 0
            head = log_state.heads[p].offset if log_state.topic_id == topic_id and p in log_state.heads else marks.earliest
            oldest = next((record.timestamp_ms for _, record in log.left(head, marks.end)), None)
            start = marks.end if log_state.seq == 0 and policy.start == "latest" else None
            is_high = is_growth or marks.end < head  # elsewhere the adapter does not ask for the log's own end
            partitions[p] = PartitionState(marks, oldest, start, high_watermark=high if is_high else None, leader_epoch=epoch)
        led = {p: seen for p, seen in partitions.items() if p not in self.leaderless}
        return TopicState(topic, topic_id, led, leaderless=(*sorted(self.leaderless),))

    def read_spans(
        self,
        topic: str,
        partition: int,
        wanted: Sequence[tuple[int, int]],
        isolation_level: str,
        is_told: Callable[[BatchSpan], bool] = lambda span: True,
    ) -> Iterator[BatchSpan]:
        for start, end in wanted:
            if partition >= len(self.now.partitions):
                raise UnknownTopic(f"{topic} has no partition {partition}")
            for offset, record in self.now.partitions[partition].left(start, end):
                yield BatchSpan(offset, offset + 1, record.kind, 1, (offset,))

    def has_untellable(self, *_: object) -> bool:
        """Every time of these records can be told."""
        return False

    def is_compacted(self, topic: str) -> bool:
        return self.now.is_compacted

    def move_group(self, topic: str, frontier: Mapping[int, int], group: str) -> None:
        self.groups[group] = frontier


class Glancing:
    """Answers what a broker showed at one moment, as a tick does that looks at all topics at once."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._live = kafka
        self._seen = copy.deepcopy(kafka)

    def look_again(self, topic: str) -> None:
        """Answer what the broker shows from now on."""
        self._seen = self._live

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen, name)


class FakeSpark:
    """A Spark that reads as `failOnDataLoss` does; each of its tasks is a step, `task`, of the process that it is of.

    One that was lost at a task goes on to write once another is at work, as a server whose client is cut off does.
    """

    writer = "fake spark"
    source = "fake cluster"

    def __init__(self, kafka: FakeKafka, on_step: StepWatcher) -> None:
        self._kafka = kafka
        self._on_step = on_step
        self._lost: list[Callable[[], None]] = []  # what servers that were lost have still to write

    def kafka_of(self, topic: str) -> FakeKafka:
        return self._kafka

    def open(self) -> None:
        """Do nothing: it is there."""

    def stage(self, scan: Scan, isolation_level: str, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        lost, self._lost = self._lost, []
        # the files' order says nothing, as with Spark
        tasks = list(enumerate(reversed(scan.ranges)))
        for number, each in tasks:
            try:
                self._on_step("task", key=each.offsets.key)
            except EngineLost:
                self._lost = [*lost, partial(self._write, tasks[number:], isolation_level, folder)]
                raise
            while lost:
                with suppress(ScanFailed):
                    lost.pop()()
            self._write([(number, each)], isolation_level, folder)

    def _write(self, tasks: Sequence[tuple[int, TopicRange]], isolation_level: str, folder: str) -> None:
        for number, each in tasks:
            topic, offsets = each.topic, each.offsets
            log = dict(enumerate(self.kafka_of(topic).now.partitions)).get(offsets.partition)
            marks = log.marks_at(isolation_level) if log is not None else None
            if log is None or marks is None or offsets.start < marks.earliest or offsets.end > marks.end:
                raise ScanFailed(f"some of {offsets.text(topic)} is not there")
            place = (topic, offsets.generation, offsets.partition)
            rows = [
                raw_row((*place, offset), record.timestamp_ms * 1000, record.value, record.key)
                for offset, record in log.left(offsets.start, offsets.end)
                if record.kind in SEEN[isolation_level]
            ]
            if rows:
                Path(folder).mkdir(parents=True, exist_ok=True)  # Spark makes a folder that was swept under it again
                pq.write_table(raw_table(rows), f"{folder}/part-{number:05d}.parquet")


def raw_table(rows: Iterable[tuple[object, ...]]) -> pa.Table:
    """Return rows as a landed file has them."""
    return pa.Table.from_pylist([dict(zip(RAW_SCHEMA.names, row, strict=True)) for row in rows], schema=RAW_SCHEMA)


def kafka_with(records: int, value: str = "v") -> FakeKafka:
    kafka = FakeKafka(1)
    kafka.now.partitions[0].append([SpanKind.DATA] * records, value, EPOCH_MS)
    return kafka


def plan_all(lake: Lake, kafka: FakeKafka, policy: Policy, topic: str = TOPIC) -> None:
    """Plan whatever can be, tails included."""
    while Planner(topic, policy, lake, cast("Any", kafka), lambda: EPOCH_MS, "test").commit(through_end=True):
        pass


def fake_tools(lake: Lake, kafka: object, spark: object, **others: Any) -> Tools:
    """Return what landing touches, with Kafka and Spark that are not the real ones; no file is decoded or compacted."""
    given = {"files": cast("Any", None), "group": "offsetlake.test", "now_ms": lambda: EPOCH_MS, **others}
    return Tools(lake, cast("Any", kafka), cast("Any", spark), **given)
