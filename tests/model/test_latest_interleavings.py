"""Who updates a latest table, makes it anew, or decodes beside it, handed over at each call of store and delta-rs, or struck.

A few of all the ways, always the same; `HUNT=1000` draws 1,000 of them at random, each time others. The lake is on a disk:
delta-rs does its own I/O and opens none in memory. A commit of its is one call: what is written before its entry is in the log
is seen by nobody, and a writer that dies there may leave that (`leaves_files`).
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableMerger

from pipeline_defs.adapters.lake.lake import Lake
from pipeline_defs.adapters.lake.layout import published_path
from pipeline_defs.adapters.store.disk import Disk
from pipeline_defs.adapters.store.disk_store import DiskStore
from pipeline_defs.adapters.tables.decodings import Decodings
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.errors import LakeUnavailable
from pipeline_defs.core.log.holes import SpanKind
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.tables.decoded_ranges import DecodedRanges
from pipeline_defs.core.tables.delta import Snapshot
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.landing.attempt import Attempt
from pipeline_defs.tables.latest import LatestTools, Updated, find_due, update
from tests.support import interleaving
from tests.support.decoded import DecodedTopic, Rows
from tests.support.fake_log import TOPIC, Record
from tests.support.interleaving import FAULTS, Act, Dead, SmallWorld, WatchedDisk, Writer, beside, draw, strike, take_turns
from tests.support.redecoding import ArrowDecoder, Killed, Pair, compact_decoded, decode_by, decode_due
from tests.support.strategies import EPOCH_MS


class AtWork(threading.local):
    """The writer whose thread this is, how a lost answer of a commit is told, and what dying at one leaves."""

    writer: Writer | None = None
    lost: type[Exception] = OSError
    leaves_files: bool = False

    def call(self, name: str, do: Callable[[], Any]) -> Any:
        return do() if self.writer is None else self.writer.call(name, OSError("the answer was lost"), do)

    def commit(self, uri: str, do: Callable[[], Any]) -> Any:
        if self.writer is None:
            return do()
        try:
            return self.writer.call("commit", self.lost("the answer was lost"), do)
        except Dead:
            if self.leaves_files:
                log = Path(uri.removeprefix("file://")) / "_delta_log"
                before = {*log.glob("*.json")}
                do()
                for entry in {*log.glob("*.json")} - before:
                    entry.unlink()
            raise


at_work = AtWork()


class WatchedTable(deltalake.DeltaTable):
    """A Delta table whose calls pass by the writer that is at work."""

    def __init__(self, table_uri: Any, *arguments: Any, **options: Any) -> None:
        opened = super().__init__
        at_work.call("open", lambda: opened(table_uri, *arguments, **options))

    @classmethod
    def create(cls, table_uri: Any, **options: Any) -> Any:  # type: ignore[override]
        return at_work.commit(str(table_uri), lambda: deltalake.table.DeltaTable.create(table_uri, **options))

    def transaction_version(self, app_id: str) -> int | None:
        """Read the log, as delta-rs does each time that it is asked."""
        asked = super().transaction_version
        found: int | None = at_work.call("ask", lambda: asked(app_id))
        return found

    def merge(self, *arguments: Any, **options: Any) -> Any:
        return WatchedMerger(super().merge(*arguments, **options), self.table_uri)

    def create_write_transaction(self, *arguments: Any, **options: Any) -> None:
        write = super().create_write_transaction
        at_work.commit(self.table_uri, lambda: write(*arguments, **options))


class WatchedMerger:
    """A MERGE whose end is a commit."""

    def __init__(self, merger: TableMerger, uri: str) -> None:
        self._merger, self._uri = merger, uri

    def __getattr__(self, name: str) -> Callable[..., WatchedMerger]:
        def clause(*arguments: Any, **options: Any) -> WatchedMerger:
            return WatchedMerger(getattr(self._merger, name)(*arguments, **options), self._uri)

        return clause

    def execute(self) -> Any:
        return at_work.commit(self._uri, self._merger.execute)


class DurableDisk(WatchedDisk):
    """A local disk on which to wait for is a call too."""

    def make_durable(self, path: str) -> None:
        at_work.call("sync", lambda: Disk.make_durable(self, path))


def watch_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have calls of delta-rs pass by the writer at work; a commit is a write whose answer can be lost, or find a full disk."""
    write = deltalake.write_deltalake

    def watched(table: Any, *arguments: Any, **options: Any) -> None:
        at_work.commit(table.table_uri, lambda: write(table, *arguments, **options))

    monkeypatch.setattr(deltalake, "DeltaTable", WatchedTable)
    monkeypatch.setattr(deltalake, "write_deltalake", watched)
    monkeypatch.setattr(interleaving, "WRITES", {*interleaving.WRITES, "commit", "sync"})
    monkeypatch.setattr(interleaving, "FILLING", {*interleaving.FILLING, "commit", "sync"})


