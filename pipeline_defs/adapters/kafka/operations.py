"""What operators and producers do to a topic, for drills and tests: never a part of landing.

Invariant: what is returned as sent was acknowledged by all replicas.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from .access import OPEN, Access

Sent = tuple[int, int, int]
"""Kafka partition, offset, timestamp in ms."""


class Operations:
    """What owners do to the topics of one cluster: delete, alter and fill them."""

    def __init__(self, bootstrap_servers: str, access: Access = OPEN) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._entry = access.kafka_python()

    def admin(self) -> KafkaAdminClient:
        """Open an admin client."""
        return KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, **self._entry)

    def producer(self, **config: Any) -> KafkaProducer:
        """Open a producer that is acknowledged by all replicas."""
        return KafkaProducer(bootstrap_servers=self.bootstrap_servers, acks="all", linger_ms=20, **self._entry, **config)

    def begin_transaction(self, transactional_id: str, **config: Any) -> KafkaProducer:
        """Open a producer and begin a transaction, which the caller ends."""
        producer = self.producer(transactional_id=transactional_id, **config)
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all its records."""
        with self.admin() as admin:
            admin.delete_topics([topic])

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of a topic's Kafka partitions to `total`."""
        with self.admin() as admin:
            admin.create_partitions({topic: total})
            admin.wait_for_topics([topic])

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Have the broker delete the records of a Kafka partition before an offset, as retention would."""
        with self.admin() as admin:
            admin.delete_records({TopicPartition(topic, partition): before})

    def alter_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        """Change a topic's configuration."""
        with self.admin() as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))])

    def delete_group(self, group: str) -> None:
        """Delete a consumer group with its offsets, if there is one."""
        with self.admin() as admin:
            if group in {found["group_id"] for found in admin.list_groups()}:
                admin.delete_groups([group])

    def read_records(self, topic: str, partition: int) -> list[Any]:
        """Read all records of a Kafka partition that a plain consumer gets now, in order."""
        place = TopicPartition(topic, partition)
        with KafkaConsumer(
            bootstrap_servers=self.bootstrap_servers, isolation_level="read_committed", enable_auto_commit=False, **self._entry
        ) as consumer:
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end = consumer.end_offsets([place])[place]
            records: list[Any] = []
            while consumer.position(place) < end:
                records += consumer.poll(1000).get(place, [])
            return records

    def send(self, topic: str, records: Iterable[Mapping[str, Any]], producer: KafkaProducer | None = None) -> list[Sent]:
        """Produce records (partition, key, value, headers, timestamp_ms); return where each one is."""
        client = producer or self.producer()
        futures = [client.send(topic, **record) for record in records]
        client.flush()
        found = [future.get(30) for future in futures]
        if producer is None:
            client.close()
        return [(meta.partition, meta.offset, meta.timestamp) for meta in found]
