"""Plan, land, redo, replace, crash, overtake, expire, compact, recreate in any order: the lake against a plain model.

The lake, the planner and the protocol are the real ones, over a real folder; Kafka and Spark are those of `fake_log`.
What befalls a process strikes at one passing of one step, of the protocol or of the lake's store: it dies there, its disk is
full for a moment, its Spark goes away and goes on to write, or it stands still while another process runs or sweeps, a file of
the lake is lost or the log changes under it, and then goes on as a zombie. `HUNT=500` draws 500 random runs of each, others
each time.
"""

import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import range_of
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.tables.delta_log import raw_table_log
from pipeline_defs.core.errors import BrokenPlanLog, EngineLost, LakeUnavailable, NoLeader, Refused, StaleAnswer
from pipeline_defs.core.landing.tiling import completeness_violations, tiling_violations
from pipeline_defs.core.landing.verdicts import Outcome, Verdict
from pipeline_defs.core.log import settling
from pipeline_defs.core.log.coverage import Coverage, State
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Acceptance, Delivery
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.losses import find_losses, unrecorded_losses
from pipeline_defs.core.log.plan_step import LogState
from pipeline_defs.core.log.planning import plan
from pipeline_defs.core.offsets import OffsetRange, parse_key
from pipeline_defs.landing import landing
from pipeline_defs.landing.appending import append_landed
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.landing.auditing import check_published
from pipeline_defs.landing.landing import land
from pipeline_defs.landing.planner import Planner
from pipeline_defs.tables import compaction
from pipeline_defs.tables.deleting import sweep_orphans, vacuum
from tests.support import fake_log
from tests.support.fake_log import COMMITTED, TOPIC, UNCOMMITTED, FakeKafka, FakePartition, FakeSpark, kafka_with
from tests.support.interleaving import SmallWorld
from tests.support.redecoding import Killed, compact_raw, stop_at
from tests.support.strategies import EPOCH_MS, skip_of

LONG_MS = 10**12  # so that what was reopened stays so: who stands still may go on at any time
Row = tuple[int, int, int]  # generation, partition, offset
Event = tuple[str, tuple[Any, ...]]
Mode = Literal["retry", "redo", "replace"]
Trouble = tuple[str, int, Event]  # the step, which passing of it, what happens there

# where a process can be struck; what decides and what becomes visible is struck more often
STORE = ["store.list", "store.put_new", "store.publish", "store.exchange", "store.delete"]
DECISIVE = ["verify", "commit", "publish", "store.publish", "store.exchange"]
LANDING = ["find", "claim", "scan", "task", "task", "task", "stage", "rolled_forward", "report", *DECISIVE, *DECISIVE, *STORE]
PLANNING = ["plan_decided", "plan_committed", "store.list", "store.put_new"]

DEATH: Event = ("die", ())
FULL: Event = ("fill", ())  # the disk, for one call
LOST: Event = ("lose_engine", ())  # at a task of a scan
LOG_EVENTS: list[Event] = [
    *[("compact", (percent,)) for percent in (40, 70, 100, 100, 100)],
    ("expire", (0, 50)),
    ("expire", (1, 100)),
    ("add_partition", ()),
    ("begin_transaction", (0,)),
    ("end_transactions", ()),
    *[("lag", (by,)) for by in (1, 4)],
    *[("lose_leader", (partition,)) for partition in (0, 1)],
    ("elect", ()),
    *[("recreate", (2, records)) for records in (0, 12, 12)],
]
OVERTAKEN: list[Event] = [
    ("overtake", (modes, befalls))
    for modes in (["retry"], ["replace"], ["redo", "replace"], ["replace", "replace"])
    for befalls in ([], [], [], [("verify", 0, DEATH)], [("commit", 0, DEATH)], [("store.put_new", 1, DEATH)])
]
LAKE_EVENTS: list[Event] = [
    *(("sweep", ()), ("sweep", ()), ("lose_file", (0,)), ("lose_file", (3,)), ("lose_manifests", (1,))),
    *(("compact_table", ()), ("compact_table", ()), ("vacuum_table", ())),
]
PLANNER_STRIKES = [*[DEATH] * 4, FULL, *[("run_planner", (True,))] * 4, *LOG_EVENTS]
RARE: list[Event] = [*[("run_planner", (True,))] * 2, *[("skip_ahead", (percent,)) for percent in (50, 100)]]
STRIKES = [*[DEATH] * 12, *[FULL] * 4, *[LOST] * 6, *OVERTAKEN, *RARE, *LAKE_EVENTS, *LOG_EVENTS]

