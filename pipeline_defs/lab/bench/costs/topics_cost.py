"""The part `topics` of the benchmark: how long records of many topics wait until a glob shows them, and what that costs.

Each number of topics has a world of its own, with a real `dagster dev` at the defaults. A record waits from its
acknowledgement until the first look, one each second, at which its file is there; all that were acknowledged count, those of
the warm-up excepted.
"""

import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from dagster import DagsterRunStatus, RunsFilter

from ....core.log.cutting import Policy
from ....orchestration.home.dagster_home import open_instance
from ....orchestration.home.dagster_server import DagsterServer
from ....settings import Settings
from ....topics import Topic
from ...processes import NotMeasured, wait_until
from ..location import write_location
from ..measurement import Bench, Tell, open_bench
from ..rounds import missed_aims, p95
from ..usage import tree_seconds

COUNTS = (12, 60, 100)
WARM_UP_SECONDS, SECONDS = 90.0, 300.0
POLICY = Policy()
AIMS: Mapping[str, float] = {"p95_wait_seconds": 75.0, "queued_max": 1}
VALUE = b"x" * 200
TOPIC = "bench-topics"
BATCHES_PER_SECOND = 10
RECORDS_PER_BATCH = 2  # of each topic
KAFKA_PARTITIONS = 2
Place = tuple[str, int, int]  # topic, Kafka partition, offset


@dataclass
class _Traffic:
    """What was acknowledged and not seen yet, by record; `waits` are of those that were seen, by topic."""

    names: Sequence[str]
    counts_from: float = math.inf
    acked: dict[Place, float] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    files: dict[Path, float] = field(default_factory=dict)
    unread: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def on_delivery(self, error: object, message: Any) -> None:
        """Note when a record was acknowledged."""
        if error is not None:
            self.failures.append(str(error))
        else:
            self.acked[message.topic(), message.partition(), message.offset()] = time.time()

    def look(self, folder: Path) -> None:
        """Look which files have come, and note when."""
        found = [file for file in folder.rglob("*.parquet") if file not in self.files]
        self.files |= dict.fromkeys(found, time.time())
        self.unread += found

    def read(self) -> None:
        """Note how long the records of these files had waited; in the end, since reading takes from who lands."""
        while self.unread:
            file = self.unread.pop()
            rows = pq.read_table(file, columns=["topic", "partition", "offset"])
            for place in zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True):
                acked_at = self.acked.pop(place, None)
                if acked_at is not None and acked_at >= self.counts_from:
                    self.waits[place[0]].append(self.files[file] - acked_at)


def measure_topics(settings: Settings, rounds: int, tell: Tell) -> tuple[Mapping[str, Any], Sequence[str]]:  # noqa: ARG001
    """Measure each number of topics, in one round; what was started is stopped and deleted."""
    found = []
    for count in COUNTS:
        with open_bench(settings, tell) as bench:
            found.append(measure_count(bench, count, tell))
    missed = [f"{each['topics']} topics: {text}" for each in found for text in missed_aims(each, AIMS)]
    return {"pulse": {"topics": found}}, missed


def measure_count(bench: Bench, count: int, tell: Tell) -> dict[str, Any]:
    """Measure so many topics; return seconds, the longest queue, and the share of the machine's cores that was used."""
    names = [f"{TOPIC}-{number:03d}" for number in range(count)]
    settings, adapters = bench.adapters.settings, bench.adapters
    for name in names:
        adapters.kafka().create_topic(name, KAFKA_PARTITIONS)
    workspace = write_location(bench.folder / "location", settings, *(Topic(name, POLICY) for name in names))
    traffic = _Traffic(names)
    queued_max, data = 0, Path(settings.lake) / "data"
    with (
        open_instance(settings.dagster_home) as instance,
        DagsterServer(bench.folder / "server", settings.dagster_home, workspace) as server,
        _producing(adapters.bootstrap_servers(), traffic),
    ):
        began = time.time()
        traffic.counts_from = began + WARM_UP_SECONDS
        used_before, used_from = None, began
        while (passed := time.time() - began) < WARM_UP_SECONDS + SECONDS:
            time.sleep(1)
            tell(f"{count} topics: {passed:.0f} of {WARM_UP_SECONDS + SECONDS:.0f} s")
            traffic.look(data)
            queued = RunsFilter(statuses=[DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED])
            queued_max = max(queued_max, len(instance.get_run_ids(queued)))
            if used_before is None and passed >= WARM_UP_SECONDS:
                used_before, used_from = tree_seconds(server.pid, bench.jvm_pid), time.time()
        used = tree_seconds(server.pid, bench.jvm_pid) - (used_before or 0.0)  # not broker and producer
        share = used / (time.time() - used_from) / (os.cpu_count() or 1)
        last = time.time()
        tell(f"{count} topics: until all is seen")

        def is_seen() -> bool:
            traffic.look(data)
            traffic.read()
            return not any(acked_at <= last for acked_at in [*traffic.acked.values()])

        wait_until(is_seen, f"{len(traffic.acked):,} records of {count} topics")
    if traffic.failures:
        raise NotMeasured(f"{len(traffic.failures):,} records were not taken by the broker: {traffic.failures[0]}")
    waits = [p95(each) for each in traffic.waits.values()]
    return {
        "topics": count,
        "p95_wait_seconds": round(p95(waits), 2),
        "queued_max": queued_max,
        "cpu_share": round(share, 3),
        "records": sum(map(len, traffic.waits.values())),
        "seconds": SECONDS,
        "max_age_seconds": POLICY.max_age_seconds,
    }


@contextmanager
def _producing(servers: str, traffic: _Traffic) -> Iterator[None]:
    """Produce to all topics, evenly over their Kafka partitions, while the context is open."""
    ended = threading.Event()

    def produce() -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 5, "log_level": 3})
        sent, start = 0, time.monotonic()
        while not ended.is_set():
            for name in traffic.names:
                for number in range(RECORDS_PER_BATCH):
                    partition = (sent * RECORDS_PER_BATCH + number) % KAFKA_PARTITIONS
                    producer.produce(name, value=VALUE, partition=partition, on_delivery=traffic.on_delivery)
            sent += 1
            while (left := start + sent / BATCHES_PER_SECOND - time.monotonic()) > 0 and not ended.is_set():
                producer.poll(min(left, 0.05))
            producer.poll(0)
        producer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
