"""Readers in a loop while everything that changes tables goes on: no error, no row that is missing, none that is there twice.

What a table had when an action ended is the ground truth for every read that began later. A plain DuckDB glob never sees a
half, doubled or unsent row, whatever goes on in the lake meanwhile.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from pipeline_defs.adapters.system.jars import resolve_jars
from pipeline_defs.core.landing.verdicts import Outcome
from pipeline_defs.core.tables.compaction import CompactionOutcome
from pipeline_defs.core.tables.decoding import Decided
from pipeline_defs.core.tables.latest import Latest
from pipeline_defs.lab.bench.costs.loopback import s3_environment, s3a_conf
from pipeline_defs.resources import Adapters
from pipeline_defs.tables.compaction import compact_table
from pipeline_defs.tables.decoded_compaction import DecodedTable
from pipeline_defs.tables.deleting import VACUUM_AFTER_SECONDS, vacuum
from tests.conftest import JARS
from tests.support.killing import stopped_at
from tests.support.readers import FIRST, LoopingReader, Read, count_files, reading, spark_defaults, time_read
from tests.support.world import World, new_attempt

TABLES = ("raw", "decoded", "latest")
PER_RANGE = 40
SCHEMAS = ("id INT", "id DOUBLE")  # of some records the first says that it is a dead letter
LONG_AGO_MS = int(VACUUM_AFTER_SECONDS * 1000) + 60_000


def land(world: World) -> None:
    """Two ranges more, with a key that was not there before; the first is all dead letters by one of the schemas."""
    count, key = 2 * PER_RANGE, len({row[2] for row in world.sent.values()})
    world.send(
        {"partition": 0, "key": b"k%d" % (n % (key + 1)), "value": b'{"id": 0.5}' if n < PER_RANGE else b'{"id": %d}' % n}
        for n in range(count)
    )
    assert {verdict.outcome for verdict in world.plan_and_land()} == {Outcome.LANDED}


def decode(world: World) -> None:
    assert {verdict.outcome for verdict in world.decode()} <= {Decided.DECODED, Decided.REPLACED}


def decode_otherwise(world: World) -> None:
    """All ranges by the other schema, as `offsetlake decode --outdated` does."""
    decode = world.topic.decode
    assert decode is not None and decode.value is not None
    schema = SCHEMAS[decode.value.schema == SCHEMAS[0]]
    world.derive(schema)
    verdicts = world.decode([offsets.key for offsets in world.decodings], redo=True)
    assert {verdict.outcome for verdict in verdicts} == {Decided.REPLACED}


def update_latest(world: World) -> None:
    assert world.update_latest().has_committed


def compact_raw(world: World) -> None:
    assert {verdict.outcome for verdict in world.compact()} == {CompactionOutcome.COMPACTED}


def compact_decoded(world: World) -> None:
    table = DecodedTable(world.name, world.adapters.decodings)
    verdicts = compact_table(table, new_attempt(), world.tools(), world.topic.policy.target_file_bytes, every=True)
    assert {verdict.outcome for verdict in verdicts} == {CompactionOutcome.COMPACTED}


def replace_first(world: World) -> None:
    """By what another isolation level reads of it: with the record that was aborted, or without."""
    level = world.topic.policy.isolation_level
    world.with_policy(isolation_level="read_committed" if level == "read_uncommitted" else "read_uncommitted")
    first = min(world.coverage.manifests)
    (verdict,) = world.land([first.key], redo=True, on_change="replace")
    assert verdict.outcome is Outcome.REPLACED


def run_vacuum(world: World) -> None:
    """With the real age: what was removed a week ago goes, what was removed just now stays."""
    deleted, errors = vacuum(world.adapters.lake, world.adapters.now_ms())
    assert not errors
    assert {path.split("/")[1] for path in deleted} >= {"raw", "decoded"}


Action = Callable[[World], None]
CHANGES: Sequence[tuple[str, Action, str]] = [  # name, what is done, which table has all that was sent from then on
    ("land", land, "raw"),
    ("decode", decode, "decoded"),
    ("update latest", update_latest, "latest"),
    ("compact", compact_raw, ""),
    ("compact what is decoded", compact_decoded, ""),
    ("replace", replace_first, ""),
    ("decode what was replaced", decode, ""),
    ("update latest, a key of which may be gone", update_latest, ""),
    ("decode otherwise", decode_otherwise, ""),
    ("update latest of other values", update_latest, ""),
]
VACUUM = ("vacuum", run_vacuum, "")


@dataclass
class History:
    """What was done to the tables of a topic, and since when one has how many rows that stay."""

    world: World
    done: list[tuple[str, int, int]] = field(default_factory=list)
    had: list[tuple[str, int, int]] = field(default_factory=list)

    def do(self, name: str, act: Action, whole: str) -> int:
        """Do one thing, see that tables or their files are others by it; return when it had ended."""
        before, began = self._state(), time.monotonic_ns()
        act(self.world)
        ended = time.monotonic_ns()
        assert self._state() != before, f"{name} did nothing"
        self.done.append((name, began, ended))
        if whole:
            self.note(whole)
        return ended

    def note(self, table: str) -> None:
        """Note that a table has all that was sent; the marker of what was aborted may come after the first of it."""
        sent = [row for row in self.world.sent.values() if row.offset >= FIRST]
        self.had.append((table, time.monotonic_ns(), len({row[2] for row in sent} if table == "latest" else sent)))

    def find_wrong(self, reads: Iterable[Read]) -> Iterator[str]:
        """Name what was wrong with reads."""
        for read in reads:
            least = max((rows for table, at_ns, rows in self.had if table == read.table and at_ns <= read.began_ns), default=0)
            meanwhile = [name for name, began, ended in self.done if began <= read.ended_ns and read.began_ns <= ended]
            if read.error:
                yield f"error of {read.table} during {meanwhile}: {read.error}"
            elif read.rows != read.distinct:
                yield f"{read.rows - read.distinct} of {read.rows} rows of {read.table} twice during {meanwhile}"
            elif read.kept < least:
                yield f"{least - read.kept} of {least} rows of {read.table} missing during {meanwhile}"

    def _state(self) -> tuple[object, ...]:
        versions = [self.world.table(tree).version() for tree in TABLES]
        return (*versions, *(path for path in self.world.adapters.lake.store.list("tables") if path.endswith(".parquet")))


def fill(world: World) -> None:
    """Give a topic three tables, with files that were removed more than a week ago; its first record was aborted."""
    world.keep_raw_table()
    world.create_topic(retention_ms="-1")
    world.with_policy(records_per_range=PER_RANGE, target_file_bytes=10**6, isolation_level="read_uncommitted")
    world.derive(SCHEMAS[0], latest=Latest())
    world.send_aborted(partition=0, key=b"never", value=b'{"id": 1}')
    now_ms = world.adapters.now_ms
    world.adapters = Adapters(world.settings, now_ms=lambda: now_ms() - LONG_AGO_MS)
    for act in (land, decode, decode_otherwise, update_latest, compact_raw):
        act(world)
    world.adapters = Adapters(world.settings)


def spark_environment(placed: World, folder: Path, request: pytest.FixtureRequest) -> Mapping[str, str]:
    """Return how a Spark of a reader's own finds Delta, and the bucket where the lake is in one."""
    pins, conf = ["delta"], dict[str, str]()
    if placed.adapters.lake.store.is_remote:
        pins.append("s3a")
        conf = dict(s3a_conf(request.getfixturevalue("s3")))
    jars = [jar for pin in pins for jar in resolve_jars(pin, JARS)]
    return spark_defaults(folder / "conf", jars, conf)