_KINDS = st.lists(st.sampled_from([SpanKind.DATA] * 4 + [SpanKind.CONTROL, SpanKind.ABORTED]), min_size=1, max_size=8)
_MODES: st.SearchStrategy[Mode] = st.sampled_from(["retry", "redo", "replace", "replace"])
_ON_LOSS = st.sampled_from(["fail", "record"])


def _troubles(steps: Sequence[str], strikes: Sequence[Event]) -> st.SearchStrategy[list[Trouble]]:
    passing = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 5])
    return st.lists(st.tuples(st.sampled_from(steps), passing, st.sampled_from(strikes)), max_size=2)


_LANDING, _PLANNING = _troubles(LANDING, STRIKES), _troubles(PLANNING, PLANNER_STRIKES)


def read_rows(path: Path) -> list[tuple[Row, str]]:
    columns = pq.ParquetFile(path).read(["generation", "partition", "offset", "value"]).columns
    return [((g, p, o), value.decode()) for g, p, o, value in zip(*(c.to_pylist() for c in columns), strict=True)]


def is_of(row: Row, offsets: OffsetRange) -> bool:
    return row[:2] == offsets.place and row[2] in offsets


class Process:
    """One process and what befalls it; once it is dead, none of its threads passes another step."""

    def __init__(
        self, machine: "ProtocolMachine", befalls: Sequence[Trouble], keys: Sequence[str] = (), attempt: str = ""
    ) -> None:
        self.lake = Lake(str(machine.folder))
        self.lake.store = WatchedStore(str(machine.folder), self)
        self.keys = keys
        self.attempt = attempt
        self.is_dead = False
        self._machine = machine
        self._befalls = befalls
        self._passed: Counter[str] = Counter()

    def __call__(self, step: str, **fields: object) -> None:
        if step == "task":
            self._machine.note_reading(str(fields["key"]))
        nth = self._passed[step]
        self._passed[step] += 1
        for at, which, (name, arguments) in self._befalls:
            if (at, which) == (step, nth) and not self.is_dead:
                self._machine.the_lake_shows_the_log()
                self._machine.struck.add(self.attempt)
                if name == "die":
                    self.is_dead = True
                elif name == "fill" and step.startswith("store."):
                    raise LakeUnavailable("cannot write: no space left on device")
                elif name == "lose_engine" and step == "task":
                    raise EngineLost("the server went away")
                elif name not in {"fill", "lose_engine"}:
                    self._machine.happen((name, (self.keys, *arguments) if name == "overtake" else arguments))
        if self.is_dead:
            raise Killed


class WatchedStore(DiskStore):
    """The real store; each call that writes or lists is a step too."""

    def __init__(self, root: str, on_step: Process) -> None:
        super().__init__(root)
        self.on_step = on_step


def _watch(method: str, step: str) -> None:
    real = getattr(DiskStore, method)

    def call(self: WatchedStore, *given: Any, **guarded: Any) -> Any:
        self.on_step(step)
        return real(self, *given, **guarded)

    setattr(WatchedStore, method, call)


for _step in STORE:
    _watch(_step.removeprefix("store."), _step)
_watch("versions", "store.list")


