"""What open transactions hold back of a topic, in words and as documents: of which producer, since when, how much.

What the broker says is `edges.kafka_transactions`'. Invariant: a topic that is read without regard to transactions is
held back by none.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .edges.kafka_transactions import OpenTransaction
from .moments import duration_text, time_text
from .resources import Edges
from .topics import Topic


def read_holding(topic: Topic, edges: Edges) -> list[OpenTransaction]:
    """Reads the transactions that hold a topic back; the broker is asked for them only where something is held back."""
    if topic.policy.isolation_level != "read_committed":
        return []
    return edges.kafka(topic).read_open_transactions(topic.name, edges.now_ms())


def open_seconds(transaction: OpenTransaction, now_ms: int) -> float:
    """Is for how long a transaction is open, 0 where nothing tells."""
    started = now_ms if transaction.started_at_ms is None else transaction.started_at_ms
    return max(0.0, (now_ms - started) / 1000)


def holding_text(topic: Topic, transaction: OpenTransaction, now_ms: int) -> str:
    """Is a transaction in one line: what it holds back, whose it is, since when, and what to do where it hangs."""
    place = f"{topic.name}/{transaction.partition}"
    what = (
        f"{place} is held back at offset {transaction.first_offset} by an open transaction of producer "
        f"{transaction.producer_id} ({transaction.transactional_id or 'no transactional id'}), open for "
        f"{duration_text(open_seconds(transaction, now_ms))} since {time_text(transaction.started_at_ms)}: "
        f"{transaction.held_offsets} offsets wait"
    )
    if transaction.hanging is None:
        return f"{what}; what follows is planned when it ends"
    return (
        f"{what}; it hangs: {transaction.hanging}, so nobody ends it; abort it: kafka-transactions.sh abort --topic "
        f"{topic.name} --partition {transaction.partition} --start-offset {transaction.first_offset}"
    )


def holding_row(topic: Topic, transaction: OpenTransaction, now_ms: int) -> dict[str, Any]:
    """Is a transaction as a document, in words too."""
    text = holding_text(topic, transaction, now_ms)
    return {**asdict(transaction), "open_seconds": open_seconds(transaction, now_ms), "text": text}
