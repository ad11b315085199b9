"""The columns of a landed row, in their order. Every schema of landed rows is made of these; none is edited by hand.

What a column is taken from is told in `adapters/spark/spark.py` (`select_raw`), in the same order; and, of a range whose times
Spark cannot say, in `landing/reading.py` (`_raw_row`).
"""

from dataclasses import dataclass
from enum import StrEnum

TIMES_FROM_MS = -2_208_988_800_000  # 1900-01-01: the first moment that a column says
TIMES_TO_MS = (2**63 - 1) // 1000  # the last one that a column of microseconds can hold


class RawType(StrEnum):
    """What a column has, as Delta calls it; headers are a list of structs."""

    STRING = "string"
    INTEGER = "integer"
    LONG = "long"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A column: its name, type and what it is, for a person."""

    name: str
    type: RawType
    text: str


RAW_COLUMNS = (
    RawColumn("topic", RawType.STRING, "Kafka topic name"),
    RawColumn("generation", RawType.INTEGER, "incarnation of the topic: 0, and one more for each time it was recreated"),
    RawColumn("partition", RawType.INTEGER, "Kafka partition number"),
    RawColumn(
        "offset",
        RawType.LONG,
        "offset of the record in its Kafka partition; with generation and partition the identity of a row",
    ),
    RawColumn(
        "timestamp",
        RawType.TIMESTAMP,
        "record timestamp, UTC, to the millisecond as Kafka has it; null before 1900 and beyond the year 294247",
    ),
    RawColumn("timestamp_type", RawType.INTEGER, "0: set by the producer (CreateTime), 1: set by the broker (LogAppendTime)"),
    RawColumn("key", RawType.BINARY, "key bytes as produced, null where there is none"),
    RawColumn("value", RawType.BINARY, "value bytes as produced, null for a tombstone"),
    RawColumn(
        "headers", RawType.HEADERS, "headers in order: list of (key, value), a value may be null; null where there is none"
    ),
)
