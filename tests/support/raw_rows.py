"""Landed rows that no Spark has read: by the names of their columns, so that another column touches no test."""

from __future__ import annotations

from datetime import datetime

from pipeline_defs.core.raw_columns import RAW_COLUMNS

# what a decoded row takes over as it is, beside what it makes of key and value
TAKEN_OVER = ["topic", "generation", "partition", "offset", "timestamp", "headers"]


def raw_row(
    place: tuple[str, int, int, int], at: datetime | int, value: bytes | None, key: bytes | None = None
) -> tuple[object, ...]:
    """Return the row of a record at a topic, generation, Kafka partition and offset; what is not said of it is null."""
    told: dict[str, object] = dict(zip(("topic", "generation", "partition", "offset"), place, strict=True))
    told |= {"timestamp": at, "timestamp_type": 0, "key": key, "value": value}
    return tuple(told.get(column.name) for column in RAW_COLUMNS)
