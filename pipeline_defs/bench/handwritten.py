"""The hand-written loop that this project is measured against: confluent-kafka in, pyarrow out, one process.

Written as well as we can: large batches, columns built in bulk, one file per partition and flush, offsets committed
after the files are closed. It promises less: a crash between the two doubles rows, and holes go unnoticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_RECORDS = 20_000
FLUSH_BYTES = 64 * 1024 * 1024
FLUSH_RECORDS = 200_000
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class _Buffer:
    """Holds the records of one Kafka partition until they are worth a file."""

    messages: list[Any] = field(default_factory=list)
    bytes: int = 0


def read_and_write(bootstrap_servers: str, topic: str, folder: Path) -> int:
    """Reads a topic to the end that it has now, writes Parquet files below `folder`, returns how many rows."""
    from confluent_kafka import Consumer, TopicPartition

    folder.mkdir(parents=True)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"hand-written-{folder}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 262_144,
            "fetch.message.max.bytes": 8 * 1024 * 1024,
        }
    )
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.list_topics(topic).topics[topic].partitions]
        ends = {tp.partition: consumer.get_watermark_offsets(tp) for tp in partitions}
        consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in ends.items()])
        left = {p: high for p, (low, high) in ends.items() if high > low}
        buffers = {p: _Buffer() for p in ends}
        rows = 0
        while left:
            for message in consumer.consume(BATCH_RECORDS, timeout=1.0):
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
                buffer = buffers[message.partition() or 0]
                buffer.messages.append(message)
                buffer.bytes += len(message)
            for partition, buffer in buffers.items():
                if not buffer.messages:
                    continue
                reached = buffer.messages[-1].offset() + 1
                is_last = reached >= ends[partition][1]
                if is_last or buffer.bytes >= FLUSH_BYTES or len(buffer.messages) >= FLUSH_RECORDS:
                    rows += _write(topic, partition, buffer.messages, folder)
                    consumer.commit(offsets=[TopicPartition(topic, partition, reached)], asynchronous=False)
                    buffers[partition] = _Buffer()
                if is_last:
                    left.pop(partition, None)
    finally:
        consumer.close()
    return rows


def _write(topic: str, partition: int, messages: list[Any], folder: Path) -> int:
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
    pq.write_table(table, folder / f"p{partition}-{messages[0].offset():020d}.parquet")
    return count
