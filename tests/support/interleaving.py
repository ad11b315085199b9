"""Writers of one lake whose every call of the store can be stopped at: another goes on there, it dies, or its answer is lost.

A lake is a folder, or a bucket in memory with S3's conditional puts; Kafka and Spark are those of `fake_log`. A call is what
`store.py` asks of obstore or of the disk, so a writer is stopped between reading and writing too.
"""

import copy
import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore, ObjectStore

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import published_path
from pipeline_defs.adapters.store import disk, object_store, store
from pipeline_defs.adapters.store.disk import Disk
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.store.object_store import RemoteStore
from pipeline_defs.adapters.system import locks
from pipeline_defs.adapters.tables.delta_log import DeltaLog, raw_table_log
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.landing.tiling import completeness_violations, tiling_violations
from pipeline_defs.core.landing.verdicts import Verdict
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.delivery import Delivery
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.log.manifest import Manifest
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionVerdict
from pipeline_defs.landing import landing
from pipeline_defs.landing.attempt import Attempt, Tools
from pipeline_defs.landing.auditing import check_published
from pipeline_defs.landing.landed_files import landed_files
from pipeline_defs.landing.landing import land
from pipeline_defs.tables.deleting import DropVerdict, sweep_orphans
from tests.support.fake_log import TOPIC, FakeSpark, fake_tools, kafka_with, plan_all
from tests.support.redecoding import ArrowFiles, compact_raw, drop_range_files, stop_at
from tests.support.redecoding import Killed as Dead
from tests.support.strategies import EPOCH_MS

DEADLINE_SECONDS = 60
CHANGES = {"put", "copy", "delete", "link", "rename"}  # calls after which a glob may show something else
WRITES = {"put", "link", "rename", "copy"}  # calls whose answer can be lost; a lost answer of reading is asked for again
FILLING = {*WRITES, "write", "upload"}
FAULTS = ["dies", "loses the answer", "has a full disk"]


@dataclass
class Writer:
    """One process: `before` is told the number of each call; the answer of its write number `loses` is lost.

    Its disk is full at write number `fills`, and not before or after. `after` is called when something has changed.
    """

    before: Callable[[int], None] = lambda number: None
    loses: int = -1
    fills: int = -1
    calls: list[str] = field(default_factory=list)
    has_lost: bool = False
    after: Callable[[], None] = lambda: None

    def call(self, name: str, lost: Exception, do: Callable[[], Any]) -> Any:
        number = len(self.calls)
        self.calls.append(name)
        self.before(number)
        if name in FILLING and self.fills == sum(call in FILLING for call in self.calls[:-1]):
            self.has_lost = True
            raise OSError(errno.ENOSPC, "no space left on device")
        answer = do()
        if name in CHANGES:
            self.after()
        if name in WRITES and self.loses == sum(call in WRITES for call in self.calls[:-1]):
            self.has_lost = True
            raise lost
        return answer


@dataclass(frozen=True)
class Tagged:
    """An object store and whose calls of it these are."""

    objects: ObjectStore
    writer: Writer


def watch_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the store's calls of obstore pass by the writer that they are of; and the disk keep all it was given."""

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(obstore, name)

        def call(objects: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(objects, Tagged):
                return real(objects, *arguments, **options)
            lost = GenericError("the answer was lost")
            return objects.writer.call(name, lost, lambda: real(objects.objects, *arguments, **options))

        return call

    names = ("put", "get", "head", "list", "list_with_delimiter", "delete", "copy")
    for module in (store, object_store):
        monkeypatch.setattr(module, "obstore", SimpleNamespace(**{name: watched(name) for name in names}))
    monkeypatch.setattr(disk, "_fsync", _is_there)
    monkeypatch.setattr(landing, "VERIFY_THREADS", 1)
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.0)  # a writer that stands still with a lock holds nobody up here


