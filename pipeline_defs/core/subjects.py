"""How a Schema Registry's subjects are named: Confluent's three strategies, or a name that a person gives."""

from __future__ import annotations

TOPIC_NAME, RECORD_NAME, TOPIC_RECORD_NAME = "topic_name", "record_name", "topic_record_name"
BY_RECORD = frozenset({RECORD_NAME, TOPIC_RECORD_NAME})


def name_subject(subject: str | None, topic: str, column: str, record: str = "") -> str:
    """Is the subject of a topic's keys or values (`column`); `record` is needed where the strategy names it.

    | `subject` in defs.yaml | the subject of the values of `orders` |
    |---|---|
    | nothing, or `topic_name` | `orders-value` |
    | `record_name` | the record's full name, `com.acme.Order` |
    | `topic_record_name` | `orders-com.acme.Order` |
    | anything else | what is written |
    """
    match subject:
        case None | "topic_name":
            return f"{topic}-{column}"
        case "record_name":
            return record
        case "topic_record_name":
            return f"{topic}-{record}"
        case _:
            return subject
