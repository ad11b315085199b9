"""The columns of a landed row, in their order. Every schema of landed rows is made of these; none is edited by hand.

`select_raw` in `adapters/spark/spark.py` computes their values; for a range with times that Spark cannot represent,
`_raw_row` in `landing/reading.py` does. A new column goes last: older tables are recognised by how many columns they have.
"""

from dataclasses import dataclass
from enum import StrEnum

TIMES_FROM_MS = -2_208_988_800_000  # 1900-01-01: the first moment that is not null
TIMES_TO_MS = (2**63 - 1) // 1000  # the last one that a column of microseconds can hold


class RawType(StrEnum):
    """A column's type, as Delta calls it; headers are a list of structs."""

    STRING = "string"
    INTEGER = "integer"
    LONG = "long"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A column: its name, type and description; and whether files have a dictionary and statistics of it."""

    name: str
    type: RawType
    description: str
    has_dictionary: bool = False  # saves space where there are few distinct values, and costs time elsewhere
    has_statistics: bool = True  # of no use to readers where values have no meaningful order


RAW_COLUMNS = (
    RawColumn("topic", RawType.STRING, "Kafka topic name", has_dictionary=True, has_statistics=False),
    RawColumn(
        "generation",
        RawType.INTEGER,
        "incarnation of the topic: 0, and one more for each time it was recreated",
        has_dictionary=True,
    ),
    RawColumn("partition", RawType.INTEGER, "Kafka partition number", has_dictionary=True),
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
    RawColumn(
        "timestamp_type",
        RawType.INTEGER,
        "0: set by the producer (CreateTime), 1: set by the broker (LogAppendTime)",
        has_dictionary=True,
    ),
    RawColumn("key", RawType.BINARY, "key bytes as produced, null where there is none", has_statistics=False),
    RawColumn("value", RawType.BINARY, "value bytes as produced, null for a tombstone", has_statistics=False),
    RawColumn(
        "headers", RawType.HEADERS, "headers in order: list of (key, value), a value may be null; null where there is none"
    ),
)