class ProtocolMachine(RuleBasedStateMachine):
    """A lake and what it is told to do; the model is what `FakeKafka` remembers, and what was visible before."""

    def __init__(self, delivery: Delivery | None) -> None:
        super().__init__()
        self.may_change = delivery is None
        self.delivery = delivery or Delivery.EFFECTIVELY_ONCE
        self.isolation_level = COMMITTED
        self.struck: set[str] = set()  # attempts that something befell
        self.orphaned: set[OffsetRange] = set()  # ranges whose manifests somebody deleted
        self.folder = Path(tempfile.mkdtemp(prefix="offsetlake-model-"))
        self.now_ms = EPOCH_MS
        self.attempts = count()
        self.replaced: set[OffsetRange] = set()
        self.readers: Counter[tuple[int, int, int]] = Counter()
        self.seen: dict[Row, str] = {}
        self.taken_away: set[Row] = set()
        self.lake = Lake(str(self.folder))
        self.glance: FakeKafka | None = None
        self.is_damaged = False  # by somebody: what a frontier document sums up is believed
        self.files: dict[tuple[int, int], list[tuple[Row, str]]] = {}

    @initialize(partitions=st.integers(1, 2), grid=st.integers(2, 5), start=st.sampled_from(["earliest", "latest"]))
    def begin(self, partitions: int, grid: int, start: str) -> None:
        self.kafka = FakeKafka(partitions)
        self.policy = Policy(records_per_range=grid, max_age_seconds=20, start=start, budget=6)

    @precondition(lambda self: self.may_change)
    @rule(delivery=st.sampled_from(Delivery))
    def change_delivery(self, delivery: Delivery) -> None:
        self.delivery = delivery

    @rule(level=st.sampled_from([COMMITTED, UNCOMMITTED]))
    def change_isolation(self, level: Any) -> None:
        self.isolation_level = level
        self.policy = replace(self.policy, isolation_level=level)

    @rule()
    def look_at_all_topics(self) -> None:
        self.glance = self.kafka.glance()

    @precondition(lambda self: self.glance is not None)
    @rule(through_end=st.booleans())
    def plan_from_that_look(self, through_end: bool) -> None:
        glance, self.glance = self.glance, None
        self.run_planner(through_end, kafka=glance)

    @rule(event=st.sampled_from(LAKE_EVENTS))
    def befall_the_lake(self, event: Event) -> None:
        self.happen(event)

    def sweep(self) -> None:
        """Sweep what every attempt has staged and no manifest needs yet, those that stand still among them."""
        sweep_orphans(Lake(str(self.folder)), 2**53, 0)

    def compact_table(self) -> None:
        """Compact all of the raw table, as `offsetlake compact --all` does."""
        with suppress(LakeUnavailable):  # what it was to append has just gone
            compact_raw(Lake(str(self.folder)), at_ms=self.now_ms)

    def vacuum_table(self) -> None:
        """Delete what no version of a week names, when that is over."""
        _, errors = vacuum(Lake(str(self.folder)), 2**53, older_than_seconds=-1)
        assert errors == []

    def lose_file(self, number: int) -> None:
        """Have a published file vanish; its rows are none that anybody is owed until it is landed again."""
        files = sorted((self.folder / "data").rglob("*.parquet"))
        if files:
            path = files[number % len(files)]
            path.unlink()
            self.is_damaged = True
            self.forget(path)

    def lose_manifests(self, number: int) -> None:
        """Have somebody delete what says that a range is landed, as the error of a broken manifest advises."""
        ranges = sorted(self.coverage().manifests)
        if ranges:
            offsets = ranges[number % len(ranges)]
            self.orphaned.add(offsets)
            self.is_damaged = True
            for path in (self.folder / "manifests" / TOPIC / offsets.folder).glob(f"{offsets.stem}.*.json"):
                path.unlink()
            self.seen = {row: value for row, value in self.seen.items() if not is_of(row, offsets)}

    @rule(whole=st.booleans())
    def lose_newest_step(self, whole: bool) -> None:
        """Have the newest step, or the whole plan log, go: where anything is there of it, all is refused until it is back."""
        paths = sorted((self.folder / "plan").rglob("*.json"))
        lost = {path: path.read_bytes() for path in (paths if whole else paths[-1:])}
        planned = {*self.coverage().log.ranges}
        for path in lost:
            path.unlink()
        try:
            left = {*self.coverage().log.ranges}
        except BrokenPlanLog:
            before = sorted((self.folder / "plan").rglob("*.json"))
            for attempt in (partial(self.run_planner, True), partial(self.run_landing, [*planned][-2:])):
                with suppress(BrokenPlanLog):
                    attempt()
            assert sorted((self.folder / "plan").rglob("*.json")) == before, "nothing is planned"
            for path, data in lost.items():
                path.write_bytes(data)
        else:
            assert not any(is_of(row, offsets) for row in self.seen for offsets in planned - left)

    @rule()
    def sum_up(self) -> None:
        """Write a frontier document, as a tick does."""
        lake = Lake(str(self.folder))
        coverage = lake.recent(TOPIC)
        if coverage.log.steps:
            lake.move_frontier(coverage, self.now_ms, LONG_MS)

    def forget(self, path: Path) -> None:
        offsets, _ = range_of("data", TOPIC, path.relative_to(self.folder).as_posix())
        self.seen = {row: value for row, value in self.seen.items() if offsets is None or not is_of(row, offsets)}

    @rule(kinds=_KINDS)
    def append(self, kinds: list[SpanKind]) -> None:
        """Have records arrive in every Kafka partition, not of the same kinds in each."""
        self.now_ms += 7_000
        for partition, log in enumerate(self.kafka.now.partitions):
            turn = partition % len(kinds)
            log.append([*kinds[turn:], *kinds[:turn]], f"{self.kafka.topic_id}/{partition}", self.now_ms)

    def happen(self, event: Event) -> None:
        """Have something happen to the topic, or another process run."""
        name, arguments = event
        getattr(self if hasattr(self, name) else self.kafka, name)(*arguments)

    @rule(kinds=_KINDS, through_end=st.booleans(), planner=_PLANNING, lander=_LANDING, on_loss=_ON_LOSS)
    def tick(
        self, kinds: list[SpanKind], through_end: bool, planner: list[Trouble], lander: list[Trouble], on_loss: str
    ) -> None:
        """Have records arrive, then be planned and landed, as a sensor and its run would."""
        self.append(kinds)
        self.run_planner(through_end, planner)
        self.run_landing(self.coverage().pending(), lander, on_loss=on_loss)

    @rule(event=st.sampled_from(LOG_EVENTS), first=st.integers(0, 9), befalls=_LANDING, mode=_MODES)
    def land_again(self, event: Event, first: int, befalls: list[Trouble], mode: Mode) -> None:
        """Have the log change, and a person, a retry or a backfill ask for ranges, whatever has become of them."""
        self.happen(event)
        ranges = list(self.coverage().log.ranges)
        self.run_landing(ranges[first % (len(ranges) or 1) :][:4], befalls, mode)

    @rule(percent=st.integers(0, 100), planner=_PLANNING)
    def skip_ahead(self, percent: int, planner: Sequence[Trouble] = ()) -> None:
        """Have a person leave out what waits before some offsets, as a run may be at it."""
        self.run_planner(False, planner, percent)

    @rule()
    def accept_losses(self) -> None:
        lake = Lake(str(self.folder))
        for loss in unrecorded_losses(lake.coverage(TOPIC), self.kafka.read_watermarks(TOPIC, "")):
            offsets = next(o for o in lake.read_plan_log(TOPIC).ranges if o.key == loss.key)
            lost = (loss.offsets.start, loss.offsets.end)
            lake.commit_acceptance(Acceptance(TOPIC, offsets, lost, "somebody", self.now_ms))

    def run_planner(
        self,
        through_end: bool,
        befalls: Sequence[Trouble] = (),
        skipped_percent: int | None = None,
        kafka: FakeKafka | None = None,
    ) -> bool:
        process = Process(self, befalls)
        with suppress(Killed, StaleAnswer, LakeUnavailable, NoLeader, Refused):
            skip = None
            if skipped_percent is not None:
                seen, generation = self.kafka.observe(TOPIC, self.isolation_level), self.coverage().log.generation
                skip = skip_of(seen.watermarks, seen.topic_id, generation, skipped_percent)
            broker, name = cast("Any", kafka or self.kafka), f"planner-{next(self.attempts)}"
            planner = Planner(TOPIC, self.policy, process.lake, broker, lambda: self.now_ms, name, process)
            step = planner.commit(through_end=through_end, skip=skip)
            assert step is None or step in self.lake.read_plan_log(TOPIC).steps
            return step is not None
        return False

    def run_landing(
        self, ranges: Sequence[OffsetRange], befalls: Sequence[Trouble] = (), mode: Mode = "retry", *, on_loss: str = "fail"
    ) -> None:
        if not ranges:
            return
        keys = [offsets.key for offsets in ranges]
        attempt = Attempt(f"attempt-{next(self.attempts)}", "run", "test", mode != "retry")
        if mode == "replace":
            attempt = replace(attempt, on_change="replace")
            self.replaced.update(ranges)
        process = Process(self, befalls, keys, attempt.id)
        tools = fake_log.fake_tools(
            process.lake,
            self.kafka,
            FakeSpark(self.kafka, process),
            now_ms=lambda: self.now_ms,
            isolation_level=self.isolation_level,
            on_loss=on_loss,
            delivery=self.delivery,
            on_step=process,
            has_raw_table=True,
        )
        with suppress(Killed, LakeUnavailable):
            verdicts = list(land(TOPIC, keys, attempt, tools))
            if not befalls:
                self.check_verdicts(verdicts)
        self.the_lake_shows_the_log()

    def note_reading(self, key: str) -> None:
        """Hold `at_most_once` to its word: what no attempt has landed is read by one of them only."""
        rest = parse_key(key)
        committed = {(o.generation, o.partition, o.end) for o in self.coverage().manifests}
        range_of_rest = (rest.generation, rest.partition, rest.end)
        self.readers[range_of_rest] += range_of_rest not in committed
        is_held = self.delivery is Delivery.AT_MOST_ONCE and not self.may_change  # else another policy may have read it
        assert not is_held or self.readers[range_of_rest] <= 1

    def overtake(self, keys: Sequence[str], modes: Sequence[Mode], befalls: Sequence[Trouble]) -> None:
        """Have other processes land the same ranges, or what is pending where the one that stands still has none."""
        for mode in modes:
            coverage = self.coverage()
            ranges = [offsets for offsets in coverage.log.ranges if offsets.key in keys] or coverage.pending()
            if mode == "replace":
                self.kafka.compact(100)
            self.run_landing(ranges, befalls, mode)

    def coverage(self) -> Coverage:
        """Read what the lake has; raises where the links do not tile."""
        return self.lake.coverage(TOPIC)

    def visible(self) -> list[tuple[Row, str]]:
        """Read what a plain glob shows."""
        rows = []
        for path in (self.folder / "data").rglob("*.parquet"):
            file = (path.stat().st_ino, path.stat().st_mtime_ns)
            if file not in self.files:
                self.files[file] = read_rows(path)
            rows += self.files[file]
        return rows

    def log_of(self, offsets: OffsetRange, coverage: Coverage) -> FakePartition:
        """The Kafka partition that a link is of, as it is now or was when its topic was deleted."""
        ids = {step.generation: step.topic_id or "" for step in coverage.log.steps}
        return self.kafka.incarnations[ids[offsets.generation]].partitions[offsets.partition]

    def check_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Hold an undisturbed attempt to its word."""
        coverage, rows = self.coverage(), dict(self.visible())
        for offsets, outcome in ((verdict.offsets, verdict.outcome) for verdict in verdicts):
            assert coverage.is_landed(offsets) or not outcome.is_landed
            if outcome in {Outcome.LANDED, Outcome.REPLACED, Outcome.UNCHANGED} and not coverage.doubles:
                shown = {row[2] for row in rows if is_of(row, offsets)}
                assert shown == set(self.log_of(offsets, coverage).rows(offsets.start, offsets.end, self.isolation_level))

    @invariant()
    def the_lake_shows_the_log(self) -> None:
        rows, coverage = self.visible(), self.coverage()
        times = Counter(row for row, _ in rows)
        self.check_doubles(times, coverage)
        shown: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for (generation, partition, offset), value in rows:
            shown[generation, partition].add(offset)
            log = self.log_of(OffsetRange(generation, partition, offset, offset + 1), coverage)
            record = log.appended[offset]
            assert record.kind in fake_log.SEEN[UNCOMMITTED] and record.value.decode() == value
        for generation, partition, offset in self.seen.keys() - times.keys():
            row = generation, partition, offset
            (owner,) = (o for o in self.replaced if is_of(row, o))
            log = self.log_of(owner, coverage)
            is_aborted = log.appended[offset].kind is SpanKind.ABORTED
            assert offset in log.compacted or is_aborted, f"{offset} of {owner} has vanished"
            self.taken_away |= set() if is_aborted else {row}
        assert not self.taken_away & times.keys(), "what a replace took away is back"
        self.seen = dict(rows)
        for link in coverage.log.links:
            self.check_link(link.offsets, coverage, shown[link.offsets.generation, link.offsets.partition])
        self.check_losses(coverage)

    @invariant()
    def the_table_shows_the_log(self) -> None:
        """Hold each row of the raw table to be there once, as the log had it."""
        rows = Counter(self.in_table())
        for ((generation, partition, offset), value), times in rows.items():
            log = self.log_of(OffsetRange(generation, partition, offset, offset + 1), self.coverage())
            assert (times, log.appended[offset].value.decode()) == (1, value)
        assert len({row for row, _ in rows}) == rows.total()

    @invariant()
    def a_frontier_document_changes_nothing(self) -> None:
        """Whoever reads from one knows the same of what is to be done."""
        if not self.is_damaged:
            whole, recent = self.coverage(), Lake(str(self.folder)).recent(TOPIC)
            assert recent.log.state == whole.log.state and recent.pending() == whole.pending()
            assert recent.frontier(whole.log.generation) == whole.frontier(whole.log.generation)
            assert recent.weight() == whole.weight() and find_losses(recent) == find_losses(whole)

    def in_table(self) -> list[tuple[Row, str]]:
        """Read the newest version of the raw table."""
        log, rows = raw_table_log(TOPIC, Lake(str(self.folder)).store), list[tuple[Row, str]]()
        for path in log.read().files:
            rows += read_rows(self.folder / log.folder / path)
        return rows

    def check_doubles(self, times: Counter[Row], coverage: Coverage) -> None:
        """Hold each row to be shown once; again only by a file that an attempt left which a crash or another overtook."""
        allowed: Counter[OffsetRange] = Counter()
        for path, offsets in coverage.doubles.items():
            attempt = path.removesuffix(".parquet").partition(f"{offsets.stem}.")[2]
            is_under_way = offsets not in coverage.manifests  # published, and about to be committed
            assert is_under_way or attempt in self.struck or offsets in self.orphaned, f"{path} is left by no crash"
            allowed[offsets] += 1
        assert self.may_change or self.delivery is Delivery.AT_LEAST_ONCE or not allowed
        for row, shown in times.items():
            assert shown == 1 or shown <= 1 + sum(allowed[offsets] for offsets in allowed if is_of(row, offsets)), row

    def check_link(self, offsets: OffsetRange, coverage: Coverage, shown: set[int]) -> None:
        """Hold one link against the log: each of its offsets is shown, or something true says why it is not."""
        log, state = self.log_of(offsets, coverage), coverage.states()[offsets]
        every = set(range(offsets.start, offsets.end))
        assert offsets.end <= log.marks.end
        if state is State.LANDED:
            manifest = coverage.manifests[offsets]
            holes = {o: hole.cause for hole in manifest.holes for o in range(hole.start, hole.end)}
            if manifest.is_dropped:  # its file was lost, and what Kafka has not any more is in the table alone
                shown = {row[2] for row, _ in self.in_table() if is_of(row, offsets)}
            assert shown & every == every - holes.keys() or offsets in coverage.doubles.values()
            assert all(log.explains(o, cause) for o, cause in holes.items())
            return
        if offsets in self.orphaned:
            return
        is_exchanging = offsets in coverage.manifests and coverage.manifests[offsets].revision > 0
        assert not shown & every or is_exchanging or offsets in coverage.doubles.values()
        if state is State.LOST and offsets not in coverage.log.ranges:
            assert offsets.end <= log.earliest
        elif state is State.LOST:
            assert log not in self.kafka.now.partitions

    def check_losses(self, coverage: Coverage) -> None:
        """Hold the ledger against the links: what is lost or abandoned is in it, once, and nothing else."""
        gone = {State.LOST, State.CLAIMED}
        expected = [offsets for offsets, state in coverage.states().items() if state in gone]
        losses = [loss.offsets for loss in find_losses(coverage)]
        assert {offsets for offsets in losses if offsets in coverage.states()} >= set(expected)
        listed = Counter((o.generation, o.partition, at) for o in losses for at in range(o.start, o.end))
        assert max(listed.values(), default=1) == 1

    def said_of_doubles(self) -> list[tuple[str, OffsetRange]]:
        """Return the files that the audit names because they show rows a second time."""
        coverage = self.coverage()
        said = tiling_violations(coverage)
        return [(path, o) for path, o in coverage.doubles.items() if any(path in each for each in said)]

    def teardown(self) -> None:
        try:
            if hasattr(self, "kafka"):
                self.finish()
        finally:
            shutil.rmtree(self.folder)

    def finish(self) -> None:
        """Plan and lands once more, undisturbed: then nothing is pending, and what the log still has is shown."""
        self.kafka.lag(0)
        self.kafka.elect()
        self.kafka.end_transactions()
        self.change_isolation(COMMITTED)
        while self.run_planner(through_end=True):
            pass
        self.run_landing(self.coverage().pending(), on_loss="record")
        # where a manifest is gone, a person's word
        self.run_landing(self.coverage().pending(), mode="replace", on_loss="record")
        assert self.may_change or not self.said_of_doubles(), "what a crash left is no alarm, or gone"
        doubled = {offsets for _, offsets in self.said_of_doubles()}
        self.run_landing(sorted(doubled), mode="replace", on_loss="record")  # as the audit advises after a change of policy
        coverage = self.coverage()
        anew = sorted(offsets for offsets in self.orphaned if coverage.is_landed(offsets))
        self.run_landing(anew, mode="replace", on_loss="record")  # as it advises where only the table has some rows of them
        coverage = self.coverage()
        for offsets, state in coverage.states().items():
            if state is State.LOST and offsets in coverage.manifests:  # its topic is gone, and then its file
                Lake(str(self.folder)).commit_acceptance(Acceptance(TOPIC, offsets, (offsets.start, offsets.end), "me", 0))
        self.the_lake_shows_the_log()
        coverage = self.coverage()
        assert set(coverage.pending()) <= self.orphaned  # the file stands, and Kafka has not all of it any more
        said = tiling_violations(coverage) + completeness_violations(coverage)
        excused = [offsets.text(TOPIC) for offsets in self.orphaned if not coverage.is_landed(offsets)]
        assert [each for each in said if not any(text in each for text in excused)] == []
        damaged = check_published(TOPIC, Lake(str(self.folder))).violations
        append_landed(TOPIC, Lake(str(self.folder)), lambda: self.now_ms)  # as the next tick does
        self.compact_table()
        self.the_table_shows_the_log()
        owed = [each for each in coverage.manifests.values() if coverage.is_landed(each.offsets) and each.rows]
        rows = Counter(row for row, _ in self.in_table())
        for manifest in owed:
            found = sum(times for row, times in rows.items() if is_of(row, manifest.offsets))
            assert found == manifest.rows or manifest.offsets in self.orphaned, manifest.offsets
        lost = {offsets.text(TOPIC) for offsets, state in coverage.states().items() if state is State.LOST}
        assert [each for each in damaged if not any(text in each for text in lost)] == []
        generation, states = coverage.log.generation, coverage.states()
        left_out = {State.SKIPPED, State.CLAIMED}
        unlanded = [o for o in states if o.generation == generation and states[o] in left_out]
        for partition, log in enumerate(self.kafka.now.partitions):
            for offset in log.rows(0, log.marks.end):
                is_excused = any(o.partition == partition and offset in o for o in unlanded)
                assert is_excused or (generation, partition, offset) in self.seen, f"{partition}/{offset} is missing"


EXAMPLES = {Delivery.EFFECTIVELY_ONCE: 40, Delivery.AT_LEAST_ONCE: 12, Delivery.AT_MOST_ONCE: 12, None: 12}


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["short", "long"])
@pytest.mark.parametrize("delivery", EXAMPLES)
def test_the_lake_shows_the_log_whatever_happens(
    monkeypatch: pytest.MonkeyPatch, delivery: Delivery | None, is_long: bool
) -> None:
    """[R-18] Rows are shown as sent, and once, or as the delivery policy says; nothing is missing unexplained.

    Without a policy it changes on the way. The long one draws others each time, and many more of them. One thread at a time, so
    that the same draw is the same run; the disk keeps all it was given.
    """
    monkeypatch.setattr(landing, "VERIFY_THREADS", 1)
    monkeypatch.setattr(compaction, "COMPACTION_THREADS", 1)
    monkeypatch.setattr(settling, "FRONTIER_EVERY", 1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    profile: dict[str, Any] = {"max_examples": EXAMPLES[delivery], "stateful_step_count": 15}
    if is_long:
        profile = {"max_examples": 8 * EXAMPLES[delivery], "stateful_step_count": 25, "derandomize": False}
    if "HUNT" in os.environ:
        phases = [phase for phase in Phase if phase is not Phase.shrink]  # that takes longer than a hunt
        profile |= {"max_examples": int(os.environ["HUNT"]), "derandomize": False, "phases": phases}
    run_state_machine_as_test(
        lambda: ProtocolMachine(delivery),
        settings=settings(deadline=None, database=None, suppress_health_check=quiet, **profile),
    )


CUT_NOW = Policy(records_per_range=5, max_age_seconds=0, isolation_level=UNCOMMITTED)  # type: ignore[arg-type]


def plan_once(kafka: FakeKafka, log_state: LogState, policy: Policy) -> LogState:
    step = plan(log_state, kafka.read_topic_state(TOPIC, log_state, policy, EPOCH_MS), policy, EPOCH_MS, through_end=True)
    return log_state if step is None else step.after(log_state)


@pytest.mark.parametrize("lag", [0, 2], ids=["the leader", "the leader before"])
def test_an_open_transaction_makes_no_log_of_the_fake_shorter(lag: int) -> None:
    kafka = kafka_with(5)
    kafka.begin_transaction(0)
    kafka.now.partitions[0].append([SpanKind.DATA] * 5, "v", EPOCH_MS)
    kafka.lag(lag)
    log_state = plan_once(kafka, LogState(), CUT_NOW)
    assert log_state.heads[0].offset == 10 - lag
    kafka.lag(lag)
    assert plan_once(kafka, log_state, replace(CUT_NOW, isolation_level=COMMITTED)).generation == 0  # type: ignore[arg-type]


def test_a_leader_of_the_fake_keeps_what_it_has_shown() -> None:
    kafka = kafka_with(10)
    kafka.lag(1)
    log_state = plan_once(kafka, LogState(), CUT_NOW)
    assert (log_state.heads[0].offset, log_state.heads[0].leader_epoch) == (9, 0)
    kafka.lag(4)
    assert plan_once(kafka, log_state, CUT_NOW) == log_state


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("world", ["disk"], indirect=True)
def test_a_task_of_the_fake_writes_though_its_folder_was_swept(world: SmallWorld) -> None:
    swept = list[Path]()

    def sweep() -> None:
        swept.append(world.folder / "staging")
        shutil.rmtree(swept[0])

    verdicts = world.land(on_step=stop_at("task", sweep))
    assert swept, "the fault"
    assert [verdict.outcome.is_landed for verdict in verdicts] == [True, True]
