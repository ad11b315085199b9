"""The drill of the producer's side: a leader dies while records are produced, and what is left is landed.

Two rows for each acks level: what the producer lost or doubled before anything was landed, and what landing did to the
log that came of it, which must be nothing. Invariant: what is counted is what the producer was told and what the log of
the new leader holds; nothing is inferred.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kafka import KafkaProducer
from kafka.errors import KafkaError

from ...adapters.kafka.kafka import Kafka
from ...adapters.kafka.operations import Operations
from ...adapters.kafka.producer import Guarantees
from ...adapters.system.jars import resolve_jars
from ...adapters.system.processes import paused
from ...adapters.testbed.cluster import Cluster, run_cluster
from ...core.log.cutting import Policy
from ...settings import Settings
from ...topics import Topic
from ..processes import wait_until
from .arena import Row, compare, name_faults
from .systems import Offsetlake, run_to_end, visible_values

NAME = "lose_leader"
LEVELS = {
    "acks=0": Guarantees("0", enable_idempotence=False),
    "acks=1": Guarantees("1", enable_idempotence=False),
    "acks=all": Guarantees("all", enable_idempotence=False),
    "acks=all, idempotent": Guarantees("all", enable_idempotence=True),
}
RECORDS = 300
RECORD_BYTES = 100
PATIENCE_SECONDS = 60.0


def drill_acks(settings: Settings, folder: Path) -> Iterator[Row]:
    """Run the drill on three brokers of its own, and yield the rows of each acks level."""
    with run_cluster(folder / "cluster", jars=resolve_jars("broker", settings.jars)) as cluster:
        for number, (level, guarantees) in enumerate(LEVELS.items()):
            topic = f"acks-{number}"
            began = time.monotonic()
            produced = lose_leader(cluster, topic, guarantees)
            own = replace(
                settings,
                bootstrap_servers=cluster.bootstrap_servers,
                lake=str(folder / topic / "lake"),
                dagster_home=folder / topic / "dagster",
            )
            system = Offsetlake(own, Topic(topic, Policy(records_per_range=100, max_age_seconds=0)), folder / topic)
            run_to_end(system)
            yield from _judge(system, level, produced, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Produced:
    """What became of the records 0, 1, 2 ...: which were acknowledged, and what the log holds, in order.

    With `acks=0` kafka-python calls a record acknowledged that it has written to a socket.
    """

    acknowledged: frozenset[int]
    log: tuple[int, ...]

    @property
    def lost(self) -> frozenset[int]:
        """The records that were acknowledged and are not in the log."""
        return self.acknowledged - set(self.log)


def _judge(system: Offsetlake, level: str, produced: Produced, seconds: float) -> Iterator[Row]:
    lost, doubled = len(produced.lost), len(produced.log) - len({*produced.log})
    before = {**compare(produced.acknowledged, produced.log), "lost": lost, "doubled": doubled, "holes": 0}
    verdict = name_faults("before landing", lost=lost, doubled=doubled)
    is_proven = True  # lose_leader raises where the leader does not change
    yield Row("kafka_producer", level, NAME, is_proven, **before, verdict=verdict, seconds=round(seconds, 1), note="")
    counts = compare(produced.log, [int(value) for value in visible_values(system.folder)])
    verdict = name_faults("wrong", missing=counts["missing"], doubled=counts["doubled"])
    after = {**counts, "holes": system.books().holes}
    yield Row(system.name, system.policy, f"{NAME}, {level}", is_proven, **after, verdict=verdict, seconds=0.0, note="")


def lose_leader(cluster: Cluster, topic: str, guarantees: Guarantees) -> Produced:
    """Produce numbered records to a new topic while the leader of its only Kafka partition is killed.

    1. The first third is produced in quiet, and each record is on every replica.
    2. A follower stands still (SIGSTOP), so with acks=all nothing is answered; the other, who leads next, takes the first
       batch of the second third and then stands still too. One batch more may reach it, as the answer to a fetch that it
       had asked before; the last one is on the leader's disk alone.
    3. The leader is killed (SIGKILL) with the second third in its log, and the followers go on. They are still in sync
       by the cluster's books, so the next one leads: that is no unclean election.
    4. The last third is produced to the new leader; the old one comes back as a follower and drops what only it had.

    The followers stand still for less than the controllers' session time-out; then nobody is counted out.
    """
    with Kafka(cluster.bootstrap_servers) as kafka:
        kafka.create_topic(topic, 1, replicas=len(cluster.nodes))
    wait_until(lambda: cluster.read_replicas(topic, 0).in_sync == frozenset(cluster.nodes), "a cluster in sync")
    acknowledged: set[int] = set()
    third = RECORDS // 3
    with closing(_open_producer(cluster, guarantees)) as producer:

        def send(first: int, end: int) -> None:
            for number in range(first, end):
                value = (b"%d" % number).ljust(RECORD_BYTES)
                future = producer.send(topic, value, partition=0)
                future.add_callback(lambda _, number=number: acknowledged.add(number))

        send(0, third)
        producer.flush(PATIENCE_SECONDS)
        replicas = cluster.read_replicas(topic, 0)
        leader = replicas.leader
        if leader is None:
            raise TimeoutError(f"{topic}/0 has no leader in quiet")
        following, *others = followers = [node for node in replicas.all if node != leader]
        quiet = cluster.log_bytes(leader, topic, 0)
        wait_until(lambda: all(cluster.log_bytes(node, topic, 0) == quiet for node in followers), "followers that have it all")
        is_answered = guarantees.acks != "all"  # else the leader takes no second request before the first is answered

        def send_to(nodes: Sequence[int], first: int, end: int) -> None:
            send(first, end)
            least = quiet + ((end - third) * RECORD_BYTES if is_answered else 1)
            wait_until(lambda: all(cluster.log_bytes(node, topic, 0) >= least for node in nodes), f"{first} to {end} in a log")

        with paused(cluster.broker(node).pid for node in others):
            send_to([leader, following], third, 4 * third // 3)
            with paused([cluster.broker(following).pid]):
                send_to([leader], 4 * third // 3, 5 * third // 3)
                send_to([leader], 5 * third // 3, 2 * third)
                cluster.kill(leader)
        wait_until(lambda: cluster.read_replicas(topic, 0).leader in followers, "another leader")
        send(2 * third, RECORDS)
        with suppress(KafkaError):  # what is not acknowledged is not counted as such: that is the answer
            producer.flush(PATIENCE_SECONDS)
    cluster.start(leader)
    wait_until(lambda: cluster.read_replicas(topic, 0).in_sync == frozenset(cluster.nodes), "a cluster in sync")
    log = Operations(cluster.bootstrap_servers).read_records(topic, 0)
    return Produced(frozenset(acknowledged), tuple(int(record.value) for record in log))


def _open_producer(cluster: Cluster, guarantees: Guarantees) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        linger_ms=20,
        request_timeout_ms=10_000,
        delivery_timeout_ms=int(PATIENCE_SECONDS * 1000),
        **guarantees.config(),
    )