def begin_work(lake: Lake, writer: Writer, lost: type[Exception] = OSError, *, leaves_files: bool = False) -> None:
    """Have this thread's calls be those of a writer, whose lake this is."""
    at_work.writer, at_work.lost, at_work.leaves_files = writer, lost, leaves_files
    assert isinstance(lake.store, DiskStore)
    lake.store.disk = DurableDisk(lake.store.folder, writer)


STARTS = ["none", "current", "behind", "compacted", "torn"]
UPDATES = ["update", "rebuild", "reorder"]
MOST_CALLS = {**dict.fromkeys(UPDATES, 24), "compact": 60, "replace": 125}
MOST_CALLS |= dict.fromkeys(["mend", "spoil", "move", "widen", "late"], 55)
LOST = [OSError, DeltaError, CommitFailedError]
SEEDS = range(10_000)
WORLDS = 3
BY_POSITION, BY_RANK = Latest(), Latest("value.rank")
SEQUENCES = {BY_POSITION.order: False, BY_RANK.order: True}
DRAWN = 37

Landed = tuple[int, int, int, int, bytes | None, bytes | None]
"""Generation, Kafka partition, offset, timestamp (ms), key and value of a record."""
Found = tuple[Any, ...]
"""A row of the latest table: its place, its timestamp, key and value, and what is said of its order."""


