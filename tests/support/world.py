"""A small world of real parts around one topic: what was produced is the ground truth for what is landed."""

import dataclasses
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import dagster as dg
import duckdb
import pyarrow as pa
import stamina
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._daemon.types import DaemonHeartbeat
from deltalake import DeltaTable
from kafka import KafkaProducer

from pipeline_defs.adapters.kafka.operations import Operations
from pipeline_defs.adapters.lake.lake_memory import FOLDER
from pipeline_defs.adapters.spark.spark_server import stop_server
from pipeline_defs.adapters.tables.duck import Duck, connect
from pipeline_defs.cli.launching import InProcessRuns, Launched
from pipeline_defs.core.decode.decoders import Decode, Format, Side
from pipeline_defs.core.landing.verdicts import Verdict
from pipeline_defs.core.log.coverage import Coverage
from pipeline_defs.core.log.cutting import Policy
from pipeline_defs.core.log.plan_step import PlanStep, Watermarks
from pipeline_defs.core.offsets import OffsetRange
from pipeline_defs.core.steps import StepWatcher, no_step
from pipeline_defs.core.tables.compaction import CompactionVerdict
from pipeline_defs.core.tables.days import EventTime
from pipeline_defs.core.tables.decoding import Budget, DecodeVerdict, Decoding
from pipeline_defs.landing.attempt import Attempt, Tools
from pipeline_defs.landing.auditing import check_completeness, check_published, check_tiling
from pipeline_defs.landing.landing import land
from pipeline_defs.operate.status import read_statuses
from pipeline_defs.orchestration.home.dagster_home import open_instance
from pipeline_defs.orchestration.home.dead_runs import end_dead_runs
from pipeline_defs.orchestration.pulse.ticking import Tick, run_tick
from pipeline_defs.orchestration.runs.known import Known, read_known
from pipeline_defs.orchestration.topic_defs import build_topic_defs
from pipeline_defs.orchestration.upkeep.housekeeping import build_housekeeping
from pipeline_defs.resources import Adapters
from pipeline_defs.settings import Settings
from pipeline_defs.tables.compaction import compact
from pipeline_defs.tables.decoding import decode
from pipeline_defs.tables.latest import Updated, update
from pipeline_defs.topics import Topic
from tests.support.decoded import table_files

_read_migrations = ScriptDirectory.from_config


@cache
def _read_once(location: str | None) -> ScriptDirectory:
    """Read Dagster's migrations once per process: it would read a hundred files again for each run's own database."""
    config = Config()
    config.set_main_option("script_location", str(location))
    return _read_migrations(config)


ScriptDirectory.from_config = classmethod(  # type: ignore[method-assign, assignment]
    lambda cls, config: _read_once(config.get_main_option("script_location"))
)

PATIENCE_SECONDS = 300
"""How long to wait for what comes by itself: it is only ever used up where it never comes."""
ANY_DEAD = Budget(10**6, 1.0)
"""Every record may be a dead letter."""