@pytest.mark.parametrize(
    ("placed", "kinds", "rounds"),
    [
        pytest.param("disk", ["duckdb+views"], 1, id="quick"),
        pytest.param("disk", ["spark", "duckdb", "views"], 2, id="disk", marks=pytest.mark.long),
        pytest.param("bucket", ["spark", "duckdb", "views"], 1, id="bucket", marks=pytest.mark.long),
    ],
    indirect=["placed"],
)
def test_readers_see_each_row_once_whatever_goes_on(
    placed: World, kinds: Sequence[str], rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """[R-81] [R-62] [R-69] [R-84] [R-87] DuckDB, `offsetlake sql` and Spark while ranges land, are replaced and decoded again.

    And while latest is merged, the raw table compacted, and the vacuum deletes what a week ago was removed.
    """
    world, history = placed, History(placed)
    fill(world)
    lake = world.adapters.lake
    raw = lake.store.url(f"tables/raw/{world.name}")
    oldest = DeltaTable(raw).version()
    for table in TABLES:
        history.note(table)
    environment = dict(s3_environment(request.getfixturevalue("s3"))) if lake.store.is_remote else {}
    if "spark" in kinds:
        environment |= spark_environment(world, tmp_path, request)
    readers_at = tmp_path / "readers"
    with reading(kinds, TABLES, lake, world.name, readers_at, environment, world.wait_until) as readers:
        began_ns = time.monotonic_ns()
        for each in [*CHANGES, VACUUM, *CHANGES * (rounds - 1)]:
            ended_ns = history.do(*each)
            world.wait_until(lambda ended_ns=ended_ns: readers.have_read_since(ended_ns))
    for kind in kinds:
        reads = readers.reads(kind)
        assert list(history.find_wrong(reads)) == [], kind
        assert reads[0].ended_ns < began_ns and reads[-1].began_ns > ended_ns, "the control: it read all the time"
        for table in TABLES:
            assert len({read.rows for read in reads if read.table == table}) > 1, "the control: it saw a change"

    files = [lake.store.url(path) for path in lake.store.list(f"tables/raw/{world.name}") if path.endswith(".parquet")]
    seen = [
        time_read("raw", lambda table: count_files(lake, files, table)),
        time_read("raw", lambda table: count_files(lake, DeltaTable(raw, version=oldest).file_uris(), table)),
        time_read("raw", lambda table: count_files(lake, [f"{raw}/none.parquet"], table)),
    ]
    wrong = [next(history.find_wrong([read]), "") for read in seen]
    assert ["twice" in wrong[0], "missing" in wrong[1], "error" in wrong[2]] == [True] * 3, f"the control: {wrong}"


class Reader(LoopingReader):
    """Reads the glob, and keeps what it saw: rows per file range, and distinct rows."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._glob = world.glob
        self._lake = world.lake_folder
        self._connection = duckdb.connect()
        self.seen: list[tuple[int, int, Counter[int]]] = []

    def read(self) -> None:
        sql = f'SELECT "offset" // 100, count(*), count(DISTINCT "offset") FROM read_parquet(\'{self._glob}\') GROUP BY ALL'
        if not any((self._lake / "data").rglob("*.parquet")):
            return
        try:
            found = self._connection.execute(sql).fetchall()
        except duckdb.Error as error:
            self.errors.append(str(error))
            return
        counts = Counter({block: rows for block, rows, _ in found})
        self.seen.append((sum(counts.values()), sum(distinct for *_, distinct in found), counts))


def test_a_glob_is_right_at_every_moment(world: World) -> None:
    """[R-17] During landing, a crash, roll-forward and redo, each read shows whole ranges and each offset once."""
    world.fill(1_200)
    world.tick()
    reader = Reader(world)
    with reader.reading():
        with stopped_at(world, "land", "publish", nth=4):
            assert 4 <= len(list((world.lake_folder / "data").rglob("*.parquet"))) < 12
        for offsets in world.pending:
            world.land([offsets.key])
        world.land([offsets.key for offsets in world.coverage.log.ranges], redo=True)
    world.assert_all_landed_once()
    assert not reader.errors
    assert len({rows for rows, _, _ in reader.seen}) > 2, "the reader was there while things changed"
    for rows, distinct, counts in reader.seen:
        assert rows == distinct
        assert set(counts.values()) <= {100}
    totals = [rows for rows, _, _ in reader.seen]
    assert totals == sorted(totals), "what was once visible stays visible"