@pytest.fixture(autouse=True)
def watched_delta(watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    watch_delta(monkeypatch)


# decoders, told apart by their DDL, and what each makes of a record
@dataclass(frozen=True)
class Reading(ArrowDecoder):
    """Decodes a value to its number and a rank; each `dead`-th offset is a dead letter; `moves` keys to others."""

    dead: int = 0
    moves: int = 0

    def understand(self, record: Landed) -> Landed | None:
        """Return what a record says; none where it cannot be decoded."""
        *place, offset, at_ms, key, value = record
        if self.dead and offset % self.dead == 1:
            return None
        if key is not None:
            key = b"k%d" % ((int(key[1:]) + self.moves) % 5)
        return cast("Landed", (*place, offset, at_ms, key, value))

    def value(self, text: bytes | None) -> dict[str, Any] | None:
        if text is None:
            return None
        rank = int(text) % 4
        return {"id": int(text) + self.shift, "rank": rank or None} | ({"more": "x"} if "more" in self.schema else {})

    @property
    def fields(self) -> dict[str, pa.DataType]:
        return {"id": pa.int64(), "rank": pa.int64()} | super().fields

    def read(self, raw: pa.Table) -> list[Pair | None]:
        said = [self.understand(record) for record in records_of(raw)]
        return [each and (each[4], self.value(each[5])) for each in said]


OLD = Reading("id BIGINT, rank BIGINT", dead=3)
DECODERS: Mapping[str, Reading] = {
    "late": OLD,
    "mend": Reading("id BIGINT NOT NULL, rank BIGINT", shift=100),
    "spoil": Reading("id BIGINT, rank BIGINT NOT NULL", dead=2),
    "move": Reading("id BIGINT COMMENT 'moved', rank BIGINT", moves=1),
    "widen": Reading("id BIGINT, rank BIGINT, more STRING", dead=3),
}
BY_FINGERPRINT = {Decode(value=Side(Format.JSON, each.schema)).fingerprint: each for each in DECODERS.values()}


def records_of(raw: pa.Table) -> list[Landed]:
    stamps = raw["timestamp"].cast(pa.int64()).to_pylist()
    columns = [raw[name].to_pylist() for name in ("generation", "partition", "offset")]
    return [*zip(*columns, [at // 1000 for at in stamps], raw["key"].to_pylist(), raw["value"].to_pylist(), strict=True)]


class LatestWorld(SmallWorld):
    """A topic of two Kafka partitions, the second one added later; all of it is landed, two ranges are not decoded yet.

    Of these the first is of the newest timestamps: once it is decoded it moves what comes after it. `marks` is where the logs
    ended when partitions were added. Kafka has one row less of one range than was landed.
    """

    marks: Mapping[int, int]

    def __init__(self, folder: Path, start: str, number: int) -> None:
        super().__init__(folder, "disk", records=0, grid=2)
        self.has_table = start not in {"none", "torn"}
        dice = random.Random(number)
        self.fill(dice, 0, 6)
        self.plan()
        self.kafka.add_partition()
        self.fill(dice, 1, 1)
        self.marks = {p: len(log.appended) for p, log in enumerate(self.kafka.now.partitions)}
        self.plan()
        self.fill(dice, 0, 2)
        self.fill(dice, 1, 3)
        self.plan()
        self.land()
        first, *known, last = self.coverage.log.ranges
        assert {self.coverage.log.epoch_of(each) for each in (first, *known, last)} == {0, 1}
        decode_by(OLD, self.lake, known)
        if start != "none":
            self.update()
        if start in {"behind", "compacted", "torn"}:
            decode_by(DECODERS["mend"], self.lake, known[:2], redo=True)
        if start in {"compacted", "torn"}:
            self.update()
        if start == "compacted":  # a version that changes no range
            compact_decoded(self.lake, TOPIC)
        if start == "torn":
            entry = max((self.latest / "_delta_log").glob("*.json"))
            entry.write_bytes(entry.read_bytes()[:-9])
        self.lose_a_row(3)

    def fill(self, dice: random.Random, partition: int, count: int) -> None:
        log = self.kafka.now.partitions[partition]
        for _ in range(count):
            at = len(log.appended)
            key = None if dice.random() < 0.1 else b"k%d" % dice.randrange(5)
            value = None if dice.random() < 0.2 else b"%d" % dice.randrange(1000)
            stamp = EPOCH_MS + dice.randrange(20) + (15 if (partition, at) == (0, 1) else 0)
            log.appended.append(Record(SpanKind.DATA, cast("bytes", key), cast("bytes", value), stamp))

    @property
    def latest(self) -> Path:
        return self.folder / "tables/latest" / TOPIC

    def update(self, lake: Lake | None = None, config: Latest = BY_POSITION, *, full: bool = False) -> None:
        self.attempts += 1
        tools = LatestTools(Decodings(lake or self.lake), lambda: EPOCH_MS)
        update(TOPIC, config, Attempt(f"update-{self.attempts}", "run", "code"), tools, full=full)


def act(
    world: LatestWorld,
    name: str,
    writer: Writer,
    *,
    odd: bool = True,
    lost: type[Exception] = OSError,
    leaves_files: bool = False,
    loses: int = -1,
    may_be_refused: bool = False,
) -> None:
    lake = world.open(writer)
    writer.loses = max(writer.loses, loses)
    begin_work(lake, writer, lost, leaves_files=leaves_files)
    try:
        if name in UPDATES:
            config = BY_RANK if name == "reorder" else BY_POSITION
            before = Decodings(world.open(Writer())).read_ranges(TOPIC).table
            try:
                world.update(lake, config, full=name == "rebuild")
                assert may_be_refused or has_version(world, before, config), "it says that it is done, and nothing is"
            except LakeUnavailable:
                if not (may_be_refused or (loses >= 0 and writer.has_lost)):
                    raise
        elif name == "replace":
            world.land(name, lake)
            decode_due(OLD, lake)
        elif name == "late":
            decode_due(OLD, lake)
        elif name == "compact":
            compact_decoded(lake, TOPIC)
        else:
            decode_by(DECODERS[name], lake, [*lake.coverage(TOPIC).log.ranges][int(odd) :: 2], redo=True)
    finally:
        at_work.writer = None


def latest_of(rows: Iterable[tuple[int, int, int, int, Any, Any]], marks: Mapping[int, int], *, by_rank: bool) -> list[Found]:
    """Return the latest record of each key: by rank, then generation, epoch, greatest timestamp so far, partition, offset."""
    reached: dict[tuple[int, int, int], int] = {}
    best: dict[Any, tuple[Found, Found]] = {}
    for generation, partition, offset, at_ms, key, value in sorted(rows, key=lambda row: row[:3]):
        epoch = int(offset >= marks[partition])
        lane = (generation, partition, epoch)
        reached[lane] = max(reached.get(lane, at_ms), at_ms)
        rank = (value or {}).get("rank") if by_rank else None
        order = (-1 if rank is None else rank, generation, epoch, reached[lane], partition, offset)
        if key is not None and (key not in best or order > best[key][0]):
            shown = tuple(sorted((name, each) for name, each in (value or {}).items() if each is not None))
            best[key] = (order, (generation, partition, offset, at_ms, key, shown, value is None, epoch, reached[lane], rank))
    return sorted(found for _, found in best.values())


def read(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read(use_threads=False)


def once(ask: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Ask what a file says once: no two files of these worlds have one name, but for copies of the same."""
    known = dict[str, Any]()
    return lambda path: known[path.name] if path.name in known else known.setdefault(path.name, ask(path))


decoded_rows = once(lambda path: records_of(read(path)))


def from_decoded(world: LatestWorld, decoded: DecodedRanges, *, by_rank: bool) -> list[Found]:
    """Recompute the latest records from all rows of a version of the decoded table."""
    rows = []
    for offsets, each in decoded.known.items():
        if each.rows:
            place = offsets.place
            found = decoded_rows(world.folder / decoded.path_of(offsets))
            rows += [row for row in found if row[:2] == place and offsets.start <= row[2] < offsets.end]
    return latest_of(rows, world.marks, by_rank=by_rank)


def from_landed(world: LatestWorld, decoded: DecodedRanges) -> list[Found]:
    """Work out the latest records from what is landed, and by whom each range was decoded last."""
    rows = []
    manifests = world.coverage.manifests
    for offsets, known in decoded.known.items():
        decoder = BY_FINGERPRINT[known.decoder]
        for record in records_of(read(world.folder / published_path(manifests[offsets]))):
            said = decoder.understand(record)
            if said is not None:
                rows.append((*said[:5], decoder.value(said[5])))
    return latest_of(rows, world.marks, by_rank=False)


@dataclass(frozen=True)
class Version:
    """A version of the latest table as its log says it: its rows, and what it names as what it is made of."""

    rows: list[Found]
    made_of: Mapping[str, int]


def versions(world: LatestWorld) -> list[Version]:
    """Return all versions of the table, read without delta-rs."""
    found, files, made_of = list[Version](), set[str](), dict[str, int]()
    for number, entry in enumerate(sorted((world.latest / "_delta_log").glob("*.json"))):
        assert entry.name == f"{number:020d}.json"
        for action in map(json.loads, entry.read_text().splitlines()):
            if "add" in action:
                files.add(unquote(action["add"]["path"]))
            elif "remove" in action:
                path = unquote(action["remove"]["path"])
                assert path in files, f"version {number} takes away what the table did not have, so it was made of another"
                files.remove(path)
            elif "txn" in action:
                made_of[action["txn"]["appId"]] = action["txn"]["version"]
        found.append(Version(sorted([row for file in files for row in shown_of(world.latest / file)]), dict(made_of)))
    return found


@once
def shown_of(path: Path) -> list[Found]:
    table = read(path)
    more = [table[name].to_pylist() for name in ("_deleted", "_epoch", "_reached")]
    more.append(table["_sequence"].to_pylist() if "_sequence" in table.column_names else [None] * table.num_rows)
    return [
        (*place, key, tuple(sorted((name, each) for name, each in (value or {}).items() if each is not None)), *said)
        for (*place, key, value), *said in zip(records_of(table), *more, strict=True)
    ]


def has_version(world: LatestWorld, decoded: Snapshot, config: Latest) -> bool:
    """Return whether any version of the table is of that of the decoded one, or of a later one, in that order."""
    assert decoded.metadata is not None
    name = f"decoded/{decoded.metadata.id}"
    return any(it.made_of.get(name, -1) >= decoded.version and it.made_of["order"] == config.order for it in versions(world))


def assert_ends_well(world: LatestWorld) -> None:
    """One more update, and each version is what its decoded version comes to; the newest also what is landed comes to."""
    world.lake = world.open(Writer())
    decodings = Decodings(world.lake)
    known = decodings.read_ranges(TOPIC)
    if any(each in known.known for each in known.find_due(world.coverage)):
        decode_due(OLD, world.lake)  # a range was landed anew, and whoever did it was to decode it
    world.update()
    decodings = Decodings(world.open(Writer()))
    assert not find_due(TOPIC, BY_POSITION, decodings).has_work
    decoded, expected = decodings.read_ranges(TOPIC), dict[tuple[int, int], list[Found]]()
    assert decoded.table.metadata is not None
    name, all_versions = f"decoded/{decoded.table.metadata.id}", versions(world)
    for number, each in enumerate(all_versions):
        if name not in each.made_of:
            assert (number, each.rows, each.made_of) == (0, [], {}), "the table as it is created"
            continue
        made_of = each.made_of[name], each.made_of["order"]
        if made_of not in expected:
            before = decodings.read_version(TOPIC, made_of[0])
            assert before is not None
            expected[made_of] = from_decoded(world, before, by_rank=SEQUENCES[made_of[1]])
        assert each.rows == expected[made_of], f"version {number} of {made_of}"
    if world.has_table:  # else who makes one may find another's, of a later version than what it has read by then
        made_of_versions = [each.made_of[name] for each in all_versions if each.made_of]
        assert made_of_versions == sorted(made_of_versions), "no version goes back"
    newest = all_versions[-1]
    commit = zlib.crc32(decoded.table.commit_id.encode())
    assert newest.made_of == {name: decoded.table.version, "order": BY_POSITION.order, "decoded-commit": commit}
    assert newest.rows == from_landed(world, decoded)
    keys = [row[4] for row in newest.rows]
    assert len(keys) == len({*keys})
    table = DeltaTable(str(world.latest))
    assert (table.version(), len(table.file_uris())) == (len(all_versions) - 1, len({*table.file_uris()}))
    assert sorted(row for uri in table.file_uris() for row in shown_of(Path(uri.removeprefix("file://")))) == newest.rows


def test_two_or_three_who_hand_over_anywhere_leave_each_version_right(begin: Callable[..., LatestWorld]) -> None:
    """[R-87] Updates beside each other, beside one that makes the table anew, beside ranges that are decoded again or late."""
    handed_over = lost = 0
    drawn = draw(DRAWN, "at once", STARTS, UPDATES, [*MOST_CALLS], ["", "", *MOST_CALLS], SEEDS)
    for start, one, other, third, seed in drawn:
        dice = random.Random(seed)
        names = [each for each in (one, other, third) if each]
        dice.shuffle(names)
        world = begin(LatestWorld, start, seed % WORLDS)
        acts = list[Act]()
        for name in names:
            how = {"odd": dice.random() < 0.5, "lost": dice.choice(LOST), "may_be_refused": start == "torn"}
            loses = dice.randrange(6) if name in UPDATES and dice.random() < 0.2 else -1
            acts.append(partial(act, world, name, loses=loses, **how))
        turns = list[tuple[int, int]]()
        at = [0] * len(names)
        for _ in range(dice.randint(2, 5)):
            for number in range(len(names)):
                at[number] += dice.randrange(MOST_CALLS[names[number]])
                turns.append((number, at[number]))
        writers = take_turns(acts, turns, partial(assert_ends_well, world), f"{start}, {seed}: {names}")
        lost += any(writer.has_lost for writer in writers)
        handed_over += all(len(writer.calls) > turn for writer, (_, turn) in zip(writers, turns, strict=False))
    assert handed_over > len(drawn) // 10, "the control: some do hand over"
    assert lost > len(drawn) // 40, "the control: of some an answer is lost"


@pytest.mark.parametrize("at", range(1, 7))
def test_an_update_that_others_overtake_while_it_looks_sets_nothing_back(begin: Callable[..., LatestWorld], at: int) -> None:
    """[R-87] It reads the latest table first, then the decoded one, so that what has gone in is never of a later version."""
    world = begin(LatestWorld, "behind", at % WORLDS)
    acts = [partial(act, world, name) for name in ("update", "mend", "update")]
    writers = take_turns(acts, [(0, at), (1, 999), (2, 999)], partial(assert_ends_well, world), f"{at}")
    assert len(writers[0].calls) > at and "commit" in writers[2].calls, "the fault: others went on meanwhile"


@pytest.mark.parametrize("fault", FAULTS)
def test_an_update_that_is_struck_anywhere_is_made_good_by_the_next(begin: Callable[..., LatestWorld], fault: str) -> None:
    """[R-87] [R-88] At each call: it dies, with its files written or not, its commit's answer is lost, the disk is full."""
    struck = 0
    starts, numbers = ["none", "behind", "compacted", "torn"], range(34 if fault == "dies" else 6)
    errors = LOST if "answer" in fault else [OSError]
    drawn = draw(DRAWN, fault, starts, UPDATES, numbers, errors, [False, True], range(WORLDS))
    for start, name, number, lost, leaves_files, world_number in drawn:
        world = begin(LatestWorld, start, world_number)
        does, check = partial(act, world, name, lost=lost, leaves_files=leaves_files), partial(assert_ends_well, world)
        struck += strike(does, fault, number, check, f"{start}, {world_number}: {name}, {lost.__name__}")
    assert struck > len(drawn) // 5, "the control: some are struck"


@pytest.mark.parametrize("versions_since", [0, 1, 2])
def test_a_table_taken_back_is_made_anew(begin: Callable[..., LatestWorld], versions_since: int, tmp_path: Path) -> None:
    """[R-87] What is decoded after the folder was restored gets the numbers of the versions that went in."""
    world = begin(LatestWorld, "level", 0)
    folder, backup = world.folder / f"tables/decoded/{TOPIC}", tmp_path / "backup"
    shutil.copytree(folder, backup)
    decode_due(OLD, world.lake)
    world.update()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    for name in ("move", "widen")[:versions_since]:
        world.lake = world.open(Writer())
        decode_by(DECODERS[name], world.lake, [*world.coverage.log.ranges][:2], redo=True)
    world.lake = world.open(Writer())
    decoded = Decodings(world.lake).read_ranges(TOPIC)
    assert versions(world)[-1].rows != from_decoded(world, decoded, by_rank=False), "the fault"
    world.update()
    assert not find_due(TOPIC, BY_POSITION, Decodings(world.lake)).has_work
    assert versions(world)[-1].rows == from_decoded(world, decoded, by_rank=False)


def test_who_makes_a_broken_table_anew_deletes_none_that_another_one_has_mended(begin: Callable[..., LatestWorld]) -> None:
    """[R-88] Not even where it has seen the damage before; who has read the mended one would go on from files that are gone."""
    seen = Writer()
    act(begin(LatestWorld, "torn", 0), "update", seen)
    at_delete = seen.calls.index("delete")
    world = begin(LatestWorld, "torn", 0)
    acts = [partial(act, world, name, may_be_refused=True) for name in ("update", "update", "rebuild")]
    writers = take_turns(acts, [(0, at_delete), (1, 999), (2, 7)], partial(assert_ends_well, world), "torn")
    assert writers[0].calls[at_delete] == "delete", "the fault: it was about to delete what it had found broken"


@pytest.fixture
def updated(tmp_path: Path) -> Callable[[str], Updated]:
    """Update the latest table of a lake in the test's folder, by an attempt."""

    def run(attempt: str) -> Updated:
        tools = LatestTools(Decodings(Lake(str(tmp_path))), lambda: EPOCH_MS)
        return update(TOPIC, BY_POSITION, Attempt(attempt, "run", "code"), tools)

    return run


@pytest.mark.parametrize(
    "rows",
    [{2: (None, {"n": 1})}, {2: ("a", {"n": 9}, EPOCH_MS - 9)}, {2: ("a", None, EPOCH_MS - 9), 3: (None, None)}],
    ids=["without_a_key", "older", "both"],
)
def test_a_range_that_changes_no_row_is_noted(rows: Rows, updated: Callable[[str], Updated], tmp_path: Path) -> None:
    """[R-87] Delta-rs' MERGE commits nothing then, and the update would be due for ever."""
    topic = DecodedTopic(Lake(str(tmp_path)), TOPIC, pa.string())
    topic.put(OffsetRange(0, 1, 0, 2), {0: ("a", {"n": 1}), 1: ("b", {"n": 2})})
    updated("first")
    shown = topic.shown()
    topic.put(OffsetRange(0, 0, 2, 4), rows)
    assert updated("second") == Updated(1, "", has_committed=True)
    assert not find_due(TOPIC, BY_POSITION, Decodings(Lake(str(tmp_path)))).has_work
    assert updated("third") == Updated()
    assert topic.shown() == shown == topic.recomputed()


def test_a_version_whose_writer_was_killed_is_on_the_disk_before_the_next_one(
    updated: Callable[[str], Updated], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[R-88] An entry that a power cut has emptied counts as whole where another one follows."""
    topic, durable, left = DecodedTopic(Lake(str(tmp_path)), TOPIC, pa.string()), set[str](), list[set[str]]()

    def unsafe() -> set[str]:
        return {*Lake(str(tmp_path)).store.list(f"tables/latest/{TOPIC}")} - durable

    def killed(_: Disk, path: str) -> None:
        if path in unsafe():
            raise Killed

    beside(monkeypatch, Disk, "make_durable", after=lambda disk, path: durable.add(path))
    topic.put(OffsetRange(0, 0, 0, 2), {0: ("a", {"n": 1}), 1: ("b", {"n": 2})})
    updated("first")
    assert not unsafe()
    topic.put(OffsetRange(0, 0, 2, 4), {2: ("a", {"n": 3}), 3: ("c", {"n": 4})})
    with monkeypatch.context() as dying:
        dying.setattr(Disk, "make_durable", killed)
        with pytest.raises(Killed):
            updated("second")
    assert len(unsafe()) >= 2, "the fault: an entry and a file that nobody has waited for"
    beside(monkeypatch, DeltaTable, "merge", lambda *_, **__: left.append(unsafe()))
    topic.put(OffsetRange(0, 0, 4, 6), {4: ("b", None), 5: ("d", {"n": 5})})
    assert updated("third") == Updated(1, "", has_committed=True)
    assert left == [set()], "before the next version, not after it"
    assert not unsafe()
    assert topic.shown() == topic.recomputed()
