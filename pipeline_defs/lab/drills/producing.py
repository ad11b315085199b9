"""What each acks level loses or doubles when a leader dies, before anything is landed.

So that it can be told apart from what landing loses, which must be nothing. Invariant: what is counted is what the
producer was told and what the log of the new leader holds; nothing is inferred.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from ...adapters.kafka.kafka import Kafka
from ...adapters.kafka.producer import Guarantees
from ...adapters.system.processes import wait_for
from ...adapters.testbed.cluster import Cluster

RECORDS = 300
RECORD_BYTES = 100
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Produced:
    """What became of the records 0, 1, 2 ... `sent` - 1: which were acknowledged, and what the log holds, in order.

    With `acks=0` kafka-python calls a record acknowledged that it has written to a socket.
    """

    sent: int
    acknowledged: frozenset[int]
    log: tuple[int, ...]

    @cached_property
    def found(self) -> frozenset[int]:
        """The records that stand in the log, once or more often."""
        return frozenset(self.log)

    @cached_property
    def lost(self) -> frozenset[int]:
        """The records that were acknowledged and are not in the log."""
        return self.acknowledged - self.found

    @cached_property
    def doubled(self) -> frozenset[int]:
        """The records that stand in the log more than once."""
        return frozenset(number for number, times in Counter(self.log).items() if times > 1)


def lose_leader(cluster: Cluster, topic: str, guarantees: Guarantees) -> Produced:
    """Produce numbered records to a new topic while the leader of its only Kafka partition is killed.

    1. The first third is produced in quiet, and each record is on every replica.
    2. The followers stand still (SIGSTOP): what the leader takes now is on its disk alone. One batch may still reach
       them, as the answer to a fetch that they had asked before.
    3. The leader is killed (SIGKILL) with the second third in its log, and the followers go on. They are still in sync
       by the cluster's books, so one of them leads: that is no unclean election.
    4. The last third is produced to the new leader; the old one comes back as a follower and drops what only it had.

    The followers stand still for less than the controllers' session time-out; then nobody is counted out.
    """
    with Kafka(cluster.bootstrap_servers) as kafka:
        kafka.create_topic(topic, 1, replicas=len(cluster.nodes))
    _await(lambda: cluster.read_replicas(topic, 0).in_sync == frozenset(cluster.nodes))
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
        followers = replicas.all - {leader}
        quiet = cluster.log_bytes(leader, topic, 0)
        _await(lambda: all(cluster.log_bytes(node, topic, 0) == quiet for node in followers))
        with cluster.paused(followers):
            _send_to_leader_alone(cluster, leader, topic, guarantees, third, send)
            cluster.kill(leader)
        _await(lambda: cluster.read_replicas(topic, 0).leader in followers)
        send(2 * third, RECORDS)
        with suppress(KafkaError):  # what is not acknowledged is not counted as such: that is the answer
            producer.flush(PATIENCE_SECONDS)
    cluster.start(leader)
    _await(lambda: cluster.read_replicas(topic, 0).in_sync == frozenset(cluster.nodes))
    return Produced(RECORDS, frozenset(acknowledged), read_log(cluster, topic))


def _send_to_leader_alone(
    cluster: Cluster, leader: int, topic: str, guarantees: Guarantees, third: int, send: Callable[[int, int], None]
) -> None:
    """Send the second third, in two batches: the followers may be given the first, never the second.

    With acks=all the leader takes no second batch from a producer before the first is answered.
    """
    before, middle = cluster.log_bytes(leader, topic, 0), third + third // 2
    send(third, middle)
    _await(lambda: cluster.log_bytes(leader, topic, 0) >= before + (middle - third) * RECORD_BYTES)
    send(middle, 2 * third)
    if guarantees.acks != "all":
        _await(lambda: cluster.log_bytes(leader, topic, 0) >= before + third * RECORD_BYTES)


def read_log(cluster: Cluster, topic: str) -> tuple[int, ...]:
    """Read the numbers in the log of the topic's only Kafka partition, in order, as its leader has them."""
    place = TopicPartition(topic, 0)
    numbers: list[int] = []
    with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, enable_auto_commit=False)) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while consumer.position(place) < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}/0 was not read to its end {end} in {PATIENCE_SECONDS} seconds")
            for batch in consumer.poll(timeout_ms=500).values():
                numbers += [int(record.value) for record in batch]
    return tuple(numbers)


def _open_producer(cluster: Cluster, guarantees: Guarantees) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        linger_ms=20,
        request_timeout_ms=10_000,
        delivery_timeout_ms=int(PATIENCE_SECONDS * 1000),
        **guarantees.config(),
    )


def _await(condition: Callable[[], bool]) -> None:
    if not wait_for(condition, PATIENCE_SECONDS, POLL_SECONDS):
        raise AssertionError("what was waited for did not happen")
