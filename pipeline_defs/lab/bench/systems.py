"""The systems that take turns, each as its users would write it, all reading the same topic to its end.

Each is prepared untimed and returns what is timed. Invariant: every one of them that writes puts its Parquet files
below `place.out`, where their rows are counted.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from ...adapters.spark.engine import OWN_DISK
from ...adapters.spark.spark import PARQUET_OPTIONS, SCAN_CONF, kafka_options, select_raw
from ...cli.launching import InProcessRuns
from ...core.errors import RangesFailed
from ...core.landing.scans import Read
from ...core.landing.verdicts import Outcome, Verdict
from ...core.log.cutting import Policy
from ...core.offsets import OffsetRange, TopicRange
from ...core.steps import StepWatcher
from ...landing.attempt import Attempt, Tools
from ...landing.landing import land
from ...orchestration.home.dagster_home import open_instance
from ...resources import Adapters
from ...topics import Topic
from .handwritten import read_and_write
from .rounds import OURS, THROUGH_DAGSTER, Load

ISOLATION_LEVEL: Literal["read_committed"] = "read_committed"
USUAL_TUNING: Mapping[str, str] = {
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": str(16 * 1024 * 1024),
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run happens: the topic, the warm session, a fresh folder; `steps` takes seconds by name."""

    load: Load
    adapters: Adapters
    pyspark: LazyPySparkResource
    out: Path
    steps: dict[str, float] = field(default_factory=dict)

    @property
    def session(self) -> SparkSession:
        """A session of the benchmark's one Spark, started long before, with every setting at its default."""
        return self.adapters.engine(self.pyspark).session({})

    @property
    def topic(self) -> Topic:
        """The topic as a defs.yaml would configure it."""
        policy = Policy(records_per_range=self.load.records_per_range, isolation_level=ISOLATION_LEVEL)
        return Topic(self.load.topic, policy)


def fresh_adapters(adapters: Adapters, out: Path) -> Adapters:
    """Return the same broker and jars, with a lake of its own."""
    return Adapters(replace(adapters.settings, lake=str(out), dagster_home=out / "dagster"))


Timed = Callable[[], None]


def offsetlake(place: Place) -> Timed:
    """Plan and land every range, the protocol from end to end, without Dagster around it."""
    topic, adapters = place.topic, fresh_adapters(place.adapters, place.out)
    adapters.check_lake()
    watch = _stopwatch(place.steps)
    tools = adapters.tools(topic, place.pyspark, watch)
    tools.kafka.read_ids(topic.name)  # connects: a session that is started has a client that is connected

    def timed() -> None:
        plan_all(topic, adapters)
        watch("plan")
        land_pending(topic, adapters, tools)
        adapters.kafka(topic).close()

    return timed


def offsetlake_through_dagster(place: Place) -> Timed:
    """Plan and land every range by Dagster runs in this process: its events, checks and database included."""
    topic, adapters = place.topic, fresh_adapters(place.adapters, place.out)
    instance = open_instance(adapters.settings.dagster_home)
    adapters.kafka(topic).read_ids(topic.name)

    def timed() -> None:
        plan_all(topic, adapters)
        ranges = adapters.lake.coverage(topic.name).pending()
        with instance:
            launched = list(InProcessRuns(topic, adapters, instance).land(ranges, redo=False))
        failures = [each.reason for each in launched if not each.succeeded]
        if failures:
            raise RangesFailed("the benchmark's own Dagster run failed", failures)
        adapters.kafka(topic).close()

    return timed


def bare_spark(place: Place) -> None:
    """Read and write with our options and our cuts, in one Spark job, and nothing else."""
    load = place.load
    marks = place.adapters.kafka().read_watermarks(load.topic, ISOLATION_LEVEL)
    ranges = tuple(TopicRange(load.topic, OffsetRange(0, p, mark.earliest, mark.end)) for p, mark in sorted(marks.items()))
    read = Read(ranges, load.records_per_range)
    options = kafka_options(place.adapters.bootstrap_servers(), read, ISOLATION_LEVEL, group=f"bench-{uuid.uuid4()}")
    session = place.adapters.engine(place.pyspark).session(SCAN_CONF)
    rows = select_raw(session.read.format("kafka").options(**options).load(), 0)
    rows.write.options(**PARQUET_OPTIONS, **OWN_DISK).parquet(str(place.out / "data"))


def spark_no_sink(place: Place) -> None:
    """Read as Spark's users tune it, larger polls and larger fetches, into Spark's `noop`."""
    rows = (
        place.session.read.format("kafka")
        .option("kafka.bootstrap.servers", place.adapters.bootstrap_servers())
        .option("subscribe", place.load.topic)
        .option("includeHeaders", "true")
        .options(**USUAL_TUNING)
        .load()
    )
    rows.write.format("noop").mode("overwrite").save()


def structured_streaming(place: Place) -> None:
    """Stream what is there (`availableNow`) into Parquet, checkpointed, every option at its default."""
    stream_to_parquet(place.session, place.adapters.bootstrap_servers(), place.load.topic, place.out)


def stream_to_parquet(session: SparkSession, bootstrap_servers: str, topic: str, out: Path, **options: str) -> None:
    """Stream what a topic has now into Spark's file sink below a folder, checkpointed beside it."""
    stream = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .options(**options)
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(out / "data"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def hand_written_loop(place: Place) -> None:
    """Consume with confluent-kafka and write with pyarrow, in this one process."""
    group = f"bench-{uuid.uuid4()}"  # each turn reads all of it
    read_and_write(place.adapters.bootstrap_servers(), place.load.topic, place.out / "data", group=group)


def _unprepared(act: Callable[[Place], None]) -> Callable[[Place], Timed]:
    return lambda place: partial(act, place)


SYSTEMS: Mapping[str, Callable[[Place], Timed]] = {
    OURS: offsetlake,
    **{act.__name__: _unprepared(act) for act in (bare_spark, spark_no_sink, structured_streaming, hand_written_loop)},
    THROUGH_DAGSTER: offsetlake_through_dagster,
}
WRITES_NOTHING = {spark_no_sink.__name__}


def _stopwatch(steps: dict[str, float]) -> StepWatcher:
    """Return what adds up the seconds between protocol steps, each under the name of the step that ends it."""
    last: float | None = None

    def lap(name: str, /, **_: object) -> None:
        nonlocal last
        now = time.perf_counter()
        if last is not None:
            steps[name] = steps.get(name, 0.0) + now - last
        last = now

    return lap


def plan_all(topic: Topic, adapters: Adapters) -> None:
    """Plan until there is nothing to decide."""
    planner = adapters.planner(topic, "bench")
    while planner.commit(through_end=True):
        pass


def land_pending(topic: Topic, adapters: Adapters, tools: Tools) -> list[Verdict]:
    """Land all that is planned, by one call of the protocol; raise `RangesFailed` where a range is not landed."""
    keys = [offsets.key for offsets in adapters.lake.coverage(topic.name).pending()]
    verdicts = list(land(topic.name, keys, attempt(), tools))
    red = [each for each in verdicts if each.outcome is not Outcome.LANDED]
    if red:
        raise RangesFailed("the benchmark's own landing failed", [text for each in red for text in each.violations])
    return verdicts


def attempt() -> Attempt:
    """Return a try of the benchmark's own."""
    return Attempt(f"bench-{uuid.uuid4().hex[:8]}", "bench", "bench")