class Row(NamedTuple):
    """A record as it was sent, or as it is landed; a new raw column comes last here, and into the two functions below."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int | None


def sent_row(record: Mapping[str, Any], partition: int, offset: int, timestamp_ms: int | None) -> Row:
    """Give the row that a record is to become, which the broker has taken at this place."""
    return Row(partition, offset, record.get("key"), record.get("value"), tuple(record.get("headers") or ()), timestamp_ms)


def landed_rows(table: pa.Table) -> list[Row]:
    """Give the rows of raw columns, sorted by place; a doubled row stands twice."""
    moments = table["timestamp"].cast(pa.int64()).to_pylist()  # in microseconds: a datetime ends at the year 9999
    rows = table.drop_columns("timestamp").to_pylist()
    found = (
        Row(
            *(row[name] for name in ("partition", "offset", "key", "value")),
            headers=tuple((header["key"], header["value"]) for header in row["headers"] or ()),
            timestamp_ms=None if at is None else at // 1000,
        )
        for row, at in zip(rows, moments, strict=True)
    )
    return sorted(found, key=lambda row: row[:2])


def new_attempt(**how: Any) -> Attempt:
    """Give an attempt that nobody has made yet."""
    return Attempt(f"test-{uuid.uuid4().hex[:8]}", "no-run", "test", **how)


@contextmanager
def own_spark(settings: Settings, folder: Path) -> Iterator[Settings]:
    """Give settings with a home of their own below a folder, and so a warm Spark of their own, which is stopped at the end."""
    home = folder / "home"
    home.mkdir(parents=True)
    (home / "jars").symlink_to(settings.jars.resolve())
    own = dataclasses.replace(settings, home=home)
    try:
        yield own
    finally:
        stop_server(own.engine_folder)


class World:
    """One topic with its lake and Dagster instance; `sent` is what the producer had acknowledged."""

    def __init__(self, settings: Settings, folder: Path, topic: str = "", policy: Policy | None = None) -> None:
        self.folder = folder
        self.settings = dataclasses.replace(settings, lake=str(folder / "lake"), dagster_home=folder / "dagster")
        self.adapters = Adapters(self.settings)
        self.topic = Topic(topic or f"t{uuid.uuid4().hex[:10]}", policy or Policy(records_per_range=100, max_age_seconds=0))
        self.sent: dict[tuple[int, int], Row] = {}
        self._instance: dg.DagsterInstance | None = None
        self._moment_ms = 0

    def keep_raw_table(self) -> None:
        """Have what is landed from now on appended to a raw table."""
        self.settings = dataclasses.replace(self.settings, has_raw_table=True)
        self.adapters = Adapters(self.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.adapters.kafka(self.topic).close()
        if self._instance is not None:
            self._instance.dispose()

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def lake_folder(self) -> Path:
        return Path(self.settings.lake)

    @property
    def instance(self) -> dg.DagsterInstance:
        if self._instance is None:
            _copy_empty_instance(self.settings)
            self._instance = open_instance(self.settings.dagster_home)
        return self._instance

    def lose_dagster(self) -> None:
        self.instance.dispose()
        self._instance = None
        shutil.rmtree(self.settings.dagster_home)

    def with_policy(self, **changes: Any) -> None:
        self.topic = dataclasses.replace(self.topic, policy=dataclasses.replace(self.topic.policy, **changes))

    def derive(self, schema: str, *, budget: Budget = ANY_DEAD, event_time: EventTime | None = None, **tables: Any) -> None:
        """Have keys decoded as text and values as JSON of a schema, and other tables made of that."""
        decode = Decode(Side(Format.STRING), Side(Format.JSON, schema), budget, event_time)
        self.topic = dataclasses.replace(self.topic, decode=decode, **tables)

    def move_lake(self, url: str) -> None:
        self.settings = dataclasses.replace(self.settings, lake=url)
        self.adapters = Adapters(self.settings)

    @property
    def operations(self) -> Operations:
        return Operations(self.settings.bootstrap_servers, self.adapters.access(self.topic))

    def create_topic(self, partitions: int = 1, *, replicas: int = 1, **configs: str) -> None:
        self.adapters.kafka(self.topic).create_topic(self.name, partitions, _dotted(configs), replicas=replicas)

    def fill(self, *counts: int) -> None:
        """Create the topic, and produces so many small records to each of its Kafka partitions."""
        self.create_topic(len(counts))
        for partition, count in enumerate(counts):
            self.send_numbered(count, partition)

    def delete_topic(self) -> None:
        self.operations.delete_topic(self.name)

    def recreate_topic(self, partitions: int = 1) -> None:
        """Delete the topic and creates another of its name; what was sent so far stays known."""
        self.delete_topic()
        self.create_topic(partitions)

    def add_partitions(self, total: int) -> None:
        self.operations.add_partitions(self.name, total)

    def begin_transaction(self, name: str = "tx", **config: Any) -> KafkaProducer:
        return self.operations.begin_transaction(f"{self.name}-{name}", **config)

    def send_aborted(self, count: int = 1, **record: Any) -> None:
        """Send a record so many times in a transaction that is aborted: no ground truth."""
        producer = self.begin_transaction()
        for _ in range(count):
            producer.send(self.name, **record)
        producer.flush()
        producer.abort_transaction()
        producer.close()

    def send(self, records: Iterable[dict[str, Any]], producer: KafkaProducer | None = None) -> list[tuple[int, int]]:
        """Produce records (partition, key, value, headers, timestamp_ms) and remembers what was acknowledged."""
        listed = list(records)
        places = []
        for record, (partition, offset, timestamp) in zip(
            listed, self.operations.send(self.name, listed, producer), strict=True
        ):
            self.sent[partition, offset] = sent_row(record, partition, offset, timestamp)
            places.append((partition, offset))
        return places

    def send_numbered(self, count: int, partition: int = 0) -> list[tuple[int, int]]:
        return self.send({"partition": partition, "key": b"k%d" % n, "value": b"v%d" % n} for n in range(count))

    def delete_records(self, partition: int, before: int) -> None:
        self.operations.delete_records(self.name, partition, before)

    def alter_topic(self, **configs: str) -> None:
        self.operations.alter_topic(self.name, _dotted(configs))

    def wait_for_earliest(self, partition: int, offset: int) -> None:
        """Wait until the broker's log begins at an offset: the fault has then happened."""
        self.wait_until(lambda: self.watermarks(partition).earliest == offset)

    def watermarks(self, partition: int) -> Watermarks:
        kafka = self.adapters.kafka(self.topic)
        return kafka.read_watermarks(self.name, self.topic.policy.isolation_level)[partition]

    def status(self) -> dict[str, Any]:
        """Return where the topic stands, which lake and broker can be asked for."""
        ((document, _),) = read_statuses([self.topic], self.adapters, self.instance)
        assert "error" not in document, document["error"]
        return document

    @staticmethod
    def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS, every_seconds: float = 0.3) -> None:
        """Wait until what the broker does by itself has happened; fail where it does not."""
        for attempt in stamina.retry_context(on=AssertionError, timeout=seconds, attempts=None, wait_max=every_seconds):
            with attempt:
                assert condition()

    def later(self, ms: int) -> None:
        """Have the clock of this world's adapters stand still, so much later than it was; also for a run that is under way."""
        self._moment_ms = self.adapters.now_ms() + ms
        self.adapters.now_ms = lambda: self._moment_ms

    def beside(self, name: str = "") -> Self:
        """Give a second topic of the same lake and Dagster instance, of ranges of 100 records that are cut at once."""
        other = type(self)(self.settings, self.folder, name or f"{self.name}-other")
        other._instance, other.adapters = self.instance, self.adapters
        return other

    def lake_afresh(self) -> None:
        """Go on with an empty lake beside the old one, on purpose: the Dagster home forgets that there was one."""
        (self.settings.dagster_home / FOLDER / self.name).unlink(missing_ok=True)
        lake = self.lake_folder.with_name(f"lake-{uuid.uuid4().hex[:6]}")
        self.settings = dataclasses.replace(self.settings, lake=str(lake))
        self.adapters.kafka(self.topic).close()
        self.adapters = Adapters(self.settings)

    def plan(self, *, through_end: bool = True) -> list[PlanStep]:
        """Plan until there is nothing to decide."""
        steps = []
        planner = self.adapters.planner(self.topic, "test")
        while step := planner.commit(through_end=through_end):
            steps.append(step)
        return steps

    @property
    def coverage(self) -> Coverage:
        return Adapters(self.settings).lake.coverage(self.name)  # read afresh, as a restarted process would

    @property
    def pending(self) -> list[OffsetRange]:
        return self.coverage.pending()

    def tools(self, on_step: StepWatcher = no_step) -> Tools:
        return self.adapters.tools(self.topic, self.adapters.pyspark(), on_step)

    def land(
        self,
        keys: Sequence[str] | None = None,
        *,
        redo: bool = False,
        on_change: Literal["keep", "replace"] = "keep",
        on_step: StepWatcher = no_step,
    ) -> list[Verdict]:
        """Run the landing protocol in this process, without Dagster."""
        chosen = [offsets.key for offsets in self.pending] if keys is None else list(keys)
        return list(land(self.name, chosen, new_attempt(redo=redo, on_change=on_change), self.tools(on_step)))

    def decode(
        self, keys: Sequence[str] | None = None, *, redo: bool = False, on_step: StepWatcher = no_step
    ) -> list[DecodeVerdict]:
        """Run the decoding protocol in this process, of what is landed and due, without Dagster."""
        assert self.topic.decode is not None
        due = [offsets.key for offsets in self.adapters.decodings.read_ranges(self.name).find_due(self.coverage)]
        if not (due if keys is None else keys):
            return []
        tools = self.adapters.decode_tools(self.topic.decode, self.adapters.pyspark(), on_step)
        return list(decode(self.name, due if keys is None else keys, new_attempt(redo=redo), tools))

    def update_latest(self) -> Updated:
        """Bring the latest table up to date in this process, without Dagster."""
        assert self.topic.latest is not None
        return update(self.name, self.topic.latest, new_attempt(), self.adapters.latest_tools())

    def compact(self, *, every: bool = True) -> list[CompactionVerdict]:
        """Compact the raw table in this process, without Dagster."""
        return list(compact(self.name, new_attempt(), self.tools(), self.topic.policy.target_file_bytes, every=every))

    @property
    def decodings(self) -> Mapping[OffsetRange, Decoding]:
        return Adapters(self.settings).decodings.read(self.name)

    def query(self, tree: Literal["decoded", "dead_letters"], columns: str) -> list[tuple[Any, ...]]:
        """Read columns of this topic's decoded rows, or of its dead letters, in offset order."""
        files = table_files(self.adapters.lake, self.name, is_dead=tree == "dead_letters")
        if not files:
            return []
        order = 'generation, "partition", "offset"'
        return duckdb.sql(f"SELECT {columns} FROM read_parquet({files}, union_by_name = true) ORDER BY {order}").fetchall()

    def table(self, tree: str, version: int | None = None) -> DeltaTable:
        """Open a table of this topic as any reader of Delta does."""
        return DeltaTable(self.adapters.lake.store.url(f"tables/{tree}/{self.name}"), version=version)

    def plan_and_land(self) -> list[Verdict]:
        self.plan()
        return self.land()

    @property
    def definitions(self) -> dg.Definitions:
        return dg.Definitions.merge(build_topic_defs(self.topic, self.settings.lake), build_housekeeping([self.topic]))

    @property
    def in_process(self) -> InProcessRuns:
        return InProcessRuns(self.topic, self.adapters, self.instance)

    @property
    def known(self) -> Known:
        """What Dagster knows of this topic now."""
        return read_known(self.instance, [self.topic], self.adapters.now_ms())

    def tick(self) -> Tick:
        """Do what the sensor does of this topic."""
        end_dead_runs(self.instance, self.adapters.now_ms())
        return run_tick(self.topic, self.instance, self.adapters)

    def launch(self, ranges: Iterable[OffsetRange] | None = None, *, redo: bool = False) -> list[Launched]:
        """Land through Dagster in this process, and all of it: all pending ranges, or those given."""
        launched = self.try_launch(ranges, redo=redo)
        assert all(each.succeeded for each in launched), [each.reason for each in launched]
        return launched

    def try_launch(self, ranges: Iterable[OffsetRange] | None = None, *, redo: bool = False) -> list[Launched]:
        """Land through Dagster, successfully or not."""
        chosen = self.pending if ranges is None else list(ranges)
        return list(self.in_process.land(chosen, redo=redo))

    @property
    def keys(self) -> list[str]:
        """Return the keys that Dagster has of the topic's ranges, in its order."""
        return [*self.instance.get_dynamic_partitions(f"{self.name}__ranges")]

    def materialized_after_tick(self) -> set[str]:
        """Tick once, since a tick reports what a crash left unreported, and return the keys Dagster shows landed."""
        self.tick()
        return self.materialized()

    def materialized(self) -> set[str]:
        return self.instance.get_materialized_partitions(self.topic.asset_key)

    def run(self, run_id: str) -> dg.DagsterRun:
        """Return a run as Dagster knows it now."""
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def events(self, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
        """Return what Dagster was told of an asset, oldest first."""
        records = self.instance.fetch_materializations(key, limit=1_000).records
        return [record.asset_materialization for record in reversed(records) if record.asset_materialization]

    def hear_daemon(self, *kinds: str, ago_seconds: float = 0) -> None:
        """Have Dagster's daemon say that it is there, as it does every 30 s, or that it was."""
        for kind in kinds:
            self.instance.add_daemon_heartbeat(DaemonHeartbeat(self.adapters.now_ms() / 1000 - ago_seconds, kind, "test", []))

    def checked(self, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
        """Return what Dagster was last told of a check; none where it was told nothing."""
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)
        evaluation: Any = found and found.event and found.event.dagster_event and found.event.dagster_event.event_specific_data
        return evaluation

    @property
    def glob(self) -> str:
        return self.adapters.lake.store.url(f"data/{self.name}/**/*.parquet")

    def files(self, tree: str = "") -> dict[Path, bytes]:
        """Read every file of the lake, or of one of its folders."""
        return {path: path.read_bytes() for path in (self.lake_folder / tree).rglob("*") if path.is_file()}

    @property
    def digests(self) -> dict[OffsetRange, str]:
        return {offsets: manifest.digest for offsets, manifest in self.coverage.manifests.items()}

    def rows(self) -> list[Row]:
        """Read every row a plain glob shows, sorted; a doubled row stands twice. Of a bucket files are listed, not globbed."""
        store = self.adapters.lake.store
        files = [store.url(path) for path in store.list(f"data/{self.name}") if path.endswith(".parquet")]
        if not files:
            return []
        with connect(self.adapters.lake) as connection:
            shown = connection.sql("FROM read_parquet($1)", params=[files if store.is_remote else self.glob])
            return landed_rows(shown.to_arrow_table())

    def assert_proven(self) -> None:
        """Hold the lake against itself, as an audit by another process does."""
        lake = Adapters(self.settings).lake
        for check in (check_tiling, check_completeness, check_published):
            assert check(self.name, lake).violations == ()

    def assert_all_landed_once(self) -> None:
        """Hold what a glob shows against what the producer sent, row by row."""
        assert self.rows() == sorted(self.sent.values(), key=lambda row: row[:2])
        assert not self.pending


def _copy_empty_instance(settings: Settings) -> None:
    """Give a Dagster home that is not there yet a copy of empty databases: making them takes three times as long."""
    empty = settings.home / "empty_dagster"
    if (settings.dagster_home / "dagster.yaml").exists():
        return
    if not empty.exists():
        with open_instance(empty) as instance:
            instance.get_runs()
    shutil.copytree(empty, settings.dagster_home, dirs_exist_ok=True)


def _dotted(configs: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}


def shown_rows(world: World) -> list[tuple[Any, ...]]:
    """Read every row that the lake shows; a doubled row stands twice."""
    _, rows = Duck(Adapters(world.settings).lake, [world.name]).ask(
        f'SELECT "partition", "offset", "key", "value" FROM "{world.name}" ORDER BY "partition", "offset"'
    )
    return rows


def sent_rows(world: World) -> list[tuple[Any, ...]]:
    """Return what the producer had acknowledged, in the same form."""
    return [row[:4] for row in sorted(world.sent.values(), key=lambda row: row[:2])]


def assert_all_is_there_once(world: World) -> None:
    """Hold what the lake shows against what was sent, row by row, and files against their manifests' digests."""
    assert shown_rows(world) == sent_rows(world)
    assert not world.pending
    world.assert_proven()
