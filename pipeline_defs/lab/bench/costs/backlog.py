"""How fast a backlog is landed that no grid has: ranges of all lengths of three Kafka partitions, through `land`."""

import random
import shutil
from dataclasses import replace
from functools import partial

from ....core.log.cutting import Policy
from ....resources import Adapters
from ....topics import Topic
from ...processes import NotMeasured
from ..measurement import SEED, Bench, Tell, check_rows, count_rows, produce, repeat
from ..rounds import Load, spread
from ..systems import fresh_adapters, land_pending
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
    bench.adapters.kafka().create_topic(TOPIC, KAFKA_PARTITIONS)
    backlog = _plan(fresh_adapters(bench.adapters, bench.folder / "backlog"), topic)

    def land(number: int) -> float:
        folder = bench.folder / f"backlog-{number}"
        shutil.copytree(bench.folder / "backlog", folder)
        adapters = fresh_adapters(bench.adapters, folder)
        adapters.check_lake()
        tools = adapters.tools(topic, bench.pyspark)
        tools.kafka.read_ids(TOPIC)  # connects
        seconds = timed(partial(land_pending, topic, adapters, tools))
        adapters.kafka(topic).close()
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


def _plan(adapters: Adapters, topic: Topic) -> Load:
    """Produce and plan by turns, so that each turn is a range of another length per Kafka partition; return all of it."""
    chance = random.Random(SEED)  # noqa: S311 (no secret)
    backlog = Load(topic.name, VALUE_BYTES, 0, RECORDS[1], KAFKA_PARTITIONS)
    for _ in range(RANGES // KAFKA_PARTITIONS):
        turn = replace(backlog, records=chance.randint(*RECORDS) * KAFKA_PARTITIONS)
        produce(adapters.bootstrap_servers(), turn)
        backlog = replace(backlog, records=backlog.records + turn.records)
        adapters.planner(topic, "bench").commit(through_end=True)
    found = adapters.lake.coverage(topic.name).pending()
    if len(found) != RANGES or sum(map(len, found)) != backlog.records:
        raise NotMeasured(f"{len(found)} ranges of {topic.name} are planned, and {RANGES} were to be")
    return backlog