def _is_there(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(path)


class WatchedDisk(Disk):
    """A local disk; a name that is given is a call."""

    def __init__(self, root: Path, writer: Writer) -> None:
        super().__init__(root)
        self._writer = writer

    def link(self, source: str, target: str) -> None:
        self._writer.call("link", OSError(errno.EIO, "the answer was lost"), lambda: Disk.link(self, source, target))

    def write(self, path: str, data: bytes) -> None:
        self._writer.call("write", OSError(errno.EIO, "lost"), lambda: Disk.write(self, path, data))

    def rename(self, source: str, target: str) -> None:
        self._writer.call("rename", OSError(errno.EIO, "the answer was lost"), lambda: Disk.rename(self, source, target))

    def delete(self, path: str) -> None:
        self._writer.call("delete", OSError(errno.EIO, "lost"), lambda: Disk.delete(self, path))


class Watched:
    """A store of one writer."""

    writer: Writer

    @property
    def objects(self) -> Any:
        return Tagged(super().objects, self.writer)  # type: ignore[misc]


class WatchedFolder(Watched, DiskStore):
    def __init__(self, root: str, writer: Writer) -> None:
        super().__init__(root)
        self.writer, self.disk = writer, WatchedDisk(self.folder, writer)


class WatchedBucket(Watched, RemoteStore):
    def __init__(self, root: str, writer: Writer, bucket: MemoryStore) -> None:
        super().__init__(root)
        self.writer, self._objects = writer, bucket


class SmallWorld:
    """A topic of one Kafka partition, planned, in a lake on a disk or in a bucket."""

    def __init__(self, folder: Path, kind: str, records: int = 6, grid: int = 3) -> None:
        self.folder = folder
        self.bucket = MemoryStore() if kind == "bucket" else None
        self.kafka = kafka_with(records)
        self.policy = Policy(records_per_range=grid, max_age_seconds=0)
        self.attempts = 0
        self.delivery = Delivery.EFFECTIVELY_ONCE
        self.has_raw_table = False
        self.lake = self.open(Writer())
        self.plan()

    def open(self, writer: Writer) -> Lake:
        """Open the lake as a process of its own."""
        root = str(self.folder) if self.bucket is None else "s3://lake"
        lake, bucket = Lake(root), self.bucket
        lake.store = WatchedFolder(root, writer) if bucket is None else WatchedBucket(root, writer, bucket)
        return lake

    def copied(self, folder: Path) -> Self:
        """Copy the world as it is now, its lake to another folder or bucket; names of one file stay names of one."""
        world, copies = copy.copy(self), dict[int, str]()

        def copy_file(source: str, target: str) -> None:
            if (number := Path(source).stat().st_ino) in copies:
                Path(target).hardlink_to(copies[number])
            else:
                copies[number] = shutil.copy2(source, target)

        if self.bucket is None:
            shutil.copytree(self.folder, folder, copy_function=copy_file)
        else:
            world.bucket = MemoryStore()
            for each in obstore.list(self.bucket).collect():
                obstore.put(world.bucket, each["path"], obstore.get(self.bucket, each["path"]).bytes())
        world.folder, world.kafka = folder, copy.deepcopy(self.kafka)
        world.lake = world.open(Writer())
        return world

    def plan(self) -> None:
        plan_all(self.lake, self.kafka, self.policy)

    def append(self, records: int) -> None:
        self.kafka.now.partitions[0].append([SpanKind.DATA] * records, "v", EPOCH_MS)

    def grow(self, records: int) -> None:
        self.append(records)
        self.plan()

    def land_more(self, records: int) -> list[Verdict]:
        """Have records arrive, and be planned and landed."""
        self.grow(records)
        return self.land()

    def lose_a_row(self, offset: int) -> None:
        """Have Kafka compact a record away, so that what it has of a range is another revision."""
        self.kafka.now.is_compacted = True
        self.kafka.now.partitions[0].compacted.add(offset)

    def die(self, at: str, mode: str = "land", **how: Any) -> None:
        """Have an attempt die at a step, and another process go on."""
        with pytest.raises(Dead):
            self.land(mode, on_step=stop_at(at), **how)
        self.lake = self.open(Writer())

    def land(
        self,
        mode: str = "land",
        lake: Lake | None = None,
        *,
        on_loss: str = "fail",
        on_step: StepWatcher = no_step,
        delivery: Delivery | None = None,
        on_verdict: Callable[[Verdict], None] = lambda verdict: None,
        only: OffsetRange | None = None,
    ) -> list[Verdict]:
        """Land what is pending, or read all again: `redo` compares, `replace` puts what is there now in its place."""
        lake = lake or self.lake
        coverage = lake.coverage(TOPIC)
        ranges = coverage.pending() if mode == "land" else list(coverage.log.ranges)
        ranges = [offsets for offsets in ranges if only in {None, offsets}]
        if not ranges:
            return []
        self.attempts += 1
        how = "replace" if mode == "replace" else "keep"
        attempt = Attempt(f"{mode}-{self.attempts}", "run", "test", mode != "land", cast("Any", how))
        tools = replace(self.tools(lake, on_step), on_loss=on_loss, delivery=delivery or self.delivery)
        verdicts = []
        for verdict in land(TOPIC, [offsets.key for offsets in ranges], attempt, tools):
            on_verdict(verdict)
            verdicts.append(verdict)
        return verdicts

    def tools(self, lake: Lake, on_step: StepWatcher = no_step) -> Tools:
        own = {"files": ArrowFiles(), "on_step": on_step, "has_raw_table": self.has_raw_table}
        return fake_tools(lake, self.kafka, FakeSpark(self.kafka, on_step), **own)

    def compact(self, lake: Lake | None = None) -> list[CompactionVerdict]:
        return compact_raw(lake or self.lake)

    def drop(self, lake: Lake | None = None, on_step: StepWatcher = no_step) -> list[DropVerdict]:
        return drop_range_files(lake or self.lake, on_step)

    def sweep(self, lake: Lake | None = None) -> None:
        """Sweep staging as `offsetlake sweep --older-than 0 --apply` does, at a time when all in it is old."""
        sweep_orphans(lake or self.lake, 2**53, 0)

    def drop_staging(self) -> None:
        for name in self.lake.store.entries("staging"):
            self.lake.store.delete(f"staging/{name}")

    @property
    def coverage(self) -> Coverage:
        return self.lake.coverage(TOPIC)

    @property
    def first(self) -> Manifest:
        """Return the manifest of the first range, as a process reads it that knows nothing yet."""
        return min(self.open(Writer()).read_manifests(TOPIC).values(), key=lambda each: each.offsets)

    def files(self) -> dict[str, bytes]:
        """Return what a plain glob over the lake's data shows, by path."""
        files = {path: self.lake.store.get(path) for path in self.lake.store.list("data")}
        return {path: data for path, data in files.items() if data is not None}

    def shown(self) -> Counter[int]:
        """Return how often a plain glob shows each offset."""
        return Counter(offset for data in self.files().values() for offset in _offsets(pa.BufferReader(data)))

    def landed(self) -> Counter[int]:
        """Return how often the landed files have each offset, without what attempts of `at_least_once` left beside them."""
        files = self.files()
        landed = [files[published_path(each)] for each in self.coverage.manifests.values() if each.file is not None]
        return Counter(offset for data in landed for offset in _offsets(pa.BufferReader(data)))

    def landed_offsets(self) -> Counter[int]:
        """Return how often the rows of landed ranges are found, wherever they stand now: in `data/` or in the raw table."""
        lake = self.open(Writer())
        coverage = lake.coverage(TOPIC)
        with_rows = [each for each in coverage.manifests.values() if each.rows and coverage.is_landed(each.offsets)]
        with landed_files(with_rows, lake) as files:
            return Counter(offset for each in files.values() for offset in _offsets(each.path))

    def in_table(self, log: DeltaLog | None = None) -> Counter[int]:
        """Return how often the raw table, or that of a log, has each offset, from what its log names alone."""
        rows: Counter[int] = Counter()
        log = log or raw_table_log(TOPIC, self.open(Writer()).store)
        for path, file in log.read().files.items():
            data = self.lake.store.get(f"{log.folder}/{path}")
            assert data is not None and sha256(data).hexdigest() == file.tags["sha256"], path
            offsets = _offsets(pa.BufferReader(data))
            assert len(offsets) == file.rows
            rows.update(offsets)
        return rows

    def in_kafka(self) -> set[int]:
        """Return the offsets that a reader of the topic sees now."""
        log = self.kafka.now.partitions[0]
        return set(log.rows(0, log.marks.end))


def assert_all_is_in_order(lake: Lake) -> None:
    """Nothing is pending, the audit finds nothing missing, doubled or changed."""
    coverage = lake.coverage(TOPIC)
    assert coverage.pending() == [] and completeness_violations(coverage) == [] and tiling_violations(coverage) == []
    assert check_published(TOPIC, lake).violations == ()


def _offsets(source: Any) -> list[int]:
    found: list[int] = pq.ParquetFile(source).read(["offset"], use_threads=False).column("offset").to_pylist()
    return found


class Glob:
    """What a plain glob shows after each change, held against what it may.

    No row twice, no file but the newest that was published, none gone that was not dropped, and none back that had gone.
    """

    def __init__(self, world: SmallWorld) -> None:
        self._world = world
        self._lake = world.open(Writer())
        self.seen: set[str] = set()
        self._published: set[tuple[OffsetRange, int]] = set()
        self._gone: set[str] = set()
        self.wrong: list[str] = []

    def look(self) -> None:
        files = {path: sha256(data).hexdigest() for path, data in self._world.files().items()}
        manifests = self._lake.read_manifests(TOPIC)
        self.wrong += [f"back: {path}" for path in sorted(self._gone & files.keys())]
        self._gone |= self.seen - files.keys()
        self.seen |= files.keys()
        for offsets, manifest in manifests.items():
            here = {path: digest for path, digest in files.items() if f"/{offsets.stem}" in path}
            own = published_path(manifest)
            if len(here) > 1:
                self.wrong.append(f"shown twice: {here}")
            if manifest.is_dropped:
                continue
            if here.get(own) == manifest.digest:
                self._published.add((offsets, manifest.serial))
            if (offsets, manifest.serial) in self._published and here != {own: manifest.digest}:
                self.wrong.append(f"superseded, or gone: {here}, expected {own} as in manifest {manifest.serial}")
            if own in self._gone:
                self.wrong.append(f"gone, and not dropped: {own}")


class Baton:
    """Lets one of some writers run at a time; each `turns` entry is a writer and the call at which it hands over."""

    def __init__(self, turns: Sequence[tuple[int, int]]) -> None:
        self._turns = list(turns)
        self._now = threading.Condition()
        self._ended: set[int] = set()

    def before(self, writer: int, number: int) -> None:
        """Wait for the writer's turn; then hand over, if its turn ends at this call."""
        with self._now:
            self._await_turn(writer)
            while self._turns and self._turns[0][0] == writer and number == self._turns[0][1]:
                self._turns.pop(0)
                self._skip_ended()
                self._await_turn(writer)

    def end(self, writer: int) -> None:
        with self._now:
            self._ended.add(writer)
            self._skip_ended()

    def _skip_ended(self) -> None:
        while self._turns and self._turns[0][0] in self._ended:
            self._turns.pop(0)
        self._now.notify_all()

    def _await_turn(self, writer: int) -> None:
        is_on = self._now.wait_for(lambda: not self._turns or self._turns[0][0] == writer, DEADLINE_SECONDS)
        assert is_on, f"writer {writer} waits for {self._turns}"


Act = Callable[[Writer], object]


def draw(each: int, seed: str, *choices: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Draw some of all combinations: always the same `each` by a seed, or as many at random as `HUNT` says."""
    dice = random.Random(None if "HUNT" in os.environ else seed)
    return [tuple(map(dice.choice, choices)) for _ in range(int(os.environ.get("HUNT", each)))]


def take_turns(
    acts: Sequence[Act],
    turns: Sequence[tuple[int, int]],
    check: Callable[[], None],
    told: str,
    after: Callable[[], None] = lambda: None,
) -> list[Writer]:
    """Run writers by turns, and check what is left; return them with their calls.

    (0, 5), (1, 7) is the first up to its call 5, the second up to its 7, then each to its end.
    """
    baton = Baton([*turns, *((number, -1) for number in range(len(acts)))])
    writers = [Writer(before=partial(baton.before, number), after=after) for number in range(len(acts))]

    def run(number: int) -> None:
        try:
            with suppress(Dead):
                acts[number](writers[number])
        finally:
            baton.end(number)

    try:
        with ThreadPoolExecutor(len(acts)) as pool:
            ends = [pool.submit(run, number) for number in range(len(acts))]
        for each in ends:
            each.result()
        check()
    except BaseException as error:
        error.add_note(f"{told}: by turns {turns} of {[writer.calls for writer in writers]}")
        raise
    return writers


def strike(
    act: Act, fault: str, number: int, check: Callable[[], None], told: str, after: Callable[[], None] = lambda: None
) -> bool:
    """Strike a writer by one of `FAULTS` at a call, and check what is left; return whether it was struck."""

    def die(at: int) -> None:
        if at >= number:
            raise Dead

    writer = Writer(before=die) if fault == "dies" else Writer(**{"loses" if "answer" in fault else "fills": number})
    writer.after = after
    is_dead = False
    try:
        try:
            act(writer)
        except Dead:
            is_dead = True
        except LakeUnavailable:
            assert writer.has_lost
        check()
    except Exception as error:
        error.add_note(f"{told}: {fault} at {number} of {writer.calls}")
        raise
    return is_dead or writer.has_lost


def _nothing(*_: Any, **__: Any) -> None:
    """Happen to a call."""


def beside(
    patch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: Callable[..., object] = _nothing,
    after: Callable[..., object] = _nothing,
) -> None:
    """Have something be done before each call of a method or function, or after it, which is told its arguments.

    What it raises is how the call ends: before it nothing was done, after it an answer is lost.
    """
    real = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        before(*given, **named)
        answer = real(*given, **named)
        after(*given, **named)
        return answer

    patch.setattr(owner, name, call)
