"""The hand-written loop that this project is measured against: confluent-kafka in, pyarrow out, one process.

Written as well as we can: large batches, columns built in bulk, one file per partition and flush under a unique name, as
Spark and pyarrow's own writers name them, offsets committed after the files are closed. It promises less: a crash between
the two doubles rows, and holes go unnoticed; the drills show how often.
"""

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...core.steps import StepWatcher, no_step

BATCH_RECORDS = 20_000
FLUSH_BYTES = 64 * 1024 * 1024
FLUSH_RECORDS = 200_000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class _Buffer:
    """Holds the records of one Kafka partition until they are worth a file."""

    messages: list[Any] = field(default_factory=list)
    bytes: int = 0


def read_and_write(bootstrap_servers: str, topic: str, folder: Path, *, group: str, on_step: StepWatcher = no_step) -> None:
    """Read on from the offsets that its group has committed to the end that the topic has now.

    `on_step` is told when a file is `written`, and when its offsets are `committed`.
    """
    from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition

    folder.mkdir(parents=True, exist_ok=True)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 262_144,
            "fetch.message.max.bytes": 8 * 1024 * 1024,
        }
    )
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.list_topics(topic).topics[topic].partitions]
        starts = {tp.partition: tp.offset for tp in consumer.committed(partitions, timeout=30)}
        lows = {tp.partition: consumer.get_watermark_offsets(tp)[0] for tp in partitions}
        begins = {p: lows[p] if at == OFFSET_INVALID else at for p, at in starts.items()}
        consumer.assign([TopicPartition(topic, p, at) for p, at in begins.items()])
        left = set(begins)
        buffers = {p: _Buffer() for p in begins}
        while left:
            for message in consumer.consume(BATCH_RECORDS, timeout=1.0):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    left.discard(message.partition())
                    continue
                if error is not None:
                    raise RuntimeError(str(error))
                buffer = buffers[message.partition() or 0]
                buffer.messages.append(message)
                buffer.bytes += len(message)
            for partition, buffer in buffers.items():
                if not buffer.messages:
                    continue
                is_full = buffer.bytes >= FLUSH_BYTES or len(buffer.messages) >= FLUSH_RECORDS
                if is_full or partition not in left:
                    _write(topic, partition, buffer.messages, folder)
                    on_step("written")
                    reached = buffer.messages[-1].offset() + 1
                    consumer.commit(offsets=[TopicPartition(topic, partition, reached)], asynchronous=False)
                    on_step("committed")
                    buffers[partition] = _Buffer()
    finally:
        consumer.close()


def _write(topic: str, partition: int, messages: list[Any], folder: Path) -> None:
    count = len(messages)
    timestamps = [message.timestamp() for message in messages]
    table = pa.table(
        {
            "topic": pa.array([topic] * count, pa.string()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": pa.array([stamp for _, stamp in timestamps], pa.timestamp("ms", "UTC")),
            "timestamp_type": pa.array([kind for kind, _ in timestamps], pa.int32()),
            "key": pa.array([message.key() for message in messages], pa.binary()),
            "value": pa.array([message.value() for message in messages], pa.binary()),
            "headers": pa.array([message.headers() for message in messages], _HEADERS),
        }
    )
    pq.write_table(table, folder / f"p{partition}-{uuid.uuid4()}.parquet")
