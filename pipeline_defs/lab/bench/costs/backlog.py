"""How fast a backlog is landed that no grid has: ranges of all lengths of three Kafka partitions, through `land`."""

import random
import shutil
from functools import partial
from pathlib import Path

from ....core.log.planning import Policy
from ....resources import Edges
from ....topics import Topic
from ...processes import NotMeasured
from ..measurement import SEED, Bench, Tell, count_rows, produce, repeat
from ..rounds import Load, spread
from ..systems import fresh_edges, land_pending
from ..usage import timed

TOPIC = "bench-backlog"
KAFKA_PARTITIONS = 3
RANGES = 300
VALUE_BYTES = 100
RECORDS = (40, 160)  # of a range, at least and at most


def measure_backlog(bench: Bench, rounds: int, tell: Tell) -> dict[str, object]:
    """Plan a backlog once and land it `rounds` times, each in a lake of its own; the first time counts nowhere."""
    topic = Topic(TOPIC, Policy(max_age_seconds=0))
    tell("backlog: producing and planning")
    planned = fresh_edges(bench.edges, bench.folder / "backlog")
    bench.edges.kafka().create_topic(TOPIC, KAFKA_PARTITIONS)
    records = _plan(planned, topic)

    def land(number: int) -> float:
        folder = bench.folder / f"backlog-{number}"
        shutil.copytree(bench.folder / "backlog", folder)
        seconds = _land(fresh_edges(bench.edges, folder), bench, topic, records)
        shutil.rmtree(folder)
        return seconds

    seconds = repeat(land, "backlog", rounds, tell)[1:]
    return {
        "measured": (
            f"{RANGES} ranges of {RECORDS[0]} to {RECORDS[1]} records of {VALUE_BYTES} B in {KAFKA_PARTITIONS} Kafka "
            "partitions, in random order of length, landed by one call of the protocol without Dagster around it"
        ),
        "ranges_per_second": spread([RANGES / each for each in seconds]),
        "seconds": spread(seconds),
    }


def _plan(edges: Edges, topic: Topic) -> int:
    """Produce and plan by turns, so that each turn is a range of another length per Kafka partition; return the records."""
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    produced = 0
    for _ in range(RANGES // KAFKA_PARTITIONS):
        each = chance.randint(*RECORDS)
        load = Load(VALUE_BYTES, each * KAFKA_PARTITIONS, each, KAFKA_PARTITIONS)
        produce(edges.bootstrap_servers(), topic.name, load)
        produced += load.records
        edges.planner(topic, "bench").commit(through_end=True)
    found = edges.lake.coverage(topic.name).pending()
    if len(found) != RANGES or sum(map(len, found)) != produced:
        raise NotMeasured(f"{len(found)} ranges of {topic.name} are planned, and {RANGES} were to be")
    return produced


def _land(edges: Edges, bench: Bench, topic: Topic, records: int) -> float:
    edges.check_lake()
    tools = edges.tools(topic, bench.pyspark)
    tools.kafka.read_ids(topic.name)  # connects
    seconds = timed(partial(land_pending, topic, edges, tools))
    edges.kafka(topic).close()
    rows = count_rows(Path(edges.settings.lake) / "data")
    if rows != records:
        raise NotMeasured(f"{rows:,} rows of {records:,} records of {topic.name} are landed")
    return seconds
