"""How fast a backlog is landed that no grid has: ranges of all lengths of three Kafka partitions, through `land`."""

import random
import shutil
from dataclasses import replace
from functools import partial

from ....core.log.cutting import Policy
from ....resources import Edges
from ....topics import Topic
from ...processes import NotMeasured
from ..measurement import SEED, Bench, Tell, check_rows, count_rows, produce, repeat
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
    bench.edges.kafka().create_topic(TOPIC, KAFKA_PARTITIONS)
    backlog = _plan(fresh_edges(bench.edges, bench.folder / "backlog"), topic)

    def land(number: int) -> float:
        folder = bench.folder / f"backlog-{number}"
        shutil.copytree(bench.folder / "backlog", folder)
        edges = fresh_edges(bench.edges, folder)
        edges.check_lake()
        tools = edges.tools(topic, bench.pyspark)
        tools.kafka.read_ids(TOPIC)  # connects
        seconds = timed(partial(land_pending, topic, edges, tools))
        edges.kafka(topic).close()
        check_rows("landing", count_rows(folder / "data"), backlog)
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


def _plan(edges: Edges, topic: Topic) -> Load:
    """Produce and plan by turns, so that each turn is a range of another length per Kafka partition; return all of it."""
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    backlog = Load(topic.name, VALUE_BYTES, 0, RECORDS[1], KAFKA_PARTITIONS)
    for _ in range(RANGES // KAFKA_PARTITIONS):
        turn = replace(backlog, records=chance.randint(*RECORDS) * KAFKA_PARTITIONS)
        produce(edges.bootstrap_servers(), turn)
        backlog = replace(backlog, records=backlog.records + turn.records)
        edges.planner(topic, "bench").commit(through_end=True)
    found = edges.lake.coverage(topic.name).pending()
    if len(found) != RANGES or sum(map(len, found)) != backlog.records:
        raise NotMeasured(f"{len(found)} ranges of {topic.name} are planned, and {RANGES} were to be")
    return backlog
